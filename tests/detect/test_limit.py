"""Limits beside measured numbers, which are float32."""

from __future__ import annotations

import numpy as np

from undertow.detect.engine import Limit


def test_a_limit_is_the_same_number_to_float32_as_a_plain_one() -> None:
    measured, limit = np.array([0.9, 0.002], np.float32), Limit(0.9, "as an example")
    assert (measured >= limit).tolist() == [True, False]
    assert (limit <= measured).tolist() == [True, False]
    assert bool(np.float32(0.9) >= limit)
    assert (measured * limit).dtype == np.float32
    assert np.maximum(measured, limit).tolist() == [measured[0], measured[0]]


def test_an_instance_has_the_plain_number() -> None:
    class Owner:
        rate = Limit(0.9, "as an example")

    assert type(Owner().rate) is float
    assert isinstance(vars(Owner)["rate"], Limit)
    assert isinstance(Owner.rate, Limit)
