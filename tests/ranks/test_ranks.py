"""Two ranks are one process: same draws, same parameters, noise once, charged before it exists, whoever stops."""

import os

import numpy as np
import pytest
from scipy import stats

FALSE_ALARM = 1e-8


@pytest.mark.parametrize("scheme", ["wor", "poisson"])
@pytest.mark.parametrize("method", ["srm", "sgd", "disk"])
def test_two_ranks_are_one_process(ran, method, scheme):
    """The same records, parameters to 1e-6 and the same ledger; on both ranks and again, the same bits."""
    found = ran("equality")[f"{method} {scheme}"]
    alone, ranks = found["alone"], [rank for pair in found["pairs"] for rank in pair]
    assert {rank["draws"] for rank in ranks} == {alone["draws"]}
    assert np.abs(np.array(ranks[0]["theta"]) - alone["theta"]).max() < 1e-6
    assert len({rank["digest"] for rank in ranks}) == 1
    assert all(rank["told"] == ranks[0]["told"] for rank in ranks)
    assert found["ledgers"] == 1
    assert found["verified"]
    assert {rank["epsilon"] for rank in ranks} == {alone["epsilon"]}
    assert not any(rank["elsewhere"] for rank in ranks), "only rank 0 writes"


def looks_like(sample, std):
    """Variance and shape fit N(0, std²)."""
    ratio = float(np.sum(sample**2) / std**2)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], sample.size)
    return low < ratio < high and stats.kstest(sample / std, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("size", ["small", "large"])
def test_noise_is_added_once(ran, size):
    """What two ranks release of gradients that are 0 has the charged σ = 1·2·C = 2: not ⅔σ, 3/2σ, nor √2σ."""
    found = ran("noise")[size]
    first, second = (np.load(ran.folder / "noise" / name) for name in found["files"])
    assert np.array_equal(first, second), "both ranks hear the same"
    assert looks_like(first.ravel(), 2.0)
    for factor in (2 / 3, 3 / 2, 2**0.5, 0.5**0.5):
        assert not looks_like(first.ravel(), 2.0 * factor)
    half = first.shape[1] // 2
    for part in (first[:, :half], first[:, half:]):  # of the large one, each was made by another rank
        assert looks_like(part.ravel(), 2.0)
    assert abs(np.corrcoef(first[:, :half].ravel(), first[:, half : 2 * half].ravel())[0, 1]) < 6 / first.size**0.5 * 2
    assert abs(np.corrcoef(first[0], first[1])[0, 1]) < 6 / first.shape[1] ** 0.5


def test_noise_of_ranks_that_share_their_memory_is_added_once(ran):
    """Each rank releases its own coordinates: together the charged σ = 2, and neither has the other's noise."""
    first, second = (np.load(ran.folder / "noise" / name) for name in ran("noise")["sharded"]["files"])
    assert (first.shape, second.shape) == ((2, 65536), (2, 70000 - 65536))
    for part in (first, second, np.concatenate([first, second], axis=1)):
        assert looks_like(part.ravel(), 2.0)
        for factor in (2 / 3, 3 / 2, 2**0.5, 0.5**0.5):
            assert not looks_like(part.ravel(), 2.0 * factor)
    size = second.shape[1]
    assert abs(np.corrcoef(first[:, :size].ravel(), second.ravel())[0, 1]) < 6 / (2 * size) ** 0.5
    assert abs(np.corrcoef(first[0], first[1])[0, 1]) < 6 / first.shape[1] ** 0.5
    assert abs(np.corrcoef(second[0], second[1])[0, 1]) < 6 / size**0.5


def test_a_model_whose_noise_two_ranks_make_is_the_same_model(ran):
    found = ran("large")
    assert np.abs(np.array(found["pair"][0]["theta"]) - found["alone"]["theta"]).max() < 1e-6
    assert found["pair"][0]["digest"] == found["pair"][1]["digest"]


@pytest.mark.parametrize("ranks", ["2", "1", "3"])
def test_a_killed_rank_stops_all_and_any_number_of_ranks_goes_on(ran, ranks):
    """To the bit: sums are cut as when the run began, so noise that was made before is made for the same sums."""
    found = ran("resumed")
    cut, whole = found[ranks], found["whole"][0]
    assert cut["first"][0]["error"] == "RankFailed"
    assert "can be resumed" in cut["first"][0]["words"]
    assert "killed" in cut["first"][1]
    assert {rank["digest"] for rank in cut["again"]} == {whole["digest"]}
    assert {rank["head"] for rank in cut["again"]} == {whole["head"]}
    for rank in cut["again"]:
        assert len(rank["told"]) > 12
        assert rank["told"].items() <= whole["told"].items(), "all bits of what is released, also again"
    assert cut["ok"]
    assert cut["ledger"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("data", "the same records"),
        ("settings", "the same settings and plan"),
        ("module", "the same module"),
        ("loss", "the same module"),
    ],
)
def test_what_is_not_the_same_on_all_ranks_is_refused_on_all(ran, what, words):
    found = ran("refusals")
    for rank in found[what]:
        assert rank["error"] == "RankFailed", rank
        assert words in rank["words"]
    assert found["written"] == []


