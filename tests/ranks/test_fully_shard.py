"""A module that torch's `fully_shard` has sharded is trained as if it were whole, and never is."""

import numpy as np
import pytest

CASES = [
    "srm poisson",
    "sgd wor, trained whole",
    "disk poisson, memory shared",
    "places shift",
    "checked",
    "loop",
    "empty shares",
    "one rank",
]


def flat(state):
    return {name: np.array(values) for name, values in state.items()}


@pytest.mark.parametrize("case", CASES)
def test_adapters_on_a_sharded_base_are_those_on_a_whole_one(ran, case):
    """Same records, same ledger, parameters to 1e-6; the published model is whole, its base as it was."""
    found = ran("fsdp_equality")[case]
    alone, ranks = found["alone"], found["group"]
    assert all("draws" in rank for rank in ranks), ranks
    assert {rank["draws"] for rank in ranks} == {alone["draws"]}
    one, many = map(flat, found["published"])
    before = flat(found["before"])
    assert one.keys() == many.keys() == before.keys()
    assert max(np.abs(one[name] - many[name]).max() for name in one) < 1e-6
    moved = {name for name in many if not np.array_equal(many[name], before[name])}
    assert moved == {name for name in many if "head" in name or ".up." in name or ".down." in name}
    assert found["ledgers"]
    assert found["verified"]
    assert all(rank["head"] == ranks[0]["head"] for rank in ranks)
    assert all(np.array_equal(rank["seen"], ranks[0]["seen"]) for rank in ranks), "the model itself runs in callbacks"


def test_what_is_sharded_stays_so(ran):
    """After the training every rank holds its half, of trained parameters too if they were sharded."""
    first, second = ran("fsdp_equality")["srm poisson"]["group"]
    assert first["mine"]["layers.0.k.weight"] == second["mine"]["layers.0.k.weight"] == [8, 16]
    assert (first["mine"]["head.weight"], second["mine"]["head.weight"]) == ([2, 16], [1, 16])
    kept_whole = ran("fsdp_equality")["sgd wor, trained whole"]["group"][0]["mine"]
    assert "layers.0.k.weight" in kept_whole
    assert "head.weight" not in kept_whole


def test_no_rank_ever_holds_the_whole_base(ran):
    """Of a base of six layers: half of it in shards, and one layer (with the root's own) whole at a time."""
    found = ran("fsdp_memory")
    for rank in found["ranks"]:
        assert rank["here"] == found["base"] // 2
        assert rank["fetched"] > 100, "something was counted"
        assert found["layer"] < rank["most"] < 1.1 * found["layer"]
        assert rank["most"] < found["base"] / 5
        assert rank["left"] == 0


def test_an_error_on_one_rank_stops_all_with_its_words(ran):
    other, failed = ran("fsdp_failures")["one_fails"]
    assert failed["error"] == "InputError"
    assert other["error"] == "RankFailed"
    assert "rank 1 stopped" in other["words"]
    assert "the disk of rank 1 is full" in other["words"]


def test_a_panic_on_one_rank_stops_all_with_its_words(ran):
    other, failed = ran("fsdp_failures")["panics"]
    assert failed["error"] == "GeneratorExit"
    assert other["error"] == "RankFailed"
    assert "rank 1 stopped: unwrap on a None value" in other["words"]


def test_a_killed_run_is_gone_on_with_in_shards_or_whole(ran):
    """To the bit, by two ranks with the base in shards and by one process with all of it."""
    found = ran("fsdp_failures")
    first, killed = found["cut"]
    assert first["error"] == "RankFailed"
    assert "can be resumed" in first["words"]
    assert "killed" in killed
    (head,) = {rank["head"] for name in ("unfailing", "again", "again whole") for rank in found[name]}
    assert head
    assert found["files"] == 1, "the published models have the same bytes"
    assert found["verified"] == [True, True, True]


def test_other_modules_cannot_resume(ran):
    assert {rank["error"] for rank in ran("fsdp_failures")["other modules"]} == {"RankFailed"}


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("precision", "mp_policy would not be followed"),
        ("mesh", "over all ranks of the training"),
        ("by_hand", "only parameters that fully_shard sharded"),
        ("functional", "would keep the sharded frozen parameters, whole"),
        ("inside", "differentiates inside"),
        ("writes", "must not write into count"),
        ("moved", "layers.0.k.weight was changed while training"),
        ("optimizer", "an optimizer of one's own moves whole parameters"),
        ("only_one", "the same module"),
    ],
)
def test_what_cannot_be_done_is_refused_on_all_ranks(ran, what, words):
    for rank in ran("fsdp_refusals")[what]:
        assert words in rank["words"], rank


@pytest.mark.parametrize("optimizer", ["own", "ours"])
def test_a_loop_of_ones_own_trains_adapters_of_a_sharded_base(ran, optimizer):
    found = ran("fsdp_own_loop")[optimizer]
    assert "published" in found, found
    one, two = map(flat, found["published"])
    assert max(np.abs(one[name] - two[name]).max() for name in one) < 1e-6
    assert found["ok"]
