"""The architecture as a picture: layers from pyproject.toml, arrows from the imports in the source."""

from __future__ import annotations

import tomllib
from pathlib import Path

from imports import graph

ROOT = Path(__file__).resolve().parents[1]


def layers() -> list[list[str]]:
    """The packages, layer by layer, from the import contract."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    return [[name.strip().removeprefix("dpsrm.") for name in line.split("|")] for line in contract["layers"]]


def edges() -> dict[tuple[str, str], int]:
    """How many modules of one package import another."""
    found: dict[tuple[str, str], int] = {}
    for module, ends in graph("module", "function").items():
        for other in {end.split(".")[1] for end in ends if end.count(".")}:
            here = module.split(".")[1] if module.count(".") else "dpsrm"
            if here not in (other, "dpsrm"):
                found[here, other] = found.get((here, other), 0) + 1
    return found


def drawing() -> str:
    """An inline SVG that follows the page's colours."""
    rows = layers()
    width, high, gap = 720, 34, 26
    places = {}
    for level, row in enumerate(rows):
        for number, name in enumerate(row):
            places[name] = (width * (number + 0.5) / len(row), level * (high + gap))
    lines = [
        f'<line x1="{places[a][0]:.0f}" y1="{places[a][1] + high}" x2="{places[b][0]:.0f}" y2="{places[b][1]}" '
        f'stroke="currentColor" stroke-opacity="{min(0.15 + 0.05 * count, 0.7):.2f}"/>'
        for (a, b), count in sorted(edges().items())
        if a in places and b in places
    ]
    boxes = [
        f'<rect x="{x - 62:.0f}" y="{y}" width="124" height="{high}" rx="6" fill="var(--md-default-bg-color)" '
        f'stroke="currentColor"/><text x="{x:.0f}" y="{y + 22}" text-anchor="middle" fill="currentColor">{name}</text>'
        for name, (x, y) in places.items()
    ]
    words = f"Packages in {len(rows)} layers; every line is an import, and all point down."
    size = f"0 -4 {width} {len(rows) * (high + gap)}"
    inner = "".join(lines + boxes)
    return f'<svg viewBox="{size}" role="img" aria-label="{words}" font-size="14"><title>{words}</title>{inner}</svg>'
