"""What the recorded frames add up to."""

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

_CLOSING = {
    GradientHealth.HEALTHY: "Gradient flow looks healthy in every recorded frame.",
    GradientHealth.MINOR_ISSUES: "Minor gradient issues: watch the layers named above.",
    GradientHealth.PROBLEMS_DETECTED: "Gradient problems detected: act on the advice above before training on.",
    GradientHealth.CRITICAL: "Gradient flow is critical: stop and fix the layers named above first.",
}

_PRESENCE_ISSUE = {
    GradientPresence.NONFINITE: GradientIssue.NONFINITE,
    GradientPresence.EMPTY: GradientIssue.EMPTY,
    GradientPresence.MISSING: GradientIssue.MISSING,
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
            LayerIssueCount(
                name,
                issue,
                tally.frames,
                tally.frames / self.names[name],
                tally.longest,
                tally.first_step,
                tally.last_step,
            )
            for (name, issue), tally in sorted(self.tallies.items())
        ]

    def layers_with(self, *issues: GradientIssue) -> list[str]:
        return sorted({name for name, issue in self.tallies if issue in issues})


def issues_of(layer: LayerGradientInfo) -> list[GradientIssue]:
    found = [_PRESENCE_ISSUE[layer.presence]] if layer.presence in _PRESENCE_ISSUE else []
    if layer.is_vanishing:
        found.append(GradientIssue.VANISHING)
    if layer.is_exploding:
        found.append(GradientIssue.EXPLODING)
    return found


def summarise(frames: list[GradientFrame], counter: IssueCounter) -> GradientFlowSummary:
    vanishing = sorted({layer.name for frame in frames for layer in frame.layers if layer.is_vanishing})
    exploding = sorted({layer.name for frame in frames for layer in frame.layers if layer.is_exploding})
    nonfinite = counter.layers_with(GradientIssue.NONFINITE)
    absent = counter.layers_with(GradientIssue.EMPTY, GradientIssue.MISSING)
    flagged = sum(any(layer.is_vanishing or layer.is_exploding for layer in frame.layers) for frame in frames)
    health = _health(vanishing, exploding, nonfinite, absent, flagged / max(1, len(frames)))
    return GradientFlowSummary(
        total_steps=frames[-1].step + 1 if frames else 0,
        layers_with_vanishing_grads=vanishing,
        layers_with_exploding_grads=exploding,
        overall_health=health,
        recommendations=_advice(vanishing, exploding, nonfinite, absent, health),
        layers_with_nonfinite_grads=nonfinite,
        layers_without_grads=absent,
        frames_recorded=counter.frames,
        frames_retained=len(frames),
        first_step=counter.first_step,
        last_step=counter.last_step,
        issue_counts=counter.counts(),
    )


def _health(
    vanishing: list[str], exploding: list[str], nonfinite: list[str], absent: list[str], flagged_share: float
) -> GradientHealth:
    if nonfinite or (exploding and flagged_share > 0.5):
        return GradientHealth.CRITICAL
    if exploding or flagged_share > 0.3:
        return GradientHealth.PROBLEMS_DETECTED
    if vanishing or absent:
        return GradientHealth.MINOR_ISSUES
    return GradientHealth.HEALTHY


def _advice(
    vanishing: list[str], exploding: list[str], nonfinite: list[str], absent: list[str], health: GradientHealth
) -> list[str]:
    advice: list[str] = []
    if nonfinite:
        advice.append(
            f"NaN or infinite gradients in: {', '.join(nonfinite)}. Find the first operation that produces them "
            "(a division, a logarithm, a loss scale that is too large) before anything else."
        )
    if vanishing:
        advice.append(
            f"Vanishing gradients in: {', '.join(vanishing)}. Residual connections or normalisation keep gradients "
            "alive through depth; if the whole network is affected, check the loss scale and the learning rate."
        )
        advice.append("Check the initialisation of these layers: variance-preserving schemes suit deep networks.")
    if exploding:
        advice.append(f"Exploding gradients in: {', '.join(exploding)}. Clip the gradient norm, for example to 1.0.")
        advice.append("Lower the learning rate, or use an optimizer with decoupled weight decay.")
    if absent:
        advice.append(f"No gradient elements arrived in: {', '.join(absent)}. Check that the loss depends on them.")
    advice.append(_CLOSING[health])
    return advice
