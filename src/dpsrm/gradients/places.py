"""An example's place among the others must not matter where a neighbouring dataset may shift it.

Adding or removing a record shifts all later ones, and replacing one by another of another shape moves it to another
group. Batches are then run in pieces of one public size (the last is filled up), random layers draw the same for every
example, and if copies of one example are not computed to the same bits in every place, pieces have one example.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from dpsrm.core.tree import mapped
from dpsrm.core.users_generators import users_generators_kept
from dpsrm.gradients.batch import Batch
from dpsrm.gradients.torch_state import rng_states, seed_generators, set_rng_states

PIECE = 64
"""How many examples a piece has where no public size of a batch is known."""


def piece_size(most: int, expected: int | None) -> int:
    """How many examples make a piece of `most` at most: a public number, never the size of a drawn batch."""
    return max(1, min(most, expected or PIECE))


def placeless(tensors: Iterable[Tensor]) -> bool:
    """Whether every tensor's rows, of copies of one example, are equal to the bit.

    Which kernel computes a row depends on shapes and places, not on values: equal rows for one example's values are
    evidence for all, not a proof (docs/decisions/shifting.md). torch's rows are not always equal: small matrix
    products, and the last elements of a tensor whose size is no multiple of a vector's, are computed otherwise.
    """
    for rows in tensors:
        first = rows[:1].expand_as(rows)
        if not bool(((rows == first) | ((rows != rows) & (first != first))).all()):
            return False
    return True


_PROBES = 4


def probes(points: Sequence[Tensor], one: Batch) -> Iterator[tuple[tuple[Tensor, ...], Batch]]:
    """Points and examples to try places with: of these shapes, always the same numbers (whole ones are 1).

    What is tried must be public, and the same when a run is resumed: with the values of a drawn example at the θ of
    the moment, the answer could be another for a neighbour or after a resume, and every sum with it.
    """
    draw = torch.Generator("cpu").manual_seed(0)

    def made(like: Tensor) -> Tensor:
        numbers = torch.randn(like.shape, generator=draw, dtype=torch.float64, device="cpu")
        return numbers.to(like) if like.is_floating_point() else torch.ones_like(like)

    for _ in range(_PROBES):
        yield tuple(0.3 * made(point_P) for point_P in points), mapped(made, one)


ONE_BY_ONE = (
    "examples are run one by one, which is slow: here torch computes an example to other bits in another place of the "
    "batch, and a neighbouring dataset (a record more or less, or of another shape) would shift all places"
)


class Draws:
    """The random numbers of one sum: every piece draws on, or all from the same beginning.

    Guarantee: what an example that is run by itself draws depends on its place and on where the generators stood at the
    beginning, never on how much another one drew: a branch, packed sequences or sampling by rejection draw as much as
    an example's values say. That holds for torch's generators and for those of Python and NumPy, which are left as they
    were.
    """

    def __init__(self, *, steady: bool) -> None:
        """Remember where the generators stand."""
        self._steady, self._state = steady, rng_states()

    def rewind(self) -> None:
        """Before a piece: back to the beginning, unless places are steady."""
        if not self._steady:
            set_rng_states(self._state)

    def each(self, count: int) -> Iterator[int]:
        """The places of `count` examples that are run one by one, the generators standing where each one's draws begin.

        After the last one they stand, if places are steady, where no example's drawing has put them.
        """
        beginning = hashlib.blake2b(b"".join(state.numpy().tobytes() for state in self._state)).digest()
        with users_generators_kept() as seed_users:
            for place in range(count):
                seed_users(_seed(beginning, place if self._steady else 0))
                if self._steady:
                    seed_generators(_seed(beginning, place))
                else:
                    set_rng_states(self._state)
                yield place
        if self._steady:
            seed_generators(_seed(beginning, count))


def _seed(beginning: bytes, place: int) -> int:
    """A seed of this place's own."""
    return int.from_bytes(hashlib.blake2b(beginning + place.to_bytes(8, "little"), digest_size=8).digest(), "little")
