"""Files, arrays and datasets into records, by rules that read nothing from the private data."""

from dpsrm.data.datasets import DatasetRecords
from dpsrm.data.demo import load_rand_health
from dpsrm.data.features import ImageFeatures
from dpsrm.data.image_folder import ImageFolder
from dpsrm.data.load import Loaded, as_records, load, load_like
from dpsrm.data.mapped import MappedRecords
from dpsrm.data.records import Records, RecordSource, SparseRecords, TreeRecords, csr_tensor
from dpsrm.data.schema import Schema, read_schema
from dpsrm.data.stored import EncodedRecords, Reading
from dpsrm.data.units import Picked, UnitRecords, Units

__all__ = [
    "DatasetRecords",
    "EncodedRecords",
    "ImageFeatures",
    "ImageFolder",
    "Loaded",
    "MappedRecords",
    "Picked",
    "Reading",
    "RecordSource",
    "Records",
    "Schema",
    "SparseRecords",
    "TreeRecords",
    "UnitRecords",
    "Units",
    "as_records",
    "csr_tensor",
    "load",
    "load_like",
    "load_rand_health",
    "read_schema",
]
