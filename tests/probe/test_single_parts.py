"""Small parts of a probe, each by itself: what kind a parameter is, which output is measured, what a step cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from undertow.probe.discovery import _kind, find_roots
from undertow.probe.forward import _first_tensor
from undertow.probe.signals.embedding_rows import memory_of
from undertow.probe.step_timer import StepTimer
from undertow.schema import LayerKind

PLAIN = torch.ones(2)


@pytest.mark.parametrize(
    ("module", "name", "dimensions", "kind"),
    [
        (nn.Linear(2, 2), "weight", 2, LayerKind.WEIGHT),
        (nn.Linear(2, 2), "bias", 1, LayerKind.BIAS),
        (nn.Module(), "filters", 2, LayerKind.WEIGHT),
        (nn.Module(), "filters", 1, LayerKind.PARAMETER),
        (nn.Module(), "weight", 1, LayerKind.WEIGHT),
        (nn.LayerNorm(2), "weight", 1, LayerKind.NORM_SCALE),
        (nn.LayerNorm(2), "bias", 1, LayerKind.NORM_SHIFT),
        (nn.Embedding(2, 2), "weight", 2, LayerKind.EMBEDDING),
        (nn.GRU(2, 2), "weight_hh_l0", 2, LayerKind.RECURRENT),
        (nn.GRU(2, 2), "weight_ih_l0", 2, LayerKind.WEIGHT),
        (nn.GRU(2, 2), "bias_hh_l0", 1, LayerKind.BIAS),
    ],
)
def test_kind_of_a_parameter(module: nn.Module, name: str, dimensions: int, kind: LayerKind) -> None:
    assert _kind(module, name, torch.ones([2] * dimensions)) is kind


@pytest.mark.parametrize("output", [PLAIN, (PLAIN,), ["text", PLAIN], {"other": 3, "out": PLAIN}])
def test_the_first_tensor_is_measured(output: Any) -> None:
    assert _first_tensor(output) is PLAIN


@pytest.mark.parametrize(
    "output",
    [None, "text", (), {}, torch.ones(2, dtype=torch.int64), torch.ones(2, device="meta"), torch.eye(2).to_sparse(),
     (torch.ones(2, dtype=torch.bool), PLAIN)],
)  # fmt: skip
def test_what_has_no_numbers_to_measure_is_left_out(output: Any) -> None:
    assert _first_tensor(output) is None


def test_the_time_of_a_part_is_its_own_and_is_taken_once() -> None:
    timer = StepTimer()
    timer.always.seconds = 15.0
    parts = {"gradient": 1.0, "weight": 2.0, "activation": 3.0, "signal": 4.0}
    for name, seconds in parts.items():
        getattr(timer, name).seconds = seconds
    assert timer.take() == {"always": 5.0, **parts}
    assert timer.take() == {"always": 0.0}


class AdamW(torch.optim.SGD):
    """Somebody else's, known by its name alone."""


@pytest.mark.parametrize(
    ("optimizer", "decay", "remembers"),
    [(torch.optim.SGD, 0.0, True), (torch.optim.SGD, 0.1, False), (AdamW, 0.1, True), (torch.optim.AdamW, 0.1, True),
     (torch.optim.Adam, 0.1, False), (torch.optim.Adagrad, 0.0, True)],
)  # fmt: skip
def test_decay_inside_the_gradient_spoils_what_an_optimizer_remembers(
    optimizer: Any, decay: float, remembers: bool
) -> None:
    weight, other = nn.Parameter(torch.eye(4)[:, :2]), nn.Parameter(torch.ones(4, 2))
    momentum: dict[str, Any] = {"momentum": 0.9} if issubclass(optimizer, torch.optim.SGD) else {}
    used = optimizer([weight], lr=0.1, weight_decay=decay, **momentum)
    weight.grad = torch.eye(4)[:, :2]
    used.step()
    kept = memory_of(used, weight)
    assert (kept is not None) is remembers
    assert kept is None or (kept != 0).any(dim=1).tolist() == [True, True, False, False]
    assert memory_of(used, other) is None


def test_what_was_called_gives_the_names():
    """Where several outermost modules hold the same parameters; else the largest of them."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    parts = nn.ModuleList([*model, nn.Linear(2, 2)])
    for called, root in (([model], model), ([model[0]], parts), ([parts], parts), ([], parts), ([parts[2]], parts)):
        roots = find_roots(model.parameters(), called)
        assert [id(one) for one in roots] == [id(root)], called
