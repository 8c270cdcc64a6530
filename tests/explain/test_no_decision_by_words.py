"""No code of `detect` or `explain` decides by the words of a sentence: rewording a text must change no advice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import undertow

SOURCE = Path(undertow.__file__).parent
ROOMS = ("detect", "explain")
SENTENCES = {"summary", "how"}
QUESTIONS = {"startswith", "endswith", "find", "index", "count", "search", "match", "fullmatch", "findall"}


def decisions(tree: ast.AST) -> Iterator[ast.expr]:
    """Comparisons, and questions about text, in which a sentence takes part, also through a variable."""
    named = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _reads_a_sentence(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in QUESTIONS:
            asked = [node.func.value, *node.args]
        elif isinstance(node, ast.Match):
            asked = [node.subject]
        if any(_reads_a_sentence(one) or _names(one) & named for one in asked):
            yield node  # type: ignore[misc]


def _reads_a_sentence(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr in SENTENCES for one in ast.walk(node))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def test_the_search_finds_such_decisions() -> None:
    text = 'words = finding.summary.lower()\nif "out of" in words: pass\nif evidence.how.startswith("x"): pass'
    assert len(list(decisions(ast.parse(text)))) == 2
    assert not list(decisions(ast.parse('text = f"{finding.summary} more"\nif finding.variant == "x": pass')))


def test_nothing_is_decided_by_words() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for room in ROOMS
        for path in sorted((SOURCE / room).rglob("*.py"))
        for node in decisions(ast.parse(path.read_text()))
    ]
    assert not found
