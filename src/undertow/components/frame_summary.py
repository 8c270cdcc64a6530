"""What the recorded frames add up to."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from undertow.schema.seeds.animation import (
    GradientFlowSummary,
    GradientFrame,
    GradientHealth,
    GradientIssue,
    GradientPresence,
    LayerGradientInfo,
    LayerIssueCount,
)

CLOSING = {
    GradientHealth.HEALTHY: "Gradient flow looks healthy in every recorded frame.",
    GradientHealth.MINOR_ISSUES: "Minor gradient issues: watch the layers named above.",
    GradientHealth.PROBLEMS_DETECTED: "Gradient problems detected: act on the advice above before training on.",
    GradientHealth.CRITICAL: "Gradient flow is critical: stop and fix the layers named above first.",
}


@dataclass(slots=True)
class _Tally:
    frames: int = 0
    run: int = 0
    longest: int = 0
    first_step: int = 0
    last_step: int = 0
    last_appearance: int = -1


@dataclass(slots=True)
class IssueCounter:
    """Counts over every frame ever recorded; the rolling window does not make it forget."""

    frames: int = 0
    first_step: int | None = None
    last_step: int | None = None
    names: dict[str, int] = field(default_factory=dict[str, int])  # layer → frames it appeared in, first seen first
    tallies: dict[tuple[str, GradientIssue], _Tally] = field(default_factory=dict[tuple[str, GradientIssue], _Tally])

    def count(self, frame: GradientFrame, order: list[str]) -> None:
        self.frames += 1
        self.first_step = frame.step if self.first_step is None else self.first_step
        self.last_step = frame.step
        for name in order:
            self.names[name] = self.names.get(name, 0) + 1
        for layer in frame.layers:
            for issue in issues_of(layer):
                self._tally(layer.name, issue, frame.step)

    def _tally(self, name: str, issue: GradientIssue, step: int) -> None:
        appearance = self.names[name]
        tally = self.tallies.setdefault((name, issue), _Tally(first_step=step))
        tally.run = tally.run + 1 if tally.last_appearance == appearance - 1 else 1
        tally.longest = max(tally.longest, tally.run)
        tally.frames += 1
        tally.last_step, tally.last_appearance = step, appearance

    def counts(self) -> list[LayerIssueCount]:
        return [
            LayerIssueCount(name, issue, one.frames, one.frames / self.names[name], one.longest, one.first_step,
                            one.last_step)
            for (name, issue), one in sorted(self.tallies.items())
        ]  # fmt: skip

    def layers_with(self, *issues: GradientIssue) -> list[str]:
        return sorted({name for name, issue in self.tallies if issue in issues})


def issues_of(layer: LayerGradientInfo) -> list[GradientIssue]:
    found = [] if layer.presence is GradientPresence.PRESENT else [GradientIssue(layer.presence.value)]
    flags = {GradientIssue.VANISHING: layer.is_vanishing, GradientIssue.EXPLODING: layer.is_exploding}
    return found + [issue for issue, holds in flags.items() if holds]


def summarise(frames: list[GradientFrame], counter: IssueCounter) -> GradientFlowSummary:
    vanishing = sorted({layer.name for frame in frames for layer in frame.layers if layer.is_vanishing})
    exploding = sorted({layer.name for frame in frames for layer in frame.layers if layer.is_exploding})
    nonfinite = counter.layers_with(GradientIssue.NONFINITE)
    absent = counter.layers_with(GradientIssue.EMPTY, GradientIssue.MISSING)
    flagged = sum(any(layer.is_vanishing or layer.is_exploding for layer in frame.layers) for frame in frames)
    share = flagged / max(1, len(frames))
    if nonfinite or (exploding and share > 0.5):
        health = GradientHealth.CRITICAL
    elif exploding or share > 0.3:
        health = GradientHealth.PROBLEMS_DETECTED
    else:
        health = GradientHealth.MINOR_ISSUES if vanishing or absent else GradientHealth.HEALTHY
    return GradientFlowSummary(
        total_steps=frames[-1].step + 1 if frames else 0,
        layers_with_vanishing_grads=vanishing,
        layers_with_exploding_grads=exploding,
        overall_health=health,
        recommendations=[*_advice(vanishing, exploding, nonfinite, absent), CLOSING[health]],
        layers_with_nonfinite_grads=nonfinite,
        layers_without_grads=absent,
        frames_recorded=counter.frames,
        frames_retained=len(frames),
        first_step=counter.first_step,
        last_step=counter.last_step,
        issue_counts=counter.counts(),
        unavailable={} if counter.frames else dict.fromkeys(("first_step", "last_step"), "no frame was recorded"),
    )


def _advice(vanishing: list[str], exploding: list[str], nonfinite: list[str], absent: list[str]) -> Iterator[str]:
    if nonfinite:
        yield (
            f"NaN or infinite gradients in: {', '.join(nonfinite)}. Find the first operation that produces them "
            "(a division, a logarithm, a loss scale that is too large) before anything else."
        )
    if vanishing:
        yield (
            f"Vanishing gradients in: {', '.join(vanishing)}. Residual connections or normalisation keep gradients "
            "alive through depth; if the whole network is affected, check the loss scale and the learning rate."
        )
        yield "Check the initialisation of these layers: variance-preserving schemes suit deep networks."
    if exploding:
        yield f"Exploding gradients in: {', '.join(exploding)}. Clip the gradient norm, for example to 1.0."
        yield "Lower the learning rate, or use an optimizer with decoupled weight decay."
    if absent:
        yield f"No gradient elements arrived in: {', '.join(absent)}. Check that the loss depends on them."
