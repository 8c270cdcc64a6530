"""A plugin of pytest that notes for every test how long it took and which functions it has entered."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from undertow._seen import seen  # only in the copy that is recorded

notes = Path(os.environ["MUTANTS_NOTES"])
phases: dict[str, list[pytest.TestReport]] = {}
prepared: dict[str, list[int]] = {}


def entered() -> list[int]:
    numbers = [number for number, flag in enumerate(seen[:]) if flag]
    seen[:] = bytes(len(seen))
    return numbers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    entered()
    try:
        return (yield)
    finally:
        prepared[item.nodeid] = entered()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if reports := phases.pop(item.nodeid, []):
        seconds = round(sum(report.duration for report in reports), 3)
        passed = not any(report.failed for report in reports)
        note(item.nodeid, seconds, passed, entered(), prepared.pop(item.nodeid, []))
    return result


def note(*line: object) -> None:
    with (notes / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    phases.setdefault(report.nodeid, []).append(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        note(report.nodeid, 0.0, False, [], [])  # a file that cannot be imported here: a package may be missing
