"""What the user can change: the remedies of the finding's condition that fit this program, written for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from undertow.detect.features.remedies import LOWER_LEARNING_RATE
from undertow.explain import suggested_values as suggested
from undertow.explain.traits import traits_of
from undertow.explain.user_program import Program
from undertow.schema import Finding, LayerKind, Remedy

Fits = Callable[[Program, Finding], bool]

_RECURRENT = ("RNN", "LSTM", "GRU")
_SATURATING = ("Sigmoid", "Tanh", "Softsign", "Hardtanh")
_RECTIFIERS = ("ReLU", "Hardswish")
_OTHER_ACTIVATIONS = ("GELU", "SiLU", "ELU", "Mish", "Softplus")
_DEEP = 4  # matrices: with fewer, no gradient has far to go
_NEAR_OVERFLOW = 1e3  # of float16, in what a layer is given: it multiplies and adds up


def with_remedies(finding: Finding, program: Program | None = None, *, diverged: bool = False) -> Finding:
    """The finding with the remedies that fit this very case of it, and this program.

    `diverged`: the values had grown by orders of magnitude before, so no operation is to blame.
    """
    program = program or Program()
    chosen = list(traits_of(finding).remedies_for(finding))
    if diverged:
        chosen = [LOWER_LEARNING_RATE, *(remedy for remedy in chosen if remedy != LOWER_LEARNING_RATE)]
    fitting = tuple(program.fill(remedy, finding) for remedy in chosen if fits(remedy, program, finding))
    return replace(finding, remedies=fitting)


def fits(remedy: Remedy, program: Program, finding: Finding) -> bool:
    """Whether it would change anything, and what it speaks of is there. Without facts of a program, all fit."""
    test = _FITS.get(remedy.id)
    return test is None or test(program, finding)


def _is_above(setting: str, target: Callable[[Program, Finding], float]) -> Fits:
    """The setting is known to be above what the remedy would set, or nothing is known of any setting."""

    def test(program: Program, finding: Finding) -> bool:
        now = program.largest(setting)
        return not program.groups if now is None else now > 1.01 * target(program, finding)

    return test


def _has_large_momentum(program: Program, finding: Finding) -> bool:
    first = [group["betas"][0] for group in program.groups if _are_numbers(group.get("betas"))]
    known = [*first, *filter(None, [program.largest("momentum")])]
    return max(known) > suggested.MOMENTUM if known else not program.groups


def _has_slow_second_moment(program: Program, finding: Finding) -> bool:
    known = [group["betas"][1] for group in program.groups if _are_numbers(group.get("betas"))]
    return max(known) > suggested.BETA2 if known else not program.groups


def _are_numbers(betas: object) -> bool:
    return isinstance(betas, tuple) and len(betas) == 2 and all(isinstance(one, float) for one in betas)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _has_no_decay(program: Program, finding: Finding) -> bool:
    return program.largest("weight_decay") is None  # zero, or nothing is known


def _has(*names: str) -> Fits:
    return lambda program, finding: not program.module_types or program.has(*names)


def _saturates(program: Program, finding: Finding) -> bool:
    """Functions that are called, not modules, are not known: then only what is there speaks against it."""
    if program.has(*_RECURRENT):
        return False
    return program.has(*_SATURATING) or not program.has(*_RECTIFIERS, *_OTHER_ACTIVATIONS)


def _can_die(program: Program, finding: Finding) -> bool:
    alive = program.has("LeakyReLU", "PReLU", *_OTHER_ACTIVATIONS, *_SATURATING)
    return not alive or bool(program.module_types & {"ReLU", "ReLU6", "Hardswish"})


def _is_deep(program: Program, finding: Finding) -> bool:
    kinds = [layer.kind for layer in program.layers or ()]
    count = kinds.count(LayerKind.WEIGHT) + kinds.count(LayerKind.RECURRENT)
    return count >= _DEEP or not count


def _has_low_precision(program: Program, finding: Finding) -> bool:
    return not program.dtypes or bool(program.dtypes & {"float16", "bfloat16"})


def _may_overflow_half(program: Program, finding: Finding) -> bool:
    largest = suggested.measured(finding, "activation_max_abs")
    return not program.dtypes or "float16" in program.dtypes or (largest is not None and largest[0] > _NEAR_OVERFLOW)


def _is_of_the_data(program: Program, finding: Finding) -> bool:
    return any(one.quantity == "nonfinite_input" for one in finding.evidence)


def _is_of_an_operation(program: Program, finding: Finding) -> bool:
    return not _is_of_the_data(program, finding)


# The machine's reading of `when_not`, for remedies that set something or speak of a kind of module.
_FITS: dict[str, Fits] = {
    "small-eps": _is_above("eps", lambda program, finding: suggested.eps(finding, program.largest("eps"))),
    "lower-the-weight-decay": _is_above(
        "weight_decay", lambda program, finding: suggested.weight_decay(program.rate(finding))
    ),
    "usual-momentum": _has_large_momentum,
    "faster-second-moment": _has_slow_second_moment,
    "decay-the-weights": _has_no_decay,
    "use-relu-with-he-initialisation": _saturates,
    "gate-the-recurrence": _has("RNN"),
    "tame-the-recurrence": _has(*_RECURRENT),
    "initialise-for-the-activation": _has("Linear", "Conv"),
    "add-normalisation-or-shortcuts": _is_deep,
    "revive-the-units": _can_die,
    "use-group-norm": _has("BatchNorm", "InstanceNorm"),
    "normalise-over-more-values": lambda program, finding: not program.has("BatchNorm", "InstanceNorm"),
    "keep-a-float32-master-copy": _has_low_precision,
    "keep-values-in-range": _may_overflow_half,
    "clean-the-inputs": _is_of_the_data,
    "guard-the-operation": _is_of_an_operation,
    "loss-in-log-space": _is_of_an_operation,
}
