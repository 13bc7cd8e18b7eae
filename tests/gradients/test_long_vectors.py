"""Long vectors: computed block by block, to the bits of the whole."""

import gc
import os
import platform
import subprocess
import sys

import pytest
import torch

from dpsrm.core import reused
from dpsrm.core.reused import LONG
from dpsrm.gradients import GhostEngine, Objective, Part, Query, binary_loss, torch_state
from dpsrm.gradients.torch_state import add_to, copied, elementwise, empty, zeros

SIZE = LONG // 4 + 12345


@pytest.fixture
def vectors():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, generator=draw), torch.randn(SIZE, generator=draw, dtype=torch.float64)


def test_elementwise_is_the_function_of_the_whole(vectors):
    single, double = vectors
    functions = [
        lambda x, y: torch.sub(x, y.to(x.dtype), alpha=0.3),
        lambda x, y: torch.add(y, x.double(), alpha=0.9),
        lambda x, y: x - (0.7 * y).to(x.dtype),
    ]
    for function in functions:
        found = elementwise(function, single, double)
        assert found.dtype == function(single[:1], double[:1]).dtype
        assert torch.equal(found, function(single, double))


def test_short_vectors_are_not_cut():
    seen = []
    elementwise(lambda x: seen.append(len(x)) or x, torch.ones(1000))
    assert seen == [1000]


def test_adding_float32_to_a_float64_sum(vectors):
    single, double = vectors
    total = double.clone()
    add_to(total, single)
    assert torch.equal(total, double + single)


def test_memory_that_is_used_again_holds_zeros_when_zeros_are_asked_for(monkeypatch):
    monkeypatch.setattr(reused, "_free", [])
    first = empty(SIZE, torch.ones(1)).fill_(7.0)
    place = first.data_ptr()
    del first
    gc.collect()
    again = zeros(SIZE, torch.ones(1))
    assert again.data_ptr() == place
    assert not again.any()


@pytest.mark.parametrize("room", [None, torch.float64])
def test_a_copy_is_a_copy(vectors, room):
    for vector in (*vectors, torch.ones(3)):
        made = copied(vector, room=room)
        assert torch.equal(made, vector)
        assert made.data_ptr() != vector.data_ptr()
        assert made.dtype is vector.dtype
        made.zero_()
        assert bool(vector.any())


def test_a_sum_takes_the_memory_that_its_pass_copied_the_point_into(monkeypatch):
    monkeypatch.setattr(reused, "_free", [])
    objective = Objective.of(torch.nn.Sequential(torch.nn.Linear(1100, 1000), torch.nn.Linear(1000, 1)), binary_loss)
    query = Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=1.0),))
    total = GhostEngine(objective)(query, (torch.ones(2, 1100), torch.zeros(2)))
    gc.collect()
    size = total.secret.numel()
    assert 4 * size > LONG
    assert not {4 * size, 8 * size} & set(map(len, reused._free)), "the copy had a buffer of its own"


def test_the_other_devices_allocators_are_left_alone():
    like = torch.empty(1, device="meta")
    assert empty(SIZE, like).device.type == "meta"
    assert not torch_state._long(10**9, like)


_FAULTS = """
import resource, sys, torch
from dpsrm.gradients.torch_state import heap_kept
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    heap_kept()
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [torch.zeros(2**20) for _ in range(10)]
    arrays.clear()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's way")
def test_freed_memory_is_kept_from_step_to_step():
    """Ten arrays of 4 MB are ten thousand pages, asked for in every round unless the heap keeps them.

    It may keep them of itself, if something large was freed while torch was imported; told a threshold, it never does.
    """

    def faults(how, **tuned):
        command = [sys.executable, "-c", _FAULTS, how]
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=plain | tuned).stdout)

    assert faults("kept") < 100
    assert faults("given back", GLIBC_TUNABLES="glibc.malloc.mmap_threshold=131072") > 5000
