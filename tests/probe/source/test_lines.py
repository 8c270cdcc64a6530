"""Lines of programs nobody has prepared: written to a file, run under a watch, and asked what the journal says."""

import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import undertow

_LOOP = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x, y = torch.randn(32, 6), torch.randint(3, (32,))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 8)  # encoder
        self.head = nn.Sequential(
            nn.ReLU(),
            nn.Linear(8, 3),  # inside
            {last}
        )

    def forward(self, x):
        h = self.encoder(x)
        {cut}
        return self.head(h)

model = Net()
{after}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # optimizer
for step in range({steps}):
    optimizer.zero_grad()  # zero_grad
    {loss}
    loss.backward()  # backward
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip
    optimizer.step()  # step
"""


class Ran:
    def __init__(self, file: Path, run: undertow.Run) -> None:
        self.lines, self.run = file.read_text().splitlines(), run
        self.records: list[dict[str, Any]] = [
            place for event in run.events if event["kind"] == "source" for place in event["places"]
        ]

    def line(self, mark: str) -> int:
        (found,) = [number for number, line in enumerate(self.lines, 1) if line.rstrip().endswith(f"# {mark}")]
        return found

    def lines_of(self, role: str, subject: str | None = None) -> list[int]:
        return [
            one["line"] for one in self.records if one["role"] == role and (not subject or subject in one["subjects"])
        ]


def _ran(folder: Path, monkeypatch: pytest.MonkeyPatch, given: bool = False, **parts: Any) -> Ran:
    torch.set_num_threads(1)
    parts = {
        "last": "", "cut": "", "after": "", "steps": 6, "loss": "loss = F.cross_entropy(model(x), y)  # loss", **parts,
    }  # fmt: skip
    if given:
        parts["after"] += "\nimport undertow; undertow.watch(model, run_dir='run', quiet=True, xray=True)"
    file = folder / "train.py"
    file.write_text(textwrap.dedent(_LOOP).format(**parts))
    monkeypatch.chdir(folder)
    watch = None if given else undertow.watch(None, run_dir="run", quiet=True, xray=True)
    runpy.run_path("train.py")
    for one in [watch] if watch is not None else list(undertow.recording.live_watch._open):
        one.close()
    return Ran(file, undertow.open_run("run"))


def test_calls_and_definitions(tmp_path, monkeypatch):
    ran = _ran(tmp_path, monkeypatch)
    for role in ("optimizer", "backward", "step", "zero_grad", "clip", "loss"):
        assert ran.lines_of(role) == [ran.line(role)], role
    assert ran.lines_of("definition", "encoder") == [ran.line("encoder")]
    assert ran.lines_of("definition", "head.1") == [ran.line("inside")]
    assert {one["file"] for one in ran.records} == {"train.py"}


def test_a_model_made_before_is_read_from_its_class(tmp_path, monkeypatch):
    ran = _ran(tmp_path, monkeypatch, given=True)
    assert ran.lines_of("definition", "encoder") == [ran.line("encoder")]


@pytest.mark.parametrize(
    ("cut", "operation"),
    [
        ("h = h.detach()  # here", "detach"),
        ("h = h.data  # here", "data"),
        ("h = torch.tensor(h.tolist())  # here", "tolist"),
        ("with torch.no_grad():  # here\n            h = self.encoder(x)", "no_grad"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_cut_is_found_where_the_loss_depends_on_it(tmp_path, monkeypatch, cut, operation):
    ran = _ran(tmp_path, monkeypatch, cut=cut + "\n        looked_at = h.detach().mean().item()", steps=30)
    cuts = [one for one in ran.records if one["role"] == "cut"]
    assert [(one["line"], one["operation"]) for one in cuts] == [(ran.line("here"), operation)]
    assert cuts[0]["subjects"] == ["encoder.bias", "encoder.weight"]
    (finding,) = [one for one in ran.run.findings if one.variant == "graph-cut"]
    assert [place.line for place in finding.source] == [ran.line("here"), ran.line("optimizer")]
    assert finding.source[0].role == "cut"


def test_a_softmax_is_found_where_it_was_put(tmp_path, monkeypatch):
    ran = _ran(tmp_path, monkeypatch, last="nn.Softmax(dim=1),  # here")
    assert ran.lines_of("squash") == [ran.line("here")]


def test_shapes_that_are_broadcast(tmp_path, monkeypatch):
    loss = "loss = ((model(x)[:, :1] - y.float()) ** 2).mean()  # here"
    ran = _ran(tmp_path, monkeypatch, loss=loss)
    (place,) = [one for one in ran.records if one["role"] == "broadcast"]
    assert place["line"] == ran.line("here")
    assert place["note"] == "[32, 1] against [32] makes [32, 32]"


@pytest.mark.parametrize(
    ("after", "role", "subject"),
    [
        ("nn.init.zeros_(model.encoder.weight)  # here", "initialisation", "encoder.weight"),
        ("model.encoder.weight.data.mul_(40)  # here", "initialisation", "encoder.weight"),
        ("model.encoder.requires_grad_(False)  # here", "freeze", "encoder.bias"),
        ("model.encoder.weight.requires_grad = False  # here", "freeze", "encoder.weight"),
        ("model.eval()  # here", "evaluation mode", ""),
    ],
)
def test_what_is_done_to_a_model_before_it_is_trained(tmp_path, monkeypatch, after, role, subject):
    ran = _ran(tmp_path, monkeypatch, after=after)
    assert ran.lines_of(role, subject) == [ran.line("here")]


def test_nothing_is_kept_where_nothing_is_wanted(tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERTOW_NO_SOURCE", "1")
    ran = _ran(tmp_path, monkeypatch)
    assert ran.records == []


def test_no_mode_is_left_behind(tmp_path, monkeypatch):
    _ran(tmp_path, monkeypatch, steps=2)  # an x-ray has begun and found no step to end with
    assert torch.overrides._get_current_function_mode() is None


def _weights(folder: Path, monkeypatch: pytest.MonkeyPatch, watched: bool) -> list[torch.Tensor]:
    file = folder / "train.py"
    dropout = "h = F.dropout(h, 0.5)"
    loss = "loss = F.cross_entropy(model(x), y)"
    file.write_text(textwrap.dedent(_LOOP).format(last="", cut=dropout, after="", steps=12, loss=loss))
    monkeypatch.chdir(folder)
    with undertow.watch(None, run_dir=folder / "run", quiet=True, xray=True) if watched else torch.enable_grad():
        done = runpy.run_path("train.py")
    return [*done["model"].state_dict().values(), torch.get_rng_state()]


def test_training_stays_the_same_bit_for_bit(tmp_path, monkeypatch):
    """With an x-ray of every step."""
    from undertow.probe.source import source_watch

    plain = _weights(tmp_path, monkeypatch, watched=False)
    monkeypatch.setattr(source_watch, "_MOST_STEPS", 1000)
    monkeypatch.setattr(source_watch._Steps, "_seen_all", lambda self: False)
    watched = _weights(tmp_path, monkeypatch, watched=True)
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))


def test_no_mode_is_entered_without_an_alarm(tmp_path, monkeypatch):
    """Under a mode of ours a warning may name another line: a healthy training must never be under one."""
    entered: list[object] = []
    monkeypatch.setattr("undertow.probe.source.modes._push_mode", entered.append)
    with undertow.watch(None, run_dir=tmp_path / "run", quiet=True):
        model = torch.nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(3, (16,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert entered == []
