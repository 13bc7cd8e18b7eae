"""HTML from Python: text is always escaped, a page is one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
