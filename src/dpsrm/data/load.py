"""Load a file of labelled records, and a second one by exactly the same rule.

`as_records` makes records of what a caller of the Python interface holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import scipy.sparse
import torch
from torch.utils.data import Dataset, TensorDataset

from dpsrm.core.errors import InputError, need
from dpsrm.data.arrays import ArrayEncoder, Arrays, read_npy, read_npz
from dpsrm.data.arrow import SUFFIXES, ArrowRows, TableFile
from dpsrm.data.conversion import as_inputs, as_targets, as_tensor
from dpsrm.data.datasets import ON_DISK, DatasetRecords
from dpsrm.data.encoders import Encoder, Source, encode_source, encoder_for, need_numbers_read, tell_hashed
from dpsrm.data.encoding import unit_norm
from dpsrm.data.features import ImageFeatures
from dpsrm.data.frames import read_parquet
from dpsrm.data.identifiers import split_ids
from dpsrm.data.libsvm import LibsvmEncoder, SparseRows, read_libsvm
from dpsrm.data.mapped import MappedRecords, is_mapped
from dpsrm.data.ranges import TargetRange
from dpsrm.data.records import Records, RecordSource, SparseRecords, TreeRecords, need_norm, need_scale
from dpsrm.data.schema import Schema, read_schema
from dpsrm.data.stored import ArrayFile, EncodedRecords, Reading
from dpsrm.data.tables import (
    BINARY_CLASSES,
    Cell,
    Table,
    need_classes,
    parse_labels,
    read_csv,
    split_target,
    split_unit,
    tell_identifiers,
)
from dpsrm.data.units import Units

_UNPACK = "unpack the file first"
_CONVERT = "convert it to .csv or .parquet, for instance with pandas"
_FOLDER = "images in folders: dpsrm.data.ImageFolder in Python (docs/scaling.md)"
_NOT_READ = {
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".7z"), _UNPACK),
    **dict.fromkeys((".json", ".jsonl", ".ndjson", ".xlsx", ".xls", ".pkl", ".sav"), _CONVERT),
}
"""Extensions of formats that people try, and what to do."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """Records beside everything that was known to make them.

    `rows` are private, and so is which are whose, `units`; all else is public and makes a second file alike. A
    target that is a number has a `target_range` and no classes.
    """

    rows: Records | EncodedRecords
    encoder: Encoder
    classes: tuple[str, ...]
    target: str | None = None
    binary_words: bool = False
    target_range: TargetRange | None = None
    unit: str | None = None
    units: Units | None = None

    @property
    def records(self) -> Records:
        """The records, all in memory."""
        if not isinstance(self.rows, Records):
            raise InputError("these records stay on disk; train on `rows`, or load them with Reading(in_memory=True)")
        return self.rows

    @property
    def n(self) -> int:
        """How many examples there are: units, or records where each is one of its own."""
        return len(self.rows) if self.units is None else len(self.units)

    @property
    def n_features(self) -> int:
        return self.encoder.features

    @property
    def description(self) -> dict[str, object]:
        """What preprocessing knew and why it is public: JSON- and TOML-ready, for the run folder."""
        target = {} if self.target is None else {"target": self.target}
        if self.target_range is not None:
            return {**self.encoder.describe(), **target, **self.target_range.describe()}
        words = "fixed binary pairs (0/1, -1/1, false/true, no/yes, n/y, f/t)"
        return {
            **self.encoder.describe(),
            **target,
            "classes": list(self.classes),
            "classes_from": words if self.binary_words else "named beforehand",
        }


def load(
    path: Path | str,
    target: str | None = None,
    *,
    schema: Schema | Path | str | None = None,
    classes: Sequence[str] | None = None,
    features: int | str | ImageFeatures | None = None,
    normalise: bool | None = None,
    target_range: Sequence[float] | None = None,
    unit: str | None = None,
    reading: Reading | None = None,
) -> Loaded:
    """Load a file of labelled records, looking at nothing but each record to encode it.

    .csv and .tsv tables with a header, .parquet, .pq, .arrow or .feather tables, .npz arrays X and y, .npy arrays; else
    LIBSVM text. Of .npy arrays, and tables that would take more than 1 GB, records are read and encoded when drawn.

    Args:
        path: the file.
        target: the label's column (tables only); by default the schema's. Of a .npy file, the .npy file of labels.
        schema: public ranges and categories of a table: a `Schema` or its TOML file.
        classes: class names in order; by default the schema's, else the fixed binary pairs.
        features: the public number of features of LIBSVM text; without it indices fold into 1024. For an .npz file of
            images "scattering", "scattering-photos" or "hog", or `ImageFeatures`. For a table without a schema "pairs":
            every two columns together, too, hashed into 1024 more features.
        normalise: scale each record to norm 1; by default tables are, LIBSVM and arrays are not.
        target_range: (low, high), public: the target is a number, not a class; by default the schema's.
        unit: the column of ids (or array of an .npz file) that says whose a record is. It is never a feature.
        reading: whether records are kept in memory, and how progress is shown.

    Returns: `Loaded`, whose `description` says what was known.

    Guarantee: inputs[i] and targets[i] are a fixed function of record i, the header and the arguments.

    Edge cases: everything that cannot be used raises `InputError` and names the value and the remedy.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "visits.csv")
    ...     _ = file.write_text("age,job,ill\\n31,nurse,yes\\n,?,no\\n")
    ...     data = load(file, "ill")
    >>> len(data.records), data.records.targets.tolist(), data.classes
    (2, [1, 0], ('0', '1'))
    """
    rules = read_schema(schema) if isinstance(schema, (str, Path)) else schema
    place, how = Path(path), reading or Reading()
    rest = "name the column that says whose a record is, or leave unit out"
    need(unit is None or unit != target, "unit and target must be two columns", unit=unit, target=target, remedy=rest)
    stored = _stored(place, target)
    target = None if isinstance(stored, ArrayFile) else target
    source, ids = _with_ids(read_source(place) if stored is None else stored.head, unit, place, schema=rules)
    target = target if target is not None else (rules.target if rules else None)
    if classes is None and target_range is None and rules is not None:
        classes, target_range = rules.classes, rules.target_range
    encoder = encoder_for(source, target, schema=rules, features=features, normalise=normalise)
    need_numbers_read(source, encoder)
    if isinstance(stored, TableFile) and how.keeps(4 * stored.n * encoder.features):
        (source, ids), stored = _with_ids(read_source(place), unit, place, schema=rules), None
    names, numbers = _answers(classes, target_range)
    answers = _Answers(names, target, classes is None and numbers is None, numbers, unit)
    if stored is None:
        loaded = answers.loaded(Records(*map(torch.from_numpy, answers.encoded(source, encoder))), encoder)
    else:
        rows = stored.opened(how.track)
        ids = rows.column(unit) if isinstance(rows, ArrowRows) and unit is not None else ids
        loaded = answers.loaded(_stored_records(rows, encoder, answers, scaled=normalise is not None), encoder)
    if unit is not None:
        loaded = replace(loaded, unit=unit, units=Units.of(ids))
    elif isinstance(source, Table):
        tell_identifiers(name for name in source.columns if name != target)
    tell_hashed(source, encoder)
    columns = isinstance(source, SparseRows) or (isinstance(source, Arrays) and source.x.ndim == 2)
    if normalise is None and columns and isinstance(loaded.rows, Records):
        need_scale(loaded.rows)  # pixels have one scale, a table's columns are encoded to have one
    return loaded


def scaled(loaded: Loaded) -> Loaded:
    """The same records, each scaled to norm 1, with an encoder that does so; tables are scaled already."""
    if not isinstance(loaded.encoder, (LibsvmEncoder, ArrayEncoder)):
        return loaded
    encoder = replace(loaded.encoder, normalise=True)
    if not isinstance(loaded.rows, Records):
        return replace(loaded, rows=loaded.rows.then(unit_norm), encoder=encoder)
    inputs = torch.from_numpy(unit_norm(loaded.records.inputs.numpy()))
    return replace(loaded, rows=Records(inputs, loaded.records.targets), encoder=encoder)


def load_like(path: Path | str, loaded: Loaded) -> Loaded:
    """Load another file with the encoder, classes and target of one already loaded.

    Edge cases: columns may stand in another order; a missing or further column raises `InputError`, and so
    does a file of another kind (CSV and Parquet are one kind).
    """
    source = read_source(Path(path))
    source = split_unit(source, loaded.unit)[0] if isinstance(source, Table) else source
    need_numbers_read(source, loaded.encoder)
    answers = _Answers(loaded.classes, loaded.target, loaded.binary_words, loaded.target_range, None)
    records = Records(*map(torch.from_numpy, answers.encoded(source, loaded.encoder)))
    return answers.loaded(records, loaded.encoder)


def read_source(path: Path, *, labelled: bool = True) -> Source:
    """The file's content, by its extension; LIBSVM text when the extension says nothing.

    Args:
        labelled: whether LIBSVM lines must begin with a label, and an .npz file must hold y; tables are not asked here.
    """
    need(path.exists(), "the data must be a file that exists", path=str(path))
    need(path.is_file(), "the data must be a file, not a folder", path=str(path), remedy=_FOLDER)
    kind = path.suffix.lower()
    need(kind not in _NOT_READ, f"{kind} files are not read", path=str(path), remedy=_NOT_READ.get(kind, ""))
    try:
        if kind in SUFFIXES:
            return read_parquet(path)
        if kind == ".npy":
            return read_npy(path, labelled=labelled)
        if kind == ".npz":
            return read_npz(path, labelled=labelled)
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"the data must be readable; got path={str(path)!r}: {error.strerror}") from error
    return read_csv(raw) if kind in (".csv", ".tsv") else read_libsvm(raw, labelled=labelled)


def _answers(
    classes: Sequence[str] | None, target_range: Sequence[float] | None
) -> tuple[tuple[str, ...], TargetRange | None]:
    """The classes, or the range of the numbers, that a model can answer."""
    if target_range is None:
        return BINARY_CLASSES if classes is None else need_classes(classes), None
    need(classes is None, "a target has classes or a range, not both", classes=classes, target_range=target_range)
    need(len(target_range) == 2, "a target's range is LOW,HIGH", target_range=tuple(target_range))
    return (), TargetRange(*target_range)


@dataclass(frozen=True)
class _Answers:
    """How labels are read: class names or a range; the columns of labels and ids, if there are."""

    classes: tuple[str, ...]
    target: str | None
    binary_words: bool
    numbers: TargetRange | None
    unit: str | None

    def encoded(self, source: Source, encoder: Encoder) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Features and targets of every record."""
        if isinstance(source, Table):
            source = split_unit(source, self.unit)[0]
        source, labels = _split(source, self.target)
        return encode_source(source, encoder), self.targets(labels)

    def targets(self, labels: Sequence[Cell], *, rows: Sequence[int] | None = None) -> npt.NDArray[Any]:
        """Labels as classes 0, 1, … or numbers of the range; `rows` says where they stand."""
        if self.numbers is not None:
            return self.numbers.scaled(labels)
        return parse_labels(labels, None if self.binary_words else self.classes, rows=rows)

    def loaded(self, records: Records | EncodedRecords, encoder: Encoder) -> Loaded:
        """The records beside all this."""
        return Loaded(records, encoder, self.classes, self.target, self.binary_words, self.numbers)


