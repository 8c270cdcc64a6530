"""Does a test notice it? The likeliest first; a mutant survives only when everything that could see it has passed."""

from __future__ import annotations

import ast
import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from benchmarks.mutants.draw import Mutant
from benchmarks.mutants.record import Map, Test
from benchmarks.mutants.trees import Tree

FIRST_SECONDS = 20.0  # of tests, before the many files of the others are imported
IMPORTING = "importing the tests"


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: str  # killed, survived, undecided, skipped
    by: str
    seconds: float


@dataclass(slots=True)
class Stage:
    tests: list[Test]
    files: list[str]  # also with what the map does not know


@dataclass(slots=True)
class Judge:
    map: Map
    within: list[str]  # folders or files of tests; empty: all of them
    limit: float  # seconds for one mutant
    broken: set[str] = field(default_factory=set)  # tests that fail without any mutant
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.broken |= {name for name, test in self.map.tests.items() if not test.passed}

    def judge(self, tree: Tree, mutant: Mutant) -> Outcome:
        began = time.monotonic()
        entered = False
        for stage in self._stages(tree, mutant):
            entered = entered or bool(stage.tests)
            while True:
                left = self.limit - (time.monotonic() - began)
                culprit = self._try(tree, mutant.path, mutant.after, stage, left) if left > 0 else None
                if culprit is None:
                    return Outcome("undecided", f"{self.limit:g} seconds were not enough", time.monotonic() - began)
                if not culprit:
                    break
                if self._passes_without(tree, mutant, culprit, stage):
                    return Outcome("killed", culprit, time.monotonic() - began)
                broken = self._unreadable(tree, mutant, stage) if culprit == IMPORTING else {culprit}
                with self._lock:
                    self.broken |= broken
        missing = [] if entered else sorted(_missing_packages(mutant.before))
        if missing:
            return Outcome(
                "skipped", f"no {', '.join(missing)} here, so its tests do not run", time.monotonic() - began
            )
        return Outcome("survived", "" if entered else "no test enters it", time.monotonic() - began)

    def _stages(self, tree: Tree, mutant: Mutant) -> Iterator[Stage]:
        known = [test for test in self.map.tests.values() if self._is_wanted(test.file)]
        seeing = self._seeing(mutant, known)
        seeing.sort(key=lambda test: _cost(test, mutant.path))
        likely, seconds = 0, 0.0
        while likely < len(seeing) and seconds < FIRST_SECONDS:
            seconds += seeing[likely].seconds
            likely += 1
        fresh = [file for file in self._all_files(tree) if file not in {test.file for test in known}]
        near = [file for file in fresh if _nearness(file, mutant.path) >= 2]
        yield Stage(seeing[:likely], sorted({test.file for test in seeing[:likely]} | set(near)))
        files = {test.file for test in seeing}
        beside = [test for test in known if test.file in files and test not in set(seeing)]
        last = [*seeing[likely:], *beside]
        yield Stage(last, sorted({test.file for test in last} | (set(fresh) - set(near))))

    def _seeing(self, mutant: Mutant, known: list[Test]) -> list[Test]:
        """The tests that enter the function, or its file if it could not be followed: new, or compiled by others."""
        numbers = {self.map.functions.get(f"{mutant.path}::{mutant.function}", -1)}
        beside = {number for name, number in self.map.functions.items() if name.startswith(f"{mutant.path}::")}
        for wanted in (numbers, beside):
            if seeing := [test for test in known if wanted & test.entered or wanted & test.prepared]:
                return seeing
        return []

    def _is_wanted(self, file: str) -> bool:
        return not self.within or any(PurePath(file).is_relative_to(path) for path in self.within)

    def _all_files(self, tree: Tree) -> list[str]:
        paths = (str(path.relative_to(tree.root)) for path in (tree.root / "tests").rglob("test_*.py"))
        return sorted(filter(self._is_wanted, paths))

    def _try(self, tree: Tree, path: str, text: str, stage: Stage, seconds: float) -> str | None:
        """The test that failed, "" if none did, and None if there was no time to tell."""
        files = [file for file in stage.files if file not in self.broken]
        if not files:
            return ""
        chosen = {test.name: 60 + 10 * test.seconds for test in stage.tests if test.name not in self.broken}
        left_out = [name for name, test in self.map.tests.items() if test.file in files and name not in chosen]
        plan = tree.folder / "plan.json"
        plan.write_text(json.dumps({"limits": chosen, "left_out": [*left_out, *self.broken]}), encoding="utf-8")
        running = tree.folder / "running"
        running.write_text(IMPORTING, encoding="utf-8")
        arguments = ["-x", *(["--hypothesis-seed=0"] if importlib.util.find_spec("hypothesis") else []), *files]
        before = (tree.root / path).read_text(encoding="utf-8")
        tree.write(path, text)
        said = tree.run(
            "benchmarks.mutants.trying", arguments, seconds, MUTANTS_PLAN=str(plan), MUTANTS_RUNNING=str(running)
        )
        tree.write(path, before)
        (tree.folder / "said").write_text(said, encoding="utf-8")
        return None if said == "it took too long" else running.read_text(encoding="utf-8")

    def _unreadable(self, tree: Tree, mutant: Mutant, stage: Stage) -> set[str]:
        """The files of tests that cannot be imported although nothing was changed."""
        alone = {file: self._try(tree, mutant.path, mutant.before, Stage([], [file]), 600.0) for file in stage.files}
        return {file for file, culprit in alone.items() if culprit == IMPORTING}

    def _passes_without(self, tree: Tree, mutant: Mutant, culprit: str, stage: Stage) -> bool:
        if culprit == IMPORTING:
            return not self._try(tree, mutant.path, mutant.before, Stage([], stage.files), 600.0)
        file = culprit.split("::")[0]
        others = [test for name, test in self.map.tests.items() if test.file == file and name != culprit]
        alone = Judge(self.map, self.within, self.limit, {test.name for test in others})
        test = self.map.tests.get(culprit, Test(culprit, 6.0, True, frozenset(), frozenset()))
        return not alone._try(tree, mutant.path, mutant.before, Stage([test], [file]), 600.0)


def _missing_packages(text: str) -> set[str]:
    """What a file imports somewhere and this machine does not have."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {str(one.value).partition(".")[0] for one in node.args if isinstance(one, ast.Constant)}
    return {name for name in names if importlib.util.find_spec(name) is None}


def _cost(test: Test, path: str) -> float:
    """A test of few functions says more about each of them, and a short one says it sooner."""
    return (len(test.entered) + 50) * (test.seconds + 0.3) / 3 ** _nearness(test.file, path)


def _nearness(test: str, path: str) -> int:
    """How many folders they share: tests mirror the library."""
    ours, theirs = PurePath(path).parts[2:], PurePath(test).parts[1:]
    same = 0
    for one, other in zip(ours, theirs):
        if one != other.removeprefix("test_"):
            break
        same += 1
    return same
