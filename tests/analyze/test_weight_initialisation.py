"""Whether a tensor can be told from its initialisation: false alarms, misses, and the power to see one step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from undertow import weights
from undertow.analyze.weight_distribution import measure
from undertow.analyze.weight_initialisation import initialisation
from undertow.checkpoints import open_checkpoint
from undertow.schema.checkpoints import Initialisation

MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "Linear": lambda: torch.nn.Linear(300, 200, bias=False),
    "wide Linear": lambda: torch.nn.Linear(32, 1000, bias=False),
    "Conv": lambda: torch.nn.Conv2d(16, 32, 3, bias=False),
    "Embedding": lambda: torch.nn.Embedding(100, 64),
    "LSTM": lambda: torch.nn.LSTM(20, 24, bias=False),
    "GRU": lambda: torch.nn.GRU(20, 24, bias=False),
}


def judge(module: torch.nn.Module) -> list[Initialisation]:
    judged: list[Initialisation] = []
    for entry in open_checkpoint(module).entries:
        judged.append(initialisation(measure(entry.load()), entry.kind, entry.shape, entry.dtype))
    return judged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", list(MODULES))
def test_fresh_modules_are_recognised(name: str, dtype: torch.dtype) -> None:
    """At a level of 1 %, more than 3 of 40 to 80 would be chance once in ten thousand."""
    torch.manual_seed(1)
    judged = [one for _ in range(40) for one in judge(MODULES[name]().to(dtype))]
    missed = [one for one in judged if one.resembles is None]
    assert len(missed) <= 0.01 * len(judged) + 4
    assert all(one.probability is not None and one.probability >= 0.01 for one in judged if one.resembles)


@pytest.mark.parametrize("name", list(MODULES))
def test_one_small_step_is_seen(name: str) -> None:
    """A tenth of the spread, as a few steps of Adam make it. A normal sample stays normal, so it takes a larger one."""
    step = 0.5 if name == "Embedding" else 0.1
    torch.manual_seed(2)
    for _ in range(5):
        module = MODULES[name]()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += step * parameter.std() * torch.randn_like(parameter).sign()
        assert all(one.resembles is None for one in judge(module))


def test_names_and_numbers() -> None:
    torch.manual_seed(3)
    (linear,) = judge(torch.nn.Linear(400, 300, bias=False))
    assert linear.resembles == "torch.nn.Linear or Conv: uniform within ±0.05"
    assert linear.fan_in == 400
    assert linear.scale == pytest.approx(1 / np.sqrt(3), rel=0.01)
    (table,) = judge(torch.nn.Embedding(500, 30))
    assert table.resembles == "torch.nn.Embedding: normal with std 1"
    assert table.scale is None
    assert "fan-in" in table.missing["scale"]


@pytest.mark.parametrize("name", ["xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"])
def test_other_recipes(name: str) -> None:
    torch.manual_seed(4)
    module = torch.nn.Linear(300, 200, bias=False)
    if name.startswith("kaiming"):
        getattr(torch.nn.init, name)(module.weight, nonlinearity="relu")
    else:
        getattr(torch.nn.init, name)(module.weight)
    (judged,) = judge(module)
    assert judged.resembles is not None
    assert judged.resembles.lower().startswith(name.split("_", 1)[0])


def test_biases_and_norms() -> None:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.LayerNorm(512))
    report = weights(model)
    seen = {one.path: one.initialisation and one.initialisation.resembles for one in report.tensors}
    assert seen["0.bias"] == "torch.nn.Linear or Conv: uniform within ±0.125"
    assert (seen["1.weight"], seen["1.bias"]) == ("ones", "zeros")


def test_too_little_to_judge() -> None:
    (small,) = judge(torch.nn.Linear(4, 4, bias=False))
    assert small.resembles is None
    assert "256" in small.missing["resembles"]
    (coarse,) = judge(torch.nn.Linear(64, 64, bias=False).to(torch.float8_e4m3fn))
    assert "coarse" in coarse.missing["resembles"]
