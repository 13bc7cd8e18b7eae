"""From settings and data to a trained model, its ledger and its certificate."""

from dpsrm.methods import Theory
from dpsrm.training.callbacks import EarlyStopping, Evaluate
from dpsrm.training.config import Config, Data, Settings, config_from, settings_to_dict
from dpsrm.training.load_run import LoadedRun, load_run
from dpsrm.training.metrics import classification_metrics, half_widths, regression_metrics
from dpsrm.training.own_loop import PrivateTraining
from dpsrm.training.plan import Plan, make_plan
from dpsrm.training.private import make_private
from dpsrm.training.recorded import RecordedRun, Run
from dpsrm.training.settings import Model, Performance, Privacy, Training, loss_for
from dpsrm.training.statement import Statement
from dpsrm.training.step import Progress, Step
from dpsrm.training.train import Callback, resume, train
from dpsrm.training.trials import TrialResult, run_trials

__all__ = [
    "Callback",
    "Config",
    "Data",
    "EarlyStopping",
    "Evaluate",
    "LoadedRun",
    "Model",
    "Performance",
    "Plan",
    "Privacy",
    "PrivateTraining",
    "Progress",
    "RecordedRun",
    "Run",
    "Settings",
    "Statement",
    "Step",
    "Theory",
    "Training",
    "TrialResult",
    "classification_metrics",
    "config_from",
    "half_widths",
    "load_run",
    "loss_for",
    "make_plan",
    "make_private",
    "regression_metrics",
    "resume",
    "run_trials",
    "settings_to_dict",
    "train",
]
