"""What stops one rank stops all with its words, and is noted by the leader: no run ends where a record put it."""

import pytest

NOTED = ["failed 00000000000000000003"]


@pytest.mark.parametrize(("name", "at"), [("first", 0), ("second", 1)])
def test_a_record_that_one_rank_cannot_read_stops_the_loop_on_all(ran, name, at):
    found = ran("own_stops")[name]
    failed, other = found["ranks"][at], found["ranks"][1 - at]
    assert (failed["error"], failed["words"], failed["made"]) == ("ValueError", "record 17 cannot be read", 3)
    assert other["error"] == "RankFailed"
    assert other["words"] == f"rank {at} stopped: record 17 cannot be read"
    assert found["marks"] == NOTED


@pytest.mark.parametrize("name", ["first", "second", "gone"])
def test_a_loop_that_a_record_stopped_on_any_rank_is_not_published_before_its_step_is_made(ran, name):
    found = ran("own_stops")[name]
    for rank in found["again"]:
        assert rank["error"] == "InputError", rank
        assert "the last step failed, perhaps because of a record" in rank["words"]
        assert rank["made"] == 4
    assert found["ok"]


def test_a_rank_that_is_gone_before_its_step_may_have_met_a_record(ran):
    found = ran("own_stops")["gone"]
    assert found["ranks"][0]["error"] == "RankFailed"
    assert found["marks"] == NOTED


def test_a_mistake_in_the_loop_of_one_rank_stops_all_with_its_words(ran):
    other, failed = ran("own_stops")["changed"]
    assert failed["error"] == "InputError"
    assert other["error"] == "RankFailed"
    assert "rank 1 stopped: step() takes the batch that the loader drew last" in other["words"]


@pytest.mark.parametrize("at", [0, 1])
def test_a_record_on_disk_that_one_rank_cannot_read_stops_all(ran, at):
    found = ran("disk_stops")
    ranks = found["ranks"][str(at)]
    assert ranks[at] == {"error": "Panic", "words": "record 17 cannot be read"}
    assert ranks[1 - at] == {"error": "RankFailed", "words": f"rank {at} stopped: record 17 cannot be read"}
    assert found["marks"][str(at)] == NOTED


def test_either_all_ranks_read_from_disk_or_none(ran):
    """Otherwise some would tell of their reading, and nobody would listen."""
    for rank in ran("disk_stops")["mixed"]:
        assert rank["error"] == "RankFailed"
        assert "the same records" in rank["words"]


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("kind", "words"),
    [("Panic", "unwrap on a None value"), ("SystemExit", "bad token"), ("KeyboardInterrupt", "KeyboardInterrupt")],
)
def test_what_is_no_exception_stops_all_and_is_noted(ran, kind, words, at):
    found = ran("panics")[f"{kind}{at}"]
    assert found["ranks"][at]["error"] == kind
    assert found["ranks"][1 - at] == {"error": "RankFailed", "words": f"rank {at} stopped: {words}"}
    (mark,) = found["marks"]
    assert mark.startswith("failed")
