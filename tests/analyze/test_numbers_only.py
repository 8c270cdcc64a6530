"""`analyze` describes: it has no names for what is wrong, and none of the limits beyond which it would be."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import undertow.analyze

FILES = sorted(Path(undertow.analyze.__file__).parent.glob("*.py"))
# Words of a verdict. A test of significance, a rounding error and a block size are none.
VERDICT = re.compile(
    r"vanish|explod|dead|plateau|overfit|unstable|healthy|severity|bottleneck|issue|warning|critical|diverg|risk",
    re.IGNORECASE,
)
# Numbers of units whose weights are zero, and of those that never fire.
ALLOWED = {"dead", "dead_rows", "dead_columns", "first_dead_rows", "first_dead_columns", "_dead", "DEAD_BELOW"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_name_and_no_enum_is_a_verdict(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword | ast.arg) and node.arg}
    assert {name for name in names if VERDICT.search(name)} <= ALLOWED
    bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    assert not {base for base in bases if base.endswith("Enum")}
