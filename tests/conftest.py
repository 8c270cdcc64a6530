"""For all tests."""

from __future__ import annotations

import pytest

from undertow.detect.engine import Engine


@pytest.fixture(autouse=True)
def errors_in_rules_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users get the other rules' verdicts; we want to know."""
    monkeypatch.setattr(Engine, "strict", True)
