"""`dpsrm bench`: how fast, as ratios of things measured in one interleaved run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dpsrm.cli.show import err, out, print_json, track
from dpsrm.core.errors import need
from dpsrm.core.events import DEFAULT_SAMPLING, Scheme

bench = typer.Typer(help="Measure speed as ratios, everything interleaved in one run.", no_args_is_help=True)


@bench.command()
def loop(
    records: Annotated[int, typer.Option(help="Made-up images to draw from.")] = 60_000,
    batch: Annotated[int, typer.Option(help="Expected examples per step.")] = 512,
    batches: Annotated[int, typer.Option(help="Batches of each loop in a round.")] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """One's own loop made private, DP-SGD and DP-SRM, against Opacus' (if it is installed).

    Example: dpsrm bench loop --batch 512 --rounds 5 --json
    """
    from dpsrm.bench.loop import run

    need(1 <= batch <= records, "batch must lie between 1 and records", batch=batch, records=records)
    need(batches >= 1 and rounds >= 1, "batches and rounds must be 1 or more", batches=batches, rounds=rounds)
    with _bar():
        found = run(records, batch, batches, rounds)
    _show(found, as_json=as_json)


@bench.command()
def gradients(
    model: Annotated[str, typer.Option(help="cnn4, mlp, bert, gpt2, vit, llama, lora, wrn, …, or all.")] = "cnn4",
    batch: Annotated[int | None, typer.Option(help="Examples per step; by default the model's usual.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 15,
    memory: Annotated[bool, typer.Option(help="Measure peak memory too.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Clipped sums at two points and at one: ours, torch.func, Opacus (pip install 'dpsrm[compare]'), plain passes.

    Example: dpsrm bench gradients --model cnn4 --batch 512 --json
    """
    from dpsrm.bench.gradients import plot_ratios, run
    from dpsrm.bench.models import MODELS

    need(model == "all" or model in MODELS, f"the model must be one of {', '.join(MODELS)}, all", model=model)
    need(repeats >= 1, "repeats must be 1 or more", repeats=repeats)
    found = []
    for name in MODELS if model == "all" else (model,):
        with _bar():
            found.append(run(name, batch, repeats, memory=memory))
    if plot is not None:
        plot_ratios(found, plot)
    _show({"models": found} if model == "all" else found[0], as_json=as_json)


