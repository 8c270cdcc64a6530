"""Random mutants of the library: which function, which change, and the file as it is then."""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT, SOURCE
from benchmarks.mutants.operators import Site, sites

PACKAGE = SOURCE / "undertow"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str  # below the root of the repository
    function: str
    line: int
    operator: str
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.operator} in {self.function}"

    @property
    def difference(self) -> str:
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])


def library() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "demos" not in path.relative_to(PACKAGE).parts]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """The functions of modules and classes; what is defined within one belongs to it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def draw(count: int, seed: int) -> list[Mutant]:
    """A function by the number of its lines, then a kind of change, then the place."""
    chance = random.Random(seed)
    texts = {path: path.read_text(encoding="utf-8") for path in library()}
    pool = [
        (path, name, node)
        for path, text in texts.items()
        for name, node in functions(ast.parse(text))
        if not name.endswith("__repr__")
    ]
    weights = [(node.end_lineno or node.lineno) - node.lineno + 1 for _, _, node in pool]
    found: dict[str, Mutant] = {}
    while len(found) < count:
        path, name, node = chance.choices(pool, weights)[0]
        mutant = _mutant(path, name, node, texts[path], chance)
        if mutant is not None:
            found.setdefault(mutant.after, mutant)
    return list(found.values())


def _mutant(path: Path, name: str, node: Function, text: str, chance: random.Random) -> Mutant | None:
    kinds: dict[str, list[Site]] = {}
    for site in sites(node):
        kinds.setdefault(site.operator, []).append(site)
    if not kinds:
        return None
    site = chance.choice(kinds[chance.choice(sorted(kinds))])
    after = splice(text, site.node, site.text)
    if not _means_something_else(text, after):
        return None
    return Mutant(str(path.relative_to(ROOT)), name, site.node.lineno, site.operator, text, after)


def splice(text: str, node: ast.expr | ast.stmt, replacement: str) -> str:
    lines = text.encode().splitlines(keepends=True)  # columns of a tree count bytes
    assert node.end_lineno is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    return b"".join([*lines[:first], head + replacement.encode() + tail, *lines[last + 1 :]]).decode()


def _means_something_else(before: str, after: str) -> bool:
    try:
        return ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    except SyntaxError:
        return False
