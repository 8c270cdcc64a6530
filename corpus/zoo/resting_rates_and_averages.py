"""Learning rates that are zero for a while, weights that hardly move, averages, and steps taken in unusual places."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from corpus.case import healthy
from corpus.data import digits
from undertow.demos.data import glyphs, share_correct


def _perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@healthy(steps=150, architecture="perceptron", adversarial="weights that do not move are never updated")
def warm_up_from_zero(steps: int, seed: int) -> dict[str, float]:
    """The learning rate starts at exactly 0, and restarts from 0 twice more."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = _perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step % 50) / 50)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=150, architecture="perceptron", adversarial="weights that do not move are never updated")
def group_at_rest(steps: int, seed: int) -> dict[str, float]:
    """The lower layers rest at a learning rate of 0 for 50 steps while the new head settles, then join in."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = _perceptron()
    optimizer = torch.optim.SGD(
        [{"params": model[:3].parameters(), "lr": 0.0}, {"params": model[4].parameters(), "lr": 0.05}], momentum=0.9
    )
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == 50:
            optimizer.param_groups[0]["lr"] = 0.05
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=150, architecture="perceptron", adversarial="weights that stay the same for a step are never updated")
def bfloat16_weights(steps: int, seed: int) -> dict[str, float]:
    """Weights kept in bfloat16: small changes of single elements round away, the layers still move."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = _perceptron().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch].bfloat16()).float(), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs.bfloat16(), labels)}


@healthy(steps=120, architecture="perceptron", adversarial="a trainable copy in no optimizer is forgotten")
def weight_averaging(steps: int, seed: int) -> dict[str, float]:
    """Stochastic weight averaging: a second copy of the model that no optimizer holds; gradients clipped by value."""
    torch.manual_seed(seed)
    inputs, labels = digits()
    model = _perceptron()
    average = AveragedModel(model)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        if step >= steps // 2:
            average.update_parameters(model)
    return {"loss": loss.item(), "accuracy": share_correct(average, inputs, labels)}


@healthy(steps=100, architecture="perceptron", adversarial="no gradient is left when backward returns")
def step_inside_backward(steps: int, seed: int) -> dict[str, float]:
    """One small optimizer per parameter, stepped and cleared by a hook while backward still runs."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = _perceptron()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.05, momentum=0.9) for parameter in model.parameters()}

    def step_now(parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step_now)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        loss.backward()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=100, architecture="perceptron", adversarial="no backward means no training")
def functional_gradients(steps: int, seed: int) -> dict[str, float]:
    """Gradients from `torch.func`, put into `.grad` by hand before the step."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = _perceptron()
    weights = dict(model.named_parameters())
    optimizer = torch.optim.Adam(weights.values(), lr=3e-3)

    def loss_of(values: dict[str, Tensor], pictures: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(torch.func.functional_call(model, values, (pictures,)), targets)

    gradient_of: Callable[..., tuple[dict[str, Tensor], Tensor]] = torch.func.grad_and_value(loss_of)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        gradients, loss = gradient_of({k: w.detach() for k, w in weights.items()}, inputs[batch], labels[batch])
        for name, weight in weights.items():
            weight.grad = gradients[name]
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}
