"""A search over parameters whose price is known and paid."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsrm.accounting.selection import runs_to_gamma
from dpsrm.audit.prove import quiet
from dpsrm.core.errors import BudgetExceeded, need, need_extra
from dpsrm.core.secret import Streams
from dpsrm.estimators.base import PrivateEstimator, research_seed
from dpsrm.estimators.fits import CountsFits
from dpsrm.estimators.inputs import from_data
from dpsrm.estimators.leaks import tell_price
from dpsrm.estimators.scores import noisy_score
from dpsrm.estimators.selection import ETA, TryPlan, plan_tries
from dpsrm.estimators.targets import one_column
from dpsrm.training.ranks import strategy

need_extra("sklearn", extra="sklearn")
from sklearn.base import MetaEstimatorMixin  # noqa: E402
from sklearn.model_selection import ParameterGrid  # noqa: E402
from sklearn.utils import _safe_indexing  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

_FIXED = {"epsilon", "delta", "budget", "out", "accountant", "random_state", "classes", "target_range"}
_ALL = "every try is charged as the dearest, and only the best one comes out: "


@contextmanager
def _silence() -> Iterator[None]:
    """No log lines and no warnings: a line for every try would tell how many there were, which must stay secret."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(eq=False, repr=False)
class PrivateSearchCV(MetaEstimatorMixin, CountsFits):  # type: ignore[misc]
    """The best of several parameter settings, the search included in (ε, δ).

    A random number of tries (about `tries`) each draw a setting of the grid, train on a part of the records and are
    scored on the rest, with noise. Only the best try comes out: its model, parameters and noisy score.

        ε = that of Papernot & Steinke (2022), Theorem 2, for the dearest setting of the grid

    Args:
        estimator: a private estimator whose classes (or target_range) are given; its epsilon and delta are replaced.
        param_grid: as in scikit-learn's GridSearchCV.
        epsilon, delta: the promise for the whole search, for replacing one record.
        tries: how many tries are expected, above 1.
        held_out: the share of records on which tries are scored.
        random_state: research only: reproducible, not private.

    Guarantee: best_estimator_, best_params_ and best_score_ together are (ε, δ)-DP. Not covered: how long the search
    took, which tells the number of tries.

    Edge cases: the run folders of the tries are deleted, the best one's too: their certificates state the cost of one
    run, not of the search. `out` and `budget` of the estimator are refused.
    """

    estimator: PrivateEstimator
    param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float = 1e-5
    tries: float = 10.0
    held_out: float = 0.2
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> PrivateSearchCV:
        """Search, and keep the best try."""
        self._need_plain()
        alone, remedy = strategy().ranks == 1, "search without torchrun; fit() of an estimator runs on ranks"
        need(alone, "a private search runs in one process", remedy=remedy)
        if self._fitted_before() and self.random_state is None:
            tell_price()
        streams = Streams.choose(research_seed(self.random_state))
        y = one_column(y)  # before any record has a part, so that a refusal does not tell which
        train, test = self._parts(X, streams.sampling)
        settings = list(ParameterGrid(self.param_grid))
        made = [self._made(each) for each in settings]
        plan = plan_tries(made, n=len(train), epsilon=self.epsilon, delta=self.delta, tries=self.tries)
        speaker = min(made, key=lambda one: not from_data(one.bounds))
        speaker.set_params(epsilon=plan.epsilon, delta=self.delta)._tell_of_tries(X, y, tried=len(train))
        with _silence():
            best = self._best(settings, plan, (X, y), parts=(train, test), streams=streams)
        self.best_score_, self.best_estimator_, self.best_params_ = best
        self.epsilon_spent_ = plan.total
        self._restate(plan)
        return self

    def _best(
        self,
        settings: Sequence[Mapping[str, Any]],
        plan: TryPlan,
        data: tuple[Any, Any],
        *,
        parts: tuple[Any, Any],
        streams: Streams,
    ) -> tuple[float, Any, Mapping[str, Any]]:
        """The score, the estimator and the parameters of the best of a random number of tries; the first of equals."""
        best: tuple[float, Any, Mapping[str, Any]] = (-np.inf, None, {})
        gamma = runs_to_gamma(self.tries, eta=ETA)
        for _ in range(int(streams.output.logseries(1 - gamma))):
            each = settings[int(streams.output.integers(len(settings)))]
            tried, score = self._try(each, plan, data, parts=parts, streams=streams)
            if score > best[0]:
                best = score, tried, each
        return best

    def _made(self, parameters: Mapping[str, Any]) -> Any:
        """The estimator with some parameters; Rényi curves prove its tries, so they calibrate them."""
        need(
            not _FIXED & set(parameters),
            f"{', '.join(sorted(_FIXED))} are not searched",
            parameters=sorted(parameters),
        )
        made = self.estimator._uncounted_clone()  # the search pays for all its tries, and their number stays secret
        return made.set_params(**parameters, accountant="rdp")

    def _try(
        self,
        parameters: Mapping[str, Any],
        plan: TryPlan,
        data: tuple[Any, Any],
        *,
        parts: tuple[Any, Any],
        streams: Streams,
    ) -> tuple[Any, float]:
        """One try: trained on the first part, scored with noise on the second."""
        (X, y), (train, test) = data, parts
        seed = None if streams.private else int(streams.output.integers(2**31))
        one = self._made(parameters).set_params(epsilon=plan.epsilon, delta=self.delta, random_state=seed)
        one.fit(_safe_indexing(X, train), _safe_indexing(y, train))
        if not plan.covers(one.run_.plan.reserved):
            raise BudgetExceeded(f"{_ALL}the try {dict(parameters)} may spend more than was planned")
        merits = one.merits(_safe_indexing(X, test), _safe_indexing(y, test))
        return one, noisy_score(merits, streams, noise_multiplier=plan.score_noise, delta=self.delta)

    def _restate(self, plan: TryPlan) -> None:
        """The best try's ε is that of the search; its folder, whose certificate knows one run alone, goes."""
        run = self.best_estimator_.run_
        shutil.rmtree(run.folder.path, ignore_errors=True)
        spent = replace(run.guarantee, epsilon=plan.total, accountant="rdp, with selection")
        self.best_estimator_.run_ = replace(run, guarantee=spent)
        self.best_estimator_.epsilon_spent_ = plan.total

    def _parts(self, X: Any, stream: np.random.Generator) -> tuple[Any, Any]:
        """Positions to train on and to score on, drawn without looking at a record."""
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        held = round(self.held_out * n)
        need(1 <= held < n, "both parts need a record", records=n, held_out=self.held_out)
        order = stream.permutation(n)
        return np.sort(order[held:]), np.sort(order[:held])

    def _need_plain(self) -> None:
        """Refuse what would publish single tries."""
        ours = isinstance(self.estimator, PrivateEstimator)
        need(
            ours,
            "a search is for one private estimator, by itself",
            estimator=type(self.estimator).__name__,
            remedy="put the search at the end of a pipeline: make_pipeline(Normalizer(), PrivateSearchCV(…)); steps "
            "before it must learn nothing from the records (docs/sklearn.md)",
        )
        for name in ("out", "budget", "random_state"):
            value = getattr(self.estimator, name)
            need(value is None, f"the tries of a search have no {name}", **{name: value}, remedy="leave it out")

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """As the best estimator."""
        check_is_fitted(self)
        found: npt.NDArray[Any] = self.best_estimator_.predict(X)
        return found

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """As the best estimator."""
        check_is_fitted(self)
        found: npt.NDArray[np.float64] = self.best_estimator_.predict_proba(X)
        return found

    def score(self, X: Any, y: Any) -> float:
        """As the best estimator."""
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))