@bench.command()
def units(
    panels: Annotated[str, typer.Option(help="Panels, e.g. wagepan,made-up; by default all.")] = "",
    rows: Annotated[
        Path, typer.Option("--out", help="Write every run here, as JSON lines; goes on where it stopped.")
    ] = Path("units.jsonl"),
    cost: Annotated[bool, typer.Option(help="Instead: what a step over persons costs, against records.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Protecting a person with all their rows, against group privacy and one row of each, on panels.

    Example: dpsrm bench units --out results/units.jsonl
    """
    from dpsrm.bench.panels import PANELS
    from dpsrm.bench.unit_cost import run as run_cost
    from dpsrm.bench.units import run, summary

    names = [name.strip() for name in panels.split(",") if name.strip()] or list(PANELS)
    need(set(names) <= set(PANELS), f"panels are {', '.join(PANELS)}", got=names)
    with err.status("measuring"):
        found = run_cost() if cost else summary(run(names, rows))
    _show({"rows": found}, as_json=as_json)


@bench.command()
def defaults(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data (else $DPSRM_DATA, else ./data).")] = None,
    tables: Annotated[str, typer.Option(help="Tables, e.g. rand,digits; by default all.")] = "",
    seeds: Annotated[int, typer.Option(help="Runs per choice.")] = 2,
    rows: Annotated[Path, typer.Option("--out", help="Write every run here, as JSON lines.")] = Path("defaults.jsonl"),
    plot: Annotated[Path | None, typer.Option(help="Draw it into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What not tuning costs: the defaults against those of before and the best of a grid, on public tables.

    Example: dpsrm bench defaults --data-dir data --out results/defaults.jsonl --plot docs/images/defaults.svg
    """
    from dpsrm.bench.default_tables import TABLES
    from dpsrm.bench.defaults import draw, run, summary
    from dpsrm.data.public import data_folder

    names = [name.strip() for name in tables.split(",")] if tables else list(TABLES)
    unknown = [name for name in names if name not in TABLES]
    need(not unknown, f"tables must be among {', '.join(TABLES)}", unknown=unknown)
    need(seeds >= 1, "seeds must be 1 or more", seeds=seeds)
    with _bar():
        found = run(names, data_folder(data_dir), rows, seeds=seeds)
    if plot is not None:
        draw(found, plot)
    _show({"tables": summary(found)}, as_json=as_json)


@bench.command()
def networks(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data (else $DPSRM_DATA, else ./data).")] = None,
    rows: Annotated[Path, typer.Option("--out", help="Results, one JSON line each; gone on with.")] = Path(
        "own-networks.jsonl"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Users' networks untuned: the rule against the settings of before and a small sweep, on public images.

    Example: dpsrm bench networks --data-dir data --out results/own-networks.jsonl
    """
    from dpsrm.bench.networks import NETWORK_PROBLEMS, run, summary
    from dpsrm.data.public import data_folder

    with err.status("measuring"):
        found = run(list(NETWORK_PROBLEMS), data_folder(data_dir), rows)
    _show({"problems": summary(found)}, as_json=as_json)


@bench.command()
def tables(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data (else $DPSRM_DATA, else ./data).")] = None,
    names: Annotated[str, typer.Option("--tables", help="Tables, e.g. digits,price; by default all.")] = "",
    rows: Annotated[Path, typer.Option("--out", help="Results, one JSON line each; gone on with.")] = Path(
        "tables.jsonl"
    ),
    python: Annotated[Path | None, typer.Option(help="A Python that has diffprivlib; else it is left out.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the page, and its plot beside it, from the results.")] = None,
    measure: Annotated[bool, typer.Option(help="Run what is missing; --no-measure only writes the page.")] = True,
) -> None:
    """Private models of public tables: ours untuned and tuned, not private, DP-EBM, Opacus, diffprivlib.

    Example: dpsrm bench tables --data-dir data --out results/tables.jsonl --page docs/tables.md
    """
    from dpsrm.bench.public_tables import PUBLIC_TABLES
    from dpsrm.bench.table_page import draw
    from dpsrm.bench.table_page import page as written
    from dpsrm.bench.tables import read_rows, run
    from dpsrm.data.public import data_folder

    chosen = [name.strip() for name in names.split(",")] if names else list(PUBLIC_TABLES)
    unknown = [name for name in chosen if name not in PUBLIC_TABLES]
    need(not unknown, f"tables must be among {', '.join(PUBLIC_TABLES)}", unknown=unknown)
    if measure:
        with err.status("measuring"):
            run(chosen, data_folder(data_dir), rows, python=python)
    found = read_rows(rows)
    if page is not None:
        page.write_text(written(found))
        (page.parent / "images").mkdir(exist_ok=True)
        draw(found, page.parent / "images" / "tables.svg")
    out.print(f"{len(found)} results in {rows}")


@bench.command()
def linear(
    data: Annotated[str, typer.Option(help="a9a or ijcnn1.")] = "a9a",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data (else $DPSRM_DATA, else ./data).")] = None,
    trials: Annotated[int, typer.Option(help="Trials run together.")] = 30,
    rounds: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 5,
    sampling: Annotated[Scheme, typer.Option(help="How batches are drawn.")] = DEFAULT_SAMPLING,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """One DP-SRM run by the general and the linear engine, and many trials together.

    Example: dpsrm bench linear --data a9a --json
    """
    from dpsrm.bench.linear import run
    from dpsrm.data.public import data_folder, public_files
    from dpsrm.experiments.logistic import FEATURES

    train_file, _ = public_files(data, data_folder(data_dir))
    with _bar():
        found = run(
            train_file.parent, name=data, features=FEATURES[data], trials=trials, rounds=rounds, sampling=sampling
        )
    _show(found, as_json=as_json)


@bench.command()
def randomness(
    model: Annotated[str, typer.Option(help="cnn4, cnn5, mlp or transformer.")] = "cnn4",
    batch: Annotated[int, typer.Option(help="Examples per step.")] = 512,
    repeats: Annotated[int, typer.Option(help="Rounds; medians are reported.")] = 31,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What secure randomness costs: a step's batch and noise by ChaCha20, and by torch's generator.

    Example: dpsrm bench randomness --model cnn4 --batch 512 --json
    """
    from dpsrm.bench.models import MODELS
    from dpsrm.bench.randomness import run

    need(model in MODELS, f"the model must be one of {', '.join(MODELS)}", model=model)
    need(repeats >= 1, "repeats must be 1 or more", repeats=repeats)
    with _bar():
        found = run(model, batch, repeats)
    _show(found, as_json=as_json)


@bench.command()
def sampling(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data (else $DPSRM_DATA, else ./data).")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per row.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Poisson sampling against sampling without replacement: noise and test log-loss on the demo's data and a9a.

    Example: dpsrm bench sampling --data-dir data --json
    """
    from dpsrm.bench.sampling import run
    from dpsrm.data.public import data_folder, public_files

    need(seeds >= 1, "seeds must be 1 or more", seeds=seeds)
    with _bar():
        found = run(*public_files("a9a", data_folder(data_dir)), seeds=seeds)
    _show(found, as_json=as_json)


@bench.command()
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
    with _bar():
        wanted = {size for size in sizes if size < most} | {most}
        found += records_rows(folder, wanted, batch=min(batch, *wanted), rounds=rounds)
        write_rows(rows, found)
        for size in sorted({size for size in sizes if size < parameters} | {parameters}):
            found += parameter_rows([size], batch=min(256, 4 * batch), rounds=max(1, rounds // 3))
            write_rows(rows, found)
    if page is not None:
        write_page(page, read_rows(rows))
    _show({"rows": found}, as_json=as_json)


@contextmanager
def _bar() -> Iterator[None]:
    """Show the rounds under a bar with the time left."""
    from dpsrm.bench.interleaved import TRACK

    before = TRACK.set(track)
    try:
        yield
    finally:
        TRACK.reset(before)


def _show(found: dict[str, object], *, as_json: bool) -> None:
    """The ratios, for machines or people."""
    if as_json:
        print_json(found)
    else:
        out.print(found)


@bench.command()
def ranks(
    world: Annotated[int, typer.Option("--ranks", help="Processes, on this machine.")] = 2,
    batch: Annotated[int, typer.Option(help="Examples per step, of all ranks together.")] = 512,
    steps: Annotated[int, typer.Option(help="Steps in a turn.")] = 4,
    rounds: Annotated[int, typer.Option(help="Turns of each; medians are reported.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Several ranks against one process, each with one thread: CNN4, DP-SRM.

    Example: dpsrm bench ranks --ranks 2 --batch 512 --json
    """
    from dpsrm.bench.ranks import run

    need(world >= 2 and steps >= 1 and rounds >= 1, "two ranks or more, a step and a turn or more", ranks=world)
    with _bar():
        found = run(world, batch, steps, rounds)
    _show(found, as_json=as_json)


@bench.command()
def audit(
    data_dir: Annotated[Path, typer.Option(help="Folder of the data; mnist/ must be in it.")] = Path("data"),
    rows: Annotated[Path, typer.Option("--out", help="Results, as JSON; what is there is not made again.")] = Path(
        "audit-results.json"
    ),
    runs: Annotated[int, typer.Option(help="Runs of the black box.", min=100)] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Power and false alarms of audits, and a black-box attack on a small CNN; minutes.

    Example: dpsrm bench audit --data-dir data --out docs/audit-results.json
    """
    from dpsrm.bench.audit import run

    with err.status("auditing"):
        found = run(data_dir, rows, runs=runs)
    if as_json:
        print_json(found)
    else:
        out.print(found)
