"""Check a built site without a network: every link and anchor leads somewhere, nothing is loaded from elsewhere.

    python tools/check_site.py build/site

Also: every public name of dpsrm has an entry in the reference.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
HARMLESS_LINKS = ("canonical", "edit", "next", "prev")


class Page(HTMLParser):
    """The ids and addresses of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.ids |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in HARMLESS_LINKS:
            return
        self.loads += [found[key] for kind, key in LOADED if tag == kind and key in found]


def problems(site: Path) -> list[str]:
    """What is wrong with the site."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in page.loads:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                found.append(f"{where} loads {address}")
        for address in page.links:
            found += [f"{where}: {why}" for why in _wrong(address, path, pages, site)]
    return found + _unlisted(pages[site / "reference.html"])


def _wrong(address: str, path: Path, pages: dict[Path, Page], site: Path) -> list[str]:
    """Why a link leads nowhere, if it does."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https", "mailto", "data", "javascript"):
        return []
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        return [f"{address} does not exist"]
    anchored = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
    return [f"{address} has no such anchor"] if anchored and parts.fragment != "__skip" else []


def _unlisted(reference: Page) -> list[str]:
    """Public names without an entry."""
    import dpsrm

    missing = [name for name in dpsrm.__all__ if name.lower() not in reference.ids]
    return [f"reference.html has no entry for {name}" for name in missing]


def main() -> None:
    """Print what is wrong; exit 1 if anything is."""
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    sys.stdout.write("".join(f"{each}\n" for each in found) or f"{site}: all links lead somewhere\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
