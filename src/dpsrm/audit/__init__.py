"""A test bench for privacy: prove what can be shown exactly, audit what can only be measured."""

from dpsrm.audit.prove import Proof, prove

__all__ = ["Proof", "prove"]
