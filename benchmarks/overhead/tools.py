"""The tools under comparison, each attached the way its own documentation says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Plain:
    """No tool at all. The others override what they need; attaching and detaching is not timed."""

    name = "plain"
    settling = 0  # steps that are not timed, beyond those of every tool
    seconds = 0.0  # nor is anything before so many

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        pass

    def after_backward(self, step: int, loss: Tensor) -> None:
        pass

    def after_step(self, step: int, loss: Tensor) -> None:
        pass

    def detach(self) -> None:
        pass

    def fresh_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


class UndertowDefault(Plain):
    name = "Undertow, default"
    settling = 16
    seconds = 2.5  # by then another process writes the run, as in every training that lasts
    arguments: ClassVar[dict[str, Any]] = {}

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        import undertow

        self.watch = undertow.watch(model, optimizer, run_dir=self.fresh_folder() / "run", quiet=True, **self.arguments)

    def detach(self) -> None:
        self.watch.close()


class UndertowEveryStep(UndertowDefault):
    """Gradients, weights and updates of every tensor in every step."""

    name = "Undertow, every step"
    settling = 0
    arguments: ClassVar[dict[str, Any]] = {"every": 1, "activations": False}


class TorchLoop(Plain):
    """The same statistics of the same tensors, one torch operation after the other, tensor by tensor."""

    name = "per-tensor torch loop"

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.parameters = list(model.parameters())
        self.before = [p.detach().clone() for p in self.parameters]
        self.last: list[Tensor | None] = [None] * len(self.parameters)

    def after_backward(self, step: int, loss: Tensor) -> None:
        self.rows: list[list[float]] = [[loss.item()]]
        for place, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            row = _statistics(gradient)
            last = self.last[place]
            if last is not None:
                row.append(torch.nn.functional.cosine_similarity(last.flatten(), gradient.flatten(), 0).item())
            self.last[place] = gradient.detach().clone()
            self.rows.append(row)

    def after_step(self, step: int, loss: Tensor) -> None:
        for before, parameter in zip(self.before, self.parameters, strict=True):
            weight = parameter.detach()
            update = weight - before
            self.rows.append([*_statistics(weight), update.norm().item(), (update.norm() / before.norm()).item()])
            before.copy_(weight)


@torch.no_grad()
def _statistics(tensor: Tensor) -> list[float]:
    x = tensor.detach().float().flatten()
    absolute = x.abs()
    mean, deviation = x.mean(), x.std(correction=0)
    standard = (x - mean) / deviation
    fractions = [(absolute < limit).float().mean() for limit in (6e-8, 9.2e-41, 2e-3)]
    fractions += [(absolute > limit).float().mean() for limit in (65504.0, 3.38e38, 448.0)]
    places = torch.tensor([0.05, 0.5, 0.95])
    ordered = absolute.sort().values
    quantiles = ordered[(places * (len(ordered) - 1)).long()]
    values = [
        x.norm(), x.square().mean().sqrt(), mean, absolute.mean(), deviation, x.min(), x.max(), absolute.max(),
        standard.pow(3).mean(), standard.pow(4).mean() - 3, (x == 0).float().mean(), (~x.isfinite()).sum().float(),
        *quantiles, *fractions,
    ]  # fmt: skip
    return [value.item() for value in values]


class WeightsAndBiases(Plain):
    name = 'wandb.watch(log="all", log_freq=1)'

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        import wandb

        self.model = model
        self.run = wandb.init(
            mode="offline", project="overhead", dir=self.fresh_folder(), settings=wandb.Settings(silent=True)
        )
        self.run.watch(model, log="all", log_freq=1)

    def after_step(self, step: int, loss: Tensor) -> None:
        self.run.log({"loss": loss.item()})

    def detach(self) -> None:
        self.run.unwatch(self.model)
        self.run.finish()


class TensorBoard(Plain):
    name = "TensorBoard histograms"

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.model = model
        self.writer = SummaryWriter(str(self.fresh_folder()))

    def after_backward(self, step: int, loss: Tensor) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.writer.add_histogram(f"gradients/{name}", parameter.grad, step)

    def after_step(self, step: int, loss: Tensor) -> None:
        self.writer.add_scalar("loss", loss.item(), step)
        for name, parameter in self.model.named_parameters():
            self.writer.add_histogram(f"weights/{name}", parameter, step)

    def detach(self) -> None:
        self.writer.close()


class TrainScope(Plain):
    name = "trainscope, default"

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        from trainscope import TrainScope as Scope
        from trainscope.core.config import TrainScopeConfig

        self.scope = Scope(model, optimizer, config=TrainScopeConfig(run_dir=str(self.fresh_folder()))).attach()

    def after_backward(self, step: int, loss: Tensor) -> None:
        self.scope.step(loss.item(), batch_index=step)

    def detach(self) -> None:
        self.scope.detach()


TOOLS: dict[str, type[Plain]] = {
    "plain": Plain,
    "default": UndertowDefault,
    "every": UndertowEveryStep,
    "torch": TorchLoop,
    "wandb": WeightsAndBiases,
    "tensorboard": TensorBoard,
    "trainscope": TrainScope,
}
