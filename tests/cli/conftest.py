"""Run the command line inside the test's own process, as `main` would run it."""

import json
import sys
from dataclasses import dataclass

import pytest

from dpsrm.cli.app import main


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def dpsrm(capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpsrm", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def answer(dpsrm):
    """The JSON that a command prints, which must succeed."""

    def ask(*arguments):
        result = dpsrm(*arguments, "--json")
        assert result.code == 0, result.stderr
        return json.loads(result.stdout)

    return ask
