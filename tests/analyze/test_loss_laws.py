"""A loss made from a law gives that law's answer, within the interval; other losses give a reason."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.analyze.loss_forecast import CLOSE, NO_FIT, Forecast, forecast

TIME = np.arange(2000)


def made_of(shape: np.ndarray, noise: float, seed: int) -> Forecast:
    found = forecast(0.5 + 3 * shape + np.random.default_rng(seed).normal(0, noise, len(shape)))
    assert isinstance(found, Forecast), found
    return found


@pytest.mark.parametrize("constant", [450, 600, 800])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_exponential(constant: float, noise: float) -> None:
    found = made_of(np.exp(-TIME / constant), noise, seed=1)
    low, high = found.interval
    assert found.law == "exponential"
    assert low <= constant * CLOSE - len(TIME) <= high
    assert found.steps == pytest.approx(constant * CLOSE - len(TIME), abs=0.06 * constant * CLOSE)


@pytest.mark.parametrize("exponent", [0.52, 0.56, 0.6])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_power_law(exponent: float, noise: float) -> None:
    found = made_of((TIME + 1.0) ** -exponent, noise, seed=2)
    low, high = found.interval
    reach = 100 ** (1 / exponent)
    assert found.law == "power"
    assert low <= reach - len(TIME) <= high
    assert found.steps == pytest.approx(reach - len(TIME), abs=0.25 * reach)


def test_a_loss_that_is_done_needs_no_more_steps() -> None:
    assert made_of(np.exp(-TIME / 100), 0.01, seed=3) == Forecast("exponential", 0, (0, 0))
    assert made_of((TIME + 1.0) ** -0.9, 0.001, seed=3) == Forecast("power", 0, (0, 0))


def test_the_first_losses_that_fill_no_block_are_counted() -> None:
    """127 losses are averaged in ones: the fit begins at step 63."""
    found = forecast(1 + np.exp(-np.arange(127) / 60))
    assert isinstance(found, Forecast)
    low, high = found.interval
    assert low <= 60 * CLOSE - 127 <= high


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (np.random.default_rng(4).normal(size=500), NO_FIT),
        (np.ones(500), NO_FIT),
        (np.sin(np.arange(500) / 20), NO_FIT),
        (np.exp(np.arange(500) / 100), NO_FIT),
        (1 + (TIME + 1.0) ** -0.2, "not bent enough"),
        (5 - np.arange(500) / 500, "not bent enough"),
        (np.ones(63), "64 finite"),
        (np.r_[np.ones(99), np.nan], "64 finite"),
    ],
)
def test_no_law_no_answer(loss: np.ndarray, reason: str) -> None:
    found = forecast(loss)
    assert isinstance(found, str)
    assert reason in found
