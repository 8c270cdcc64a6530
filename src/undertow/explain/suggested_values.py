"""Values to try, computed from what a finding measured: a learning rate, a clip bound, a weight decay, an eps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from undertow.schema import Finding

USUAL_UPDATE = 0.005  # of the weight per step: the middle of healthy trainings
MOMENTUM, DROPOUT, BETA2 = 0.9, 0.1, 0.95
_LONG_UPDATE = 0.03  # of the weight per step: 99 % of healthy matrices move less
_LONGEST_UPDATE = 5.0  # of the weight per step: a diverged loss makes longer ones, of which no rate can be computed
_HIGHEST_RATE = 1.0  # that is worth a try where updates are as long as the gradient
_LONG_FIRST_STEP = 0.02  # of the usual length of a weight; most models tolerate as much in a first step of Adam
_DECAY_PER_STEP = 1e-4  # of every weight; recipes stay below it
_LARGEST_DECAY, _LARGEST_EPS = 0.01, 1e-8
_FAR_BELOW = 1e-3  # of the typical gradient, for eps


@dataclass(frozen=True, slots=True)
class SuggestedRate:
    """A learning rate beside the one that was used, and what it was computed from."""

    now: float
    rate: float
    why: str

    @property
    def how_much(self) -> str:
        """`a tenth of what it is`, `30 times what it is`."""
        times = float(number(self.rate)) / self.now  # of the number that is shown
        if times > 1:
            count = round(float(f"{times:.1g}"))
            return f"{count:,} times what it is" if count > 1 else f"{times:.1f} times what it is"
        parts = round(float(f"{1 / times:.1g}"))
        share = f"{times:.0%} of" if parts < 2 else f"1/{parts:,} of"
        return {2: "half of", 3: "a third of", 10: "a tenth of"}.get(parts, share) + " what it is"


def number(value: float) -> str:
    """One digit is enough, written as in a program: 0.02, 3e-4, 80."""
    text = f"{float(f'{value:.1g}'):g}"
    return f"{value:.0e}".replace("e-0", "e-") if text.startswith("0.000") else text.replace("e-0", "e-")


def measured(finding: Finding | None, quantity: str) -> tuple[float, float | None] | None:
    """The first value of this quantity in the evidence, and the expected one."""
    for one in finding.evidence if finding is not None else ():
        if one.quantity == quantity and one.value is not None and math.isfinite(one.value):
            return one.value, one.expected if one.expected is None or math.isfinite(one.expected) else None
    return None


def lower_rate(finding: Finding | None, now: float, longest_first_step: float | None) -> SuggestedRate:
    """`longest_first_step`: the rate at which the first step of an optimizer that scales its gradients, as Adam does,
    is as long as most models tolerate; None for others.
    """
    stated, update = measured(finding, "lr"), measured(finding, "update_ratio")
    if stated is not None and stated[1] and 0 < stated[1] < 0.7 * stated[0]:
        return SuggestedRate(stated[0], stated[1], "what it was before, or what the measured steps allow")
    rate, why = now / 10, "a tenth is the usual first try, since nothing measured here gives a number"
    if update is not None and update[1] is not None and update[0] > _LONG_UPDATE / 3 and update[1] < 1:
        share = min(update[0], _LONGEST_UPDATE)
        rate = now * USUAL_UPDATE / (share if longest_first_step is None else update[0])
        length = percent(share) if share == update[0] else f"more than {percent(share)}"
        why = f"updates are {length} of the weights per step, and 0.1% to 1% is usual"
    if longest_first_step is not None and rate > longest_first_step:
        rate = longest_first_step
        why = "this optimizer moves each weight by about its rate, and weights of this width are not much larger"
    if longest_first_step is not None:  # weights that begin near zero move by many times their size
        rate = max(rate, longest_first_step / 100)
    return SuggestedRate(now, min(rate, now / 2), why)


def higher_rate(finding: Finding | None, now: float, longest_first_step: float | None) -> SuggestedRate:
    stated, update = measured(finding, "lr"), measured(finding, "update_ratio")
    if stated is not None and stated[1] and stated[1] > 1.5 * stated[0] > 0:
        return SuggestedRate(stated[0], stated[1], "what it was at its peak, or what the optimizer was made with")
    if update is not None and 0 < update[0] < USUAL_UPDATE / 5:
        rate = now * USUAL_UPDATE / 5 / update[0]
        why = f"updates are {percent(update[0])} of the weights per step, and 0.1% to 1% is usual"
        highest = _HIGHEST_RATE if longest_first_step is None else longest_first_step
        return SuggestedRate(now, max(min(rate, highest), 2 * now), why)
    return SuggestedRate(now, 10 * now, "tenfold is the usual first try, since nothing measured here gives a number")


def percent(share: float) -> str:
    if share >= 1:
        return f"{100 * float(f'{share:.1g}'):,.0f}%"
    return f"{100 * share:.1g}%" if share < 0.095 else f"{share:.0%}"


def clip_bound(finding: Finding | None) -> float:
    """Twice the norm of gradients that are as they should be: only unusual ones are clipped."""
    norm = measured(finding, "gradient_norm_total")
    usual = None if norm is None else norm[1]
    return 2 * usual if usual is not None and usual > 0 and math.isfinite(usual) else 1.0


def weight_decay(rate: float | None) -> float:
    return min(_LARGEST_DECAY, _DECAY_PER_STEP / rate) if rate else _LARGEST_DECAY


def eps(finding: Finding | None, now: float | None) -> float:
    """The default, or a thousandth of the typical gradient where that is less."""
    ratio = measured(finding, "optimizer_eps_ratio")
    if ratio is None or not now or not ratio[0] > 0:
        return _LARGEST_EPS
    return min(_LARGEST_EPS, 10.0 ** math.floor(math.log10(_FAR_BELOW * ratio[0] * now)))


def longest_first_step(fan_ins: list[int]) -> float | None:
    """The rate at which a step of one rate per weight is as much of the median matrix as most models tolerate."""
    if not fan_ins:
        return None
    middle = sorted(fan_ins)[len(fan_ins) // 2]
    return _LONG_FIRST_STEP / math.sqrt(3 * max(middle, 1))
