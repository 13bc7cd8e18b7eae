"""dpsrm: train PyTorch models with differential privacy, by stochastic recursive momentum.

    dpsrm.make_private(model=…, losses=…, optimizer=…, data_loader=…, epsilon=1, delta=1e-5, epochs=5)   # your own loop
    dpsrm.train(module, loss, data, dpsrm.Settings(privacy=dpsrm.Privacy(epsilon=1, delta=1e-5)), out="runs/first")

Names are loaded when first used, so that accounting alone does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsrm.accounting import Guarantee
    from dpsrm.core.errors import (
        BoundExceeded,
        BudgetExceeded,
        Diverged,
        DpsrmError,
        InputError,
        IsolationError,
        LedgerError,
        MissingExtra,
        ResumeError,
    )
    from dpsrm.core.events import Adjacency, Scheme
    from dpsrm.core.isolation import Isolation
    from dpsrm.data import DatasetRecords, Records, load, load_like
    from dpsrm.gradients import ModelLosses, binary_loss, multiclass_loss, squared_loss
    from dpsrm.gradients.ghost import rule
    from dpsrm.integrations import MLflow, TensorBoard
    from dpsrm.methods import Agd, Ask, Disk, Gd, Method, Rrpsgd, Schedule, Sgd, Spider, Srm, Storm, Walk
    from dpsrm.runs import verify
    from dpsrm.training import (
        EarlyStopping,
        Evaluate,
        LoadedRun,
        Performance,
        Privacy,
        PrivateTraining,
        Progress,
        Run,
        Settings,
        Statement,
        Theory,
        Training,
        load_run,
        make_private,
        resume,
        train,
    )

    __version__: str

_HOME = {
    "dpsrm.accounting": "Guarantee",
    "dpsrm.core.errors": "BoundExceeded BudgetExceeded Diverged DpsrmError InputError IsolationError LedgerError "
    "MissingExtra ResumeError",
    "dpsrm.core.events": "Adjacency Scheme",
    "dpsrm.core.isolation": "Isolation",
    "dpsrm.data": "DatasetRecords Records load load_like",
    "dpsrm.gradients": "ModelLosses binary_loss multiclass_loss squared_loss",
    "dpsrm.gradients.ghost": "rule",
    "dpsrm.integrations": "MLflow TensorBoard",
    "dpsrm.methods": "Agd Ask Disk Gd Method Rrpsgd Schedule Sgd Spider Srm Storm Walk",
    "dpsrm.runs": "verify",
    "dpsrm.training": "EarlyStopping Evaluate LoadedRun Performance Privacy PrivateTraining Progress Run Settings "
    "Statement Theory Training load_run make_private resume train",
}
"""Where each public name is defined: the names as words."""
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Adjacency",
    "Agd",
    "Ask",
    "BoundExceeded",
    "BudgetExceeded",
    "DatasetRecords",
    "Disk",
    "Diverged",
    "DpsrmError",
    "EarlyStopping",
    "Evaluate",
    "Gd",
    "Guarantee",
    "InputError",
    "Isolation",
    "IsolationError",
    "LedgerError",
    "LoadedRun",
    "MLflow",
    "Method",
    "MissingExtra",
    "ModelLosses",
    "Performance",
    "Privacy",
    "PrivateTraining",
    "Progress",
    "Records",
    "ResumeError",
    "Rrpsgd",
    "Run",
    "Schedule",
    "Scheme",
    "Settings",
    "Sgd",
    "Spider",
    "Srm",
    "Statement",
    "Storm",
    "TensorBoard",
    "Theory",
    "Training",
    "Walk",
    "binary_loss",
    "load",
    "load_like",
    "load_run",
    "make_private",
    "multiclass_loss",
    "resume",
    "rule",
    "squared_loss",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the package that defines it; the version is what was installed."""
    if name == "__version__":
        return import_module("importlib.metadata").version("dpsrm")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dpsrm' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """All public names, also those not loaded yet."""
    return sorted([*__all__, "__version__"])
