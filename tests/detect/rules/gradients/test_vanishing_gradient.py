"""GRD001: gradients fade with depth, or next to nothing passes a closed gate."""

from __future__ import annotations

import pytest
from tests.detect.building import watched_by

from undertow.detect.rules.gradients.vanishing_gradient import VanishingGradient
from undertow.schema import Severity

NAMES = ("a", "b", "c", "d", "e", "f")


def by_depth(decades: float, top: float = 1e-2) -> dict[str, float]:
    """Gradient sizes that rise evenly by so many decades from the first layer to the last."""
    last = len(NAMES) - 1
    return {name: top * 10 ** (decades * (place - last) / last) for place, name in enumerate(NAMES)}


def test_fading_over_depth_is_vanishing_at_the_fifth_step_when_the_first_layers_rest() -> None:
    training = watched_by(VanishingGradient, names=NAMES)
    training.run(10, gradient_rms=by_depth(5), update_ratio=by_depth(5), update_norm=by_depth(5))
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.ongoing) == ("GRD001", Severity.SEVERE, True)
    assert (finding.first_step, finding.detected_step, finding.last_step) == (0, 4, 9)
    assert finding.layers == ("a.weight", "b.weight", "c.weight")


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    training = watched_by(VanishingGradient, names=NAMES)
    rms = by_depth(5, top=1e-2 * scale)
    training.run(10, gradient_rms=rms, update_ratio=by_depth(5), update_norm=by_depth(5), scalars={"loss": scale})
    assert training.codes() == ["GRD001"]


def test_an_optimizer_that_makes_up_for_small_gradients_gets_more_time() -> None:
    training = watched_by(VanishingGradient, names=NAMES)
    training.run(24, gradient_rms=by_depth(5))
    assert training.findings() == []
    training.run(2, gradient_rms=by_depth(5))
    assert training.findings()[0].detected_step == 24


def test_a_deep_network_that_learns_is_healthy() -> None:
    training = watched_by(VanishingGradient, names=NAMES)
    for step in range(60):
        training.run(1, gradient_rms=by_depth(5), scalars={"loss": 2.3 * 0.97**step})
    assert training.findings() == []


def test_vanishing_ends_when_gradients_come_back() -> None:
    training = watched_by(VanishingGradient, names=NAMES)
    training.run(10, gradient_rms=by_depth(5), update_ratio=1e-6)
    training.run(5, gradient_rms=by_depth(1))
    assert training.log == [("opened", "GRD001", 4), ("closed", "GRD001", 10)]


def test_small_gradients_everywhere_and_a_gentle_slope_are_healthy() -> None:
    training = watched_by(VanishingGradient, names=NAMES)
    training.run(50, gradient_rms=1e-12, update_ratio=1e-6)
    training.run(50, gradient_rms=by_depth(2), update_ratio=1e-6)
    assert training.findings() == []


def test_one_narrow_place_is_named_before_the_input() -> None:
    training = watched_by(VanishingGradient, names=NAMES)
    rms = {"a": 1.0e-7, "b": 1.2e-7, "c": 1.1e-7, "d": 1e-2, "e": 1.1e-2, "f": 1e-2}
    training.run(6, gradient_rms=rms, update_ratio=1e-6)
    assert training.findings()[0].layers == ("c.weight", "b.weight", "a.weight")


def test_layers_behind_closed_gates_between_layers_that_learn() -> None:
    rms = {"a": 1e-3, "b": 1e-20, "c": 1e-20, "d": 1e-20, "e": 1e-2, "f": 1e-2}
    moves = {"a": 1e-3, "b": 1e-12, "c": 1e-12, "d": 1e-12, "e": 1e-3, "f": 1e-3}
    training = watched_by(VanishingGradient, names=NAMES).run(
        6, gradient_rms=rms, update_ratio=moves, update_norm=moves
    )
    (finding,) = training.findings()
    assert (finding.code, finding.layers) == ("GRD001", ("b.weight", "c.weight", "d.weight"))
    # An optimizer that makes up for it, gates that open, and branches that rest at exactly zero are no fault.
    assert watched_by(VanishingGradient, names=NAMES).run(9, gradient_rms=rms).codes() == []
    opening = watched_by(VanishingGradient, names=NAMES).run(4, gradient_rms=rms, update_ratio=moves, update_norm=moves)
    assert opening.run(9, gradient_rms=1e-3).codes() == []
    zero = {name: 0.0 if size < 1e-9 else size for name, size in rms.items()}
    assert watched_by(VanishingGradient, names=NAMES).run(9, gradient_rms=zero, update_ratio=moves).codes() == []
