"""`dpsrm train`: from a file and a budget to a private model."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.cli.show import Json, err, metrics_table, next_step, out, plain_text, print_json, show_head, track
from dpsrm.core.errors import DpsrmError, InputError, need
from dpsrm.report.facts import METRICS

if TYPE_CHECKING:
    from dpsrm.cli.job import Outcome, TrainingJob
    from dpsrm.data import Loaded
    from dpsrm.data.features import ImageFeatures
    from dpsrm.training import Config, Data, Model, Settings

REGRESSION_MLP_RATE = 0.1
"""The learning rate of a network that predicts numbers, unless the user names one. On 3000 records at ε = 1 the usual
1.0 gave R² below 0 (the squared loss has no flat end), 0.3 gave .91 and 0.1 gave .97; one run each."""


def train(
    config: Annotated[Path | None, typer.Argument(help="A config file; options below override it.")] = None,
    data: Annotated[
        str | None, typer.Option(help="CSV, Parquet, Arrow, .npz, .npy or LIBSVM file of private records.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Records to measure on; the measures are not private.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The label's column; of a .npy file, the .npy file of labels.")
    ] = None,
    schema: Annotated[str | None, typer.Option(help="TOML file of public ranges and categories.")] = None,
    classes: Annotated[str | None, typer.Option(help="Class names in order: A,B or A,B,C.")] = None,
    task: Annotated[str | None, typer.Option(help="classification or regression (to predict a number).")] = None,
    target_range: Annotated[str | None, typer.Option(help="Public range of a number to predict: LOW,HIGH.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, the privacy budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ, e.g. 1e-5; below 1/n.")] = None,
    unit: Annotated[
        str | None, typer.Option(help="The column that says whose a record is: protects all of them.")
    ] = None,
    rows_per_unit: Annotated[int | None, typer.Option(help="The most rows of one unit that count at a time.")] = None,
    budget: Annotated[str | None, typer.Option(help="A budget file that several runs share; see dpsrm budget.")] = None,
    method: Annotated[str | None, typer.Option(help="See `dpsrm methods`.")] = None,
    seed: Annotated[int | None, typer.Option(help="Research only: reproducible, not private.")] = None,
    run: Annotated[Path | None, typer.Option("--out", help="The run folder.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Delete an existing run folder first.")] = False,
    reference: Annotated[bool, typer.Option(help="Train a non-private reference too, into RUN/private.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Go on with this interrupted run; takes no settings.")] = None,
    moved: Annotated[bool, typer.Option(help="With --resume: no other copy of that folder goes on.")] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: section.name=value, e.g. model.kind=mlp.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model with differential privacy.

    Example: dpsrm train --data visits.csv --target ill --epsilon 1 --delta 1e-5 --out runs/visits
    """
    given = dict(locals())
    for name, path in (("data", data), ("test", test), ("schema", schema), ("config", config)):
        _need_there(name, None if resume else path)  # before torch is loaded
    from dpsrm.cli.job import joined, need_budget, new_out, run_job
    from dpsrm.core.files import read_toml
    from dpsrm.training import config_from

    if resume is not None:
        _need_own_settings(given)
        config = resume / "config.toml"
        need(
            config.exists(), "a run is a folder with a config.toml", run=str(resume), remedy="give the folder of --out"
        )
    elif config is not None:
        table = config.suffix.lower() in (".csv", ".tsv", ".parquet", ".npz")
        need(not table, "train takes a config file", got=str(config), remedy=f"for records: --data {config}")
    sections: dict[str, Any] = {} if config is None else read_toml(config)
    names = None if classes is None else [name.strip() for name in classes.split(",")]
    _fill(sections, "data", path=data, test=test, target=target, schema=schema, classes=names)
    _fill(sections, "data", task=task, target_range=None if target_range is None else _range(target_range))
    _fill(sections, "privacy", epsilon=epsilon, delta=delta, unit=unit, rows_per_unit=rows_per_unit)
    _fill(sections, "method", name=method)
    sections |= {name: value for name, value in (("seed", seed), ("budget", budget)) if value is not None}
    for text in change or []:
        _set(sections, text)
    place = sections.get("data", {})
    need(not isinstance(place, dict) or "path" in place, "there must be records to train on", remedy="give --data FILE")
    told = config_from(sections)
    rate = None if "learning_rate" in sections.get("training", {}) else REGRESSION_MLP_RATE
    with joined():
        name = Path(told.data.path).stem
        folder = resume if resume is not None else new_out(run, name, overwrite=overwrite)
        if resume is None:
            need_budget(told.settings.budget)
        job = _job(told, folder, overwrite=overwrite, reference=reference, mlp_rate=rate)
        _tell_start(job, told, resuming=resume is not None)
        outcome = run_job(replace(job, moved=moved), resuming=resume is not None)
    if out.quiet:
        return  # another rank speaks
    if as_json:
        print_json(outcome.to_json())
    else:
        _show(outcome)


