"""Whatever fails within Undertow, the training goes on as it would have, and the run is closed and says why."""

import functools
import hashlib
from pathlib import Path

import pytest
import torch
from tests.seams.injection import Injection, Profile, Seam
from torch import nn

import undertow
from undertow.detect.engine import Engine
from undertow.store.reader import RunReader

STEPS = 30
QUICK = 16  # of so many seams one is tried in the quick tests, all of them by `make test-slow`


def train(folder: Path | None, profile: Profile | None = None) -> str:
    """Trains a small model with a few of the things that are tapped; the digest of its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    watch = (
        None if folder is None else undertow.watch(model, run_dir=folder, every=1, activations=3, chronicler="never")
    )
    if profile is not None:
        profile.part = "training"
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 3)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
    if profile is not None:
        profile.part = "closing"
    if watch is not None:
        watch.close()
    if profile is not None:
        profile.part = "over"
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


@functools.cache
def unwatched() -> str:
    return train(None)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "strict", False)
    torch.set_num_threads(1)


def seams(folder: Path) -> list[Seam]:
    """Every function that a tap, the background thread or `close` enters."""
    found: dict[Seam, None] = {}
    with Profile(found.setdefault) as profile:
        assert train(folder, profile) == unwatched()
    return [seam for seam in found if seam.part in ("training", "background", "closing")]


def check(seam: Seam, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What went wrong."""
    injection = Injection(seam)
    problems: list[str] = []
    try:
        with Profile(injection) as profile:
            digest = train(folder, profile)
    except Exception as error:
        return [f"{seam}: {type(error).__name__} reached the user"]
    said = capsys.readouterr().err
    if digest != unwatched():
        problems.append(f"{seam}: other weights")
    if said.count("UT100") > 1 or "Traceback" in said:
        problems.append(f"{seam}: said {said[-300:]!r}")
    status = RunReader(folder).status
    is_its_last_word = seam.file == "store/run_documents.py"  # where that cannot be written, nothing else says it
    if injection.has_raised and status not in ("finished", "detached") and not is_its_last_word:
        problems.append(f"{seam}: the run is left {status}")
    return problems


@pytest.mark.parametrize("remainder", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, QUICK))])
def test_an_error_at_any_seam_hurts_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str], remainder: int) -> None:
    every = seams(tmp_path / "plain")
    capsys.readouterr()
    assert len(every) > 300
    problems: list[str] = []
    for number, seam in enumerate(every):
        if number % QUICK == remainder:
            problems += check(seam, tmp_path / f"{number}", capsys)
    assert not problems, "\n".join(problems)
