"""Files, arrays and datasets into records, by rules that read nothing from the private data."""

from dpsrm.data.demo import load_rand_health
from dpsrm.data.load import Loaded, load, load_like
from dpsrm.data.records import DatasetRecords, Records, RecordSource, SparseRecords, as_records, csr_tensor
from dpsrm.data.schema import Schema, read_schema

__all__ = [
    "DatasetRecords",
    "Loaded",
    "RecordSource",
    "Records",
    "Schema",
    "SparseRecords",
    "as_records",
    "csr_tensor",
    "load",
    "load_like",
    "load_rand_health",
    "read_schema",
]
