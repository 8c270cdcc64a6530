"""OPT007: a warm-up that never ends."""

from __future__ import annotations

from tests.detect.courses import OPT007, noisy, training


def test_a_warm_up_that_never_ends() -> None:
    for made_with, codes in ((1e-3, ["OPT007"]), (1e-5, [])):
        run = training(*OPT007)
        for step, loss in enumerate(noisy([2.3] * 70, 0.01)):
            scalars = {"loss": loss, "lr": 1e-8 * (step + 1), "initial_lr": made_with}
            run.run(1, scalars=scalars, update_ratio=1e-5, update_norm=1e-5)
        assert run.codes() == codes
