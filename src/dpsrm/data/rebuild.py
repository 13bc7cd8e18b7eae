"""Make the encoder of a run again from its [preprocessing] section, which `Encoder.describe` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsrm.core.errors import InputError, need
from dpsrm.data.arrays import ArrayEncoder
from dpsrm.data.encoding import KNOTS, HashEncoder
from dpsrm.data.features import ImageFeatures
from dpsrm.data.image_encoder import ImageEncoder
from dpsrm.data.libsvm import LibsvmEncoder
from dpsrm.data.load import Encoder
from dpsrm.data.schema import schema_from
from dpsrm.data.schema_encoding import SchemaEncoder


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
        encoder = _encoder(description)
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


def _encoder(description: Mapping[str, Any]) -> Encoder:
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
