"""A fixture for pytest: `assert_trains_healthy`, with the runs of a test in pytest's own temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from undertow.schema.findings import Diagnosis


@pytest.fixture(name="assert_trains_healthy")
def assert_trains_healthy_fixture(tmp_path: Path) -> Callable[..., Diagnosis]:
    """Calls a training and fails with a diagnosis unless it is healthy: `undertow.assert_trains_healthy`."""
    from undertow.integrations.healthy_training import assert_trains_healthy

    def numbered(train: Callable[[], object], **settings: Any) -> Diagnosis:
        __tracebackhide__ = True
        number = sum(path.name.startswith("undertow-run") for path in tmp_path.iterdir())
        settings.setdefault("run_dir", tmp_path / f"undertow-run-{number + 1}")
        return assert_trains_healthy(train, **settings)

    return numbered
