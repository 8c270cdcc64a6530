"""Losses of many steps are worked out together: what is said of each must be what is said of it alone."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undertow.probe.signals.labels import LabelBook
from undertow.probe.signals.loss import LossReading
from undertow.probe.signals.loss_numbers import loss_numbers
from undertow.schema import LossKind

OF_CLASSES = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD, LossKind.DIVERGENCE)
OF_ELEMENTS = (LossKind.MEAN_SQUARE, LossKind.BINARY_OF_LOGITS, LossKind.BINARY_OF_PROBABILITIES)


@st.composite
def of_classes(draw) -> LossReading:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    rows, classes = draw(st.sampled_from([4, 12, 60])), draw(st.sampled_from([2, 5]))
    logits = draw(st.sampled_from([0.0, 1.0])) * torch.randn(rows, classes, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    if draw(st.booleans()):
        labels[: draw(st.integers(1, rows))] = draw(st.sampled_from([0, -100, classes]))
    kind = draw(st.sampled_from(OF_CLASSES))
    return LossReading(
        kind, 1.0, rows=rows, columns=classes, log_probabilities=logits.log_softmax(1), labels=labels,
        ignored=draw(st.sampled_from([None, -100])), places=draw(st.sampled_from([1, 2])),
        of_samples=draw(st.booleans()), first_logits=logits[:8, 0],
    )  # fmt: skip


@st.composite
def of_elements(draw) -> LossReading:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    shape = draw(st.sampled_from([(20,), (20, 1), (9, 3), (8, 2, 5)]))
    prediction, target = torch.randn(2, *shape, generator=generator)
    if draw(st.booleans()):
        target = (target > 0).float()
    kind = draw(st.sampled_from(OF_ELEMENTS))
    return LossReading(kind, 1.0, rows=shape[0], columns=prod(shape[1:]), prediction=prediction, target=target)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(of_classes() | of_elements(), st.integers(1, 40)), min_size=1, max_size=4))
def test_together_as_alone(some: list[tuple[LossReading, int]]) -> None:
    readings = [reading for reading, times in some for _ in range(times)]
    book = LabelBook()
    alone = [loss_numbers([reading], book)[0] for reading in readings]
    for one, other in zip(alone, loss_numbers(readings, LabelBook()), strict=True):
        assert other == pytest.approx(one, rel=1e-9, abs=1e-12, nan_ok=True)


def test_a_value_that_is_not_a_number_is_kept() -> None:
    logs = torch.full((8, 3), np.nan)
    reading = LossReading(LossKind.CROSS_ENTROPY, rows=8, columns=3, log_probabilities=logs)
    (found,) = loss_numbers([reading], LabelBook())
    assert np.isnan(found["output_max_probability"])
