"""What mkdocs does besides: pages made from the source (reference, drawing), and the repository's own pages.

Loaded by mkdocs.yml; nothing here is fetched from anywhere.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tools")]
from drawing import drawing  # noqa: E402

BROUGHT = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
_SECTIONS = ("Args", "Returns", "Guarantee", "Edge cases", "Attributes", "Source", "Departs from the paper", "Raises")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and those that stand outside of docs/."""
    for name, source in BROUGHT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](docs/", "](").replace("(docs/", "(")))
    files.append(File.generated(config, "reference.md", content=reference()))
    for example in sorted((ROOT / "examples").rglob("*.py")):
        name = example.relative_to(ROOT / "examples")
        text = f"# {name}\n\n```python\n{example.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, f"examples/{name.with_suffix('.md')}", content=text))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=notebook_page(notebook)))
    _list_the_rest(files, config)
    return files


def notebook_page(path: Path) -> str:
    """A notebook's words and code, without what it printed."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    body = "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts)
    return f"{body}\n\nAs a notebook: `notebooks/{path.name}` of the repository.\n"


def _list_the_rest(files: Files, config: MkDocsConfig) -> None:
    """Pages that the navigation does not name stand at its end: notes, tables, examples, and what is new."""
    named = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    rest = sorted(f.src_uri for f in files.documentation_pages() if f.src_uri not in named)
    groups = {"Decisions": "decisions/", "Examples": "examples/", "Notebooks": "notebooks/", "More": ""}
    for title, folder in groups.items():
        found = [uri for uri in rest if uri.startswith(folder) and ("/" in uri) == bool(folder)]
        if found:
            config.nav.append({title: found})


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the repository's files to the pages made of them, and put the drawing in its place."""
    markdown = re.sub(r"\]\((?:\.\./)?examples/([\w/]+)\.py\)", r"](examples/\1.md)", markdown)
    markdown = re.sub(r"\]\((?:\.\./)?examples\)", "](examples/private_loop.md)", markdown)
    for name, source in BROUGHT.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{re.escape(source)}\)", f"]({name})", markdown)
    markdown = re.sub(r"\]\(decisions\)", "](decisions/airlock.md)", markdown)
    markdown = re.sub(r"\]\(notebooks\)", "](notebooks/1-first-private-model.md)", markdown)
    if "<!-- drawing -->" in markdown:
        markdown = markdown.replace("<!-- drawing -->", drawing())
    return markdown


def reference() -> str:
    """Every public name: its signature and its docstring."""
    import dpsrm

    parts = ["# Reference\n\nEvery public name of the package, from its docstring. The command line: `dpsrm --help`.\n"]
    for name in sorted(dpsrm.__all__, key=str.lower):
        parts.append(f"## {name}\n\n{_entry(name, getattr(dpsrm, name))}")
        for key, member in _methods(getattr(dpsrm, name)):
            parts.append(f"### {name}.{key}\n\n{_entry(key, member)}")
    return "\n".join(parts)


def _methods(thing: object) -> list[tuple[str, object]]:
    """The public methods and properties that a class itself defines."""
    if not inspect.isclass(thing):
        return []
    return [
        (key, member)
        for key, member in vars(thing).items()
        if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
    ]


def _entry(name: str, thing: object) -> str:
    """A signature and a docstring."""
    inner = getattr(thing, "__func__", thing)
    try:
        signature = f"{name}{inspect.signature(inner)}"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        signature = name
    return f"```python\n{_wrapped(signature)}\n```\n\n{_rendered(inspect.getdoc(thing) or '')}\n"


def _wrapped(signature: str) -> str:
    """One parameter a line where it is long; modules' names left out."""
    short = re.sub(r"\b(?:dpsrm|torch|pathlib|typing|collections)\.[\w.]*?(\w+)\b(?=[\[\],\s|)'=]|$)", r"\1", signature)
    if len(short) <= 100:
        return short
    depth, out = 0, ""
    for letter in short:
        depth += letter in "([{"
        depth -= letter in ")]}"
        out += letter + ("\n   " if letter == "," and depth == 1 else "")
    return out


def _rendered(doc: str) -> str:
    """A docstring of the house style as Markdown: its sections as lists, examples and formulas as code."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", doc):
        first, _, rest = block.partition("\n")
        if first.rstrip(":") in _SECTIONS and rest:
            out.append(f"**{first.rstrip(':')}**\n\n{_listed(rest)}")
        elif block.lstrip().startswith(">>>"):
            out.append(f"```pycon\n{inspect.cleandoc(block)}\n```")
        elif block.startswith("    "):
            out.append(f"```text\n{inspect.cleandoc(block)}\n```")
        else:
            out.append(_escaped(re.sub(r"^(\w[\w ]+):(?= )", _bold, block)))
    return "\n\n".join(out)


def _bold(match: re.Match[str]) -> str:
    """A section that begins in its own line."""
    return f"**{match[1]}:**" if match[1] in _SECTIONS else match[0]


def _listed(text: str) -> str:
    """Lines `name: words`, and their continuations, as a list."""
    joined = re.sub(r"\n\s{8,}", " ", "\n" + text)
    lines = [line.strip() for line in joined.splitlines() if line.strip()]
    named = (re.sub(r"^([\w, ]+):", r"`\1`:", _escaped(line), count=1) for line in lines)
    return "\n".join(f"- {line}" for line in named)


def _escaped(text: str) -> str:
    """What Markdown would take for a tag or emphasis."""
    return re.sub(r"<(?=\w)", "&lt;", text).replace("*", r"\*").replace("_", r"\_") if "`" not in text else text
