"""The benchmark of one's own loop runs at its smallest size and answers in one object."""

import importlib.util

import pytest


def test_loop(answer):
    body = answer("bench", "loop", "--records", 40, "--batch", 4, "--batches", 1, "--rounds", 2)
    assert set(body["ms_per_batch"]) >= {"sgd", "srm"}
    if importlib.util.find_spec("opacus") is None:
        assert "opacus" in body["failures"]
    else:
        assert body["failures"] == {}
        assert all(ratio > 0 for ratio in body["ratio_to_opacus"].values())


@pytest.mark.parametrize("arguments", [["--batch", 50, "--records", 40], ["--rounds", 0]])
def test_bad_input_is_one_line(dpsrm, arguments):
    result = dpsrm("bench", "loop", *arguments)
    assert result.code == 2
    assert "must" in result.stderr


def test_help_has_an_example(dpsrm):
    assert "Example: dpsrm bench loop" in dpsrm("bench", "loop", "--help").stdout
