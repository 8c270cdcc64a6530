"""GRD010: clipping takes nearly everything away."""

import math
from collections.abc import Sequence

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having, where_scalar
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.progress import has_fallen
from undertow.schema import Evidence, Finding, Remedy, Severity

_LEFT = 0.02
_RAISE_THE_THRESHOLD = Remedy(
    "raise-the-clip-threshold",
    "Clip where gradients are unusual, not always: a threshold a little above their usual norm.",
    "clip = torch.nn.utils.clip_grad_norm_\n"
    "norm = clip(model.parameters(), max_norm=$clip_bound)\n"
    "print(float(norm))  # before clipping: twice its median is a good bound",
    "Steps become larger at once; have the learning rate ready to come down.",
    when_not="Gradients explode without the threshold: then their cause comes first.",
)
_UNSCALE_FIRST = Remedy(
    "unscale-before-clipping",
    "Take the loss scale off the gradients before they are clipped.",
    "scaler.scale(loss).backward()\n"
    "scaler.unscale_(optimizer)\n"
    "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
    "scaler.step(optimizer)\n"
    "scaler.update()",
    "None.",
    when_not="There is no loss scaler.",
)


class OverClipping(Condition):
    """Clipping takes nearly everything away from every gradient.

    What it sees: The norm of all gradients when the optimizer steps over their norm when backward ended. Reported when
        less than a fiftieth is left at eight measured steps in a row, the steps follow the size of the gradient (as
        those of SGD do, not those of Adam), and they are shorter than two parts in 10,000 of the weights.
    Why it is bad: A threshold far below the usual norm fixes the length of every step at threshold times learning rate,
        which is then far too short. Clipping is there to cut the rare large gradient. The same happens when gradients
        are clipped before a loss scaler has removed its scale.
    When it is wrong: Under Adam and its kin the scale of the gradient cancels out, so it is not reported there.
        Normalised gradient descent clips every step on purpose, with a learning rate to match: the steps are then long
        enough.
    References: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013 (arXiv
        1211.5063).
        PyTorch documentation, "Automatic mixed precision examples": gradient clipping after `unscale_`.
    """

    code, variant, formerly = "GRD010", "over-clipping", "clipped"
    places = ("clip",)
    stage, is_standing, needs_growth = Stage.OPTIMIZER, True, True
    meaning = "What is left of the gradient after clipping is too small to move the weights"
    remedies = (_RAISE_THE_THRESHOLD, _UNSCALE_FIRST)
    pace = ("gradient", 3)
    wakes_on = where_scalar("clip_coefficient", lambda left: left < _LEFT) | having("optimizer_eps")

    left = Limit(_LEFT, "of the gradient; recurrent and reinforcement training clip to a tenth every day")
    patience = Limit.chance(8, "measured steps in a row: a few large gradients in a row are what clipping is for")
    patience_in_steps = Limit.chance(24, "steps, where gradients are measured rarely: three of them will do")
    momentum = Limit(300.0, "update over (learning rate × gradient): momentum 0.99 makes it 100")
    speed = Limit(2e-4, "update over weight; 95 % of healthy matrices move faster than 8e-4")

    def __init__(self) -> None:
        self._clipped = Consecutive()
        self._often = 0  # measured steps that were clipped as much, in a row or not
        self._left = 1.0
        self._base = math.nan  # the level of the loss when this began
        self._is_settled = False  # the base is one of losses since then
        self._speed = self._speed_per_gradient = math.nan  # update over weight, of the latest step
        self._is_adaptive = False  # the optimizer divides by the size of its gradients
        self._follows_gradient = False  # updates are as long as the learning rate times the gradient

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._clipped.count

    def observe(self, view: FrameView) -> Judgement | None:
        left = view.scalar("clip_coefficient")
        sizes = view.row("optimizer_eps_ratio")
        self._is_adaptive |= "optimizer_eps" in view.frame.scalars or (sizes is not None and bool((sizes > 0).any()))
        if view.skipped:
            return None
        if left >= self.left:
            self._clipped.end()
            return self.end()
        if left < self.left:
            self._note(view, left)
            self._measure(view, left * view.scalar("gradient_norm_total"))
        if not self._clipped.count:
            return None
        steps = view.step - self._clipped.since
        is_late = self._clipped.since > self.patience_in_steps
        if is_late and not self._is_settled and view.loss is not None and steps >= self.patience:
            # The level is a median of the latest losses: only now does it speak of none from before the clipping.
            self._base, self._is_settled = view.loss.level, True
        # Where gradients are measured rarely, a few of them will do.
        is_rare = self._clipped.count >= 3 and steps >= self.patience_in_steps
        if self._clipped.count < self.patience and not is_rare:
            return None
        is_unsettled = is_late and not self._is_settled
        if is_unsettled or not self._follows_gradient or has_fallen(view.loss, self._base):
            return self.stay()
        return self.hold(True, lambda: self._describe(view)) if self._speed < self.speed else self.end()

    def _note(self, view: FrameView, left: float) -> None:
        if self._clipped.hold(view.step) == 1:
            # Where it comes and goes, all that was learnt since the first time counts.
            self._is_settled = self._often >= self.patience
            if not self._is_settled:
                self._base = math.nan if view.loss is None else view.loss.level
        self._often, self._left = self._often + 1, left

    def _measure(self, view: FrameView, stepped: float) -> None:
        if view.ids("update") is not None:
            matrices = matrices_of(view.layout)
            gradient = view.scalar("lr") * matrices.values(view, "stepped_gradient_norm")
            length = matrices.values(view, "update_norm") / gradient
            self._speed = middle(matrices.values(view, "update_ratio"))
            self._speed_per_gradient = self._speed / stepped if stepped > 0 else math.nan
            self._follows_gradient = not self._is_adaptive and 0.3 < middle(length) < self.momentum
        elif self._follows_gradient:
            self._speed = self._speed_per_gradient * stepped

    def _describe(self, view: FrameView) -> Judgement:
        left, since = self._left, self._clipped.since
        total, scale = view.scalar("gradient_norm_total"), view.scalar("loss_scale")
        how = f"share of the gradient left by clipping at step {view.step}; as little at every step since {since}"
        evidence = [
            Evidence("clip_coefficient", None, left, 1.0, how),
            Evidence("update_ratio", None, self._speed, 1e-3, "update over weight, median of all matrices"),
        ]
        if math.isfinite(total):
            evidence.append(
                Evidence("gradient_norm_total", None, total * left, total, "norm after clipping, and before")
            )
        if not math.isnan(scale):
            how = "a loss scaler is in use: clip after unscale_, or its scale is clipped away"
            evidence.append(Evidence("loss_scale", None, scale, None, how))
        summary = f"Clipping leaves {left:.1g} of the gradient at every step, so the weights hardly move."
        return Judgement(Severity.SEVERE, (), since, 0.92, summary, tuple(evidence))

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        is_scaled = any(evidence.quantity == "loss_scale" for evidence in finding.evidence)
        return (_UNSCALE_FIRST,) if is_scaled else (_RAISE_THE_THRESHOLD,)
