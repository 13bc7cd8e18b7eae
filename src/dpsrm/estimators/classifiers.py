"""Private classifiers: a linear one and a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import need, need_extra
from dpsrm.data.conversion import need_one_type
from dpsrm.estimators.base import PrivateEstimator
from dpsrm.estimators.leaks import tell_leak
from dpsrm.estimators.targets import codes_of, one_column
from dpsrm.training.predict import chosen_places, class_log_probabilities, class_probabilities

need_extra("sklearn", extra="sklearn")
from sklearn.base import ClassifierMixin  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import assert_all_finite  # noqa: E402


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """What both classifiers do with labels."""

    classes: Any = None

    def _targets(self, y: Any) -> tuple[Tensor, dict[str, Any], str]:
        """Labels as 0..K-1 of the sorted classes, the classes, and which fact was read from the records."""
        labels = one_column(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        if self.classes is None:
            tell_leak("the classes were read from the labels", "give classes=[…], all that can occur")
            self.classes_ = np.unique(labels)
        else:
            self.classes_ = self._told()
        need(
            len(self.classes_) >= 2,
            "a classifier needs two classes or more; the labels have one class",
            classes=self.classes_.tolist(),
            remedy="give classes=[…]",
        )
        codes = codes_of(labels, self.classes_)
        wrong = np.flatnonzero(codes < 0)
        need(len(wrong) == 0, "every label must be one of classes", rows=wrong[:5].tolist(), classes=self.classes)
        facts = {"classes": tuple(str(name) for name in self.classes_)}
        return torch.from_numpy(codes), facts, "classes" if self.classes is None else ""

    @property
    def outcomes(self) -> int:
        """How many classes there are, if the user said so."""
        need(self.classes is not None, "a search needs the classes named", remedy="give the estimator classes=[…]")
        return len(self._told())

    def _told(self) -> npt.NDArray[Any]:
        """The classes that the user gave, sorted."""
        need_one_type(self.classes, "classes")
        return np.unique(np.asarray(self.classes))

    def merits(self, X: Any, y: Any) -> npt.NDArray[np.float64]:
        """How good each prediction is, from 0 to 1: whether it is right."""
        right: npt.NDArray[np.bool_] = chosen_places(self._outputs(X)) == codes_of(one_column(y), self.classes_)
        return right.astype(np.float64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each record."""
        outputs = self._outputs(X)
        found: npt.NDArray[Any] = self.classes_[chosen_places(outputs)]
        return found

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities (n, K) of the classes in `classes_`."""
        return class_probabilities(self._outputs(X))

    def predict_log_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Logarithms of `predict_proba`."""
        return class_log_probabilities(self._outputs(X))

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """The logit of the second of two classes, or (n, K) logits."""
        outputs = self._outputs(X).double()
        return (outputs.squeeze(1) if outputs.shape[1] == 1 else outputs).numpy()

    def __sklearn_tags__(self) -> Any:
        """Noise on few records: no score can be promised."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic (softmax) regression with (ε, δ)-differential privacy, good without tuning.

    Args:
        epsilon, delta: the promise of one fit, for replacing one record.
        classes: all classes that can occur; None: read from the labels, with a `PrivacyLeakWarning`.
        penalty: λ of the paper's nonconvex penalty λ·Σθ²/(1+θ²); 0 for none.
        bounds, schema, steps, batch_size, learning_rate, max_grad_norm, method, accountant, budget, out, random_state:
            see `PrivateEstimator`.

    Attributes: `classes_`, `run_` (module, plan, folder), `epsilon_spent_`, `encoder_`, `n_iter_`, `coef_`,
    `intercept_` (in the encoded features).

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> model = PrivateLogisticRegression(epsilon=1, classes=[0, 1]).fit(X, X[:, 0] > 0)
    >>> model.score(X, X[:, 0] > 0) > 0.8, model.epsilon_spent_ <= 1
    (True, True)
    """

    penalty: float = 0.0

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Weights of the encoded features, a row per output."""
        return _plain(self.run_.module.weight)

    @property
    def intercept_(self) -> npt.NDArray[np.float64]:
        """The bias of each output."""
        return _plain(self.run_.module.bias)


def _plain(values: Any) -> npt.NDArray[np.float64]:
    """A module's parameters as an array."""
    found: npt.NDArray[np.float64] = values.detach().double().numpy()
    return found


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateMLPClassifier(_PrivateClassifier):
    """A network with tanh layers of the `hidden` sizes, with (ε, δ)-differential privacy.

    Args: as in `PrivateLogisticRegression`, without the penalty.
    """

    _kind = "mlp"

    hidden: tuple[int, ...] = (64,)
