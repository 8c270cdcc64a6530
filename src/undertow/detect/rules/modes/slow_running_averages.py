"""MOD002: running averages that take thousands of steps to fit the data."""

import math

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.remedies import USUAL_NORMALISATION_SETTINGS
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, LayerKind, Severity


class SlowRunningAverages(Condition):
    """The running averages of a new batch normalisation hardly leave their initial values.

    What it sees: A momentum of 0.002 and less in a normalisation that is new (its scale began as one everywhere) and in
        training mode, until its averages have forgotten what they began with.
    Why it is bad: For thousands of steps the averages are mostly the 0 and 1 they began with, and the model fails in
        evaluation.
    When it is wrong: A momentum of 0.001 is right where nothing is evaluated within thousands of steps; in a
        normalisation that was trained before it is not reported.
    References: PyTorch documentation, `torch.nn.BatchNorm2d`.
    """

    code, variant, formerly = "MOD002", "slow-running-averages", "slow"
    places = ("definition",)
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    needs = frozenset({"activation", "weight"})
    meaning = "The model trains well and fails in evaluation, where the running averages are used"
    remedies = (USUAL_NORMALISATION_SETTINGS,)

    momentum = Limit(0.002, "published models: 0.003 and more; with less, averages mean nothing for a thousand steps")
    memories = Limit(3.0, "times what the averages remember: what they began with is then gone")
    new_scale = Limit(1e-4, "by which the root mean square of a new scale may differ from one")

    def __init__(self) -> None:
        self._start = InitialWeights()

    def observe(self, view: FrameView) -> Judgement | None:
        self._start.take(view)
        modes, momentum, ids = view.row("activation_training"), view.row("norm_momentum"), view.ids("activation")
        if modes is None or momentum is None or ids is None or not (modes == 1).any():
            return None
        slow = (modes == 1) & (momentum > 0) & (momentum <= self.momentum)
        slow &= view.step < self.memories / momentum
        if not slow.any():
            return self.end()
        layout = view.layout
        scales = {layer.group: layer for layer in layout.layers.parameters if layer.kind == LayerKind.NORM_SCALE}
        members: list[int] = []
        for module in layout.in_order(ids[slow]):
            scale = scales.get(layout.path(module))
            if scale is not None:
                size = self._start.norm[scale.id] / math.sqrt(scale.parameter_count)
                members += [module] * bool(abs(size - 1) < self.new_scale)
        if not members:
            return self.stay()
        value = float(momentum[np.isin(ids, members)][0])
        return self.hold(tuple(members), lambda: _describe(view, tuple(members), value))


def _describe(view: FrameView, members: tuple[int, ...], momentum: float) -> Judgement:
    how = "as it is set; its scale was still one everywhere: it has not been trained before"
    evidence = tuple(Evidence("norm_momentum", view.layout.path(i), momentum, 0.1, how) for i in members[:3])
    summary = (
        f"{name_layers(view.layout, members)}: with a momentum of {momentum:.3g} (0.1 is usual) the running averages "
        f"need {1 / momentum:,.0f} steps to fit the data. Until then, evaluation goes wrong."
    )
    return Judgement(Severity.MODERATE, members, view.step, 0.97, summary, evidence)
