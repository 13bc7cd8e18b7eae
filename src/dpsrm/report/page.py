"""What pages are made of: HTML whose text is always escaped, and line charts as inline SVG, legible at 400 px."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

_EMPTY = frozenset({"meta", "line", "path", "rect", "circle", "img"})


class Markup(str):
    """Text that is HTML already; what is added to it is escaped unless it is HTML too."""

    __slots__ = ()

    def __add__(self, other: str) -> Markup:
        """This and `other`."""
        return joined([self, other])


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; children that are not `Markup` are escaped, `class_` is class, underscores are dashes.

    >>> tag("p", "a < b", tag("b", "!"), class_="x")
    '<p class="x">a &lt; b<b>!</b></p>'
    """
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    opened = name + "".join(f' {key}="{escape(str(value))}"' for key, value in named)
    if name in _EMPTY:
        return Markup(f"<{opened}/>" if name != "meta" else f"<{opened}>")
    return Markup(f"<{opened}>{joined(children)}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """Parts one after the other, escaped where they are plain text."""
    return Markup("".join(part if isinstance(part, Markup) else escape(str(part)) for part in parts))


def section(title: str, *children: object, name: str) -> Markup:
    """A part of a page with its heading, which can be linked to."""
    return tag("section", tag("h2", title, id=name), "\n", *children, aria_labelledby=name) + "\n"


def items(pairs: Iterable[tuple[object, object]]) -> Markup:
    """Names and what there is to say about each: beside each other where there is room, else below."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) + "\n" for name, value in pairs))


def table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table that scrolls inside itself, with a hint where it does not fit; the first column names the rows."""
    heads = tag("tr", *(tag("th", name, scope="col") for name in head))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) + "\n" for row in rows]
    inner = tag("table", tag("caption", caption), tag("thead", heads), tag("tbody", *body))
    words, kind = "Wider than the screen: move the table sideways.", "hint" if len(head) <= 6 else "hint always"
    hint = tag("p", words, class_=kind) if len(head) > 3 else ""
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption) + hint


def page(title: str, *children: object, note: str) -> str:
    """A whole document. `note` stands at its foot."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(_style())),
    ]
    body = [tag("main", *children), "\n", tag("footer", tag("p", note))]
    return "<!doctype html>\n" + tag("html", tag("head", *head), "\n", tag("body", *body), lang="en") + "\n"


@cache
def _style() -> str:
    """The one style sheet of all pages."""
    return files("dpsrm.report").joinpath("page.css").read_text(encoding="utf-8")


Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 380.0, 250.0
_LEFT, _TOP, _BOTTOM = 54.0, 30.0, 42.0
_LETTER = 7.6
"""About the width of a letter, to keep room for the names at the right."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What is measured, from where to where; on a logarithmic axis in powers of ten."""

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where `value` stands between 0 and 1; what lies outside stands at the end."""
        if self.log:
            value, low, high = math.log10(max(value, self.low)), math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        return min(max((value - low) / (high - low), 0.0), 1.0)

    @property
    def ticks(self) -> list[float]:
        """Round numbers: about five, or powers of ten."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**k for k in powers if len(powers) <= 6 or (k - powers[-1]) % math.ceil(len(powers) / 6) == 0]
        step = nice_step(self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line with a name; `band` is half the height of its confidence band at every point."""

    name: str
    points: Points
    band: Sequence[float] = ()
    guess: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over two axes. `alternative` says in words what a reader sees."""

    name: str
    title: str
    alternative: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]

    def render(self, *, rows: int = 12) -> Markup:
        """A figure: picture, its words, and about `rows` of its numbers on demand."""
        right = 10 + _LETTER * max((len(curve.name) for curve in self.curves), default=0)
        box = _Box(_WIDTH - _LEFT - min(right, 150.0), _HEIGHT - _TOP - _BOTTOM)
        parts = [_grid(self.x, self.y, box), *(_line(self, number, box) for number in range(len(self.curves)))]
        parts += [_names(self, box), tag("text", self.title, x=8, y=18, font_weight="600")]
        words = [tag("title", self.title, id=f"{self.name}-t"), tag("desc", self.alternative, id=f"{self.name}-d")]
        labelled = f"{self.name}-t {self.name}-d"
        size = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
        svg = tag("svg", *words, *parts, viewBox=size, role="img", aria_labelledby=labelled)
        numbers = tag("details", tag("summary", "The numbers: ", self.title), self._numbers(rows))
        return tag("figure", svg, tag("figcaption", self.alternative), numbers)

    def _numbers(self, rows: int) -> Markup:
        """What the curves hold, thinned out."""
        found = []
        for curve in self.curves:
            every = max(1, math.ceil(len(curve.points) / rows))
            kept = [*curve.points[::every], *([curve.points[-1]] if (len(curve.points) - 1) % every else [])]
            found += [(curve.name, number(x), number(y)) for x, y in kept]
        return table(f"{self.title}: numbers", ("curve", self.x.label, self.y.label), found)


