"""docs/tables.md and its plot, made of the results file alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from dpsrm.bench.public_tables import PUBLIC_TABLES
from dpsrm.bench.table_summary import Row, TableResult, left_out, results
from dpsrm.core.errors import need_extra

_HEAD = """\
# Private models of tables, without tuning

Made by `dpsrm bench tables` from results/tables.jsonl; a test compares the two. Public tables from packages
(pydataset, statsmodels, scikit-learn) and a9a, ijcnn1; every fifth record is held out (a9a, ijcnn1: their test files).
δ = 1e-5, means of five seeds.

- **ours**: the linear model with the library's own choice of steps, rate and clip; replacing one record. **Not
  private**: scikit-learn's linear model of the same features. **Majority**: class frequencies, or the mean.
- **oracle**: the best of a grid of 11 to 13 settings by *test* loss, one seed each, which nobody has in practice.
  *Share*: how much of its gain over the majority the untuned model keeps. The rule was looked at on these tables
  before it was fixed; [below](#leaving-one-table-out) it is judged on tables that it was not chosen on.
- Rivals with their own defaults and the same public bounds, all under the weaker add/remove promise: DP-EBM
  (interpret-core; two classes and numbers), Opacus with torch's Adam (the same linear model and features, 10 passes,
  batch 512), diffprivlib (pure ε; logistic regression and forest, or linear regression; in a Python of its own, as it
  does not run beside scikit-learn 1.9).
