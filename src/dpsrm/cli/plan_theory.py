"""`dpsrm plan --theory`: what the theorems of DP-SRM, DP-GD and RRPSGD promise, side by side, and from which n on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dpsrm.cli.show import out, print_json, save_figure
from dpsrm.core.errors import need, need_extra

if TYPE_CHECKING:
    from dpsrm.methods import Assumptions
    from dpsrm.methods.rates import Rate, RateOf


def plan_rates(
    constants: Mapping[str, float | int | None], *, batches: str, beta: float, plot: Path | None, as_json: bool
) -> None:
    """Print the table of rates for the constants of the command line."""
    from dpsrm.methods import Assumptions

    missing = [f"--{name}" for name, value in constants.items() if value is None]
    need(not missing, f"--theory needs {', '.join(missing)}", remedy="see dpsrm plan --help")
    need(batches in ("", "theorem", "corollary"), "with --theory, batches are theorem or corollary", batches=batches)
    need(0 < beta < 1, "beta must lie strictly between 0 and 1", beta=beta)
    a = Assumptions(**constants)  # type: ignore[arg-type]
    theorems = _theorems(batches, beta)
    rates = {name: of(a) for name, of in theorems.items()}
    body = {
        "rates": [asdict(rate) for rate in rates.values()],
        **_privacy(a, rates, beta),
        "ahead": _ahead(a, theorems),
    }
    if plot is not None:
        _draw(a, theorems, plot)
    if as_json:
        print_json(body)
        return
    _show(a, rates, body)


def _theorems(batches: str, beta: float) -> dict[str, RateOf]:
    """The algorithms of the table."""
    from dpsrm.methods.rates import gd_rate, rrpsgd_rate, srm_rate

    kinds = {"theorem": "DP-SRM", "corollary": "DP-SRM, corollary"}
    own: dict[str, RateOf] = {
        label: partial(srm_rate, batches=kind, beta=beta) for kind, label in kinds.items() if batches in ("", kind)
    }
    return {**own, "DP-GD": partial(gd_rate, beta=beta), "RRPSGD": rrpsgd_rate}


def _privacy(a: Assumptions, rates: Mapping[str, Rate], beta: float) -> dict[str, Any]:
    """The best β for each DP-SRM row, and from how many steps on the corollary's batches satisfy Lemma 1."""
    from dpsrm.methods import best_theorem_noise, corollary_beta, corollary_steps

    best = {}
    for name, rate in rates.items():
        if rate.zeta_factor is not None and 1 <= rate.batch < a.n:
            found = best_theorem_noise(rate.batch / a.n, rate.steps, epsilon=a.epsilon, delta=a.delta)
            best[name] = None if found is None else asdict(found)
    least = corollary_beta(epsilon=a.epsilon, delta=a.delta)
    budget = {"epsilon": a.epsilon, "delta": a.delta}
    return {
        "best_beta": best,
        "corollary_steps": corollary_steps(beta=beta, **budget),
        "corollary_best_beta": least,
        "corollary_least_steps": corollary_steps(beta=least, **budget),
    }


def _ahead(a: Assumptions, theorems: Mapping[str, RateOf]) -> list[dict[str, Any]]:
    """For every pair that changes places, or never does: from which n on the one's bound is below the other's."""
    from dpsrm.methods.rates import ahead_from

    found = []
    names = list(theorems)
    for number, leader in enumerate(names):
        for rival in names[number + 1 :]:
            n = ahead_from(a, theorems[leader], theorems[rival])
            at = None if n is None else theorems[leader](replace(a, n=n))
            failed = [] if at is None else [c.text for c in at.conditions if not c.holds]
            bound = None if at is None else at.utility
            found.append({"leader": leader, "rival": rival, "from_n": n, "bound": bound, "failed_there": failed})
    return found


def _show(a: Assumptions, rates: Mapping[str, Rate], body: Mapping[str, Any]) -> None:
    """The table and what else there is to say, for people."""
    title = f"n = {a.n}, d = {a.dimension}, ε = {a.epsilon:g}, δ = {a.delta:g}, G = {a.lipschitz:g}"
    table = Table(title=f"{title}, L = {a.smoothness:g}, D_F = {a.gap:g}")
    for head in ("algorithm", "E‖∇F‖ ≤", "gradients", "steps", "batch", "noise", "ζ constant", "conditions"):
        table.add_column(head, justify="left" if head in ("algorithm", "conditions") else "right")
    for name, rate in rates.items():
        factor = "" if rate.zeta_factor is None else f"{rate.zeta_factor:.3g}"
        verdict = "hold" if all(condition.holds for condition in rate.conditions) else "fail"
        cells = f"{rate.utility:.4g}", f"{rate.gradients:.3g}", f"{rate.steps:.6g}", f"{rate.batch:.6g}"
        table.add_row(name, *cells, f"{rate.noise_multiplier:.4g}", factor, verdict)
    out.print(table)
    out.print(
        f"a bound above G = {a.lipschitz:g} says nothing; noise: std ÷ sensitivity, by each one's own privacy proof"
    )
    for name, rate in rates.items():
        for condition in rate.conditions:
            if not condition.holds:
                out.print(f"{name}: fails: {condition.text}", highlight=False)
    for name, best in body["best_beta"].items():
        told = "at no β" if best is None else f"at β = {best['beta']:.3g} with noise {best['noise_multiplier']:.4g}"
        out.print(f"{name}: Lemma 1's conditions hold {told}", highlight=False)
    out.print(
        f"corollary's batches: Lemma 1 holds from T = {body['corollary_steps']} on "
        f"(at the best β = {body['corollary_best_beta']:.3g} from T = {body['corollary_least_steps']} on)",
        highlight=False,
    )
    for pair in body["ahead"]:
        out.print(_told(pair), highlight=False)


def _told(pair: Mapping[str, Any]) -> str:
    """One line about who is ahead from when on."""
    from dpsrm.methods.rates import LARGEST_N

    if pair["from_n"] is None:
        return f"{pair['leader']} is not ahead of {pair['rival']} for good up to n = {LARGEST_N:.0e}"
    broken = ", where its conditions do not hold" if pair["failed_there"] else ""
    place = f"from n = {pair['from_n']:.3g} on (bound {pair['bound']:.3g})"
    return f"{pair['leader']} is ahead of {pair['rival']} {place}{broken}"


def _draw(a: Assumptions, theorems: Mapping[str, RateOf], path: Path) -> None:
    """The bounds against n."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.figure import Figure

    sizes: Sequence[int] = [round(10 ** (k / 4)) for k in range(8, 57)]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, of in theorems.items():
        axes.plot(sizes, [of(replace(a, n=n)).utility for n in sizes], label=name)
    axes.axvline(a.n, color="grey", linewidth=0.8, linestyle=":")
    axes.axhline(a.lipschitz, color="grey", linewidth=0.8, linestyle="--", label="G: says nothing above")
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="bound on E‖∇F‖")
    product = a.smoothness * a.gap
    axes.set_title(f"d = {a.dimension}, ε = {a.epsilon:g}, δ = {a.delta:g}, G = {a.lipschitz:g}, L·D_F = {product:.3g}")
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)