def _need_there(name: str, path: str | Path | None) -> None:
    """Refuse a file that is not there, and name one that is called nearly so."""
    if path is None or Path(path).exists():
        return
    place = Path(path).parent
    near = get_close_matches(Path(path).name, [each.name for each in place.iterdir()]) if place.is_dir() else []
    remedy = f"did you mean {place / near[0]}?" if near else ""
    need(False, f"the {name} must be a file that exists", path=str(path), remedy=remedy)


def _need_own_settings(given: dict[str, Any]) -> None:
    """Refuse what a resumed run would not follow; `given` holds all options of `train`, by their names in Python."""
    words, beside = {"run": "out", "change": "set"}, ("overwrite", "reference", "resume", "moved", "as_json")
    names = [name for name, value in given.items() if not (value is None or value is False or name in beside)]
    changed = [f"--{words.get(name, name).replace('_', '-')}" for name in names]
    need(not changed, "a run is resumed with its own settings", given=changed, remedy="leave them out")


def _fill(sections: dict[str, Any], section: str, /, **values: Any) -> None:
    """Put what the user gave into a section."""
    given = {key: value for key, value in values.items() if value is not None}
    if given:
        sections[section] = {**sections.get(section, {}), **given}


def _range(text: str) -> list[float]:
    """The two numbers of --target-range LOW,HIGH."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    need(low < high, "--target-range takes LOW,HIGH", got=text, remedy="e.g. --target-range 0,100")
    return [low, high]


def _set(sections: dict[str, Any], text: str) -> None:
    """Apply one `--set section.name=value`."""
    from dpsrm.core.files import parse_value

    path, equals, value = text.partition("=")
    section, dot, name = path.partition(".")
    need(bool(equals), "--set takes section.name=value", got=text, remedy="e.g. --set model.kind=mlp")
    if dot:
        _fill(sections, section, **{name: parse_value(value)})
    else:
        sections[section] = parse_value(value)


def _job(config: Config, run: Path, *, overwrite: bool, reference: bool, mlp_rate: float | None) -> TrainingJob:
    """Load the data that the config names; nothing is written yet. `mlp_rate`: see `_settings_for`."""
    from dpsrm.cli.job import TrainingJob
    from dpsrm.data import Reading, load
    from dpsrm.data.load import scaled
    from dpsrm.training.config import plain

    place, ours = config.data, _is_ours(config)
    _need_there("test", place.test)
    records = load(
        place.path,
        place.target,
        schema=place.schema,
        classes=place.classes,
        features=_features(place),
        normalise=place.normalise,
        target_range=place.target_range,
        unit=None if config.settings.privacy is None else config.settings.privacy.unit,
        reading=Reading(in_memory=place.in_memory, track=track),
    )
    if ours:
        records, place = scaled(records), replace(place, normalise=True)
    model = _model_for(config.model, records, place.task)
    settings = _settings_for(_chosen(config.settings, model, records), model, records, mlp_rate)
    return TrainingJob(
        records=records,
        test=None if place.test is None else _test(place.test, records),
        model=model,
        settings=settings,
        about={"data": plain(place), "model": plain(model), "preprocessing": records.description},
        out=run,
        overwrite=overwrite,
        reference=reference,
    )


def _test(path: str, records: Loaded) -> Loaded:
    """The test records; an error says that their file is meant."""
    from dpsrm.data import load_like

    try:
        return load_like(path, records)
    except DpsrmError as error:
        raise InputError(f"the file of --test, {path}: {error}") from error


def _features(place: Data) -> int | str | ImageFeatures | None:
    """How many features there are; or for images how they are made, kept in a folder beside the images."""
    from dpsrm.data.features import FOLDER, ImageFeatures

    if not isinstance(place.features, str) or place.features == "pairs":
        return place.features
    return ImageFeatures(kind=place.features, cache=Path(place.path).parent / FOLDER, track=track)


def _model_for(model: Model, records: Loaded, task: str | None) -> Model:
    """The model the config names, by its right name: a logistic model of numbers is a linear one."""
    numbers = records.target_range is not None
    need(
        task is None or (task == "regression") == numbers,
        "a target with min and max is a number, a target with classes is none",
        task=task,
        remedy="change --task, or [target] of the schema",
    )
    return replace(model, kind="linear") if numbers and model.kind == "logistic" else model


def _settings_for(settings: Settings, model: Model, records: Loaded, mlp_rate: float | None) -> Settings:
    """The settings, with the learning rate `mlp_rate` for a network of numbers, if the user named none."""
    training = settings.training
    plain_network = records.target_range is not None and model.kind == "mlp" and training.optimizer == "constant"
    if mlp_rate is None or not plain_network:
        return settings
    return replace(settings, training=replace(training, learning_rate=mlp_rate))


def _is_ours(config: Config) -> bool:
    """Whether scale and schedule are ours to choose: LIBSVM text and arrays are then scaled to norm 1, too."""
    from dpsrm.training.defaults import RULES, applies

    linear = config.model.kind in RULES
    return config.data.normalise is None and linear and applies(config.settings, config.model.kind)


def _chosen(settings: Settings, model: Model, records: Loaded) -> Settings:
    """The settings, with what the user left out chosen from public numbers; one line says what and why."""
    from dpsrm.training.defaults import Shape, explained, with_defaults

    size = model.size(features=records.n_features, classes=len(records.classes))
    shape = Shape(n=records.n, classes=len(records.classes), kind=model.kind, parameters=size)
    found = with_defaults(settings, shape)
    line = explained(settings, found, shape)
    if line is not None:
        err.print(line, highlight=False, soft_wrap=True)
    return found


def _tell_start(job: TrainingJob, told: Config, *, resuming: bool) -> None:
    """Before the bar: which run goes on; or what a new one is trained with, unless `_chosen` has said so."""
    from dpsrm.runs.folder import RunFolder
    from dpsrm.training.reopen import is_closed

    if job.settings.seed is not None:
        err.print("Not private: whoever knows the seed can take the noise away. For research only.", soft_wrap=True)
    if resuming and is_closed(RunFolder(job.out)):
        return  # it will be refused
    if resuming:
        err.print(f"Going on with {plain_text(job.out)}", highlight=False, soft_wrap=True)
    elif job.settings.method is told.settings.method:
        _tell_given(job.settings, job.records.n)


def _tell_given(settings: Settings, n: int) -> None:
    """One line that says what is trained with, where the user chose a part of it and so all of it."""
    t, method = settings.training, settings.method
    if settings.theory is not None or method.adaptive:
        return  # they choose their own steps
    schedule = t.schedule(n, fixed=method.batch_for(n))
    err.print(
        f"Training with {method.name}: {schedule.steps} steps of {schedule.batch} records, learning rate "
        f"{t.learning_rate:g}{'' if t.optimizer == 'constant' else f' of {t.optimizer}'}. Once a method or a "
        "training setting is named, what is left out has its usual value, not one chosen for n, ε and δ.",
        highlight=False,
        soft_wrap=True,
    )


def _against_constant(metrics: dict[str, dict[str, float]]) -> str:
    """What the column of constants means, and whether the model is worth more."""
    from dpsrm.cli.job import CONSTANT

    first = next(name for name in metrics["test"] if name in ("log_loss", "rmse"))
    words = f"{CONSTANT}: always the same answer, " + ("the mean" if first == "rmse" else "the shares of the classes")
    if metrics["test"][first] < metrics[CONSTANT][first]:
        return words
    return (
        f"{words}. The model's {METRICS[first]} is no better than that: at this ε there are too few records for "
        "what is to be learned, or the settings do not suit; fewer columns, a schema or a larger ε may help "
        "(private/report.html)"
    )


def _show(outcome: Outcome) -> None:
    """The result, for people."""
    run, folder = outcome.run, outcome.run.folder
    if run.guarantee is None:
        out.print("[bold]No guarantee[/]: this model was trained without privacy (ε = ∞).")
    else:
        out.print(
            f"[bold]ε = {rounded_up(run.epsilon, 4)}[/] at δ = {rounded_up(run.guarantee.delta)}, proved by "
            f"{run.guarantee.accountant}."
        )
    if outcome.metrics:
        out.print(metrics_table("on the test records (not private: do not publish)", outcome.metrics))
        err.print(_against_constant(outcome.metrics), highlight=False, soft_wrap=True)
    out.print(f"Run folder: {plain_text(folder.path)} (publishable, except {folder.private.name}/)", soft_wrap=True)
    show_head(run.head)
    next_step("read the report, and show it to others", f"dpsrm report {quote(str(folder.path))} --open")
