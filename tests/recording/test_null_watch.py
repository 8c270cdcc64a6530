"""Where nothing can be watched, the handle says so when it is asked for results."""

from __future__ import annotations

import pytest
from torch import nn

import undertow
from undertow.errors import UndertowError


def test_disabled_has_a_diagnosis_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERTOW_DISABLED", "1")
    with undertow.watch(nn.Linear(2, 2)) as watch:
        watch.log(loss=1.0)
        watch.on_finding(print)
    diagnosis = watch.diagnose()
    assert (diagnosis.steps.recorded, diagnosis.health, diagnosis.findings) == (0, None, ())
    assert diagnosis.coverage.reasons == ("Undertow is disabled",)
    assert "Undertow is disabled" in diagnosis.story
    assert watch.findings == []
    assert watch.closed
    assert watch.folder is None
    assert isinstance(watch, undertow.Watch)
    with pytest.raises(UndertowError, match=r"Undertow is disabled, so there is no run\. Unset UNDERTOW_DISABLED"):
        _ = watch.run
