"""A test bench for privacy: prove what can be shown exactly, audit what can only be measured."""

from dpsrm.audit.audit import AuditResult, audit
from dpsrm.audit.black_box import BlackBox, black_box
from dpsrm.audit.one_run import one_run_epsilon
from dpsrm.audit.plots import audit_figure, black_box_figure, svg
from dpsrm.audit.prove import Proof, prove
from dpsrm.audit.white_box import Target

__all__ = [
    "AuditResult",
    "BlackBox",
    "Proof",
    "Target",
    "audit",
    "audit_figure",
    "black_box",
    "black_box_figure",
    "one_run_epsilon",
    "prove",
    "svg",
]
