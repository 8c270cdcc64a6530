"""The lines at fault: marked in the programs by their authors with a trailing comment, before any result was seen.

    if mistake == "detached":
        hidden = hidden.detach()  # at fault

A mark belongs to the cases that its statement, or an `if` around it, mentions by name; `# at fault: name, name` says so
openly. A mark that mentions none belongs to the case whose function it stands in, and else to all cases of its file
that have no mark of their own.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from undertow.demos.case import Case, cases_by_module

_MARK = re.compile(r"#\s*at fault\b(?::\s*(?P<names>[\w, ()-]+))?", re.IGNORECASE)
Line = tuple[str, int]  # file and line


def fault_lines(case: Case) -> list[Line]:
    """All lines that are right for a case; empty where its fault has none, or nobody has marked it."""
    for module, cases in cases_by_module().items():
        if case.name in cases:
            return _lines_by_case(module).get(case.name, [])
    return []


@cache
def _lines_by_case(module: str) -> dict[str, list[Line]]:
    """Of the file that registers them and the files of the corpus that it imports from."""
    file = Path(str(importlib.import_module(module).__file__))
    names = frozenset(cases_by_module()[module])
    own: dict[str, list[Line]] = {}
    loose: list[Line] = []
    for path in (file, *_imported(file)):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for number, line in enumerate(text.splitlines(), 1):
            mark = _MARK.search(line)
            if mark is None:
                continue
            said = {name.strip() for name in (mark["names"] or "").split(",")} & names
            meant = said or _mentioned(tree, number, names) or _function_around(tree, number, names)
            for name in meant:
                own.setdefault(name, []).append((str(path), number))
            if not meant:
                loose.append((str(path), number))
    return {name: own.get(name, loose) for name in names}


def _mentioned(tree: ast.Module, line: int, names: frozenset[str]) -> set[str]:
    """In the innermost statement of this line, or in the nearest `if` around it that mentions any."""
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _spans(node, line)]
    for node in sorted(around, key=lambda node: (-node.lineno, node.end_lineno or 0)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        parts: list[ast.AST] = [node]
        if isinstance(node, (ast.If, ast.While)):
            parts = [node.test]
        elif isinstance(node, (ast.For, ast.With, ast.Try)):
            continue
        strings = {one.value for part in parts for one in ast.walk(part) if isinstance(one, ast.Constant)}
        if found := {name for name in names if name in strings}:
            return found
    return set()


def _function_around(tree: ast.Module, line: int, names: frozenset[str]) -> set[str]:
    """A patient of the hospital is a function of its name; what it alone uses is its own, too."""
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    inside = next((name for name, node in functions.items() if _spans(node, line)), None)
    if inside is None or inside in names:
        return {inside} if inside else set()
    users = {name for name in names if name in functions and inside in _uses(functions, name)}
    return users if len(users) == 1 else set()


def _uses(functions: dict[str, ast.FunctionDef | ast.ClassDef], name: str) -> set[str]:
    """Names of functions and classes of the same file that one needs, directly or not."""
    seen, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            words = {node.id for node in ast.walk(functions[one]) if isinstance(node, ast.Name)}
            waiting += [word for word in words if word in functions]
    return seen


def _spans(node: ast.stmt, line: int) -> bool:
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return first <= line <= (node.end_lineno or node.lineno)


def _imported(file: Path) -> Iterator[Path]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("corpus."):
            module = importlib.import_module(str(node.module))
            if module.__file__ is not None and not module.__file__.endswith("__init__.py"):
                yield Path(module.__file__)
