"""GRD001: next to no gradient passes a closed gate."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.gradients.closed_gate import ClosedGate
from undertow.detect.rules.gradients.vanishing_gradient import VanishingGradient

NAMES = ("a", "b", "c", "d", "e", "f")


def test_layers_behind_closed_gates_between_layers_that_learn() -> None:
    rms = {"a": 1e-3, "b": 1e-20, "c": 1e-20, "d": 1e-20, "e": 1e-2, "f": 1e-2}
    moves = {"a": 1e-3, "b": 1e-12, "c": 1e-12, "d": 1e-12, "e": 1e-3, "f": 1e-3}
    training = watched_by(ClosedGate, VanishingGradient, names=NAMES).run(
        6, gradient_rms=rms, update_ratio=moves, update_norm=moves
    )
    (finding,) = training.findings()
    assert (finding.code, finding.layers) == ("GRD001", ("b.weight", "c.weight", "d.weight"))
    # An optimizer that makes up for it, gates that open, and branches that rest at exactly zero are no fault.
    assert watched_by(ClosedGate, VanishingGradient, names=NAMES).run(9, gradient_rms=rms).codes() == []
    opening = watched_by(ClosedGate, VanishingGradient, names=NAMES).run(
        4, gradient_rms=rms, update_ratio=moves, update_norm=moves
    )
    assert opening.run(9, gradient_rms=1e-3).codes() == []
    zero = {name: 0.0 if size < 1e-9 else size for name, size in rms.items()}
    assert (
        watched_by(ClosedGate, VanishingGradient, names=NAMES).run(9, gradient_rms=zero, update_ratio=moves).codes()
        == []
    )