@dataclass(frozen=True)
class _Box:
    """The size of the plotted field."""

    width: float
    height: float

    def x(self, axis: Axis, value: float) -> float:
        return round(_LEFT + self.width * axis.place(value), 1)

    def y(self, axis: Axis, value: float) -> float:
        return round(_TOP + self.height * (1 - axis.place(value)), 1)


def nice_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, about a fifth of `span`.

    >>> nice_step(1.0), nice_step(7.0), nice_step(0.013)
    (0.2, 2.0, 0.005)
    """
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next((step for step in (1, 2, 5) if rough <= step * power * 1.001), 10)


def number(value: float) -> str:
    """Three digits that mean something, in plain words where they fit.

    >>> number(0.123456), number(1234567.0), number(1e-5)
    ('0.123', '1234567', '1e-05')
    """
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def around(values: Sequence[float], *, zero: bool = False) -> tuple[float, float]:
    """Ends of an axis that hold all finite values with a little air."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    air = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (low if zero and low == 0 else low - air), high + air


def _grid(x: Axis, y: Axis, box: _Box) -> Markup:
    """Lines, numbers and labels of both axes."""
    bottom, right = _TOP + box.height, _LEFT + box.width
    parts = []
    for tick in y.ticks:
        at = box.y(y, tick)
        parts += [tag("line", x1=_LEFT, x2=right, y1=at, y2=at, class_="grid")]
        parts += [tag("text", number(tick), x=_LEFT - 6, y=at + 4, text_anchor="end")]
    for tick in x.ticks:
        at = box.x(x, tick)
        parts += [tag("line", x1=at, x2=at, y1=_TOP, y2=bottom, class_="grid")]
        parts += [tag("text", number(tick), x=at, y=bottom + 16, text_anchor="middle")]
    parts += [tag("text", x.label, x=_LEFT + box.width / 2, y=_HEIGHT - 8, text_anchor="middle")]
    middle = round(_TOP + box.height / 2, 1)
    parts += [tag("text", y.label, x=0, y=0, text_anchor="middle", transform=f"translate(14 {middle}) rotate(-90)")]
    return tag("g", *parts)


def _line(chart: Chart, which: int, box: _Box) -> Markup:
    """One curve, and its band."""
    curve = chart.curves[which]
    finite = [(x, y) for x, y in curve.points if math.isfinite(x) and math.isfinite(y)]
    places = [f"{box.x(chart.x, x)} {box.y(chart.y, y)}" for x, y in finite]
    kind = "guess" if curve.guess else f"c{min(which, 9)}"
    drawn = tag("path", d="M" + " L".join(places), class_=f"curve {kind}") if places else Markup("")
    if not curve.band:
        return drawn
    widths = list(zip(curve.points, curve.band, strict=True))
    upper = [f"{box.x(chart.x, x)} {box.y(chart.y, y + half)}" for (x, y), half in widths]
    lower = [f"{box.x(chart.x, x)} {box.y(chart.y, y - half)}" for (x, y), half in reversed(widths)]
    return tag("path", d="M" + " L".join(upper + lower) + " Z", class_=f"band {kind}") + drawn


def _names(chart: Chart, box: _Box) -> Markup:
    """The names of the curves at their ends, pushed apart where they would meet."""
    ends = [(box.y(chart.y, curve.points[-1][1]), n) for n, curve in enumerate(chart.curves) if curve.points]
    taken, parts = _TOP - 16.0, []
    for at, which in sorted(ends):
        taken = max(at + 4, taken + 14)
        kind = "guess" if chart.curves[which].guess else f"c{min(which, 9)}"
        name = chart.curves[which].name
        parts.append(tag("text", name, x=_LEFT + box.width + 6, y=round(taken, 1), class_=kind))
    return tag("g", *parts)
