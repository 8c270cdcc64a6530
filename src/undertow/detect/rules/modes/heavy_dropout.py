"""MOD001: dropout that drops nearly everything."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity


class HeavyDropout(Condition):
    """A dropout drops nearly everything, as one does that is given the share to keep.

    What it sees: At the first sampled step: a dropout in training mode with a rate of 0.9 and more.
    Why it is bad: Too little of the signal is left to learn from. PyTorch's rate is the share that is dropped; in other
        frameworks it was the share that is kept.
    When it is wrong: Masked modelling drops most of its inputs on purpose, though hardly by means of a dropout layer.
    References: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014.
        PyTorch documentation, `torch.nn.Dropout`.
    """

    code, variant, formerly = "MOD001", "heavy-dropout", "dropout"
    places = ("definition",)
    stage, is_exact = Stage.PROGRAM, True
    needs = frozenset({"activation"})
    meaning = "Too little of the signal is left to learn from"
    remedies = (
        Remedy(
            "less-dropout",
            "Lower the dropout rate to 0.5 at most; 0.1 is usual.",
            "layer = $layer\nlayer.p = 0.1",
            "More overfitting, if it was there to prevent it.",
            when_not="It drops whole inputs on purpose, as masked modelling does.",
        ),
    )

    rate = Limit(0.9, "rates of published models: up to 0.8")

    def __init__(self) -> None:
        self._settings = b""

    def observe(self, view: FrameView) -> Judgement | None:
        modes, rates, ids = view.row("activation_training"), view.row("dropout_rate"), view.ids("activation")
        if modes is None or rates is None or ids is None:
            return None
        settings = modes.tobytes() + rates.tobytes()
        if settings == self._settings:  # as they nearly always are
            return self.stay()
        self._settings = settings
        return self.hold_of(view, ids[(modes == 1) & (rates >= self.rate)], _describe)


def _describe(view: FrameView, members: tuple[int, ...]) -> Judgement:
    rate = float(view.all_layers("dropout_rate")[members[0]])
    how = "as it is set; PyTorch's rate is the share that is dropped, not the share that is kept"
    evidence = tuple(Evidence("dropout_rate", view.layout.path(i), rate, 0.5, how) for i in members[:3])
    summary = (
        f"{name_layers(view.layout, members)}: a dropout rate of {rate:.3g} (0.5 at most is usual) drops nearly all."
    )
    return Judgement(Severity.MODERATE, members, view.step, 0.97, summary, evidence)
