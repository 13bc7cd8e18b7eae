"""The run folder: ledger, certificate, keys, verification. Nothing here needs torch."""

from dpsrm.runs.folder import RunFolder
from dpsrm.runs.verify import Verification, verify

__all__ = ["RunFolder", "Verification", "verify"]
