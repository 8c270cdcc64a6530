"""Torch that is missing or too old, a broken Triton, tensors that hold nothing: one line, and the training goes on."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import undertow
from undertow.errors import UndertowError
from undertow.measure import kernels
from undertow.probe.reader import TensorReader
from undertow.probe.torch_version import require_torch, too_old


def test_tensors_on_the_meta_device_are_left_out_and_counted(tmp_path: Path) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.empty = nn.Linear(4, 2), nn.Linear(3, 3, device="meta")

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.used(inputs)

    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, optimizer, run_dir=tmp_path / "run", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    run = undertow.open_run(tmp_path / "run")
    assert [layer.path for layer in run.layers if not layer.is_module] == ["used.weight", "used.bias"]
    assert run.matrix("gradient_norm").shape[0] == 3
    assert run.diagnose().coverage.reasons == ("2 tensors on the meta device hold no values and are not watched",)


@pytest.mark.parametrize(
    ("version", "is_too_old"),
    [("2.13.0+cpu", False), ("2.6.0a0+git1", False), ("3.0", False), ("2.5.1", True), ("1.13.1", True)],
)
def test_which_torch_can_be_watched(version: str, is_too_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    assert (too_old() is not None) == is_too_old


def test_a_torch_that_is_too_old_is_named_and_the_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.1.0")
    monkeypatch.delitem(vars(undertow), "watch", raising=False)
    with undertow.watch(nn.Linear(2, 2), run_dir="nowhere", every=1) as handle:
        handle.log(loss=1.0)
    assert handle.closed
    said = capsys.readouterr().err
    assert said == (
        "undertow: torch 2.1.0 is too old: 2.6 or newer can be watched. Nothing is recorded; your training goes on\n"
    )
    monkeypatch.setenv("UNDERTOW_DISABLED", "1")
    undertow.watch(nn.Linear(2, 2))
    assert capsys.readouterr().err == ""


def test_a_python_without_its_lock_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.delitem(vars(undertow), "watch", raising=False)
    assert undertow.watch(nn.Linear(2, 2), run_dir="nowhere").closed
    assert capsys.readouterr().err == (
        "undertow: this Python runs without its global lock, which watching relies on. "
        "Nothing is recorded; your training goes on\n"
    )


def test_a_script_under_a_torch_that_is_too_old_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    program = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.version = lambda _: '2.1.0'\n"
        "from undertow.cli import main\n"
        "sys.exit(main(['run', 'train.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.startswith("undertow: torch 2.1.0 is too old")
    assert done.stderr.count("\n") == 1


def test_watching_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UndertowError, match=r"nothing to watch\. pip install torch"):
        require_torch()


def test_a_broken_triton_is_named_once_and_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> object:
        raise RuntimeError("no ptxas\nand much more")

    monkeypatch.setitem(kernels._KERNELS, "triton", broken)
    monkeypatch.delenv("UNDERTOW_KERNEL", raising=False)
    reader = TensorReader()
    assert [reader.kernel_for("cuda").name for _ in range(3)] == ["torch"] * 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Triton cannot be used here (RuntimeError: no ptxas); measuring with plain torch operations" in said