def _with_ids(source: Source, unit: str | None, path: Path, *, schema: Schema | None) -> tuple[Source, Any]:
    """The source without its ids, and the ids."""
    return (source, None) if unit is None else split_ids(source, unit, path=path, schema=schema)


def _stored(path: Path, target: str | None) -> TableFile | ArrayFile | None:
    """A file whose records need not be read to be known; None for all others."""
    kind = path.suffix.lower()
    if kind not in (*SUFFIXES, ".npy") or not path.is_file():
        return None
    return ArrayFile(path, target) if kind == ".npy" else TableFile(path)


def _stored_records(
    rows: ArrowRows | ArrayFile, encoder: Encoder, answers: _Answers, *, scaled: bool
) -> EncodedRecords:
    """Records that are encoded when drawn; labels, and the scale of arrays, are looked at once, block by block."""
    if answers.numbers is None:
        labels = rows.labels(answers.target)
        answers.targets(tuple(labels), rows=[row + 1 for row in labels.values()])
    if isinstance(rows, ArrayFile) and rows.head.x.ndim == 2 and not scaled:
        need_norm(*rows.longest())
    return EncodedRecords(rows, lambda source: answers.encoded(source, encoder))


def _split(source: Source, target: str | None) -> tuple[Source, Sequence[Cell]]:
    """A source without its labels, if they are a column, and the labels."""
    return split_target(source, target) if isinstance(source, Table) else (source, source.labels)


