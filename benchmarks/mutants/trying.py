"""A plugin of pytest that runs the tests of a plan in its order, and notes which one is running.

A test that hangs ends the process, as does the first one that fails: either way its name is the last one noted.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

plan = json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text(encoding="utf-8"))
running = Path(os.environ["MUTANTS_RUNNING"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that the map does not know may be there just for this: they come first."""
    left_out, order = set(plan["left_out"]), {name: place for place, name in enumerate(plan["limits"])}
    chosen = [item for item in items if item.nodeid not in left_out]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = sorted(chosen, key=lambda item: order.get(item.nodeid, -1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    running.write_text(item.nodeid, encoding="utf-8")
    faulthandler.dump_traceback_later(plan["limits"].get(item.nodeid, 120.0), exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        running.write_text("", encoding="utf-8")
