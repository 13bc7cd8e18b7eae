"""Which θ is handed out."""

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.core.secret import Streams
from dpsrm.methods import make_output

PATH = [torch.tensor([float(t)]) for t in range(11)]


def outcome(name, seed=0):
    output = make_output(name, steps=10, stream=Streams.seeded(seed).output)
    for time, theta in enumerate(PATH):
        output.observe(time, theta)
    return float(output.result())


def test_last():
    assert outcome("last") == 10


def test_tail_is_the_mean_of_the_second_half():
    assert outcome("tail") == pytest.approx(np.mean([6, 7, 8, 9, 10]))


def test_random_is_uniform_over_all_but_the_last():
    """θ^T is never the answer (Algorithm 1 chooses among θ⁰ … θ^{T−1}), every other is equally likely."""
    counts = np.bincount([int(outcome("random", seed)) for seed in range(2000)], minlength=11)
    assert counts[10] == 0
    assert np.abs((counts[:10] - 200) / np.sqrt(200 * 0.9)).max() < 6


def test_ema_is_a_weighted_mean_without_start_bias():
    decay = 0.5
    weights = decay ** np.arange(9, -1, -1)
    assert outcome("ema") == pytest.approx(np.sum(weights * np.arange(1, 11)) / weights.sum())


def test_an_output_can_be_carried_on():
    for name in ("last", "random", "tail", "ema"):
        first = make_output(name, steps=10, stream=Streams.seeded(1).output)
        for time in range(7):
            first.observe(time, PATH[time])
        second = make_output(name, steps=10, stream=Streams.seeded(2).output)
        second.load_state_dict(first.state_dict())
        for time in range(7, 11):
            second.observe(time, PATH[time])
        assert float(second.result()) == pytest.approx(outcome(name, 1))


def test_unknown_outputs_are_refused():
    with pytest.raises(InputError, match="tail"):
        make_output("best", steps=3, stream=Streams.seeded(0).output)
