"""Which test enters which function? Recorded once, in a copy in which every function notes that it was entered."""

from __future__ import annotations

import ast
import gzip
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.mutants.draw import Function, functions, library, splice
from benchmarks.mutants.trees import Tree

SEEN = '''"""A byte for every function, shared by a process that runs tests and all that they start."""
import mmap, os
seen = bytearray({count})
if folder := os.environ.get("MUTANTS_NOTES"):
    name = os.environ.get("PYTEST_XDIST_WORKER", "main") + ".seen"
    file = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, {count})
    seen = mmap.mmap(file, {count})
    os.close(file)
'''

Line = list[Any]  # seconds, passed, entered, prepared


@dataclass(frozen=True, slots=True)
class Test:
    name: str
    seconds: float
    passed: bool
    entered: frozenset[int]
    prepared: frozenset[int]  # entered while it was set up: perhaps for other tests of the file, too

    @property
    def file(self) -> str:
        return self.name.split("::")[0]


@dataclass(frozen=True, slots=True)
class Map:
    functions: dict[str, int]  # "path::qualified name": its number
    tests: dict[str, Test]

    @classmethod
    def read(cls, path: Path) -> Map:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            content = json.load(file)
        tests = {
            name: Test(name, seconds, passed, frozenset(entered), frozenset(prepared))
            for name, (seconds, passed, entered, prepared) in content["tests"].items()
        }
        return cls(content["functions"], tests)


def record(tree: Tree, target: Path, jobs: int, chosen: list[str], seconds: float) -> None:
    """Run the tests in the copy; a map that is there already is added to, if it is of the same functions."""
    end = time.monotonic() + seconds
    numbers = instrument(tree)
    tests: dict[str, Line] = {}
    if target.exists():
        with gzip.open(target, "rt", encoding="utf-8") as file:
            earlier = json.load(file)
        if earlier["functions"] == numbers:
            tests = earlier["tests"]
    tests |= _noted(tree, "notes", chosen, jobs, end)
    if not tests:
        sys.exit("no test was run")
    if again := [name for name, (_, passed, *_) in tests.items() if not passed and "::" in name]:
        tests |= _noted(tree, "again", again, jobs, end)  # some fail only when all the others run beside them
    with gzip.open(target, "wt", encoding="utf-8") as file:
        json.dump({"functions": numbers, "tests": tests}, file)
    failed = [name for name, (_, passed, *_) in tests.items() if not passed]
    print(
        f"{len(tests)} tests and {len(numbers)} functions in {target}; {len(failed)} did not pass:", *failed, sep="\n  "
    )


def _noted(tree: Tree, name: str, chosen: list[str], jobs: int, end: float) -> dict[str, Line]:
    notes = tree.folder / name
    notes.mkdir()
    arguments = [
        *chosen,
        "--continue-on-collection-errors",
        *(["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []),
    ]
    said = tree.run("benchmarks.mutants.noting", arguments, end - time.monotonic(), MUTANTS_NOTES=str(notes))
    print("\n".join(said.splitlines()[-30:]))
    lines = [line for path in sorted(notes.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    return {test: rest for test, *rest in map(json.loads, lines)}


def instrument(tree: Tree) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for path in library():
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        found = list(functions(ast.parse(text)))
        for function, node in reversed(found):  # from below, so that places above stay true
            number = numbers.setdefault(f"{name}::{function}", len(numbers))
            text = _noting(text, node, number)
        tree.write(name, _importing(text))
    tree.write("src/undertow/_seen.py", SEEN.format(count=len(numbers)))
    return numbers


def _noting(text: str, node: Function, number: int) -> str:
    body = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    if not body or any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
        return text
    first = body[0]
    is_simple = not hasattr(first, "body") and not isinstance(first, ast.Match)
    note = f"_entered_functions[{number}] = 1" + ("; " if is_simple else "\n" + " " * first.col_offset)
    line = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))])
    at = ast.Pass(lineno=line, end_lineno=line, col_offset=first.col_offset, end_col_offset=first.col_offset)
    return splice(text, at, note)


def _importing(text: str) -> str:
    """After the docstring and what must come first."""
    line = 0
    for node in ast.parse(text).body:
        is_first = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_first and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        line = node.end_lineno or 0
    lines = text.splitlines(keepends=True)
    lines.insert(line, "from undertow._seen import seen as _entered_functions\n")
    return "".join(lines)