def test_what_only_the_leader_sees_stops_all(ran):
    leader, other = ran("refusals")["folder"]
    assert leader["error"] == "InputError"
    assert other["error"] == "RankFailed"
    assert "rank 0 stopped: the run folder must not exist yet" in other["words"]


def test_an_error_on_one_rank_stops_all_with_its_words(ran):
    other, failed = ran("failures")["one_fails"]
    assert failed["error"] == "InputError"
    assert other["error"] == "RankFailed"
    assert "rank 1 stopped" in other["words"]
    assert "the disk of rank 1 is full" in other["words"]


def test_a_callback_of_one_rank_stops_all(ran):
    first, second = ran("failures")["one_stops"]
    assert first["head"] == second["head"]


def test_ranks_whose_parameters_differ_stop(ran):
    for rank in ran("failures")["moved"]:
        assert rank["error"] == "RankFailed"
        assert "disagree" in rank["words"]


def test_no_rank_makes_noise_before_the_charge_is_on_disk(ran):
    """Both ranks make noise for a large model; what the ledger held at that moment."""
    for seen in ran("waiting")["seen"]:
        assert len(seen) == 2
        assert all(charged >= 1 + number for number, charged in enumerate(seen))


def test_a_charge_that_cannot_be_written_stops_all(ran):
    leader, other = ran("waiting")["full"]
    assert leader["error"] == "OSError"
    assert other["error"] == "RankFailed"
    assert "could not write its charge" in other["words"]


def test_a_loop_of_ones_own_is_the_same_training(ran):
    found = ran("own_loop")
    first, second = found["own"]
    assert first["digest"] == second["digest"] == found["train"][0]["digest"]
    assert (first["head"], first["state"]) == (second["head"], second["state"])
    sizes = np.array([first["sizes"], second["sizes"]])
    assert sizes.shape == (2, 16)
    assert (sizes == 0).any(), "a rank with an empty share was among them"
    assert (sizes[1] - sizes[0]).min() >= 0
    assert (sizes[1] - sizes[0]).max() <= 1
    assert found["ok"]


PLAIN = [f"{name} {scheme}" for name in ("srm", "sgd", "disk") for scheme in ("wor", "poisson")]


@pytest.mark.parametrize("variant", [*PLAIN, "adam", "dp-adam"])
def test_ranks_that_share_their_memory_are_one_process(ran, variant):
    found = ran("sharded")["runs"][variant]
    alone, ranks = found["alone"], [rank for pair in found["pairs"] for rank in pair]
    assert all("theta" in rank for rank in ranks), ranks
    assert {rank["draws"] for rank in ranks} == {alone["draws"]}
    assert np.abs(np.array(ranks[0]["theta"]) - alone["theta"]).max() < 1e-6
    assert len({rank["digest"] for rank in ranks}) == 1
    assert found["verified"]


@pytest.mark.parametrize("variant", ["srm wor", "sgd poisson", "disk wor", "adam"])
def test_ranks_that_share_their_memory_repeat_to_the_bit(ran, variant):
    """Not θ only, which is float32: all bits of what each rank released."""
    once, again = ran("sharded")["runs"][variant]["pairs"]
    for first, second in zip(once, again, strict=True):
        assert len(first["told"]) > 12
        assert (first["digest"], first["told"]) == (second["digest"], second["told"])


def test_any_number_of_ranks_goes_on_with_a_shared_memory(ran):
    """The checkpoint holds the whole state: direction, both moments of Adam, the average."""
    found = ran("sharded")
    (whole,) = {rank["digest"] for pair in found["runs"]["adam"]["pairs"] for rank in pair}
    assert {rank["digest"] for ranks in found["again"].values() for rank in ranks} == {whole}


def test_memory_is_shared(ran):
    first, second = ran("sharded")["sizes"]
    assert (first["direction"], second["direction"]) == (65536, 69230 - 65536)
    assert (first["theta"], second["theta"]) == (65536, 69230 - 65536)
    assert first["whole"] == second["whole"] == 69230


def test_methods_that_measure_lengths_do_not_share_their_memory(ran):
    words = [(rank["error"], rank["words"]) for rank in ran("sharded")["refused"]]
    assert {error for error, _ in words} <= {"InputError", "RankFailed"}
    assert all("treat every coordinate by itself" in text for _, text in words)


def test_killed_at_random_nothing_is_released_uncharged_or_twice(ran):
    found = ran("killed")
    assert found["problems"] == []
    assert found["kills"] >= int(os.environ.get("DPSRM_RANK_KILLS", "2"))
    assert found["releases"] == 2 * found["steps"], "two blocks each"
    assert len({rank["digest"] for rank in found["last"]}) == 1
    assert found["ok"]


@pytest.mark.parametrize("kind", ["units", "agd", "gd", "plain", "fitted", "tiny"])
def test_all_kinds_of_training_are_the_same_on_ranks(ran, kind):
    found = ran("kinds")[kind]
    assert all("theta" in rank for rank in found["group"]), found["group"]
    for rank in found["group"]:
        assert np.abs(np.array(rank["theta"]) - found["alone"]["theta"]).max() < 1e-6
        assert rank["theta"] == found["group"][0]["theta"]
