"""All commands under one name.

Commands import torch (two seconds) inside their functions, so that `dpsrm account` and `--help` answer at once, and
`verify`, `account`, `calibrate` and `budget` where torch is not installed.
"""

from __future__ import annotations

import typer

from dpsrm.cli.account import account, calibrate
from dpsrm.cli.audit import audit
from dpsrm.cli.bench import bench
from dpsrm.cli.budget import budget
from dpsrm.cli.compare import compare
from dpsrm.cli.demo import demo
from dpsrm.cli.methods import methods
from dpsrm.cli.plan import plan
from dpsrm.cli.predict import predict
from dpsrm.cli.pretrain import pretrain
from dpsrm.cli.prove import prove
from dpsrm.cli.report import report
from dpsrm.cli.reproduce import reproduce
from dpsrm.cli.show import options
from dpsrm.cli.train import train
from dpsrm.cli.verify import verify

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.callback()(options)
_RUNS = demo, train, predict, compare, report, verify
for command in (*_RUNS, methods, plan, account, calibrate, prove, audit, pretrain, reproduce):
    app.command()(command)
app.add_typer(budget, name="budget")
app.add_typer(bench, name="bench")
