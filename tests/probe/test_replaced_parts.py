"""A head replaced in the middle of a training, with an optimizer of its own: the rest is watched too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import batches, classes, mlp, train
from torch import nn


@pytest.mark.parametrize("freezes", [False, True])
def test_steps_with_a_new_head_are_recorded(watch, freezes):
    model = mlp(20, 40, 5)
    with watch(model) as w:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 6, batches(20), classes(5))
        model[2] = nn.Linear(40, 9)
        model[0].requires_grad_(not freezes)
        stepped = model[2] if freezes else model
        book = train(model, torch.optim.SGD(stepped.parameters(), lr=0.1), 6, batches(20), classes(9))
    assert w.run.steps.tolist() == list(range(12))
    np.testing.assert_allclose(w.run.series("gradient_norm", "2.weight")[6:], book.norms("2.weight"), rtol=1e-5)


def test_a_gradient_that_no_optimizer_uses_is_measured_at_every_step(watch):
    """Also where the layers are looked for again in the middle of a step."""
    model = mlp(20, 40, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(40, 5)  # the optimizer still holds the old one
    with watch(every=1) as w:
        train(model, optimizer, 120, batches(20), classes(5))
    assert not w.run.series("gradient_state", "2.weight").any()
    assert np.isfinite(w.run.series("gradient_norm", "2.weight")).all()
