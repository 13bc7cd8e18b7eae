"""Run scenarios in a process of its own, since it forks: `driver.py FOLDER NAME…` prints what was seen as JSON."""

import json
import sys
from pathlib import Path

from scenarios import SCENARIOS

if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(SCENARIOS)
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(SCENARIOS[name](folder / name)))
