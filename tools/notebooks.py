"""Run every notebook from its first cell to its last; each must end within 60 seconds of processor time.

python tools/notebooks.py [NAME...]
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
MOST = 60.0
"""Processor seconds that a notebook may take."""


def run(path: Path) -> float:
    """Execute in an empty folder; the processor seconds it took. A cell that fails raises."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    empty = all(not cell.get("outputs") for cell in notebook.cells)
    if not empty:
        raise SystemExit(f"{path.name} holds outputs: clear them, so that only the code is kept")
    before = _seconds()
    with tempfile.TemporaryDirectory() as work:
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": work}}).execute()
    return _seconds() - before


def _seconds() -> float:
    """Processor seconds of all processes that ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run all, or those named."""
    source = str(Path(__file__).resolve().parents[1] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("MPLBACKEND", "agg")
    wanted = [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb"))
    slow = False
    for path in wanted:
        seconds = run(path)
        slow |= seconds > MOST
        sys.stdout.write(f"{path.name}: {seconds:.0f} s of processor time\n")
    if slow:
        raise SystemExit(f"a notebook may take {MOST:g} s of processor time")


if __name__ == "__main__":
    main()
