"""Trainers of other people, the real packages, on a short training each: the same numbers as counted by hand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from undertow.integrations.numbers import single_numbers
from undertow.run import Run, open_run

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to mend
CLIP = 0.1
SETTINGS: dict[str, Any] = {"every": 1, "quiet": True}


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No network, no advertisements; and the trainers leave torch as they found it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def data(rows: int = 64) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))


def by_hand(model: nn.Module, batches: list[torch.Tensor], accumulate: int, steps: int, rate: float) -> list[float]:
    """Norms of the unclipped gradients of the plain loop that the trainers stand for."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    norms: list[float] = []
    while len(norms) < steps:
        for place, batch in enumerate(batches, 1):
            (loss_of(model, batch) / accumulate).backward()
            if place % accumulate == 0:
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
                optimizer.step()
                optimizer.zero_grad()
    return norms


def check(run: Run, expected: list[float], model: nn.Module, twin: nn.Module, prefix: str = "") -> None:
    assert run.status == "finished"
    names = [prefix + name for name, _ in twin.named_parameters()]
    squares = sum(np.square(run.series("gradient_norm", name)) for name in names)
    np.testing.assert_allclose(np.sqrt(squares), expected, rtol=1e-4)
    np.testing.assert_allclose(run.scalars("clip_coefficient"), CLIP / np.array(expected), rtol=1e-3)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning(accumulate: int, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from undertow.integrations.lightning import UndertowCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return loss_of(self.net, batch[0])

        def validation_step(self, batch: list[torch.Tensor]) -> None:
            self.log("val_loss", loss_of(self.net, batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = UndertowCallback(run_dir=tmp_path / "run", **SETTINGS)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=CLIP, accumulate_grad_batches=accumulate, callbacks=[callback],
        default_root_dir=tmp_path,
    )  # fmt: skip
    module, loader = Module(), DataLoader(TensorDataset(data()), batch_size=16)
    trainer.fit(module, loader, loader)
    twin = network()
    expected = by_hand(twin, list(data().split(16)), accumulate, 8 // accumulate, 0.1)
    run = open_run(tmp_path / "run")
    check(run, expected, module.net, twin, "net.")
    assert np.isfinite(run.scalars("val_loss")).sum() == 2
    assert callback.watch is not None
    assert callback.watch.closed


def test_lightning_that_raises(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from undertow.integrations.lightning import UndertowCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: list[torch.Tensor], place: int) -> torch.Tensor:
            if place == 2:
                raise ZeroDivisionError("theirs")
            return loss_of(self.net, batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[UndertowCallback(run_dir=tmp_path / "run", **SETTINGS)],
        default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError, match="theirs"):
        trainer.fit(Module(), DataLoader(TensorDataset(data()), batch_size=16))
    run = open_run(tmp_path / "run")
    assert run.status == "failed"
    assert len(run.steps) == 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_transformers(accumulate: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from undertow.integrations.transformers import UndertowCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": loss_of(self.net, inputs)}

    class Rows(Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return len(data())

        def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
            return {"inputs": data()[place]}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "output"), num_train_epochs=2, per_device_train_batch_size=16, optim="sgd",
        learning_rate=0.1, lr_scheduler_type="constant", max_grad_norm=CLIP, gradient_accumulation_steps=accumulate,
        report_to=[], save_strategy="no", eval_strategy="epoch", use_cpu=True, disable_tqdm=True, logging_strategy="no",
        remove_unused_columns=False, dataloader_pin_memory=False, train_sampling_strategy="sequential",
        label_names=["inputs"],
    )  # fmt: skip
    model, twin = Model(), network()
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows(),
        callbacks=[UndertowCallback(run_dir=tmp_path / "run", **SETTINGS)],
    )  # fmt: skip
    trainer.train()
    expected = by_hand(twin, list(data().split(16)), accumulate, 8 // accumulate, 0.1)
    run = open_run(tmp_path / "run")
    check(run, expected, model.net, twin, "net.")
    assert np.isfinite(run.scalars("eval_loss")).sum() == 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accelerate(accumulate: int, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from undertow.integrations.accelerate import UndertowTracker

    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, log_with=UndertowTracker(run_dir=tmp_path / "run", **SETTINGS)
    )
    accelerator.init_trackers("project", config={"lr": 0.1, "name": "words are left out"})
    model, twin = network(), network()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, plain, DataLoader(TensorDataset(data()), batch_size=16))
    loss = torch.zeros(())
    for _ in range(2):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.log({"val/loss": loss.detach(), "note": "words"}, step=0)
    accelerator.end_training()
    expected = by_hand(twin, list(data().split(16)), accumulate, 8 // accumulate, 0.1)
    run = open_run(tmp_path / "run")
    check(run, expected, model, twin)
    assert np.isfinite(run.scalars("val_loss")).sum() == 2
    assert run.scalars("config_lr")[0] == 0.1


def test_only_single_numbers_are_kept() -> None:
    values = {"val/loss": torch.tensor(2.0), "val_text": "3", "val_many": torch.ones(2), "loss": 1, "val_none": None}
    assert single_numbers(values, "val") == {"val_loss": 2.0}
