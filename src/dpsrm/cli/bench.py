"""`dpsrm bench`: how fast, as ratios of things measured in one interleaved run; how good is in bench_quality.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsrm.bench.interleaved import tracked
from dpsrm.cli.bench_quality import audit, defaults, networks, sampling, show_found, tables, units
from dpsrm.cli.show import DataDir, Json, track
from dpsrm.core.errors import need
from dpsrm.core.events import DEFAULT_SAMPLING, Scheme

bench = typer.Typer(help="Measure speed as ratios, everything interleaved in one run.", no_args_is_help=True)


def loop(
    records: Annotated[int, typer.Option(help="Made-up images to draw from.")] = 60_000,
    batch: Annotated[int, typer.Option(help="Expected examples per step.")] = 512,
    batches: Annotated[int, typer.Option(help="Batches of each loop in a round.")] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 5,
    as_json: Json = False,
) -> None:
    """One's own loop made private, DP-SGD and DP-SRM, against Opacus' (if it is installed).

    Example: dpsrm bench loop --batch 512 --rounds 5 --json
    """
    from dpsrm.bench.loop import run

    need(1 <= batch <= records, "batch must lie between 1 and records", batch=batch, records=records)
    need(batches >= 1 and rounds >= 1, "batches and rounds must be 1 or more", batches=batches, rounds=rounds)
    with tracked(track):
        found = run(records, batch, batches, rounds)
    show_found(found, as_json=as_json)


def gradients(
    model: Annotated[str, typer.Option(help="cnn4, mlp, bert, gpt2, vit, llama, lora, wrn, …, or all.")] = "cnn4",
    batch: Annotated[int | None, typer.Option(help="Examples per step; by default the model's usual.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 15,
    memory: Annotated[bool, typer.Option(help="Measure peak memory too.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Clipped sums at two points and at one: ours, torch.func, Opacus (pip install '.\\[compare]'), plain passes.

    Example: dpsrm bench gradients --model cnn4 --batch 512 --json
    """
    from dpsrm.bench.gradients import plot_ratios, run
    from dpsrm.bench.models import MODELS

    need(model == "all" or model in MODELS, f"the model must be one of {', '.join(MODELS)}, all", model=model)
    need(repeats >= 1, "repeats must be 1 or more", repeats=repeats)
    found = []
    for name in MODELS if model == "all" else (model,):
        with tracked(track):
            found.append(run(name, batch, repeats, memory=memory))
    if plot is not None:
        plot_ratios(found, plot)
    show_found({"models": found} if model == "all" else found[0], as_json=as_json)


def linear(
    data: Annotated[str, typer.Option(help="a9a or ijcnn1.")] = "a9a",
    data_dir: DataDir = None,
    trials: Annotated[int, typer.Option(help="Trials run together.")] = 30,
    rounds: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 5,
    sampling: Annotated[Scheme, typer.Option(help="How batches are drawn.")] = DEFAULT_SAMPLING,
    as_json: Json = False,
) -> None:
    """One DP-SRM run by the general and the linear engine, and many trials together.

    Example: dpsrm bench linear --data a9a --json
    """
    from dpsrm.bench.linear import run
    from dpsrm.data.public import data_folder, public_files
    from dpsrm.experiments.logistic import FEATURES

    train_file, _ = public_files(data, data_folder(data_dir))
    with tracked(track):
        found = run(
            train_file.parent, name=data, features=FEATURES[data], trials=trials, rounds=rounds, sampling=sampling
        )
    show_found(found, as_json=as_json)


def randomness(
    model: Annotated[str, typer.Option(help="cnn4, cnn5, mlp or transformer.")] = "cnn4",
    batch: Annotated[int, typer.Option(help="Examples per step.")] = 512,
    repeats: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 31,
    as_json: Json = False,
) -> None:
    """What secure randomness costs: a step's batch and noise by ChaCha20, and by torch's generator.

    Example: dpsrm bench randomness --model cnn4 --batch 512 --json
    """
    from dpsrm.bench.models import MODELS
    from dpsrm.bench.randomness import run

    need(model in MODELS, f"the model must be one of {', '.join(MODELS)}", model=model)
    need(repeats >= 1, "repeats must be 1 or more", repeats=repeats)
    with tracked(track):
        found = run(model, batch, repeats)
    show_found(found, as_json=as_json)


def ranks(
    world: Annotated[int, typer.Option("--ranks", help="Processes, on this machine.")] = 2,
    batch: Annotated[int, typer.Option(help="Examples per step, of all ranks together.")] = 512,
    steps: Annotated[int, typer.Option(help="Steps in a turn.")] = 4,
    rounds: Annotated[int, typer.Option(help="Turns of each; medians are reported.")] = 7,
    as_json: Json = False,
) -> None:
    """Several ranks against one process, each with one thread: CNN4, DP-SRM.

    Example: dpsrm bench ranks --ranks 2 --batch 512 --json
    """
    from dpsrm.bench.ranks import run

    need(world >= 2 and steps >= 1 and rounds >= 1, "two ranks or more, a step and a turn or more", ranks=world)
    with tracked(track):
        found = run(world, batch, steps, rounds)
    show_found(found, as_json=as_json)


def scaling(
    folder: Annotated[Path, typer.Option("--data-dir", help="Where the file of records is made and kept.")] = Path(
        "data"
    ),
    most: Annotated[int, typer.Option(help="The largest number of records; 9 bytes of disk each.")] = 10**8,
    parameters: Annotated[int, typer.Option(help="The largest number of parameters; 60 bytes of memory each.")] = 10**8,
    batch: Annotated[int, typer.Option(help="Records a step for the rows of records; of parameters 256.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 15,
    rows: Annotated[
        Path, typer.Option("--out", help="Results, one JSON line each; rows of a size are replaced.")
    ] = Path("scaling.jsonl"),
    page: Annotated[Path | None, typer.Option(help="Put the tables into this page, between its marks.")] = None,
    as_json: Json = False,
) -> None:
    """A step's cost as records grow from 10⁴ (memory-mapped) and parameters from 10⁴; draw, reading, noise and update.

    Example: dpsrm bench scaling --data-dir data --out results/scaling.jsonl --page docs/scaling.md
    """
    from dpsrm.bench.scaling import parameter_rows, records_rows
    from dpsrm.bench.scaling_page import write_page, write_rows
    from dpsrm.bench.tables import read_rows

    need(most >= 1 and parameters >= 1 and rounds >= 1, "sizes and rounds must be 1 or more", rounds=rounds)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [10**k for k in range(4, 9)]
    found = []
    with tracked(track):
        wanted = {size for size in sizes if size < most} | {most}
        found += records_rows(folder, wanted, batch=min(batch, *wanted), rounds=rounds)
        write_rows(rows, found)
        for size in sorted({size for size in sizes if size < parameters} | {parameters}):
            found += parameter_rows([size], batch=min(256, 4 * batch), rounds=max(1, rounds // 3))
            write_rows(rows, found)
    if page is not None:
        write_page(page, read_rows(rows))
    show_found({"rows": found}, as_json=as_json)


_FIRST = loop, gradients, units, defaults, networks, tables
for command in (*_FIRST, linear, randomness, sampling, scaling, ranks, audit):
    bench.command()(command)
