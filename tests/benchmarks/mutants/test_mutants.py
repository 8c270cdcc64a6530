"""The mutants: what is changed, what is left alone, and that a map can be recorded of the whole library."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from benchmarks.mutants import draw, judge, record
from benchmarks.mutants.operators import sites
from benchmarks.mutants.trees import Tree


def mutants(body: str) -> set[tuple[str, str]]:
    """Every operator that applies to the body of a function, and what its line is then."""
    text = "def f(x, y):\n" + textwrap.indent(body, "    ")
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    changed = [(site.operator, draw.splice(text, site.node, site.text)) for site in sites(function)]
    return {(operator, "\n".join(after.splitlines()[1:]).strip()) for operator, after in changed}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = x < 3.5", {("comparison", "y = (x >= 3.5)"), ("constant", "y = x < 7.0")}),
        (
            "y = len(x) < y",
            {("comparison", "y = (len(x) >= y)"), ("boundary", "y = (len(x) <= y)")},
        ),
        ("y = x and y", {("connective", "y = (x or y)")}),
        ("y = x + y", {("arithmetic", "y = (x - y)")}),
        ("y = not x", {("negation", "y = (x)")}),
        ("y = [x for x in y if x]", {("condition", "y = [x for x in y if (not (x))]")}),
        ("return x", {("return", "return None")}),
        ("return False", {("constant", "return True")}),
        ("x.wait(5)", {("statement", "pass")}),
        (
            "y = x.norm() * size < 1e-9",
            {
                ("comparison", "y = (x.norm() * size >= 1e-09)"),
                ("constant", "y = x.norm() * size < 2e-09"),
                ("arithmetic", "y = (x.norm() / size) < 1e-9"),
            },
        ),
        ("x.y = y", {("statement", "pass")}),
        ("x(x, y)", {("statement", "pass"), ("arguments", "x(y, x)")}),
        ("y = x['loss']", {("name", "y = x['lossx']")}),
        ("y = f'ä {x - y}'", {("arithmetic", "y = f'ä {x + y}'")}),
        ("y: 'int' = x", set()),
        ('"""Says 1."""', set()),
        ("y = 'what was found is lost'", set()),
    ],
)
def test_changes(body: str, expected: set[tuple[str, str]]) -> None:
    assert mutants(body) == expected


def test_a_seed_draws_the_same_mutants_again() -> None:
    first, again = draw.draw(8, 5), draw.draw(8, 5)
    assert first == again
    assert draw.draw(8, 6) != first
    for mutant in first:
        assert mutant.before == (draw.ROOT / mutant.path).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(mutant.after)) != ast.dump(ast.parse(mutant.before))
        assert "demos" not in mutant.path


def test_a_file_says_which_packages_its_tests_need() -> None:
    text = "import os.path\nfrom nowhere.to import be\nfound = importlib.import_module('neither.here')\n"
    assert judge._missing_packages(text) == {"nowhere", "neither"}


def test_every_function_can_be_followed(tmp_path: Path) -> None:
    for path in draw.library():
        (tmp_path / path.relative_to(draw.ROOT)).parent.mkdir(parents=True, exist_ok=True)
    numbers = record.instrument(Tree(tmp_path, tmp_path))
    assert len(numbers) > 3000
    assert sorted(numbers.values()) == list(range(len(numbers)))
    for path in draw.library():
        ast.parse((tmp_path / path.relative_to(draw.ROOT)).read_text(encoding="utf-8"))
