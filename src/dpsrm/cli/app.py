"""The command line: thin commands over the library, and one place where errors become exit codes.

Commands import torch (two seconds) inside their functions, so that `dpsrm account` and `--help` answer at once.
"""

from __future__ import annotations

import sys

import typer

from dpsrm.cli.account import account, calibrate
from dpsrm.cli.bench import bench
from dpsrm.cli.budget import budget
from dpsrm.cli.demo import demo
from dpsrm.cli.methods import methods
from dpsrm.cli.plan import plan
from dpsrm.cli.pretrain import pretrain
from dpsrm.cli.reproduce import reproduce
from dpsrm.cli.train import train
from dpsrm.cli.verify import verify
from dpsrm.core.errors import DpsrmError

app = typer.Typer(
    help="Train models with differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (demo, train, methods, plan, account, calibrate, verify, pretrain, reproduce):
    app.command()(command)
app.add_typer(budget, name="budget")
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line; the project's own errors are one line on stderr and exit code 2."""
    try:
        app()
    except DpsrmError as error:
        typer.echo(f"dpsrm: {error}", err=True)
        sys.exit(2)
