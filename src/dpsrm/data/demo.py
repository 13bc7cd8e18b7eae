"""The demo's data: the RAND Health Insurance Experiment, which ships inside statsmodels."""

from __future__ import annotations

import math

import torch

from dpsrm.core.errors import need_extra
from dpsrm.data.columns import Number
from dpsrm.data.load import Loaded
from dpsrm.data.records import Records
from dpsrm.data.schema import Schema
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.data.tables import Table

# Ranges follow from the codebook (statsmodels.datasets.randhie.NOTE) and the experiment's published design
# (Newhouse et al., Free for All?, 1993), not from the records; what lies outside is clamped.
SCHEMA = Schema(
    columns=(
        Number("lncoins", 0, math.log(101)),  # codebook: ln(coinsurance + 1), 0 <= coinsurance <= 100
        Number("idp", 0, 1),  # codebook: 0 or 1
        Number("lpi", 0, math.log(2000)),  # codebook: ln(max(1, payment)); design: in the order of the MDE, $1000
        Number("fmde", 0, math.log(1000 / 0.25)),  # codebook: ln(MDE/coinsurance); design: MDE <= $1000, rates >= 25 %
        Number("physlm", 0, 1),  # codebook: 0 or 1 (some are imputed shares)
        Number("disea", 0, 30),  # codebook: a number of chronic diseases; 30 is as many as we tell apart
        Number("hlthg", 0, 1),  # codebook: 0 or 1
        Number("hlthf", 0, 1),  # codebook: 0 or 1
        Number("hlthp", 0, 1),  # codebook: 0 or 1
    ),
    target="mdvis > 0",
    classes=("no visit", "visit"),
)

DESCRIPTION = (
    "RAND Health Insurance Experiment (statsmodels.datasets.randhie): 20190 person-years of insured people in "
    "the USA, 1974-1982. The target is whether the person saw a doctor as an outpatient that year (mdvis > 0). "
    "One record is one person-year; a person has several. The guarantee protects a record, not all records of a "
    "person. Every fifth record is held out, so people occur on both sides of the split."
)


def load_rand_health() -> tuple[Loaded, Loaded, str]:
    """Training records, held-out records, and a text that says what they are.

    The features are encoded by `SCHEMA`; record i is held out when i mod 5 = 4, without a seed.

    Guarantee: no download, no random number; ranges are constants of this file.

    >>> train, test, text = load_rand_health()
    >>> len(train.records), len(test.records), train.n_features
    (16152, 4038, 18)
    """
    need_extra("statsmodels", extra="demo")
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    names = tuple(column.name for column in SCHEMA.columns)
    table = Table(names, tuple(tuple(frame[name].astype(float).tolist()) for name in names))
    encoder = SchemaEncoder(SCHEMA)
    inputs = torch.from_numpy(encoder.encode(table))
    targets = torch.from_numpy((frame["mdvis"] > 0).to_numpy(dtype="int64", copy=True))
    held_out = torch.arange(len(table)) % 5 == 4
    train, test = (
        Loaded(Records(inputs[part], targets[part]), encoder, SCHEMA.classes or (), SCHEMA.target)
        for part in (~held_out, held_out)
    )
    return train, test, DESCRIPTION
