"""Map-style torch datasets as records."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from dpsrm.core.errors import DpsrmError, InputError, need
from dpsrm.core.tree import Ragged, form, leaves, mapped, refilled
from dpsrm.data.apart import by_value, numbers_of_its_own
from dpsrm.data.conversion import Indices, as_inputs, as_positions, as_targets
from dpsrm.data.image_folder import ImageFolder
from dpsrm.data.mapped import MappedRecords
from dpsrm.data.records import need_finite
from dpsrm.data.stored import EncodedRecords

ON_DISK = (MappedRecords, EncodedRecords, ImageFolder)
"""Records that are read when they are drawn, and know their own fingerprint."""

_ADVICE = "let the collate function give tensors with the records in their first dimension"


@dataclass(frozen=True, eq=False)
class DatasetRecords:
    """A map-style `torch` dataset, read when drawn; `collate` makes a batch of a list of its records.

    Without `collate` it is torch's, with floating point numbers in torch's default type; records are then mostly pairs
    (input, target).

    Guarantee: dataset and collate function are asked for each record by itself, with random numbers of its own, and
    what they give is copied at once (`apart.py`): what they draw, or write again, for one record changes no other.

    Edge cases: features are checked when they are drawn, since a dataset may be larger than memory;
    `take` of no index reads record 0 for its shape and returns tensors of shape (0, ...).

    >>> import numpy as np
    >>> from torch.utils.data import TensorDataset
    >>> data = DatasetRecords(TensorDataset(torch.eye(3), torch.tensor([0, 1, 0])))
    >>> data.take(np.array([], dtype=int))[0].shape
    torch.Size([0, 3])
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        need(
            not isinstance(self.dataset, IterableDataset),
            "a dataset must give records by index",
            dataset=type(self.dataset).__name__,
            remedy="use a map-style torch Dataset with __len__ and __getitem__",
        )
        need(len(self) > 0, "data must hold at least one record", dataset=type(self.dataset).__name__)

    def __len__(self) -> int:
        try:
            return len(cast(Any, self.dataset))
        except (TypeError, NotImplementedError) as error:
            raise InputError(f"a dataset must know its length; got {type(self.dataset).__name__}") from error

    def take(self, indices: Indices) -> Any:
        """A batch of the records at `indices`, in their order, repeats included.

        Guarantee: a collate function of the user's sees each record alone, so that what one record becomes (how far it
        is padded) does not depend on another. torch's own stacks records as they are, or refuses them.
        """
        positions = as_positions(indices, len(self)).tolist()
        with numbers_of_its_own() as start:
            read = []
            for at in positions or [0]:
                start(at)
                read.append(self._read(at))
        batches = [self._checked(read)] if self.collate is None else read
        for at, batch in enumerate(batches):
            for tensor in leaves(batch):
                need_finite(tensor, "features", rows=positions[at:] or [0])
        return mapped(lambda tensor: tensor[: len(positions)], merged(batches))

    def refuse_memory(self) -> None:
        """Refuse a dataset whose records depend on what it was asked for before, for instance on a running mean.

        Edge cases: it is asked for the first record, the last, and the first again; what does not show there is not
        seen.
        """
        first, _, again = (leaves(self.take(np.array([at]))) for at in (0, len(self) - 1, 0))
        need(
            len(first) == len(again) and all(map(torch.equal, first, again)),
            "a dataset must give the same record whatever it was asked for before, or one record could change others",
            record=0,
            dataset=type(self.dataset).__name__,
            remedy="let it keep nothing from record to record, and draw random numbers from the global generators of "
            "torch, NumPy or random (which are set for each record), not from a generator of its own",
        )

    def _read(self, at: int) -> Any:
        """One record; with a collate function, what that makes of it."""
        record = self.dataset[at]
        return by_value(record) if self.collate is None else mapped(torch.clone, self._checked([record]))

    def _checked(self, records: list[Any]) -> Any:
        """Collate, and refuse what is no batch."""
        try:
            batch = _collated(records) if self.collate is None else self.collate(records)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            if isinstance(error, DpsrmError):
                raise
            kind = type(self.dataset).__name__
            raise InputError(f"records must be alike, to collate them; got {kind}: {str(error)[:200]}") from error
        wrong = _first_wrong(batch, len(records))
        some = len(leaves(batch)) > 0
        need(some and not wrong, "a batch is a tree of tensors with a row per record", remedy=_ADVICE, **wrong)
        return batch


def _first_wrong(batch: Any, rows: int) -> dict[str, object]:
    """The first key (or place) of a batch where there is no tensor with `rows` rows, and what is there; {} if none.

    >>> _first_wrong({"x": torch.ones(2, 3), "name": ["ann", "bob"]}, 2)
    {'key': 'name', 'type': 'str'}
    """
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    for key, part in batch.items() if isinstance(batch, Mapping) else enumerate(parts):
        for leaf in leaves(part):
            if not isinstance(leaf, Tensor):
                return {"key": key, "type": type(leaf).__name__}
            if leaf.shape[:1] != (rows,):
                return {"key": key, "shape": tuple(leaf.shape)}
    return {}


def merged(batches: list[Any]) -> Any:
    """One batch of several: `Ragged` if their records differ in shape, type or structure.

    >>> merged([{"x": torch.ones(1, 2)}, {"x": torch.zeros(1, 2)}])["x"].tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    >>> [len(group) for group in merged([torch.ones(1, 2), torch.ones(1, 3), torch.ones(1, 2)]).groups]
    [2, 1]
    """
    if len(batches) == 1:
        return batches[0]
    alike: dict[Hashable, list[Any]] = {}
    for batch in batches:
        alike.setdefault(form(batch, lambda tensor: (tensor.shape[1:], tensor.dtype)), []).append(batch)
    groups = []
    for same in alike.values():
        columns = zip(*(leaves(batch) for batch in same), strict=True)
        groups.append(refilled(same[0], iter([torch.cat(column) for column in columns])))
    return groups[0] if len(groups) == 1 else Ragged(tuple(groups))


def _collated(records: list[Any]) -> Any:
    """A batch by torch's rules; pairs are inputs and targets, other trees keep their form.

    Guarantee: records are of one kind, or refused; else torch would find a type for all of them together, and one
    record of floats would make floats of everybody's pixels.
    """
    need(
        _alike(records),
        "records must be alike, to collate them: of one structure, with numbers of the same types",
        remedy="convert them in the dataset's __getitem__, for instance by torch.as_tensor(x, dtype=torch.float32)",
    )
    batch = default_collate(records)
    if isinstance(batch, (list, tuple)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return as_inputs(batch[0]), as_targets(batch[1])
    return mapped(lambda part: as_inputs(part) if isinstance(part, Tensor) else part, batch)


def _alike(parts: Sequence[Any]) -> bool:
    """Whether parts are of one kind in all that torch's collate decides by: structure, names, and numbers' types."""
    first = parts[0]
    if len(set(map(type, parts))) > 1:
        return False
    if isinstance(first, (Tensor, np.ndarray)):
        return len({part.dtype for part in parts}) == 1
    if isinstance(first, Mapping):
        same = len({tuple(part) for part in parts}) == 1
        return same and all(_alike([part[name] for part in parts]) for name in first)
    if isinstance(first, Sequence) and not isinstance(first, (str, bytes)):
        return len(set(map(len, parts))) == 1 and all(map(_alike, zip(*parts, strict=True)))
    return True
