"""Load a file of labelled records, and a second one by exactly the same rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from dpsrm.core.errors import InputError, need
from dpsrm.data.arrays import ArrayEncoder, Arrays, read_npz
from dpsrm.data.cells import BINARY_CLASSES, Cell, Table, need_classes, parse_labels
from dpsrm.data.encoding import HashEncoder, unit_norm
from dpsrm.data.features import ImageFeatures
from dpsrm.data.identifiers import split_ids, split_unit, tell_identifiers
from dpsrm.data.image_encoder import ImageEncoder
from dpsrm.data.libsvm import FOLD, LibsvmEncoder, SparseRows, read_libsvm
from dpsrm.data.ranges import TargetRange
from dpsrm.data.records import Records, need_scale
from dpsrm.data.schema import Schema, read_schema
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.data.tables import array_names, read_csv, read_parquet, split_target, table_of_array
from dpsrm.data.units import Units

LABEL_NAMES = ("label", "target", "y")
"""What a user may call the label of a file that has no column names."""

_UNPACK = "unpack the file first"
_CONVERT = "convert it to .csv or .parquet, for instance with pandas"
_NOT_READ = {
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".7z"), _UNPACK),
    **dict.fromkeys((".json", ".jsonl", ".ndjson", ".xlsx", ".xls", ".feather", ".arrow", ".pkl", ".sav"), _CONVERT),
    ".npy": "save both arrays in one file: np.savez('data.npz', X=X, y=y)",
}
"""Extensions of formats that people try, and what to do."""

Encoder = HashEncoder | SchemaEncoder | LibsvmEncoder | ArrayEncoder | ImageEncoder
Source = Table | SparseRows | Arrays


@dataclass(frozen=True, eq=False)
class Loaded:
    """Records beside everything that was known to make them.

    `records` are private, and so is which are whose, `units`; all else is public and makes a second file alike. A
    target that is a number has a `target_range` and no classes.
    """

    records: Records
    encoder: Encoder
    classes: tuple[str, ...]
    target: str | None = None
    binary_words: bool = False
    target_range: TargetRange | None = None
    unit: str | None = None
    units: Units | None = None

    @property
    def n(self) -> int:
        """How many examples there are: units, or records where each is one of its own."""
        return len(self.records) if self.units is None else len(self.units)

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
) -> Loaded:
    """Load a file of labelled records, looking at nothing but each record to encode it.

    .csv and .tsv tables with a header, .parquet or .pq tables, .npz arrays X and y; else LIBSVM text.

    Args:
        path: the file.
        target: the label's column (tables only); by default the schema's.
        schema: public ranges and categories of a table: a `Schema` or its TOML file.
        classes: class names in order; by default the schema's, else the fixed binary pairs.
        features: the public number of features of LIBSVM text; without it indices fold into 1024. For an .npz file of
            images "scattering" or "hog", or `ImageFeatures`.
        normalise: scale each record to norm 1; by default tables are, LIBSVM and arrays are not.
        target_range: (low, high), public: the target is a number, not a class; by default the schema's.
        unit: the column of ids (or array of an .npz file) that says whose a record is. It is never a feature.

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
    source, ids = read_source(Path(path)), None
    if unit is not None:
        source, ids = split_ids(source, unit, path=Path(path), schema=rules)
    target = target if target is not None else (rules.target if rules else None)
    if classes is None and target_range is None and rules is not None:
        classes, target_range = rules.classes, rules.target_range
    encoder = _encoder(source, target, schema=rules, features=features, normalise=normalise)
    names, numbers = _answers(classes, target_range)
    words = classes is None and numbers is None
    loaded = _finish(source, encoder, names, target=target, binary_words=words, numbers=numbers)
    if unit is not None:
        loaded = replace(loaded, unit=unit, units=Units.of(ids))
    elif isinstance(source, Table):
        tell_identifiers(name for name in source.columns if name != target)
    columns = isinstance(source, SparseRows) or (isinstance(source, Arrays) and source.x.ndim == 2)
    if normalise is None and columns:  # pixels have one scale, a table's columns are encoded to have one
        need_scale(loaded.records)
    return loaded


def scaled(loaded: Loaded) -> Loaded:
    """The same records, each scaled to norm 1, with an encoder that does so; tables are scaled already."""
    if not isinstance(loaded.encoder, (LibsvmEncoder, ArrayEncoder)):
        return loaded
    inputs = torch.from_numpy(unit_norm(loaded.records.inputs.numpy()))
    encoder = replace(loaded.encoder, normalise=True)
    return replace(loaded, records=Records(inputs, loaded.records.targets), encoder=encoder)


def load_like(path: Path | str, loaded: Loaded) -> Loaded:
    """Load another file with the encoder, classes and target of one already loaded.

    Edge cases: columns may stand in another order; a missing or further column raises `InputError`, and so
    does a file of another kind (CSV and Parquet are one kind).
    """
    source = read_source(Path(path))
    return _finish(
        split_unit(source, loaded.unit)[0] if isinstance(source, Table) else source,
        loaded.encoder,
        loaded.classes,
        target=loaded.target,
        binary_words=loaded.binary_words,
        numbers=loaded.target_range,
    )


