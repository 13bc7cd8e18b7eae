"""dpsrm: train PyTorch models with differential privacy, by stochastic recursive momentum.

    dpsrm.train(module, loss, data, dpsrm.Settings(privacy=dpsrm.Privacy(epsilon=1, delta=1e-5)), out="runs/first")

Names are loaded when first used, so that accounting alone does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsrm.core.errors import (
        BoundExceeded,
        BudgetExceeded,
        Diverged,
        DpsrmError,
        InputError,
        IsolationError,
        LedgerError,
        ResumeError,
    )
    from dpsrm.core.isolation import Isolation
    from dpsrm.data import Records, load, load_like
    from dpsrm.gradients.ghost import rule
    from dpsrm.methods import Srm
    from dpsrm.runs import verify
    from dpsrm.training import (
        Performance,
        Privacy,
        PrivateTraining,
        Run,
        Settings,
        Theory,
        Training,
        make_private,
        resume,
        train,
    )

_HOME = {
    "dpsrm.core.errors": (
        "BoundExceeded",
        "BudgetExceeded",
        "Diverged",
        "DpsrmError",
        "InputError",
        "IsolationError",
        "LedgerError",
        "ResumeError",
    ),
    "dpsrm.core.isolation": ("Isolation",),
    "dpsrm.data": ("Records", "load", "load_like"),
    "dpsrm.gradients.ghost": ("rule",),
    "dpsrm.methods": ("Srm",),
    "dpsrm.training": (
        "Performance",
        "Privacy",
        "PrivateTraining",
        "Run",
        "Settings",
        "Theory",
        "Training",
        "make_private",
        "resume",
        "train",
    ),
    "dpsrm.runs": ("verify",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BoundExceeded",
    "BudgetExceeded",
    "Diverged",
    "DpsrmError",
    "InputError",
    "Isolation",
    "IsolationError",
    "LedgerError",
    "Performance",
    "Privacy",
    "PrivateTraining",
    "Records",
    "ResumeError",
    "Run",
    "Settings",
    "Srm",
    "Theory",
    "Training",
    "load",
    "load_like",
    "make_private",
    "resume",
    "rule",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the package that defines it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dpsrm' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
