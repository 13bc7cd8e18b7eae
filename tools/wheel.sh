#!/usr/bin/env bash
# Build the wheel, install it into two empty environments (core alone; with [cli]), and try what a user would try.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$work/dist" .
wheel=$(ls "$work"/dist/dpsrm-*.whl)
"$python" - "$work/visits.csv" <<'PY'
import csv, random, sys
rng = random.Random(0)
with open(sys.argv[1], "w", newline="") as file:
    rows = [[rng.randint(18, 90), rng.choice(["nurse", "clerk"]), rng.choice(["yes", "no"])] for _ in range(500)]
    csv.writer(file).writerows([["age", "job", "ill"], *rows])
PY

environment() {  # NAME REQUIREMENT
  "$python" -m venv "$work/$1"
  "$work/$1/bin/python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt torch
  "$work/$1/bin/python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt "$2"
}

cd "$root"
environment core "$wheel"
cd "$work"
if core/bin/dpsrm --version 2>message; then echo "wheel: dpsrm should need [cli]"; exit 1; fi
grep -q "pip install 'dpsrm\[cli\]'" message
core/bin/python - <<'PY'
import pathlib, dpsrm, torch
assert "site-packages" in dpsrm.__file__
x = torch.randn(200, 3)
settings = dpsrm.Settings(privacy=dpsrm.Privacy(epsilon=2.0, delta=1e-4), training=dpsrm.Training(batch=20, steps=5))
run = dpsrm.train(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none"), (x, (x[:, 0] > 0).long()), settings, out="core-run")
assert run.epsilon <= 2 and dpsrm.verify("core-run").ok and pathlib.Path("core-run/report.html").stat().st_size > 10_000
PY

cd "$root"
environment full "$wheel[cli]"
cd "$work"
full/bin/dpsrm account --n 50000 --batch 256 --steps 2000 --noise 1.0 --delta 1e-5
full/bin/dpsrm --quiet train --data visits.csv --target ill --epsilon 1 --delta 1e-5 --out run
full/bin/dpsrm --quiet verify run
full/bin/dpsrm --quiet predict run --data visits.csv --out predictions.csv
full/bin/dpsrm --quiet report run
test "$(wc -l <predictions.csv)" = 501
echo "wheel: built, installed and tried, with and without [cli]"