- Loss: log-loss, or mean squared error with targets in [−1, 1]. Error: share of wrong classes, or 1 − R².
- Ranges and categories of the columns count as public, for everybody alike; numbers have 9 knots.
"""


def page(rows: Sequence[Row]) -> str:
    """The whole page."""
    found = results(rows)
    parts = [_HEAD, _goals(found), "\n![shares and losses](images/tables.svg)\n"]
    for epsilon in sorted({one.epsilon for one in found}, key=lambda value: (value != 1, value)):
        parts.append(_section(epsilon, [one for one in found if one.epsilon == epsilon]))
    parts += [_finer(found), _networks(found), _left_out(found)]
    return "\n".join(parts)


def _goals(found: Sequence[TableResult]) -> str:
    """The figures that were asked for."""
    lines = []
    for epsilon in sorted({one.epsilon for one in found}):
        here = [one for one in found if one.epsilon == epsilon]
        loss, error = (sum(one.ahead()[at] for one in here) for at in (0, 1))
        share = statistics.median(one.share(one.losses["rule"]) for one in here)
        done = f"{len(here)} of {len(PUBLIC_TABLES)} tables done"
        ahead = f"ahead of every rival in loss on {loss}, in error on {error}"
        lines.append(f"- ε = {epsilon:g}, {done}: median share {share:.1%}; {ahead}.")
    longest = max(found, key=lambda one: one.seconds)
    lines.append(
        f"- The slowest untuned run: {longest.table} ({longest.n} records), {longest.seconds:.1f} s of one core."
    )
    return "\n".join(lines)


def _section(epsilon: float, found: Sequence[TableResult]) -> str:
    """The table of one ε."""
    lines = [
        f"## ε = {epsilon:g}\n",
        "| table (records, classes) | majority | ours: loss, error | not private | oracle, share "
        "| best rival's loss | best rival's error |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        kind = f"{one.classes}" if one.classes else "number"
        losses, errors = one.losses, one.errors
        (who, loss), (whose, error) = one.best_rival(losses), one.best_rival(errors)
        lines.append(
            f"| {one.table} ({one.n}, {kind}) | {losses['majority']:.4f}, {errors['majority']:.3f} "
            f"| **{losses['rule']:.4f}, {errors['rule']:.3f}** "
            f"| {losses['not private']:.4f}, {errors['not private']:.3f} "
            f"| {one.oracle:.4f}, {one.share(losses['rule']):.2f} | {who} {loss:.4f} | {whose} {error:.3f} |"
        )
    return "\n".join([*lines, ""])


def _finer(found: Sequence[TableResult]) -> str:
    """What a harder search finds, where one was made."""
    tried = [(one, [loss for who, loss in one.losses.items() if who.startswith("finer ")]) for one in found]
    lines = [
        "## A harder search\n",
        "The oracle has few points. On some tables more were tried, between and beyond them (one seed each; the least",
        "of so many noisy losses flatters the search):\n",
        "| table, ε | oracle of the grid, share | with so many further points | share |",
        "|---|---|---|---|",
    ]
    for one, losses in tried:
        if losses:
            best, rule = min(one.oracle, *losses), one.losses["rule"]
            share = (one.losses["majority"] - rule) / (one.losses["majority"] - best)
            lines.append(
                f"| {one.table}, {one.epsilon:g} | {one.oracle:.4f}, {one.share(rule):.2f} "
                f"| {len(losses)}: {best:.4f} | {share:.2f} |"
            )
    return "\n".join([*lines, ""]) if any(losses for _, losses in tried) else ""


def _networks(found: Sequence[TableResult]) -> str:
    """The untuned network beside the untuned linear model."""
    both = [one for one in found if "network" in one.losses]
    better = [one for one in both if one.losses["network"] < one.losses["rule"]]
    lines = [
        "## A network instead\n",
        "`PrivateMLPClassifier` and `PrivateMLPRegressor` untuned (64 hidden units; the rule for networks), one or",
        "two seeds, of the same features. With knots the linear model bends already, so a network has little to add:",
        f"it had the lower loss in {len(better)} of {len(both)} cases. Use the linear model first.\n",
        "| table (records), ε | linear: loss, error | network: loss, error |",
        "|---|---|---|",
    ]
    for one in both:
        cells = [f"{one.losses[who]:.4f}, {one.errors[who]:.3f}" for who in ("rule", "network")]
        lines.append(f"| {one.table} ({one.n}), {one.epsilon:g} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""]) if both else ""


def _left_out(found: Sequence[TableResult]) -> str:
    """The rule judged on tables that it was not chosen on."""
    chosen = left_out(found)
    shares = [share for _, each in chosen.values() for share in each]
    lines = [
        "## Leaving one table out\n",
        "The family of rules is η·T = a·classes^p·n·μ for classes, a clip and a length for numbers. For each table its",
        "constants are chosen on all others of its kind (by mean share, all ε above) and judged on this one, by the",
        "grid's runs (between two lengths: interpolated).",
        f"Median share: {statistics.median(shares):.1%} (all tables and ε).\n",
        "| table | chosen without it | share |",
        "|---|---|---|",
    ]
    lines += [f"| {table} | {rule} | {', '.join(f'{s:.2f}' for s in each)} |" for table, (rule, each) in chosen.items()]
    return "\n".join([*lines, ""])


def draw(rows: Sequence[Row], path: Path) -> None:
    """Losses at ε = 1 between the majority's (1) and the oracle's (0): ours and each rival, a line per table."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.figure import Figure

    found = [one for one in results(rows) if one.epsilon == 1]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    marks = {"rule": "o", "DP-EBM": "s", "Opacus Adam": "^", "diffprivlib forest": "x", "not private": "|"}
    for who, mark in marks.items():
        places = [(1 - one.share(one.losses[who]), at) for at, one in enumerate(found) if who in one.losses]
        label = "ours, untuned" if who == "rule" else who
        axes.plot([min(x, 1.3) for x, _ in places], [at for _, at in places], mark, label=label, markersize=7)
    axes.set_yticks(range(len(found)), [f"{one.table} ({one.n})" for one in found])
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.axvline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("loss at ε = 1: 0 = tuned by the test set, 1 = majority (1.3: worse than that)")
    axes.legend(fontsize=8, loc="upper center", ncols=5, bbox_to_anchor=(0.45, 1.12))
    figure.savefig(path, metadata={"Date": None})
