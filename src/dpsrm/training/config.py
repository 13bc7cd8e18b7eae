"""Settings as one object, and as the sections of a TOML file: the same names in both."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from dpsrm.core.errors import InputError, need
from dpsrm.methods import Method, Srm, Theory, method_class
from dpsrm.runs.ledger import one_line
from dpsrm.training.settings import Model, Performance, Privacy, Training
from dpsrm.training.statement import Statement

T = TypeVar("T")
_LONGEST = 200
"""Characters that may say what one record is: they stand in the middle of the certificate's first sentence."""

_METHOD, _TRAINING = Srm(), Training()
"""What stands in settings that were not given. An equal object that was given is another object, and is kept."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about a run but the data and the module.

    Args:
        privacy: the promise; None trains without privacy and says so everywhere.
        method: the algorithm's own settings.
        training: schedule, step rule, output. Where neither method nor training is given, `dpsrm train` and the
            estimators choose both from public numbers (docs/decisions/defaults.md).
        theory: the paper's theory mode; replaces the method's bounds and the step rule.
        performance: engine and threads.
        seed: research only: reproducible, not private.
        record: what one record is, in the words of the certificate.
        budget: a budget file (`dpsrm budget init`) in which the run reserves all it may release before it starts.
        statement: what the operator says in the report.
    """

    privacy: Privacy | None
    method: Method = _METHOD
    training: Training = _TRAINING
    theory: Theory | None = None
    performance: Performance = field(default_factory=Performance)
    seed: int | None = None
    record: str = "one record"
    budget: str | None = None
    statement: Statement | None = None

    def __post_init__(self) -> None:
        """Refuse what a file may have said instead of a number or a text; NumPy's numbers become Python's."""
        for name in ("privacy", "method", "training", "performance"):
            object.__setattr__(self, name, _with_plain_numbers(getattr(self, name)))
        whole = self.seed is None or (type(self.seed) is int and 0 <= self.seed < 2**63)
        need(whole, "a seed is a whole number, 0 or more", seed=self.seed)
        text = isinstance(self.record, str) and 0 < len(self.record) <= _LONGEST and one_line(self.record)
        need(text, f"record must be a text in one line, of at most {_LONGEST} characters", record=self.record)
        need(self.budget is None or isinstance(self.budget, str), "budget must be a path", budget=self.budget)
        shared = self.budget is None or self.privacy is not None
        need(shared, "a run without privacy cannot share a budget", budget=self.budget, remedy="leave --budget out")

    @property
    def protected(self) -> str:
        """What is protected, in the words of the certificate."""
        if self.privacy is None or self.privacy.unit is None:
            return self.record
        who = "one unit" if self.record == "one record" else self.record
        return f"{who} (all rows with the same {self.privacy.unit})"

    @property
    def left_out(self) -> bool:
        """Whether neither method nor training was given."""
        return self.method is _METHOD and self.training is _TRAINING


def _with_plain_numbers(part: Any) -> Any:
    """The same settings with Python's numbers where they were NumPy's: a grid's, say; those are what files hold."""
    held = {each.name: getattr(part, each.name) for each in fields(part)} if is_dataclass(part) else {}
    ours = {name: value.item() for name, value in held.items() if isinstance(value, np.generic)}
    return replace(part, **ours) if ours else part


