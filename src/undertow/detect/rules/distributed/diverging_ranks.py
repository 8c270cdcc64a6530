"""DST001: ranks no longer hold the same weights."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Stage
from undertow.detect.features.replicas import AVERAGE_EVERY_GRADIENT, BROADCAST_THE_WEIGHTS
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Severity


class DivergingRanks(Condition):
    """The ranks of a distributed training no longer hold the same weights.

    What it sees: The weights of each parameter that several ranks hold, compared after the step. They are the same to
        the last bit as long as every rank applies the same gradients. It opens when a rank is away from the first one
        by more than a millionth of the norm in three measured steps in a row, and names the rank.
    Why it is bad: Gradients averaged over different models are right for none of them. The loss looks fine for a long
        time; what is saved is one rank's model, and not the one that was trained.
    When it is wrong: Parameters that belong to one rank on purpose (experts, private heads) are left alone only if
        their weights and gradients differ from the first step on. Averaging weights now and then instead of gradients
        at each step (local SGD) makes replicas differ on purpose between two averages, and looks the same.
    References: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020 (arXiv
        2006.15704).
        Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training", 2025 (arXiv
        2506.14813).
    """

    code, variant, formerly = "DST001", "diverging-ranks", "ranks"
    stage, is_exact = Stage.OPTIMIZER, True
    needs = frozenset({"rank"})
    meaning = "The ranks train different models and average their gradients"
    remedies = (AVERAGE_EVERY_GRADIENT, BROADCAST_THE_WEIGHTS)

    apart = Limit(1e-6, "of the weight's norm; replicas that are kept equal are equal to the last bit")
    patience = Limit.chance(3, "measured steps in a row: a checkpoint that is being loaded may be caught half-way")

    def __init__(self) -> None:
        self._streak = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        ids, distance = view.ids("rank"), view.row("rank_weight_distance")
        if ids is None or distance is None:
            return None
        measured = ~np.isnan(distance)
        if not measured.any():
            return self.stay()
        away = distance > self.apart
        self._streak.hold(ids[away], view.step)
        self._streak.end(ids[measured & ~away])
        members = ids[(self._streak.length[ids] >= self.patience) & away]
        if not len(members):
            return self.stay() if away.any() else self.end()
        layers = tuple(view.layout.in_order(members))
        return self.hold(layers, lambda: self._describe(view, layers, int(measured.sum())))

    def _describe(self, view: FrameView, layers: tuple[int, ...], compared: int) -> Judgement:
        layout, weight = view.layout, view.all_layers("rank_weight_distance")
        gradient, farthest = view.all_layers("rank_gradient_distance"), view.all_layers("rank_farthest")
        worst = max(layers, key=lambda layer: weight[layer])
        rank, path = int(farthest[worst]), layout.path(worst)
        how = f"distance of rank {rank}'s weight from the first rank's, over its norm, after step {view.step}"
        evidence = [Evidence("rank_weight_distance", path, float(weight[worst]), 0.0, how)]
        if known(float(gradient[worst])) is not None:
            how = "the same for the gradients that the optimizers used"
            evidence.append(Evidence("rank_gradient_distance", path, float(gradient[worst]), 0.0, how))
        everywhere = 2 * len(layers) > compared and compared > 2
        named = f"{len(layers)} of {compared} parameters" if everywhere else name_layers(layout, layers)
        summary = f"The ranks no longer train the same model: {named} differ between rank {rank} and the first rank."
        return Judgement(
            Severity.SEVERE, () if everywhere else layers, self._streak.began(layers), 1.0, summary, tuple(evidence)
        )
