"""Who imports whom, read from the source without running it."""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "dpsrm"


def module_name(path):
    """dpsrm.core.events of src/dpsrm/core/events.py; a package's own name of its __init__.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def parents(module):
    """The packages that Python loads before a module."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def imports(path):
    """(names, place) of every import: "module" if it runs when the file is loaded, else "function" or "types"."""

    def walk(node, place):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield [alias.name for alias in child.names], place
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: imports are absolute"
                yield [f"{child.module}.{alias.name}" for alias in child.names], place
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                yield from walk(child, "function")
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from walk(child, "types")
            else:
                yield from walk(child, place)

    return list(walk(ast.parse(path.read_text()), "module"))


def graph(*places):
    """Module → the package's modules that it imports in these places, e.g. "module", "function".

    `from dpsrm.a import b` leads to dpsrm.a.b if that is a module, else to dpsrm.a. That Python also loads the packages
    above a module is no edge here: a file is not said to depend on its package's __init__ unless it imports it.
    """
    edges = {}
    for module, path in MODULES.items():
        wanted = [name for names, place in imports(path) for name in names if place in places]
        ends = (name if name in MODULES else name.rpartition(".")[0] for name in wanted)
        edges[module] = {end for end in ends if end in MODULES}
    return edges


def outside_imports(path):
    """(top-level name, place) of what a file imports when it runs, from neither dpsrm nor the standard library."""
    for names, place in imports(path):
        for top in {name.partition(".")[0] for name in names}:
            if place != "types" and top != "dpsrm" and top not in sys.stdlib_module_names:
                yield top, place


def cycles(edges):
    """Sets of modules that lead back to themselves: the strongly connected components with a loop (Tarjan, 1972)."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for end in sorted(edges[node]):
            if end not in number:
                visit(end)
                low[node] = min(low[node], low[end])
            elif end in stack:
                low[node] = min(low[node], number[end])
        if low[node] == number[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1 or node in edges[node]:
                found.append(frozenset(group))

    for node in edges:
        if node not in number:
            visit(node)
    return found
