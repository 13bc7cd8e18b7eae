"""Private regressors: a linear one and a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import need, need_extra
from dpsrm.data.ranges import TargetRange
from dpsrm.estimators.base import PrivateEstimator
from dpsrm.estimators.leaks import tell_leak
from dpsrm.estimators.targets import one_column
from dpsrm.training.predict import predicted_numbers

need_extra("sklearn", extra="sklearn")
from sklearn.base import RegressorMixin  # noqa: E402
from sklearn.utils.validation import check_array  # noqa: E402


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """What both regressors do with numbers."""

    target_range: Any = None

    def _targets(self, y: Any) -> tuple[Tensor, dict[str, Any], str]:
        """Targets mapped to [-1, 1] by their public range, the range, and which fact was read from the records."""
        numbers = _numbers(y, warn=True)
        if self.target_range is None:
            tell_leak("the target's range was read from the records", "give target_range=(low, high) that is public")
            low, high = float(numbers.min()), float(numbers.max())
            self.target_range_ = TargetRange(low, high if high > low else low + 1)
        else:
            ends = np.asarray(self.target_range)
            rule = "target_range is two numbers, (low, high)"
            need(ends.shape == (2,) and ends.dtype.kind in "iuf", rule, target_range=self.target_range)
            self.target_range_ = TargetRange(*ends.astype(np.float64).tolist())
        targets = torch.from_numpy(self.target_range_.scaled(numbers.tolist()))
        facts = {"classes": (), "target_range": self.target_range_}
        return targets, facts, "target_range" if self.target_range is None else ""

    @property
    def outcomes(self) -> int:
        """No classes; the range must be known."""
        known = self.target_range is not None
        need(known, "a search needs the target's range", remedy="give the estimator target_range=(low, high)")
        return 0

    def merits(self, X: Any, y: Any) -> npt.NDArray[np.float64]:
        """How good each prediction is, from 0 to 1: one minus its squared error, in ranges of the target."""
        low, high = self.target_range_.low, self.target_range_.high
        misses = (self.predict(X) - np.clip(_numbers(y), low, high)) / (high - low)
        merits: npt.NDArray[np.float64] = np.clip(1 - misses**2, 0.0, 1.0)
        return merits

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """A number for each record, inside the target's range."""
        return predicted_numbers(self._outputs(X), self.target_range_)

    def __sklearn_tags__(self) -> Any:
        """Noise on few records: no score can be promised."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


def _numbers(y: Any, *, warn: bool = False) -> npt.NDArray[np.float64]:
    """Targets as finite numbers, each by itself."""
    found: npt.NDArray[np.float64] = check_array(
        one_column(y, warn=warn), ensure_2d=False, dtype="float64", input_name="y"
    )
    return found


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearRegression(_PrivateRegressor):
    """Linear regression with (ε, δ)-differential privacy: squared loss, every gradient clipped.

    Args:
        epsilon, delta: the promise of one fit, for replacing one record.
        target_range: (low, high), public; None: read from the targets, with a `PrivacyLeakWarning`.
        penalty: λ of the paper's nonconvex penalty λ·Σθ²/(1+θ²); 0 for none.
        bounds, schema, steps, batch_size, learning_rate, max_grad_norm, method, accountant, budget, out, random_state:
            see `PrivateEstimator`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(3000, 3))
    >>> model = PrivateLinearRegression(epsilon=1, bounds=(-1, 1), target_range=(-1, 1)).fit(X, X[:, 0])
    >>> model.score(X, X[:, 0]) > 0.5, model.epsilon_spent_ <= 1
    (True, True)
    """

    _kind = "linear"

    penalty: float = 0.0


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateMLPRegressor(_PrivateRegressor):
    """A network with tanh layers of the `hidden` sizes that predicts numbers, with (ε, δ)-differential privacy.

    Args: as in `PrivateLinearRegression`, without the penalty.
    """

    _kind = "mlp"

    hidden: tuple[int, ...] = (64,)
