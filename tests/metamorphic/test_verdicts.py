"""A verdict follows from what is wrong, not from scale, names, wrapping, sampling or luck."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.metamorphic.subjects import SUBJECTS, Twist, verdict

PLAIN = Twist()

HARMLESS = {
    "loss × 1e5": Twist(loss_factor=1e5),
    "loss × 1e-5": Twist(loss_factor=1e-5),
    "four micro-batches": Twist(micro_batches=4),
    "renamed and permuted modules": Twist(renamed=True),
    "an identity after every layer": Twist(identity=True),
    "wrapped in nn.Sequential": Twist(wrapped=True),
    "every other step measured": Twist(every=2),
    "another seed": Twist(seed=7),
    "bf16 autocast": Twist(autocast=True),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_subjects_are_what_they_are_said_to_be() -> None:
    assert verdict("sound", PLAIN)[:2] == ("healthy", None)
    assert verdict("cut", PLAIN).code == "GRD003"
    assert verdict("vanishing", PLAIN).code == "GRD001"


@pytest.mark.parametrize("twist", HARMLESS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_does_not_matter_changes_nothing(subject: str, twist: str) -> None:
    assert verdict(subject, HARMLESS[twist]) == verdict(subject, PLAIN)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_compilation_changes_nothing(subject: str) -> None:
    assert verdict(subject, Twist(compiled=True)) == verdict(subject, PLAIN)


@pytest.mark.parametrize("factor", [1e3, 1e-3])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_loss_in_other_units_with_the_rate_to_match_changes_nothing(subject: str, factor: float) -> None:
    """Under SGD the loss times c with the learning rate over c is the very same training."""
    twisted = Twist(optimizer="sgd", loss_factor=factor, rate_factor=1 / factor)
    assert verdict(subject, twisted) == verdict(subject, Twist(optimizer="sgd"))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("subject", [subject for subject in SUBJECTS if subject != "sound"])
def test_the_cure_makes_the_difference(subject: str, optimizer: str) -> None:
    sick, cured = verdict(subject, Twist(optimizer=optimizer)), verdict(subject, Twist(optimizer=optimizer, cured=True))
    assert sick.health in ("problems", "critical")
    assert cured[:2] == ("healthy", None)
