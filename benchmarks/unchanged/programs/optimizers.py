"""Optimizers of other people, on one small network."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.unchanged.program import STEPS, Group, fit

GROUP = Group("optimizers")


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def _loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 4, (16,)))


def _plain(module: str, kind: str, options: dict[str, Any]) -> object:
    model = _network()
    optimizer = getattr(import_module(module), kind)(model.parameters(), **options)
    return fit(model, lambda: _loss(model), optimizer)


_TABLE: dict[str, dict[str, dict[str, Any]]] = {
    "pytorch_optimizer": {
        "AdaBelief": {}, "AdaBound": {}, "AdaNorm": {}, "AdEMAMix": {}, "Adan": {}, "ADOPT": {}, "AdamP": {},
        "CAME": {}, "DiffGrad": {}, "FAdam": {}, "Fromage": {}, "GrokFastAdamW": {}, "Kron": {},
        "Lamb": {}, "LARS": {}, "Lion": {}, "MADGRAD": {}, "MARS": {}, "NovoGrad": {}, "PAdam": {}, "QHAdam": {},
        "Ranger21": {"num_iterations": 20}, "ScalableShampoo": {}, "Shampoo": {}, "SignSGD": {}, "SM3": {}, "SOAP": {},
        "SophiaH": {}, "StableAdamW": {}, "SWATS": {}, "Tiger": {}, "Yogi": {},
    },
    "torch_optimizer": {"Adahessian": {}, "AggMo": {}, "PID": {}, "QHM": {}, "Ranger": {}, "RangerVA": {}, "SGDW": {}},
    "lion_pytorch": {"Lion": {"lr": 1e-3}},
    "prodigyopt": {"Prodigy": {}},
    "dadaptation": {"DAdaptAdam": {}, "DAdaptSGD": {}},
    "adabelief_pytorch": {"AdaBelief": {"print_change_log": False}},
    "bitsandbytes.optim": {"AdamW8bit": {"min_8bit_size": 16}, "Lion": {}},
    "torchao.optim": {"AdamW8bit": {"block_size": 32}, "AdamWFp8": {}},
}  # fmt: skip
_SECOND_ORDER = {"Adahessian", "SophiaH"}  # they differentiate the gradients
for module, kinds in _TABLE.items():
    for kind, options in kinds.items():
        if kind not in _SECOND_ORDER:
            GROUP.add(f"{module}.{kind}", partial(_plain, module, kind, options), module)


def _second_order(module: str, kind: str) -> object:
    model = _network()
    optimizer = getattr(import_module(module), kind)(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        _loss(model).backward(create_graph=True)
        optimizer.step()
    return model, optimizer


GROUP.add("torch_optimizer.Adahessian", partial(_second_order, "torch_optimizer", "Adahessian"), "torch_optimizer")
GROUP.add("pytorch_optimizer.SophiaH", partial(_second_order, "pytorch_optimizer", "SophiaH"), "pytorch_optimizer")


def _schedule_free(kind: str) -> object:
    """Its weights are others in training and in evaluation; it swaps them by itself."""
    model = _network()
    optimizer = getattr(import_module("schedulefree"), kind)(model.parameters(), lr=1e-2)
    optimizer.train()
    result = fit(model, lambda: _loss(model), optimizer)
    optimizer.eval()
    return result


for kind in ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"):
    GROUP.add(f"schedulefree.{kind}", partial(_schedule_free, kind), "schedulefree")


@GROUP.program("schedulefree", name="schedulefree.closure")
def _schedule_free_closure() -> object:
    from schedulefree import SGDScheduleFreeClosure

    model = _network()
    optimizer = SGDScheduleFreeClosure(model.parameters(), lr=1e-2)
    for _ in range(STEPS):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = _loss(model)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


@GROUP.program("pytorch_optimizer", name="pytorch_optimizer.SAM")
def _sharpness() -> object:
    from pytorch_optimizer import SAM

    model = _network()
    optimizer = SAM(model.parameters(), base_optimizer=torch.optim.SGD, lr=0.1)
    for _ in range(STEPS):
        _loss(model).backward()
        optimizer.first_step(zero_grad=True)
        _loss(model).backward()
        optimizer.second_step(zero_grad=True)
    return model, optimizer


@GROUP.program("pytorch_optimizer", name="pytorch_optimizer.Lookahead")
def _lookahead() -> object:
    from pytorch_optimizer import Lookahead

    model = _network()
    return fit(model, lambda: _loss(model), Lookahead(torch.optim.Adam(model.parameters(), 1e-3), k=3))


@GROUP.program("torch_ema", name="torch_ema")
def _moving_average() -> object:
    from torch_ema import ExponentialMovingAverage

    model = _network()
    mean = ExponentialMovingAverage(model.parameters(), decay=0.9)

    def loss() -> Tensor:
        mean.update()
        with mean.average_parameters(), torch.no_grad():
            _loss(model)
        return _loss(model)

    return fit(model, loss), mean.state_dict()


@GROUP.program("geoopt", name="geoopt.RiemannianAdam")
def _riemannian() -> object:
    import geoopt

    model = nn.Module()
    model.point = geoopt.ManifoldParameter(torch.randn(6, 3) * 0.1, manifold=geoopt.PoincareBall())
    model.frame = geoopt.ManifoldParameter(torch.linalg.qr(torch.randn(6, 3)).Q, manifold=geoopt.Stiefel())
    target = torch.randn(6, 3) * 0.1
    loss = lambda: (model.point - target).square().sum() + (model.frame - target).square().sum()  # noqa: E731
    return fit(model, loss, geoopt.optim.RiemannianAdam(model.parameters(), lr=1e-2))
