"""Coverage-guided fuzzing of the readers with atheris (not a dependency: pip install atheris).

    python fuzz/parsers.py libsvm -max_total_time=60
    python fuzz/parsers.py csv|config|ledger|budget|checkpoint|keys -max_total_time=60

Anything but the reader's result or one of the project's own errors is a crash, and the input is written to a file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dpsrm", "json", "csv", "tomllib"]):
    from dpsrm.accounting.budget_file import read_budget
    from dpsrm.core.errors import DpsrmError
    from dpsrm.core.files import read_toml
    from dpsrm.core.secret import Streams
    from dpsrm.data.libsvm import read_libsvm
    from dpsrm.data.tables import read_csv
    from dpsrm.runs.folder import read_keys
    from dpsrm.runs.ledger import read_ledger
    from dpsrm.training import config_from
    from dpsrm.training.checkpoint import read_checkpoint

_FILE = Path(tempfile.mkdtemp()) / "input"
_STREAMS = Streams.seeded(5)


def _from_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of paths as a reader of bytes."""

    def call(raw: bytes) -> object:
        _FILE.write_bytes(raw)
        _FILE.chmod(0o600)
        return read(_FILE)

    return call


TARGETS: dict[str, Callable[[bytes], object]] = {
    "libsvm": read_libsvm,
    "csv": read_csv,
    "config": _from_file(lambda path: config_from(read_toml(path))),
    "ledger": _from_file(lambda path: read_ledger(path, torn=True)),
    "budget": _from_file(read_budget),
    "checkpoint": _from_file(lambda path: read_checkpoint(path, _STREAMS, parameters=4)),
    "keys": _from_file(read_keys),
}


def main() -> None:
    """Fuzz the reader named first on the command line; the rest goes to libFuzzer."""
    read = TARGETS[sys.argv.pop(1)]

    def one(raw: bytes) -> None:
        try:
            read(raw)
        except DpsrmError:
            return

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
