"""Steps of training with a loss of the test's choice, for what their scalars say of it."""

from __future__ import annotations

import torch
from tests.probe.training import batches, mlp

ROWS, CLASSES = 12, 4

LABELS = torch.tensor([0, 0, 1, 2, 3, 3, 1, 0, 2, 2, 2, 1])

GENERATOR = torch.Generator().manual_seed(5)

TARGETS = torch.randn(ROWS, CLASSES, generator=GENERATOR)

SHARES = torch.randn(ROWS, CLASSES, generator=GENERATOR).softmax(1)


def one_step(watch, loss_of, model=None, steps=1, **arguments):
    """Train with this loss; the scalars of the first step, and the outputs they speak of."""
    model = model or mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outputs = []
    with watch(model, **arguments) as w:
        for step in range(steps):
            optimizer.zero_grad()
            output = model(batches(6, ROWS)(step))
            outputs.append(output.detach().clone())
            loss_of(output).backward()
            optimizer.step()
    run = w.run
    assert run.status == "finished"
    return {name: run.scalars(name) for name in run.scalar_names}, outputs


def first(scalars):
    return {name: values[0] for name, values in scalars.items()}
