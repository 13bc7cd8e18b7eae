"""Where the `dpsrm` command starts, and the one place where errors become exit codes."""

from __future__ import annotations

import sys

from dpsrm.core.errors import DpsrmError, need_extra, visible


def main() -> None:
    """Run the command line; the project's own errors are one line on stderr and exit code 2."""
    try:
        for package in ("typer", "rich"):
            need_extra(package, extra="cli")
        from dpsrm.cli.commands import app

        app(args=_quiet_first(sys.argv[1:]), prog_name="dpsrm")
    except DpsrmError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _fail("this command needs PyTorch (verify, account, calibrate and budget do not): pip install torch")


def _quiet_first(arguments: list[str]) -> list[str]:
    """--quiet may stand anywhere; it belongs to all commands.

    >>> _quiet_first(["train", "--quiet", "--seed", "1"])
    ['--quiet', 'train', '--seed', '1']
    """
    quiet = [word for word in arguments if word == "--quiet"]
    return [*quiet[:1], *(word for word in arguments if word != "--quiet")]


def _fail(message: str) -> None:
    """One line on stderr and exit code 2."""
    sys.stderr.write("\n".join(map(visible, f"dpsrm: {message}".split("\n"))) + "\n")
    sys.exit(2)
