"""Records grouped by the person (or household, device, …) whose privacy is protected: one example is one person.

Shapes: n rows, N persons, B persons of a batch, k rows that count at most, R rows of a batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.tree import Bundles, Ragged, mapped
from dpsrm.data.conversion import Indices, as_positions
from dpsrm.data.identifiers import distinct_ids
from dpsrm.data.records import RecordSource

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Units:
    """Which rows are whose.

    Attributes:
        order: all rows, person after person, (n,).
        starts: where each person's rows begin in `order`, (N + 1,).
        keys: a number of each person's own, made of the id alone, (N,).
    """

    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, ids: Any) -> Units:
        """Group rows by `ids`, one for each row, in any order; persons are numbered as they first appear.

        Rows that were grouped already stay so.

        Edge cases: ids are compared as texts without blanks around them, however Unicode spells them (but upper and
        lower case are two); numbers that are equal are one id ("7", 7 and 7.0). A missing id (None, NaN, "", "NA" and
        the like) raises `InputError`: nobody could say whose row that is.

        >>> units = Units.of(["ann", "bob", "ann "])
        >>> units.order.tolist(), units.starts.tolist()
        ([0, 2, 1], [0, 2, 3])
        """
        if isinstance(ids, Units):
            return ids
        texts, codes = distinct_ids(ids)
        counts = np.bincount(codes, minlength=len(texts))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        coded = (text.encode(errors="surrogatepass") for text in texts)  # half a character is one, too
        keys = [int.from_bytes(hashlib.blake2b(each, digest_size=8).digest(), "little") for each in coded]
        return cls(np.argsort(codes, kind="stable").astype(np.int64), starts, np.array(keys, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def whose(self) -> npt.NDArray[np.int64]:
        """Which person each row is of, (n,).

        >>> Units.of(["ann", "bob", "ann"]).whose.tolist()
        [0, 1, 0]
        """
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = np.repeat(np.arange(len(self)), np.diff(self.starts))
        return found

    @property
    def grouping(self) -> tuple[Array, Array, Array]:
        """What picks rows."""
        return self.order, self.starts, self.keys


@dataclass(frozen=True, eq=False)
class Picked:
    """The rows that count of some persons: `rows` (R,), and where each person's begin in them, `starts` (B + 1,)."""

    rows: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UnitRecords:
    """Records whose examples are persons with at most `most` of their rows.

    `take` gives each person's first rows, for looking at; training picks them at random and calls `batch`.

    >>> from dpsrm.data.records import Records
    >>> rows = Records(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> people = UnitRecords(rows, Units.of([7, 8, 7]), most=2)
    >>> len(people), people.take(np.array([1])).counts.tolist()
    (2, [[1.0, 0.0]])
    """

    records: RecordSource
    units: Units
    most: int

    def __post_init__(self) -> None:
        rows, ids = len(self.records), len(self.units.order)
        need(rows == ids, "there must be one id per record", records=rows, ids=ids)
        whole = type(self.most) is int and self.most >= 1
        need(whole, "rows_per_unit must be a whole number, 1 or more", rows_per_unit=self.most)

    def __len__(self) -> int:
        return len(self.units)

    def take(self, indices: Indices) -> Any:
        """The persons at `indices`, each with the first of their rows."""
        return self.batch(self.first_rows(indices))

    def first_rows(self, indices: Indices) -> Picked:
        """The first rows of some persons."""
        persons, starts = as_positions(indices, len(self)), self.units.starts
        counts = np.minimum(starts[persons + 1] - starts[persons], self.most)
        begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        within = np.arange(begins[-1]) - np.repeat(begins[:-1], counts)
        return Picked(self.units.order[np.repeat(starts[persons], counts) + within], begins)

    def batch(self, picked: Picked) -> Any:
        """The persons whose rows were picked: `Bundles` of k rows each, or plain rows if k is 1.

        Guarantee: every person takes the same space, however many rows they have: nobody else moves if one is replaced.
        Edge cases: fewer than k rows are filled up with copies of the first one, which count for nothing.
        """
        taken = self.records.take(picked.rows)
        if self.most == 1:
            return taken
        need(
            not isinstance(taken, Ragged),
            "all rows must have one shape where several rows of a person count",
            remedy="let the collate function pad to one public length, or say rows_per_unit = 1",
        )
        slots_Bk, counts_Bk = self._slots(picked.starts)
        at = torch.from_numpy(slots_Bk.reshape(-1))
        full = len(at) == len(picked.rows)

        def bundled(tensor: Tensor) -> Tensor:
            rows = tensor if tensor.layout is torch.strided else tensor.to_dense()
            rows = rows if full else rows.index_select(0, at.to(rows.device))
            return torch.unflatten(rows, 0, slots_Bk.shape)

        return Bundles(mapped(bundled, taken), torch.from_numpy(counts_Bk).to(torch.get_default_dtype()))

    def _slots(self, starts: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Which picked row stands in each of a person's k places, and whether it counts."""
        places, counts_B = np.arange(self.most), np.diff(starts)
        counts_Bk = places < counts_B[:, None]
        return starts[:-1, None] + np.where(counts_Bk, places, 0), counts_Bk
