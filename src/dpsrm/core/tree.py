"""Batches are trees: dictionaries, lists, tuples and dataclasses with arrays at their ends, whatever an array is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Ragged:
    """A batch whose examples differ in shape: those of one shape are a batch of their own."""

    groups: tuple[Any, ...]


@dataclass(frozen=True)
class Bundles:
    """A batch whose examples are several rows each: all that count of one person, for instance.

    Attributes:
        rows: a tree of arrays (B, k, …), the rows of each example.
        counts: (B, k), 1 for a row that counts and 0 for one that only fills up.
    """

    rows: Any
    counts: Any


def leaves(tree: Any) -> list[Any]:
    """The arrays of a tree, from left to right.

    >>> leaves({"ids": 1, "more": (2, [3])})
    [1, 2, 3]
    """
    return [leaf for child in _children(tree) for leaf in leaves(child)] if _is_inner(tree) else [tree]


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `function` of each array in the array's place.

    Edge cases: a mapping that is no dictionary (a tokenizer's) becomes one.

    >>> mapped(lambda x: 2 * x, {"ids": 1, "more": (2, [3])})
    {'ids': 2, 'more': (4, [6])}
    """
    if not _is_inner(tree):
        return function(tree)
    return _rebuilt(tree, [mapped(function, child) for child in _children(tree)])


def refilled(tree: Any, values: Iterator[Any]) -> Any:
    """The tree with the next of `values` in each array's place."""
    return mapped(lambda _: next(values), tree)


def form(tree: Any, of_array: Callable[[Any], Hashable]) -> Hashable:
    """What a tree is like, to be compared: the types and names of its nodes, and `of_array` of each array.

    Guarantee: trees of equal form have the same names in the same order; their arrays may change places.

    >>> forms = [form(tree, type) for tree in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": 1.0}, {"a": [1]}, {"a": (1,)})]
    >>> [forms.index(each) for each in forms]
    [0, 0, 2, 3, 4, 5]
    """
    if not _is_inner(tree):
        return of_array(tree)
    return type(tree), _names(tree), tuple([form(child, of_array) for child in _children(tree)])


def _is_inner(tree: Any) -> bool:
    """Whether a node has children; None has none, and is no array either."""
    return (
        tree is None or isinstance(tree, (Mapping, list, tuple)) or (is_dataclass(tree) and not isinstance(tree, type))
    )


def _children(tree: Any) -> list[Any]:
    """A node's children."""
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return list(tree.values())
    return list(tree) if isinstance(tree, (list, tuple)) else [getattr(tree, field.name) for field in fields(tree)]


def _names(tree: Any) -> Hashable:
    """What a mapping calls its children; of other nodes the type says it. 1, 1.0 and True are three names."""
    return tuple([(type(name), name) for name in tree]) if isinstance(tree, Mapping) else None


def _rebuilt(tree: Any, children: list[Any]) -> Any:
    """A node like `tree` with other children."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return dict(zip(tree, children, strict=True))
    if isinstance(tree, list):
        return children
    if isinstance(tree, tuple):
        return type(tree)(*children) if hasattr(tree, "_fields") else tuple(children)
    return replace(tree, **dict(zip((field.name for field in fields(tree)), children, strict=True)))
