"""What the four estimators share: parameters, the one way to train, and predictions by the run's own encoder."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from dpsrm.core.errors import InputError, need, need_extra
from dpsrm.core.secret import Streams
from dpsrm.data import Loaded, Records, Units
from dpsrm.data.conversion import need_unmasked
from dpsrm.data.unlabelled import is_frame
from dpsrm.estimators.fits import CountsFits, unless_it_fails
from dpsrm.estimators.inputs import by_record, choose_encoder, encode, from_data, need_memory
from dpsrm.estimators.leaks import tell_delta, tell_leak, tell_price
from dpsrm.gradients import Objective
from dpsrm.methods import method_class
from dpsrm.runs.ledger import READ
from dpsrm.training import Model, Performance, Privacy, Settings, loss_for, train
from dpsrm.training.config import plain
from dpsrm.training.defaults import Choices, Shape, choose, tell_expectations
from dpsrm.training.predict import module_outputs

need_extra("sklearn", extra="sklearn")
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data  # noqa: E402


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(CountsFits):
    """Parameters of every private estimator; scikit-learn reads them off the constructor that these fields make.

    Args:
        epsilon, delta: the promise of one fit, for replacing one record (or one unit: `fit(X, y, unit=ids)`).
        bounds: what is public about the columns of an array: (low, high), each a number or one per column; "record" to
            scale each record to norm 1; "data" to read them from the records, with a warning; None: columns are
            encoded by fixed knots that suit any scale. Sparse matrices are always scaled by record.
        schema: a DataFrame's public ranges and categories: a `Schema`, its file, or what such a file says.
        steps, batch_size, learning_rate, max_grad_norm, method: as in `Training`; what is None is chosen from public
            numbers.
        accountant: which proves ε.
        budget: a file of `new_budget`, shared with other fits.
        out: the run folder; None: a temporary one, removed with the estimator.
        random_state: research only: reproducible, not private (and said so by a warning).
    """

    _kind = "logistic"

    epsilon: float = 1.0
    delta: float = 1e-5
    bounds: Any = None
    schema: Any = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    max_grad_norm: float | None = None
    method: Any = None
    accountant: str = "pld"
    budget: str | None = None
    out: Any = None
    random_state: Any = None

    def fit(self, X: Any, y: Any, *, unit: Any = None) -> Self:
        """Train on the records; the model is (ε, δ)-DP.

        With `unit`, one id per record, a person is protected with all their records (docs/whose-privacy.md).
        """
        need(y is not None, "this estimator requires y to be passed, but the target y is None")
        if self._fitted_before() and self.budget is None and self.random_state is None:
            tell_price()
        with unless_it_fails(self):
            X = self._checked(X, fitting=True)
            check_consistent_length(X, y)
            self._train(*self._loaded(X, y, unit=unit))
        return self

    def _loaded(self, X: Any, y: Any, *, unit: Any = None) -> tuple[Loaded, str]:
        """Records of checked inputs, and which fact was read from them; says what the guarantee does not cover."""
        targets, facts, read = self._targets(y)
        loaded = replace(self._load(X, targets, **facts), units=None if unit is None else Units.of(unit))
        tell_delta(self.delta, loaded.n)
        return loaded, read

    def _targets(self, y: Any) -> tuple[Tensor, dict[str, Any], str]:
        """Targets as the loss takes them, what is public of them, and which fact was read from the records."""
        raise NotImplementedError

    def _train(self, loaded: Loaded, read: str) -> None:
        """Train on the records and keep the run; `read` says which public fact was read from the records."""
        settings, model, module = self._ready(loaded, seed=research_seed(self.random_state))
        known = {**loaded.description, **({f"{read}_from": READ} if read else {})}
        if from_data(self.bounds):
            known |= {"public": f"the columns' bounds were {READ}", "bounds_from": READ}
        self.run_ = train(
            module,
            loss_for(len(loaded.classes)),
            model.records(loaded),
            settings,
            out=self._folder(),
            about={"model": plain(model), "preprocessing": known},
            unit=loaded.units,
        )
        self.encoder_ = loaded.encoder
        self.n_iter_ = self.run_.plan.schedule.steps
        self.epsilon_spent_ = self.run_.epsilon

    def _ready(self, loaded: Loaded, *, seed: int | None) -> tuple[Settings, Model, nn.Module]:
        """The settings, and the model as it begins."""
        given, size = self.get_params(deep=False), {"features": loaded.n_features, "classes": len(loaded.classes)}
        settings, shape, choices = self.asked(loaded.n, classes=len(loaded.classes), seed=seed)
        model = Model(kind=self._kind, **{name: given[name] for name in ("hidden",) if name in given})
        shape = replace(shape, parameters=model.size(**size))
        settings = choose(settings, shape, replace(choices, regulariser=given.get("penalty", 0.0)))
        return settings, model, model.build(**size, stream=Streams.choose(seed).initialisation)

    def _tell_of_tries(self, X: Any, y: Any, *, tried: int) -> None:
        """Say once what every fit of a search on `tried` of these records would say; those fits are silent."""
        loaded, _ = self._loaded(self._checked(X, fitting=True), y)
        settings, model, module = self._ready(loaded, seed=0)
        objective = Objective.of(module, loss_for(len(loaded.classes)))
        tell_expectations(objective, model.records(loaded), settings.privacy, n=tried)

    def asked(self, n: int, *, classes: int, seed: int | None = None) -> tuple[Settings, Shape, Choices]:
        """The promise, the public shape of n records, and what the user chose about the schedule."""
        method = method_class(self.method) if isinstance(self.method, str) else self.method
        counted, remedy = method is None or not method.adaptive, "give another method; dpsrm.train takes this one"
        need(counted, "an estimator takes methods whose updates are counted", method=self.method, remedy=remedy)
        settings = Settings(
            privacy=Privacy(epsilon=self.epsilon, delta=self.delta, accountant=self.accountant),
            performance=Performance(checkpoint_seconds=0.0),
            seed=seed,
            budget=None if self.budget is None else str(self.budget),
        )
        choices = Choices(
            steps=self.steps,
            batch=self.batch_size,
            learning_rate=self.learning_rate,
            max_grad_norm=self.max_grad_norm,
            method=self.method,
        )
        return settings, Shape(n=n, classes=classes, kind=self._kind), choices

    def _folder(self) -> Path:
        """Where the run is written."""
        if self.out is not None:
            return Path(self.out)
        made = tempfile.mkdtemp(prefix="dpsrm-")
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return Path(made) / "run"

    def _load(self, X: Any, targets: Tensor, **facts: Any) -> Loaded:
        """Records of checked inputs and coded targets."""
        encoder = choose_encoder(X, bounds=self.bounds, schema=self.schema)
        need_memory(len(targets), encoder.features)
        inputs = torch.from_numpy(encode(X, encoder))
        return Loaded(rows=Records(inputs, targets), encoder=encoder, **facts)

    def _checked(self, X: Any, *, fitting: bool = False) -> Any:
        """X as scikit-learn checks it; DataFrames keep their columns, whatever they hold."""
        need_unmasked(X, "X")
        if is_frame(X) and not by_record(self.bounds):
            validate_data(self, X, skip_check_array=True, reset=fitting)
            return X
        try:
            return validate_data(self, X, accept_sparse="csr", dtype="float64", reset=fitting)
        except ValueError as error:
            if "contains NaN" not in str(error):
                raise
            raise InputError(
                "X must not contain NaN; give a DataFrame, whose missing values are encoded as missing (but not with "
                'bounds="record"), or put a fixed value in their place; an imputer learns from private records, which '
                "the guarantee does not cover"
            ) from None

    def _outputs(self, X: Any) -> Tensor:
        """The model's outputs, as `dpsrm predict` computes them."""
        check_is_fitted(self)
        return module_outputs(self.run_.module, encode(self._checked(X), self.encoder_))

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


def research_seed(random_state: Any) -> int | None:
    """A seed for research, with a warning; None draws from the operating system."""
    if random_state is None:
        return None
    tell_leak("random_state makes the noise predictable", "leave it out for a private model")
    return int(check_random_state(random_state).randint(2**31 - 1))
