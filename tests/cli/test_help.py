"""Every command's help has an example that is really its own; --quiet, completion, and what to do next."""

import re
import sys

import pytest
import typer

from dpsrm.cli.commands import app
from dpsrm.cli.show import err, going_on


def commands(group=None, path=()):
    """Every command and its words."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_with_options_that_exist(path):
    command = COMMANDS[path]
    (example,) = re.findall(r"Example: (.*)", command.help)
    assert example.startswith("dpsrm " + " ".join(path)), example
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert set(re.findall(r"--[a-z-]+", example)) <= known


def test_extras_keep_their_brackets(dpsrm):
    words = " ".join(dpsrm("bench", "gradients", "--help").stdout.split())
    assert "(pip install '.[compare]')" in words


def test_reproduce_lists_the_problems_that_it_knows(dpsrm):
    refused = dpsrm("reproduce", "nothing")
    assert refused.code == 2
    known = refused.stderr.partition("must be one of ")[2].partition(";")[0].split(", ")
    (problem,) = (each for each in COMMANDS["reproduce",].params if each.name == "problem")
    assert {"a9a", "features-cifar10", "features", "rates", "accountants", "does-it-help"} <= set(known)
    assert set(re.findall(r"[a-z][a-z0-9-]+", problem.help)) - {"these", "three"} == set(known)


def test_the_example_of_a_setting_leaves_the_rest_to_be_chosen(dpsrm):
    """training.batch=500 alone would change method and schedule, too."""
    assert "model.kind=mlp" in " ".join(dpsrm("train", "--help").stdout.split())


@pytest.mark.parametrize("place", [0, 2, 4])
def test_quiet_may_stand_anywhere(dpsrm, place):
    full = ["calibrate", "--n", "100", "--batch", "10", "--steps", "5", "--epsilon", "1", "--delta", "1e-3"]
    loud = dpsrm(*full)
    assert "Next: train with it" in loud.stderr
    quiet = dpsrm(*full[:place], "--quiet", *full[place:])
    assert (quiet.code, quiet.stderr, quiet.stdout) == (0, "", loud.stdout)
    err.quiet = False


def test_completion_can_be_installed(dpsrm):
    assert "--install-completion" in dpsrm("--help").stdout


def test_ctrl_c_says_how_to_go_on(capsys):
    with pytest.raises(KeyboardInterrupt), going_on("the same command goes on"):
        raise KeyboardInterrupt
    assert "interrupted: the same command goes on" in capsys.readouterr().err


def test_plain_output_where_there_is_no_terminal(dpsrm):
    assert not sys.stdout.isatty()
    assert "\x1b" not in dpsrm("methods").stdout
