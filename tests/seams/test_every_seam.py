"""Whatever fails within Undertow, the training goes on as it would have, and the run is closed and says why."""

import functools
import hashlib
import zlib
from pathlib import Path

import pytest
import torch
from tests.seams import child
from tests.seams.injection import Entries, Injection, Seam
from torch import nn
from torch.utils.checkpoint import checkpoint

import undertow
from undertow.detect.engine import Engine
from undertow.store.reader import RunReader

STEPS = 30
PLAIN = 20  # of them; what is tapped more rarely comes after
QUICK = 16  # of so many seams one is tried in the quick tests, all of them by `make test-slow`
PARTS = ("training", "background", "closing")
ELSEWHERE = ("recording/recorder_client.py", "recording/recorder_process.py", "recording/messages.py")


def train(folder: Path | None, entries: Entries | None = None, chronicler: str = "never") -> str:
    """Trains a small model with most of the things that are tapped; the digest of its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    watch = None
    if folder is not None:
        watch = undertow.watch(model, run_dir=folder, every=1, activations=3, chronicler=chronicler)
        watch.on_finding(lambda finding: None)
    if entries is not None:
        entries.part = "training"
    for step in range(STEPS):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        if step < PLAIN:
            loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 3)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        else:
            output = model[3](checkpoint(model[:3], x, use_reentrant=False))
            loss = nn.functional.cross_entropy(output, x.argmax(1) % 3)
            torch.autograd.grad(loss, model.parameters(), retain_graph=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if watch is not None:
                watch.log(val_loss=1.0)
        schedule.step()
    if entries is not None:
        entries.part = "closing"
    if watch is not None:
        watch.close()
    if entries is not None:
        entries.part = "over"
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


@functools.cache
def unwatched() -> str:
    return train(None)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "strict", False)
    torch.set_num_threads(1)


def in_group(seam: Seam, number: int) -> bool:
    """By its name: which seams there are, and in what order they are entered, is a little different every time."""
    return zlib.crc32(str(seam).encode()) % QUICK == number


def groups(quick: int = 0) -> list[object]:
    return [pytest.param(n, marks=[] if n == quick else pytest.mark.slow) for n in range(QUICK)]


def check(seam: Seam, folder: Path, capsys: pytest.CaptureFixture[str], chronicler: str = "never") -> list[str]:
    """What went wrong."""
    injection = Injection(seam)
    problems: list[str] = []
    try:
        with Entries(injection) as entries:
            digest = train(folder, entries, chronicler)
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


@pytest.mark.parametrize("group", groups())
def test_an_error_at_any_seam_hurts_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str], group: int) -> None:
    """Every function that a tap, the background thread or `close` enters."""
    found: dict[Seam, None] = {}
    with Entries(found.setdefault) as entries:
        assert train(tmp_path / "plain", entries) == unwatched()
    capsys.readouterr()
    assert len(found) > 700
    chosen = [seam for seam in found if seam.part in PARTS and in_group(seam, group)]
    problems = [one for number, seam in enumerate(chosen) for one in check(seam, tmp_path / f"{number}", capsys)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("group", groups())
def test_an_error_on_the_way_to_another_process(tmp_path: Path, capsys: pytest.CaptureFixture[str], group: int) -> None:
    found: dict[Seam, None] = {}
    with Entries(found.setdefault) as entries:
        assert train(tmp_path / "plain", entries, "always") == unwatched()
    capsys.readouterr()
    chosen = [seam for seam in found if seam.part in PARTS and seam.file in ELSEWHERE and in_group(seam, group)]
    problems = [
        one for number, seam in enumerate(chosen) for one in check(seam, tmp_path / f"{number}", capsys, "always")
    ]
    assert not problems, "\n".join(problems)


# -- in the process that records --------------------------------------------------------------------------------


def check_child(
    seam: Seam, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What went wrong. Nothing may be lost: the training's own process takes over."""
    folder.mkdir()
    set_program(monkeypatch, seam, folder / "notes")
    if train(folder / "run", chronicler="always") != unwatched():
        return [f"{seam}: other weights"]
    problems: list[str] = []
    said = capsys.readouterr().err
    has_ended = (folder / "notes").exists()
    if said.count("UT100") != has_ended or "Traceback" in said:
        problems.append(f"{seam}: said {said[-300:]!r}")
    reader = RunReader(folder / "run")
    steps, dropped = len(reader.steps), reader.facts.frames_dropped
    if (reader.status, min(STEPS, steps + dropped)) != ("finished", STEPS):
        problems.append(f"{seam}: the run is {reader.status}, with {steps} steps and {dropped} dropped")
    if has_ended:
        errors = [event for event in reader.events() if event["kind"] == "error"]
        if len(errors) != 1 or not any("it failed: " in reason for reason in reader.facts.reasons):
            problems.append(f"{seam}: the run does not say so")
    return problems


def set_program(monkeypatch: pytest.MonkeyPatch, seam: Seam | None, notes: Path) -> None:
    program = child.PROGRAM.format(seam=seam and tuple(seam), notes=str(notes))
    monkeypatch.setattr("undertow.recording.recorder_process._PROGRAM", program)


@pytest.mark.parametrize("group", groups())
def test_an_error_in_the_process_that_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], group: int
) -> None:
    set_program(monkeypatch, None, tmp_path / "seams")
    assert train(tmp_path / "plain", chronicler="always") == unwatched()
    capsys.readouterr()
    found = [Seam(*line.split("\t")) for line in (tmp_path / "seams").read_text().splitlines()]
    assert len(found) > 300
    chosen = [seam for seam in found if in_group(seam, group)]
    problems = [
        one
        for number, seam in enumerate(chosen)
        for one in check_child(seam, tmp_path / f"{number}", monkeypatch, capsys)
    ]
    assert not problems, "\n".join(problems)
