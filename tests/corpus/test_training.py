"""The programs themselves: they are distinct, they repeat, they can be turned up, down and put off."""

import math

import pytest

from corpus.equivalence import EQUIVALENT, are_equivalent
from corpus.registry import controls, sick_cases
from undertow.demos.case import Case, Fault
from undertow.schema.codes import CODES

# Known faults that no small program shows honestly.
LEFT_OUT = {
    32: "buffers that part need several processes",
    51: "logits of a small model that learns well drift as far",
}


def test_the_hospital_covers_the_catalogue() -> None:
    covered = {number for training in sick_cases("development").values() for number in training.catalogue}
    assert covered | set(LEFT_OUT) == set(range(1, 59))
    assert not covered & set(LEFT_OUT)
    assert len({training.architecture for training in sick_cases("development").values()}) >= 8


def test_the_zoo_is_large_enough_to_mean_something() -> None:
    assert len(controls("development")) >= 40
    adversarial = [training for training in controls("development").values() if training.adversarial]
    assert len(adversarial) >= 15


@pytest.mark.parametrize(
    "training",
    [*sick_cases("development").values(), *controls("development").values()],
    ids=lambda training: training.name,
)
def test_the_truth_is_complete(training: Case) -> None:
    assert training.summary.endswith(".")
    assert training.architecture
    if training.is_sick:
        assert training.change
        assert training.code == training.codes[0]
        assert set(training.codes) <= set(CODES)
        assert max(training.onset, *training.onsets, 0) < training.steps
        assert not training.adversarial


def test_every_accepted_code_is_published_with_a_reason_and_used() -> None:
    used = {(training.codes[0], code) for training in sick_cases("development").values() for code in training.codes[1:]}
    assert used == set(EQUIVALENT)
    assert all(reason for reason in EQUIVALENT.values())
    assert are_equivalent("OPT007", "UPD001")
    assert are_equivalent("GRD007", "GRD007")
    assert not are_equivalent("ACT001", "OPT007")


@pytest.mark.parametrize("name", sorted(sick_cases("development")))
def test_sick_trainings_may_be_short(name: str) -> None:
    """Three steps are over before a late fault begins, and no program minds."""
    assert sick_cases("development")[name].run(steps=3)


@pytest.mark.parametrize("name", sorted(controls("development")))
def test_healthy_trainings_end_with_a_finite_loss(name: str) -> None:
    metrics = controls("development")[name].run(steps=6)
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_same_seed_gives_the_same_training() -> None:
    training = sick_cases("development")["forgotten_detach"]
    assert training.run(steps=5, seed=3) == training.run(steps=5, seed=3)
    assert training.run(steps=5, seed=3) != training.run(steps=5, seed=4)


def test_a_fault_begins_at_its_onset() -> None:
    fault = Fault(True, strength=2.0, onset=40)
    assert fault
    assert [step for step in (0, 39, 40, 41) if fault.at(step)] == [40, 41]
    assert not Fault(False, onset=0).at(100)


def test_before_a_late_onset_the_sick_training_is_its_twin() -> None:
    late = sick_cases("development")["rate_leaps"].variant(onset=40)
    assert late.run(steps=40) == late.run(steps=40, fault_on=False)
    assert late.run(steps=42) != late.run(steps=42, fault_on=False)


def test_severities_are_a_ladder() -> None:
    training = sick_cases("development")["rate_too_high"]
    losses = [training.variant(severity).run(steps=3)["loss"] for severity in ("mild", "clear", "extreme")]
    assert losses == sorted(losses)
    assert losses[0] < losses[2]
    assert training.run(steps=3) == training.variant("clear").run(steps=3)
    assert [(variant.severity, variant.onset) for variant in training.variants()] == [
        ("mild", 0), ("clear", 0), ("extreme", 0), ("clear", 60),
    ]  # fmt: skip


def test_a_severity_or_onset_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="'huge'; it has mild, clear, extreme"):
        sick_cases("development")["rate_too_high"].variant("huge")
    with pytest.raises(ValueError, match=r"'mild'; it has clear"):
        sick_cases("development")["forgotten_detach"].variant("mild")
    with pytest.raises(ValueError, match=r"cannot begin at 7; it can at \[40, 100\]"):
        sick_cases("development")["rate_leaps"].variant(onset=7)


def test_a_truth_covers_everything_below_it() -> None:
    training = sick_cases("development")["layer_left_out"]
    assert training.accepts("middle")
    assert training.accepts("middle.weight")
    assert not training.accepts("middles.weight")
    assert not training.accepts("head.weight")
