"""MOD002 on frames made by hand: statistics of few values."""

from __future__ import annotations

from typing import Any

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.modes.too_few_values import TooFewValues

NET = ("conv:Conv2d", "norm:BatchNorm2d", "relu:ReLU", "drop:Dropout", "head:Linear")


def test_statistics_of_two_values() -> None:
    training = stack(TooFewValues, *NET)
    training.run(1, activation_training=1.0, norm_values={"norm": 2.0})
    training.run(1, activation_training=1.0, norm_values={"norm": 64.0})
    assert training.codes() == []
    training.run(2, activation_training=1.0, norm_values={"norm": 2.0})
    assert training.findings()[0].layers == ("norm",)


@pytest.mark.parametrize(("rows", "codes"), [(2.0, ["MOD002"]), (64.0, [])])
def test_two_pictures_have_many_values_and_are_two_samples(rows: float, codes: list[str]) -> None:
    training = stack(TooFewValues, *NET)
    measured: dict[str, Any] = {"activation_training": 1.0, "norm_values": {"norm": 128.0}}
    training.run(2, **measured, norm_samples={"norm": rows})
    assert training.codes() == codes


def test_one_and_the_same_picture_has_statistics_without_noise() -> None:
    measured: dict[str, Any] = {"activation_training": 1.0, "norm_values": {"norm": 128.0}}
    training = stack(TooFewValues, *NET)
    training.run(9, scalars={"input_std": 0.7}, **measured, norm_samples={"norm": 1.0})
    assert training.codes() == []