def read_source(path: Path, *, labelled: bool = True) -> Source:
    """The file's content, by its extension; LIBSVM text when the extension says nothing.

    Args:
        labelled: whether LIBSVM lines must begin with a label, and an .npz file must hold y; tables are not asked here.
    """
    need(path.exists(), "the data must be a file that exists", path=str(path))
    need(path.is_file(), "the data must be a file, not a folder", path=str(path))
    kind = path.suffix.lower()
    need(kind not in _NOT_READ, f"{kind} files are not read", path=str(path), remedy=_NOT_READ.get(kind, ""))
    try:
        if kind in (".parquet", ".pq"):
            return read_parquet(path)
        if kind == ".npz":
            return read_npz(path, labelled=labelled)
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"the data must be readable; got path={str(path)!r}: {error.strerror}") from error
    return read_csv(raw) if kind in (".csv", ".tsv") else read_libsvm(raw, labelled=labelled)


def _encoder(
    source: Source,
    target: str | None,
    *,
    schema: Schema | None,
    features: int | str | ImageFeatures | None,
    normalise: bool | None,
) -> Encoder:
    """The encoder a file needs, from public facts and the user's word."""
    numbers = features is None or isinstance(features, int)
    need(
        features is None or isinstance(source, SparseRows if numbers else Arrays),
        "a number of features is given for LIBSVM text only, a kind of features for an .npz file of images only",
        features=features,
        remedy="leave --features out; a table's or an array's follow from its columns",
    )
    need(
        isinstance(source, Table) or (schema is None and target in (None, *LABEL_NAMES)),
        "a target column and a schema are for tables only",
        target=target,
        remedy="leave --target and --schema out; LIBSVM's label and an .npz file's y are the target",
    )
    if isinstance(source, Table):
        table, _ = split_target(source, target)
        scaled = normalise is not False
        if schema is not None:
            return SchemaEncoder(schema, normalise=scaled)
        return HashEncoder(table.columns, normalise=scaled)
    if isinstance(source, SparseRows):
        return LibsvmEncoder(
            features=features if isinstance(features, int) else FOLD,
            folded=features is None,
            normalise=bool(normalise),
        )
    if isinstance(source, Arrays):
        if not numbers:
            maker = ImageFeatures(kind=features) if isinstance(features, str) else cast(ImageFeatures, features)
            return ImageEncoder(shape=source.x.shape[1:], maker=maker)
        return ArrayEncoder(shape=source.x.shape[1:], normalise=bool(normalise))
    raise InputError(f"no encoder for {type(source).__name__}")


def _answers(
    classes: Sequence[str] | None, target_range: Sequence[float] | None
) -> tuple[tuple[str, ...], TargetRange | None]:
    """The classes, or the range of the numbers, that a model can answer."""
    if target_range is None:
        return BINARY_CLASSES if classes is None else need_classes(classes), None
    need(classes is None, "a target has classes or a range, not both", classes=classes, target_range=target_range)
    need(len(target_range) == 2, "a target's range is LOW,HIGH", target_range=tuple(target_range))
    return (), TargetRange(*target_range)


def _finish(
    source: Source,
    encoder: Encoder,
    classes: tuple[str, ...],
    *,
    target: str | None,
    binary_words: bool,
    numbers: TargetRange | None,
) -> Loaded:
    """Encode every record and its label."""
    source, labels = _split(source, target)
    inputs = encode_source(source, encoder)
    known = None if binary_words else classes
    targets = parse_labels(labels, known) if numbers is None else numbers.scaled(labels)
    records = Records(torch.from_numpy(inputs), torch.from_numpy(targets))
    return Loaded(records, encoder, classes, target, binary_words, numbers)


def _split(source: Source, target: str | None) -> tuple[Source, Sequence[Cell]]:
    """A source without its labels, if they are a column, and the labels."""
    return split_target(source, target) if isinstance(source, Table) else (source, source.labels)


def encode_source(source: Source, encoder: Encoder) -> npt.NDArray[np.float32]:
    """Features of a source without its target, by the encoder made for its kind; arrays have the columns x0, x1, …"""
    if isinstance(source, Arrays) and isinstance(encoder, (HashEncoder, SchemaEncoder)) and _unnamed(encoder):
        source = table_of_array(source.x, encoder.names)
    if isinstance(source, Table) and isinstance(encoder, (HashEncoder, SchemaEncoder)):
        return encoder.encode(source)
    if isinstance(source, SparseRows) and isinstance(encoder, LibsvmEncoder):
        return encoder.encode(source)
    if isinstance(source, Arrays) and isinstance(encoder, (ArrayEncoder, ImageEncoder)):
        return encoder.encode(source)
    raise InputError(
        "the file must be of the kind the model was made for; "
        f"got {type(source).__name__} for {type(encoder).__name__}; convert one of the files"
    )


def _unnamed(encoder: HashEncoder | SchemaEncoder) -> bool:
    """Whether a table's columns were those of an array, which has no names: x0, x1, …"""
    return encoder.names == array_names(len(encoder.names))
