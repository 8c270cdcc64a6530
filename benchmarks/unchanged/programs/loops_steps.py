"""Ways to train with torch alone: how and when a step is taken."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD, Adam, swa_utils

from benchmarks.unchanged.loop_parts import classes, classify, mlp, rows
from benchmarks.unchanged.program import STEPS, Group, fit

GROUP = Group("loops")


@GROUP.program(steps=4)
def lbfgs() -> object:
    model, x, y = mlp(8, 16, 4), rows(), classes()
    optimizer, calls = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe"), []
    for _ in range(4):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            calls.append(float(loss))
            return loss

        optimizer.step(closure)
    return model, optimizer, calls


@GROUP.program()
def closures() -> object:
    model = mlp(8, 16, 4)
    optimizer, results = SGD(model.parameters(), 0.1, momentum=0.9), []
    for _ in range(STEPS):

        def closure() -> float:
            optimizer.zero_grad()
            loss = classify(model)
            loss.backward()
            return float(loss)

        results.append(optimizer.step(closure=closure))
    return model, optimizer, results


@GROUP.program()
def sharpness_aware_minimisation() -> object:
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = rows(), classes()
        F.cross_entropy(model(x), y).backward()
        moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]  # pyright: ignore
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@GROUP.program()
def accumulation_and_clipping() -> object:
    model = mlp(8, 16, 4)
    optimizer, norms = Adam(model.parameters(), 1e-3), []
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
    for _ in range(STEPS):
        for _part in range(3):
            (classify(model) / 3).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
    return model, optimizer, norms, schedule.state_dict()["_last_lr"]


@GROUP.program()
def averaged_weights() -> object:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    mean = swa_utils.AveragedModel(model)
    moving = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = SGD(model.parameters(), 0.1)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        classify(model).backward()
        optimizer.step()
        schedule.step()
        mean.update_parameters(model)
        moving.update_parameters(model)
    swa_utils.update_bn([rows() for _ in range(3)], mean)
    return model, optimizer, mean, moving


@GROUP.program()
def optimizer_in_backward() -> object:
    model = mlp(8, 16, 4)
    optimizers = {p: Adam([p], 1e-3) for p in model.parameters()}

    def take(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(take)  # pyright: ignore[reportArgumentType]
    for _ in range(STEPS):
        classify(model).backward()
    return model, list(optimizers.values())


@GROUP.program()
def groups_added_and_unfrozen_on_the_way() -> object:
    model = mlp(8, 16, 16, 4)
    model[0].requires_grad_(False)
    optimizer = Adam(model[2:].parameters(), 1e-3)
    for step in range(STEPS):
        if step == 3:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-4})
        optimizer.zero_grad()
        classify(model).backward()
        optimizer.step()
    return model, optimizer


@GROUP.program()
def state_saved_and_loaded_on_the_way() -> object:
    import io

    model = mlp(8, 16, 4)
    optimizer = Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        classify(model).backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "whole": model}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    return model, optimizer, loaded["whole"], copy.deepcopy(model)


def _torch_optimizer(kind: type[torch.optim.Optimizer], **options: Any) -> object:
    model = mlp(8, 16, 4)
    return fit(model, lambda: classify(model), kind(model.parameters(), **options))


_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {"amsgrad": True, "foreach": True}, "Adamax": {},
    "AdamW": {"fused": True}, "ASGD": {}, "NAdam": {}, "RAdam": {}, "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {}, "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
}  # fmt: skip
for kind, options in _OPTIMIZERS.items():
    GROUP.add(f"torch.optim.{kind}", partial(_torch_optimizer, getattr(torch.optim, kind), **options))


@GROUP.program()
def sparse_embeddings() -> object:
    model = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 4))
    sparse = torch.optim.SparseAdam(list(model[0].parameters()), 1e-2)
    dense = SGD(model[1].parameters(), 0.1)
    for _ in range(STEPS):
        F.cross_entropy(model(torch.randint(0, 50, (16, 3))), classes()).backward()
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad()
    return model, sparse, dense