TASKS = ("classification", "regression")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the records are, and what is publicly known about them."""

    path: str
    test: str | None = None
    target: str | None = None
    schema: str | None = None
    classes: tuple[str, ...] | None = None
    features: int | str | None = None
    normalise: bool | None = None
    task: str | None = None
    target_range: tuple[float, ...] | None = None
    in_memory: bool | None = None

    def __post_init__(self) -> None:
        """Refuse a task that does not exist, and one that the range contradicts."""
        need(self.in_memory in (None, True, False), "in_memory must be true or false", in_memory=self.in_memory)
        need(self.task in (None, *TASKS), f"the task must be one of {', '.join(TASKS)}", task=self.task)
        need(
            self.task != "classification" or self.target_range is None,
            "classes have no range",
            target_range=self.target_range,
            remedy="leave --target-range out, or give --task regression",
        )
        need(
            self.task != "regression" or self.target_range is not None or self.schema is not None,
            "regression needs the public range of its target",
            target_range=self.target_range,
            remedy="give --target-range LOW,HIGH, or min and max under [target] of the schema; not what the data show",
        )


@dataclass(frozen=True, kw_only=True)
class Config:
    """What `dpsrm train` needs: data, model and settings."""

    data: Data
    model: Model
    settings: Settings


_SECTIONS = (
    "data",
    "model",
    "privacy",
    "method",
    "training",
    "theory",
    "performance",
    "seed",
    "record",
    "budget",
    "private",
    "preprocessing",
    "statement",
)


_GIVE = {
    "epsilon": "give --epsilon, for instance --epsilon 1",
    "delta": "give --delta, well below 1/n, for instance --delta 1e-5",
}


def config_from(sections: Mapping[str, Any]) -> Config:
    """Read the sections of a config file; unknown names and wrong types are errors that list what there is.

    >>> config_from({"data": {"path": "a.csv"}, "privacy": {"epsilon": 1, "delta": 1e-5}}).settings.privacy.epsilon
    1.0
    """
    unknown = sorted(set(sections) - set(_SECTIONS))
    need(not unknown, f"a config has the sections {', '.join(_SECTIONS)}", unknown=unknown)
    settings = settings_from(sections)
    data = build(Data, _section(sections, "data"), "data")
    return Config(data=data, model=build(Model, _section(sections, "model"), "model"), settings=settings)


def settings_from(sections: Mapping[str, Any]) -> Settings:
    """The settings in the sections of a config file; other sections are left alone."""
    private = sections.get("private", True)
    both = "privacy" in sections and not private
    need(not both, "private = false and a budget contradict each other", remedy="leave one of them out")
    need(
        ("privacy" in sections) == bool(private),
        "training is private unless the config says private = false, and private training needs a budget",
        private=private,
        remedy="give --epsilon and --delta (or a [privacy] section)",
    )
    promise = _section(sections, "privacy")
    missing = [name for name in ("epsilon", "delta") if name not in promise] if private else []
    need(
        not missing,
        "private training needs epsilon and delta",
        missing=missing,
        remedy=" and ".join(_GIVE[name] for name in missing),
    )
    return Settings(
        privacy=build(Privacy, promise, "privacy") if "privacy" in sections else None,
        method=_method(_section(sections, "method")) if "method" in sections else _METHOD,
        training=build(Training, _section(sections, "training"), "training") if "training" in sections else _TRAINING,
        theory=build(Theory, _section(sections, "theory"), "theory") if "theory" in sections else None,
        performance=build(Performance, _section(sections, "performance"), "performance"),
        seed=sections.get("seed"),
        record=sections.get("record", "one record"),
        budget=sections.get("budget"),
        statement=build(Statement, _section(sections, "statement"), "statement") if "statement" in sections else None,
    )


def _method(section: Mapping[str, Any]) -> Method:
    """The method of a [method] section."""
    chosen = dict(section)
    name = chosen.pop("name", Srm.name)
    need(isinstance(name, str), "method.name must be a text", name=name)
    return build(method_class(name), chosen, "method")


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """The sections that `settings_from` reads back to equal settings."""
    sections = {
        "record": settings.record,
        "private": settings.privacy is not None,
        "seed": settings.seed,
        "budget": settings.budget,
        "privacy": None if settings.privacy is None else plain(settings.privacy),
        "method": {"name": settings.method.name, **plain(settings.method)},
        "training": plain(settings.training),
        "theory": None if settings.theory is None else plain(settings.theory),
        "performance": plain(settings.performance),
        "statement": None if settings.statement is None else plain(settings.statement),
    }
    return {name: section for name, section in sections.items() if section is not None}


def plain(value: Any) -> dict[str, Any]:
    """A dataclass as a dictionary of plain values."""
    pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
    return {name: _plain_value(item) for name, item in pairs if item is not None}


def build(cls: type[T], section: Mapping[str, Any], where: str) -> T:
    """An instance of a settings class from a section of a config file."""
    items = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(section) - set(items))
    need(not unknown, f"[{where}] takes {', '.join(items)}", unknown=unknown)
    missing = [
        n for n, f in items.items() if n not in section and f.default is MISSING and f.default_factory is MISSING
    ]
    need(not missing, f"[{where}] needs {', '.join(missing)}", section=dict(section))
    hints = typing.get_type_hints(cls)
    return cls(**{name: _typed(value, hints[name], f"{where}.{name}") for name, value in section.items()})


def _section(sections: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section, empty if absent."""
    section = sections.get(name, {})
    need(isinstance(section, Mapping), f"[{name}] must be a section", **{name: section})
    return typing.cast("Mapping[str, Any]", section)


def _plain_value(value: Any) -> Any:
    """A value as TOML can hold it."""
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


_KINDS = {float: "a number", int: "a whole number", str: "a text in quotes", bool: "true or false"}


def _typed(value: Any, hint: Any, where: str) -> Any:
    """`value` as `hint` asks (whole numbers may stand for decimals); `InputError` if it cannot be."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(value, [option for option in options if option is not type(None)], where)
    if origin is typing.Literal and value in options:
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_typed(item, options[0], where) for item in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = [member.value for member in hint]
        need(value in names, f"{where} must be one of {', '.join(names)}", got=value)
        return hint(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise InputError(f"{where} must be {_KINDS.get(hint, getattr(hint, '__name__', hint))}; got {value!r}")


def _first_that_fits(value: Any, options: list[Any], where: str) -> Any:
    """`value` as the first of several types that takes it."""
    for option in options[:-1]:
        try:
            return _typed(value, option, where)
        except InputError:
            continue
    return _typed(value, options[-1], where)
