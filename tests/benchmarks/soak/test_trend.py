"""The criterion of the soak: it must see a leak through noise, and must not call a short look a proof."""

import numpy as np
import pytest

from benchmarks.soak.trend import trend

TIMES = np.linspace(0, 3600, 1200)


def samples(leak: float = 0.0, noise: float = 0.0, warm_up: float = 0.0, seed: int = 0) -> np.ndarray:
    chance = np.random.default_rng(seed)
    walk = np.convolve(chance.normal(size=len(TIMES)), np.ones(20) / np.sqrt(20), "same")  # neighbours are alike
    return 100 + leak * TIMES / 3600 + noise * walk - warm_up * np.exp(-TIMES / 200)


def test_steady_samples_are_flat():
    assert trend(TIMES, samples()).verdict(0.001) == "flat"
    assert trend(TIMES, samples(warm_up=60.0)).verdict(2.0) == "flat"


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_seen_through_noise(seed):
    found = trend(TIMES, samples(leak=30.0, noise=3.0, seed=seed))
    assert found.verdict(8.0) == "GROWS"
    assert found.per_hour == pytest.approx(30.0, abs=found.noise / found.hours)


def test_noise_alone_is_seldom_called_growth():
    verdicts = [trend(TIMES, samples(noise=3.0, seed=seed)).verdict(0.0) for seed in range(400)]
    assert verdicts.count("GROWS") < 0.03 * 400  # 99 % both ways


def test_what_cannot_be_ruled_out_is_not_flat():
    assert trend(TIMES, samples(noise=50.0)).verdict(1.0) == "too noisy to tell"


def test_what_comes_and_goes_is_judged_by_its_floor():
    busy = 3 + 20 * (np.arange(len(TIMES)) % 7 == 0)
    assert trend(TIMES, busy, floor=True).verdict(0.1) == "flat"
    leaking = busy + np.floor(TIMES / 300)
    assert trend(TIMES, leaking, floor=True).verdict(2.0) == "GROWS"
