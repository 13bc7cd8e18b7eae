"""From settings and data to a trained model, its ledger and its certificate."""

from dpsrm.methods import Theory
from dpsrm.training.config import Config, Data, Settings, config_from, settings_to_dict
from dpsrm.training.loop import Progress, Watcher
from dpsrm.training.metrics import classification_metrics
from dpsrm.training.models import Model, loss_for
from dpsrm.training.plan import Plan, make_plan
from dpsrm.training.session import Run
from dpsrm.training.settings import Performance, Privacy, Training
from dpsrm.training.train import resume, train
from dpsrm.training.trials import TrialResult, run_trials

__all__ = [
    "Config",
    "Data",
    "Model",
    "Performance",
    "Plan",
    "Privacy",
    "Progress",
    "Run",
    "Settings",
    "Theory",
    "Training",
    "TrialResult",
    "Watcher",
    "classification_metrics",
    "config_from",
    "loss_for",
    "make_plan",
    "resume",
    "run_trials",
    "settings_to_dict",
    "train",
]
