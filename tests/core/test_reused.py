"""Memory that is used again: never while anything still looks at it."""

import gc

import numpy as np
import pytest
import torch

from dpsrm.core import reused
from dpsrm.core.reused import LONG, buffer


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Begin with no free buffer."""
    monkeypatch.setattr(reused, "_free", [])


def _place(array):
    return array.__array_interface__["data"][0]


def test_a_buffer_comes_back_when_nobody_looks_at_it():
    first = buffer(LONG)
    place = _place(first)
    del first
    gc.collect()
    again = buffer(LONG)
    assert _place(again) == place
    assert _place(buffer(LONG)) != place


LOOKS = {
    "array": lambda lent: lent,
    "other type": lambda lent: lent.view(np.float64),
    "slice of another type": lambda lent: lent.view(np.float64)[8:],
    "tensor": torch.from_numpy,
    "slice of a tensor": lambda lent: torch.from_numpy(lent).view(torch.float64)[8:],
    "detached": lambda lent: torch.from_numpy(lent).view(torch.float32).detach()[3:],
    "array of a tensor": lambda lent: torch.from_numpy(lent).view(torch.float32)[5:].numpy(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_looks_at_a_buffer_keeps_it(look):
    lent = buffer(LONG)
    place, seen = _place(lent), look(lent)
    del lent
    gc.collect()
    assert not reused._free
    assert _place(buffer(LONG)) != place
    gc.collect()
    reused._free.clear()
    del seen
    gc.collect()
    assert [_place(whole) for whole in reused._free] == [place]


def test_a_buffer_begins_where_torch_begins_its_own_and_can_be_written():
    for count in (LONG, LONG + 8, 100, 0):
        lent = buffer(count)
        assert lent.shape == (count,)
        assert _place(lent) % 64 == 0 or count == 0
        assert lent.flags.writeable


def test_no_more_is_kept_than_allowed_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(reused, "_KEPT", 2 * LONG)
    lent = [buffer(LONG) for _ in range(3)]
    places = [_place(each) for each in lent]
    while lent:
        lent.pop(0)
    gc.collect()
    assert [_place(whole) for whole in reused._free] == places[1:]


def test_other_lengths_stay_free():
    lengths = (LONG, LONG + 64, LONG + 128)
    lent = [buffer(length) for length in lengths]
    lent.clear()
    gc.collect()
    taken = buffer(LONG + 64)
    assert len(taken) == LONG + 64
    assert sorted(map(len, reused._free)) == [LONG, LONG + 128]
