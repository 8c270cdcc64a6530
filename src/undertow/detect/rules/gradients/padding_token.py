"""GRD004: a real token has the padding index of an embedding."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, where
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity

_INSIDE = 0.02


class PaddingToken(Condition):
    """A real token has the padding index of an embedding, so its row has no gradient and stays zero for ever.

    What it sees: Tokens with the padding index that stand between other tokens and have to be predicted, too, or stand
        at every place about as often as others do, at two sampled steps in a row.
    Why it is bad: The row of that index never has a gradient: to the model the token is always nothing.
    When it is wrong: Tokens that are replaced by padding at random (word dropout) look like a real token.
    References: PyTorch documentation, `torch.nn.Embedding`: `padding_idx`.
    """

    code, variant, formerly = "GRD004", "padding-token", "padding"
    places = ("definition",)
    stage, is_exact = Stage.BLOCKED, True
    meaning = "The row of that token does not learn"
    remedies = (
        Remedy(
            "free-the-padding-index",
            "Give padding an index of its own, or leave `padding_idx` out: its row is never trained.",
            "vocabulary = ['<pad>', *characters]  # index 0 stands for nothing else\n"
            "count = len(vocabulary)\n"
            "embedding = torch.nn.Embedding(count, width, padding_idx=0)",
            "All indices move by one: encode the data again, and old checkpoints do not fit.",
            when_not="The token really stands for nothing, and is left out of the loss, too.",
        ),
    )
    wakes_on = where("padding_inside", lambda share: share > _INSIDE)

    inside = Limit(_INSIDE, "of the tokens; padding stands at the ends")
    patience = Limit.chance(2, "sampled steps in a row: the share is exact for its batch")

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # embedding: sampled steps in a row with padding between tokens
        self._since = 0

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not any(self._steps.values())

    def observe(self, view: FrameView) -> Judgement | None:
        inside, ids = view.row("padding_inside"), view.ids("activation")
        if inside is None or ids is None or np.isnan(inside).all():
            return self.stay()
        if not any(self._steps.values()):
            self._since = view.step
        for layer, share in zip(ids.tolist(), inside.tolist(), strict=True):
            if share == share:
                self._steps[layer] = self._steps.get(layer, 0) + 1 if share > self.inside else 0
        members = tuple(layer for layer, steps in self._steps.items() if steps >= self.patience)
        return self.hold(members, lambda: self._describe(view, members)) if members else self.end()

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout, inside = view.layout, view.all_layers("padding_inside")
        how = "share of padding tokens that stand between other tokens: their row gets no gradient"
        evidence = tuple(Evidence("padding_inside", layout.path(i), float(inside[i]), 0.0, how) for i in members[:3])
        summary = f"The padding index of {name_layers(layout, members)} is a real token: its row never learns."
        return Judgement(Severity.MODERATE, members, self._since, 0.9, summary, evidence)
