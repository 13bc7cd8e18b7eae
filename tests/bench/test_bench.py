"""Every benchmark runs at its smallest size and answers in one object."""

import json
import re
import subprocess

import pytest

from conftest import SHARED
from dpsrm.bench.memory import peak
from packages import PROJECT, ROOT


def test_there_is_one_place_for_benchmarks():
    assert not (ROOT / "bench").exists()
    assert "bench" not in PROJECT["optional-dependencies"]


def test_gradients(answer, tmp_path):
    body = answer(
        "bench",
        "gradients",
        "--model",
        "mlp",
        "--batch",
        4,
        "--repeats",
        1,
        "--no-memory",
        "--plot",
        tmp_path / "x.svg",
    )
    assert body["ratio_to_two_plain_passes"] > 0
    assert body["one_point"]["ratio_to_plain_pass"] > 0
    assert body["peak_memory_ratio"] is None
    assert (tmp_path / "x.svg").stat().st_size > 1000


def measured_rows():
    """The table of docs/performance.md, from the figures as the command printed them."""
    rows = []
    for line in (ROOT / "results" / "models.jsonl").read_text().splitlines():
        found = json.loads(line)
        one = found["one_point"]
        cells = [
            found["ratio_to_two_plain_passes"],
            found["ratio_to_two_channels_last_passes"],
            one["ratio_to_plain_pass"],
            one["ratio_to_channels_last_pass"],
            found["peak_memory_ratio"],
            found["speedup_over_opacus"],
            one["speedup_over_opacus"],
            one["speedup_over_opacus_ghost"],
        ]
        shown = " | ".join("–" if cell is None else f"{cell:.2f}" for cell in cells)
        rows.append(f"| {found['model']} | {found['batch']} | {shown} |")
    return rows


def test_the_table_of_models_in_the_docs():
    page = (ROOT / "docs" / "performance.md").read_text()
    (table,) = re.findall(r"<!-- models -->\n(.*?)\n<!-- end -->", page, re.S)
    assert table.splitlines()[2:] == measured_rows()


def test_memory():
    assert peak("plain", "mlp", 64, points=1) > 2**16


def test_randomness(answer):
    body = answer("bench", "randomness", "--model", "mlp", "--batch", 4, "--repeats", 1)
    assert {"step_ms", "secure_ms", "torch_ms", "seek_ms", "overhead"} <= set(body)


@pytest.mark.parametrize("arguments", [["gradients", "--model", "gpt"], ["randomness", "--repeats", 0]])
def test_bad_input_is_one_line(dpsrm, arguments):
    result = dpsrm("bench", *arguments)
    assert result.code == 2
    assert "must be" in result.stderr


@pytest.mark.parametrize("name", ["defaults", "gradients", "linear", "randomness", "sampling"])
def test_help_has_an_example(dpsrm, name):
    assert f"Example: dpsrm bench {name}" in dpsrm("bench", name, "--help").stdout


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark datasets are not beside this checkout")
def test_sampling(answer, tmp_path):
    subprocess.run([SHARED / "data" / "prepare", tmp_path, "a9a"], check=True, capture_output=True)
    rows = answer("bench", "sampling", "--data-dir", tmp_path, "--seeds", 1)["rows"]
    noise = {(row["data"], row["batch"], row["sampling"]): row["noise_multiplier"] for row in rows}
    assert len(noise) == 8
    assert all(noise[data, b, "poisson"] < noise[data, b, "wor"] for data, b, _ in noise)