def as_records(data: object) -> RecordSource:
    """Make a record source of arrays, a torch dataset, or a record source.

    Floating inputs get torch's default type; integer or boolean targets become int64.

    Args:
        data: `Records`, `SparseRecords`, `DatasetRecords`, a torch `Dataset`, a pair (inputs, targets) of NumPy arrays
            or tensors (inputs may be a SciPy sparse matrix), or a dictionary of them. Arrays that are memory-mapped
            stay on disk.

    Edge cases: raises `InputError` for no record, lengths that differ, NaN or infinite features (also when
    only the conversion makes them infinite).

    >>> import numpy as np
    >>> source = as_records((np.eye(2), np.array([True, False])))
    >>> source.take(np.array([0]))
    (tensor([[1., 0.]]), tensor([1]))
    """
    if isinstance(data, (Records, SparseRecords, TreeRecords, DatasetRecords, *ON_DISK)):
        return data
    if type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may give other records
        data = data.tensors
    if isinstance(data, Dataset):
        return DatasetRecords(data)
    if isinstance(data, (Mapping, tuple, list)) and is_mapped(data):
        return MappedRecords(data)
    if isinstance(data, Mapping):
        return TreeRecords({name: as_inputs(as_tensor(values, str(name))) for name, values in data.items()})
    if isinstance(data, (tuple, list)):
        need(len(data) == 2, "data must be a pair (inputs, targets)", length=len(data), remedy="or a dictionary")
        if scipy.sparse.issparse(data[0]):
            return _sparse(data[0], data[1])
        return Records(as_inputs(data[0]), as_targets(data[1]))
    raise InputError(
        "data must be Records, a torch Dataset, a dictionary of arrays, or a pair of arrays (inputs, targets); "
        f"got {type(data).__name__}; give (X, y), or the dataset of a DataLoader (a loader of one's own: make_private)"
    )


def _sparse(inputs: Any, targets: object) -> SparseRecords:
    """A SciPy sparse matrix and its targets, the numbers in torch's default type."""
    kind = torch.empty(0).numpy().dtype
    need(inputs.dtype.kind in "fiub", "inputs must hold numbers", dtype=str(inputs.dtype))
    return SparseRecords(scipy.sparse.csr_array(inputs, dtype=kind), as_targets(targets))
