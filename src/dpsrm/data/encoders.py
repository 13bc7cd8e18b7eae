"""Encoders: the one that a file needs, the one that a run described, and what each makes of a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need
from dpsrm.data.arrays import ArrayEncoder, Arrays
from dpsrm.data.encoding import KNOTS, HashEncoder
from dpsrm.data.features import ImageFeatures
from dpsrm.data.frames import array_names, table_of_array
from dpsrm.data.image_encoder import ImageEncoder
from dpsrm.data.libsvm import FOLD, LibsvmEncoder, SparseRows
from dpsrm.data.pairs import PAIRS
from dpsrm.data.schema import Schema, schema_from
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.data.tables import Table, need_points, split_target, tell_texts

LABEL_NAMES = ("label", "target", "y")
"""What a user may call the label of a file that has no column names."""


Encoder = HashEncoder | SchemaEncoder | LibsvmEncoder | ArrayEncoder | ImageEncoder
Source = Table | SparseRows | Arrays


def encoder_for(
    source: Source,
    target: str | None,
    *,
    schema: Schema | None,
    features: int | str | ImageFeatures | None,
    normalise: bool | None,
) -> Encoder:
    """The encoder a file needs, from public facts and the user's word."""
    numbers = features is None or isinstance(features, int)
    pairs = features == "pairs" and isinstance(source, Table) and schema is None
    need(
        features is None or pairs or isinstance(source, SparseRows if numbers else Arrays),
        "a number of features is given for LIBSVM text only, a kind of features for an .npz file of images only, pairs "
        "for a table without a schema only",
        features=features,
        remedy="leave --features out; a table's or an array's follow from its columns",
    )
    need(
        isinstance(source, Table) or (schema is None and target in (None, *LABEL_NAMES)),
        "a target column and a schema are for tables only",
        target=target,
        remedy="name the file .csv if it is a table; else leave --target and --schema out: LIBSVM's label and an .npz "
        "file's y are the target",
    )
    if isinstance(source, Table):
        table, _ = split_target(source, target)
        scaled = normalise is not False
        if schema is not None:
            return SchemaEncoder(schema, normalise=scaled)
        return HashEncoder(table.columns, normalise=scaled, pairs=PAIRS if pairs else 0)
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


def need_numbers_read(source: Source, encoder: Encoder) -> None:
    """Refuse a table some of whose numbers would be hashed as texts, because of their commas."""
    if isinstance(source, Table) and isinstance(encoder, HashEncoder):
        need_points(source, encoder.names)


def tell_hashed(source: Source, encoder: Encoder) -> None:
    """Warn of columns of a table that would better be numbers than hashed as texts."""
    if isinstance(source, Table) and isinstance(encoder, HashEncoder):
        tell_texts(source, encoder.names)


def _unnamed(encoder: HashEncoder | SchemaEncoder) -> bool:
    """Whether a table's columns were those of an array, which has no names: x0, x1, …"""
    return encoder.names == array_names(len(encoder.names))


def encoder_from(description: Mapping[str, Any]) -> Encoder:
    """The encoder that described itself by `description`.

    Guarantee: the encoder that comes back describes itself by the same words (but for why they are public), so it
    encodes by the same rule.

    Edge cases: a description that lacks something, or comes from a version of dpsrm with other rules, raises
    `InputError`.

    >>> encoder = HashEncoder(("age", "job"), buckets=8)
    >>> encoder_from(encoder.describe()) == encoder
    True
    """
    try:
        encoder = _described(description)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"[preprocessing] must say how records are encoded; got {error!r}") from error
    now = encoder.describe()
    changed = sorted(name for name in now if name != "public" and now[name] != description.get(name))
    need(
        not changed,
        "[preprocessing] must describe an encoder of this version of dpsrm",
        differs=changed,
        remedy="predict with the version of dpsrm that environment.json names",
    )
    return encoder


def _described(description: Mapping[str, Any]) -> Encoder:
    """The encoder by its format; what it does not describe by the same words is found by the caller."""
    kind, normalise = description["format"], description["normalise"]
    if kind == "libsvm":
        return LibsvmEncoder(features=description["features"], folded=description["folded"], normalise=normalise)
    if kind == "npz":
        return ArrayEncoder(shape=tuple(description["shape"]), normalise=normalise)
    if kind == "images":
        return ImageEncoder(shape=tuple(description["shape"]), maker=ImageFeatures(kind=description["extractor"]))
    if kind == "table" and description["encoder"] == "schema":
        return SchemaEncoder(schema_from({"columns": description["columns"]}), normalise=normalise)
    if kind == "table" and description["encoder"] == "hash" and description["knots"] == list(KNOTS):
        sizes = {"buckets": description["buckets"], "pairs": description.get("pairs", 0)}
        return HashEncoder(tuple(description["columns"]), normalise=normalise, **sizes)
    raise InputError(
        f"[preprocessing] must describe an encoder of this version of dpsrm; got format={kind!r}; "
        "predict with the version of dpsrm that environment.json names"
    )
