"""`dpsrm account` and `dpsrm calibrate`: ε for a noise, noise for an ε."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from dpsrm.accounting import ACCOUNTANTS, accountant, attack_epsilon, calibrate_noise
from dpsrm.accounting.guarantee import rounded_down, rounded_up
from dpsrm.cli.show import Json, next_step, out, print_json
from dpsrm.core.errors import need
from dpsrm.core.events import DEFAULT_SAMPLING, Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending

N = Annotated[int, typer.Option("--n", help="Number of records.")]
Batch = Annotated[int | None, typer.Option(help="Records per release (Poisson: expected); full: leave out.")]
Steps = Annotated[int, typer.Option(help="Number of releases.")]
Delta = Annotated[float, typer.Option(help="δ, e.g. 1e-5.")]
By = Annotated[str, typer.Option("--accountant", help=f"One of {', '.join(ACCOUNTANTS)}.")]
How = Annotated[Scheme, typer.Option("--sampling", help="How batches are drawn.")]
Relation = Annotated[Adjacency, typer.Option(help="Which datasets are neighbours.")]

DEFAULT_ACCOUNTANT = "pld"


def account(
    n: N,
    steps: Steps,
    noise: Annotated[float, typer.Option(help="Noise multiplier: std ÷ sensitivity under the adjacency.")],
    delta: Delta,
    batch: Batch = None,
    by: By = DEFAULT_ACCOUNTANT,
    sampling: How = DEFAULT_SAMPLING,
    adjacency: Relation = Adjacency.REPLACE_ONE,
    as_json: Json = False,
) -> None:
    """The ε that T noisy sums over sampled batches cost.

    Example: dpsrm account --n 50000 --batch 256 --steps 2000 --noise 1.0 --delta 1e-5
    """
    spent = spending(n, batch, steps, noise=noise, scheme=sampling, adjacency=adjacency)
    guarantee = accountant(by).epsilon(spent, delta)
    if by == "pld" and sampling is Scheme.WOR:
        guarantee = replace(guarantee, lower_bound=attack_epsilon(spent, delta))
    if as_json:
        print_json({**guarantee.to_json(), "sampling": sampling.value})
    elif guarantee.holds:
        out.print(
            f"ε = {rounded_up(guarantee.epsilon)} at δ = {rounded_up(delta)} "
            f"({by}, {sampling.value}, {adjacency.value})"
        )
        if guarantee.lower_bound is not None:
            out.print(
                f"an explicit attack reaches ε = {rounded_down(guarantee.lower_bound)}: no accountant can claim less"
            )
    else:
        out.print(f"No guarantee ({by}): {guarantee.reason}")
    if not as_json:
        next_step("the noise that another ε needs", "dpsrm calibrate … --epsilon E")


def calibrate(
    n: N,
    steps: Steps,
    epsilon: Annotated[float, typer.Option(help="ε to spend.")],
    delta: Delta,
    batch: Batch = None,
    by: By = DEFAULT_ACCOUNTANT,
    sampling: How = DEFAULT_SAMPLING,
    adjacency: Relation = Adjacency.REPLACE_ONE,
    as_json: Json = False,
) -> None:
    """The noise multiplier (std ÷ sensitivity) that T releases need to cost at most ε.

    Example: dpsrm calibrate --n 50000 --batch 256 --steps 2000 --epsilon 2 --delta 1e-5
    """
    proof = accountant(by)

    def spend(noise: float) -> Spending:
        return spending(n, batch, steps, noise=noise, scheme=sampling, adjacency=adjacency)

    noise = calibrate_noise(spend, accountant=proof, epsilon=epsilon, delta=delta)
    guarantee, told = proof.epsilon(spend(noise), delta), rounded_up(noise)
    if as_json:
        print_json({"noise_multiplier": noise, **guarantee.to_json(), "sampling": sampling.value})
    else:
        out.print(
            f"noise multiplier {told}: ε = {rounded_up(guarantee.epsilon)} at δ = {rounded_up(delta)} "
            f"({by}, {sampling.value})"
        )
        next_step("train with it", f"dpsrm train … --epsilon {epsilon:g} --set privacy.noise_multiplier={told}")


def spending(n: int, batch: int | None, steps: int, *, noise: float, scheme: Scheme, adjacency: Adjacency) -> Spending:
    """`steps` equal releases; a batch of everything is a full batch, whatever the scheme."""
    need(batch is not None or scheme is Scheme.FULL, "a sampled batch needs its size", remedy="give --batch")
    size = n if batch is None else batch
    drawn = Sampling(scheme=Scheme.FULL if size == n else scheme, population=n, batch=size)
    return Spending.of([Charge(GaussianRelease(noise_multiplier=noise, sampling=drawn), steps)], adjacency=adjacency)
