"""DP-AGD: gradient descent that buys accuracy only when it needs it (Lee & Kifer 2018, Algorithm 1), re-derived.

Line numbers in comments are those of their Algorithm 1; GradAvg is their Algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import ClipRule, Part, Query
from dpsrm.mechanisms import Selection
from dpsrm.methods.method import Ask, Choice, DirectionWalk, Method, Schedule, Stage, need_positive
from dpsrm.methods.postprocessing import Stepper

_EVERY, _STRETCH, _SHRINK = 10, 1.1, 0.8
"""After 10 updates the longest candidate becomes 1.1 × the longest chosen; after a stay it becomes 0.8 × itself."""


@dataclass(frozen=True, kw_only=True)
class Agd(Method):
    """Settings of DP-AGD; all releases look at all n records.

        g = mean of clip(∇f_i(θ), C1) + N(0, Δ²/(2ρ_g)),  Δ = 2·C1/n (replace-one) or C1/n (add/remove)
        j = noisy argmin over step sizes 0 = α_0 < α_1 < … < α_m of Σ_i clip(f_i(θ − α_j·g), 0, C_f), for ρ_s
        j > 0: θ ← θ − α_j·g.   j = 0 (no step helps): buy γ·ρ_g more, average by precision, select again:
               g ← (ρ_g·g + γ·ρ_g·g')/((1+γ)·ρ_g),  ρ_g ← (1+γ)·ρ_g

    Args:
        max_grad_norm: C1.
        max_loss: C_f, the clip of each record's loss.
        candidates: m.
        reach: α_m at first, in multiples of the step rule's own step (the learning rate).
        growth: γ, by how much more each purchase costs.
        selection: "gumbel" (half the noise for the same price) or "exponential" (the paper's).
        clip: "flat" or "auto" (AUTO-S), for the gradients.
        rho: ρ_g and ρ_s at first; None: so that `steps` updates without any purchase use up the budget.

    Guarantee: every release is ρ-zCDP with its ρ charged before it is made, and the sum of all ρ never exceeds the ρ
    whose (ε, δ) is the budget: a zCDP filter, which is valid although each ρ depends on earlier releases. The run
    stops before the first release that would not fit.

    Edge cases: training.steps is the most updates it makes; every purchase costs some of them. α_0 = 0 is exactly θ.
    Without privacy (ρ = ∞) it is gradient descent with an exact line search on the grid; a stay counts as an update.

    Departs from the paper: argmin(score − noise) where its code has argmin(score + noise), the accepted candidate is
    the one that won (not the one before), each gradient is paid for once; both adjacencies; candidates are multiples
    of the step rule's move instead of a normalised gradient, so that a regulariser (which also enters the scores, as a
    public number) and the learning rate mean what they mean elsewhere; a stay also shortens the longest candidate.

    Source: Lee & Kifer 2018; zCDP: Bun & Steinke 2016; filters: Feldman & Zrnic 2021, Whitehouse et al. 2023.

    >>> Agd().calibrated(2.0).rho
    0.125
    """

    name: ClassVar[str] = "agd"
    summary: ClassVar[str] = "DP-AGD: full-batch descent; private choice of step sizes, accuracy bought when none helps"
    guarantee: ClassVar[str] = (
        "each gradient (one record moves the mean by at most 2*C1/n under replace-one, C1/n under add-remove) and each "
        "noisy choice is rho-zCDP; a filter stops the run before the sum of all rho exceeds the budget's"
    )
    use: ClassVar[str] = "small, smooth problems when no learning rate can be tuned; slow: many losses per update"
    adaptive: ClassVar[bool] = True
    output: ClassVar[str] = "last"

    max_grad_norm: float = 1.0
    max_loss: float = 3.0
    candidates: int = 20
    reach: float = 2.0
    growth: float = 0.1
    selection: Selection = Selection.GUMBEL
    clip: ClipRule = ClipRule.FLAT
    rho: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need_positive(max_grad_norm=self.max_grad_norm, max_loss=self.max_loss)
        need(self.rho is None or self.rho > 0, "rho must be positive", rho=self.rho)
        need(self.candidates >= 1, "candidates must be 1 or more", candidates=self.candidates)
        for name in ("reach", "growth"):
            value = getattr(self, name)
            need(0 < value < math.inf, f"{name} must be positive and finite", **{name: value})
        object.__setattr__(self, "selection", Selection(self.selection))
        object.__setattr__(self, "clip", ClipRule(self.clip))

    def batch_for(self, n: int) -> int:
        """Everything."""
        return n

    def stages(self, schedule: Schedule) -> tuple[Stage, ...]:
        """What it would release if every gradient were good enough: a gradient and a choice per update."""
        return (Stage(schedule.batch, 2 * schedule.steps, zcdp=True),)

    def calibrated(self, noise_multiplier: float) -> Agd:
        """The first prices, ρ = 1/(2s²), unless they were given."""
        return self if self.rho is not None else replace(self, rho=1 / (2 * noise_multiplier**2))

    def unclipped(self) -> Agd:
        """Gradient descent with an exact line search."""
        return replace(self, max_grad_norm=math.inf, max_loss=math.inf, clip=ClipRule.FLAT, rho=math.inf)

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> AgdWalk:
        """Start from θ⁰."""
        need(self.rho is not None, "DP-AGD needs its first price", rho=self.rho, remedy="let a plan calibrate it")
        remedy = 'use optimizer = "constant" without decay or warm-up'
        need(stepper.state_dict() == {}, "DP-AGD chooses its own step sizes", remedy=remedy)
        return AgdWalk(self, theta, schedule, stepper)


class Phase(IntEnum):
    """What the walk waits for."""

    GRADIENT = 0
    PURCHASE = 1
    CHOICE = 2


class AgdWalk(DirectionWalk):
    """DP-AGD under way: θ, the gradient bought so far with its price, and the longest candidate."""

    def __init__(self, settings: Agd, theta: Tensor, schedule: Schedule, stepper: Stepper) -> None:
        """Start from θ⁰, with nothing released yet."""
        super().__init__(theta, schedule, stepper)
        self._settings = settings
        self._first_price = settings.rho if settings.rho is not None else math.inf
        self.phase = Phase.GRADIENT
        self.price = self._first_price
        self.reach = settings.reach
        self.longest = 0.0

    def ask(self) -> Ask | Choice:
        """A gradient (lines 4–5), more of it (Algorithm 2), or the best step size (lines 9–11)."""
        s, n = self._settings, self.schedule.batch
        if self.phase is Phase.CHOICE:
            points = self._candidates()
            offsets = tuple(n * self.stepper.penalty(point) for point in points)
            rho, selection = self._first_price, s.selection
            return Choice(points=points, offsets=offsets, clip=s.max_loss, batch=n, rho=rho, selection=selection)
        part = Part(coefficients=(1.0,), clip=s.max_grad_norm, rule=s.clip)
        rho = self.price if self.phase is Phase.GRADIENT else s.growth * self.price
        return Ask(query=Query(points=(self.theta,), parts=(part,)), batch=n, rho=rho)

    def weights(self) -> tuple[float, float]:
        """A purchase is averaged with what there is by precision, which is proportional to the price (Algorithm 2)."""
        if self.phase is Phase.PURCHASE:
            return 1 / (1 + self._settings.growth), self._settings.growth / (1 + self._settings.growth)
        return 0.0, 1.0

    def tell(self, released: Tensor, *, std: float = 0.0) -> None:
        """Take a gradient, or the choice: move (line 13), or buy (lines 15–18)."""
        if self.phase is Phase.CHOICE:
            self._chosen(int(released))
            return
        self.mix(released, std)
        if self.phase is Phase.PURCHASE:
            self.price *= 1 + self._settings.growth
        self.phase = Phase.CHOICE

    def _chosen(self, index: int) -> None:
        """Move to the winner; if it is staying, buy accuracy, or give up this update where nothing can be bought."""
        if index == 0:
            self.reach *= _SHRINK
            exact = math.isinf(self.price)
            self.phase = Phase.GRADIENT if exact else Phase.PURCHASE
            self.time += exact
            return
        self.previous, self.theta = self.theta, self._candidates()[index]
        self.longest = max(self.longest, self._sizes()[index])
        self.phase = Phase.GRADIENT
        self.time += 1
        if self.time % _EVERY == 0 and self.longest > 0:
            self.reach, self.longest = _STRETCH * self.longest, 0.0

    def _sizes(self) -> list[float]:
        """0 = α_0 < … < α_m = reach."""
        return [self.reach * j / self._settings.candidates for j in range(self._settings.candidates + 1)]

    def _candidates(self) -> tuple[Tensor, ...]:
        """θ − α_j·(the step rule's move)."""
        move_P = self.stepper.advance(self.theta, self.direction, std=self.std) - self.theta
        return self.theta, *(self.theta + size * move_P for size in self._sizes()[1:])

    def state_dict(self) -> dict[str, Any]:
        """The direction's state, the phase, the price and the reach."""
        own = {"phase": int(self.phase), "price": self.price, "reach": self.reach, "longest": self.longest}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        super().load_state_dict(state)
        self.phase = Phase(state["phase"])
        self.price, self.reach, self.longest = state["price"], state["reach"], state["longest"]
