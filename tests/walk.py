"""Which modules of the package a command passes, in order: those in which a function is called, imports apart.

    python tests/walk.py train --data x.csv --target y --epsilon 1 --delta 1e-5 --out run

The command's own output comes as ever; the last line on stderr is a JSON object with `modules` (file → functions
called, in the order of the first call) and `changes` (how often control went from one of the files to another).
"""

import json
import sys
import threading
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "dpsrm"


class Walk:
    """A profiler's hook that notes the package's functions as they are called."""

    def __init__(self):
        self.modules = {}
        self.changes = 0
        self._last = None

    def __call__(self, frame, event, _argument):
        """Note a call, unless it is part of an import: a decorator, a table that is built, a class that is made."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        file, name = code.co_filename, code.co_qualname
        known = name in self.modules.get(file, ())
        if not known and self._importing(frame):
            return
        self.modules.setdefault(file, {}).setdefault(name)
        self.changes += file != self._last
        self._last = file

    @staticmethod
    def _importing(frame):
        """Whether one of the package's files is being loaded further up."""
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(PACKAGE)):
                return True
            frame = frame.f_back
        return False

    def to_json(self):
        """What was seen, with the files named from the package on."""
        names = {str(Path(file).relative_to(PACKAGE)): list(found) for file, found in self.modules.items()}
        return {"modules": names, "changes": self.changes}


def main():
    """Run the command that the arguments name, and tell its walk."""
    from dpsrm.cli.app import main as command

    walk = Walk()
    sys.argv[0] = "dpsrm"
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        command()
    finally:
        sys.setprofile(None)
        sys.stderr.write("\n" + json.dumps(walk.to_json()) + "\n")


if __name__ == "__main__":
    main()
