"""UPD003: parameters that run in the model and are no part of it."""

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, where_scalar
from undertow.detect.features.remedies import GIVE_IT_TO_THE_OPTIMIZER
from undertow.detect.features.wording import count_of
from undertow.schema import Evidence, Remedy, Severity


class UnregisteredParameters(Condition):
    """Layers run inside the model and get a gradient without being registered as parts of it.

    What it sees: In the first steps, tensors that run in the model and get a gradient while neither
        `model.parameters()` nor an optimizer has them: layers in a plain Python list, a plain tensor in place of a
        parameter, or a loss with parameters of its own.
    Why it is bad: They keep their initial values, are not saved with the model and do not move to its device.
    When it is wrong: A fixed part that was hidden from the model on purpose.
    References: PyTorch documentation, `torch.nn.ModuleList` and `torch.nn.Parameter`.
    """

    code, variant, formerly = "UPD003", "unregistered-parameters", "unregistered"
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    wakes_on = where_scalar("unregistered_parameters", lambda count: count > 0)
    meaning = "These layers keep their initial values while the rest learns around them, so the loss still looks fine"
    remedies = (
        Remedy(
            "register-the-layers",
            "Keep layers in a torch.nn.ModuleList or ModuleDict instead of a list or dict, and make the optimizer from "
            "the model that runs.",
            "self.layers = torch.nn.ModuleList(self.layers)  # in __init__\n"
            "held = {id(p) for p in model.parameters()}  # of the model that runs",
            "The layers begin to move, and are saved: old checkpoints do not hold them.",
            when_not="They are a fixed part that was hidden on purpose: then freeze them.",
        ),
        GIVE_IT_TO_THE_OPTIMIZER,
    )
    patience = Limit.plan(5, "steps in a row: an optimizer for them may be made after the first ones")

    def __init__(self) -> None:
        self._seen = Consecutive()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._seen.count

    def observe(self, view: FrameView) -> Judgement | None:
        count = view.frame.scalars.get("unregistered_parameters")
        if count is None:
            return self.stay()
        if not count > 0:
            self._seen.end()
            return self.end()
        if self._seen.hold(view.step) < self.patience:
            return self.stay()
        return self.hold(True, lambda: self._describe(int(count)))

    def _describe(self, count: int) -> Judgement:
        how = "tensors that ran in the model and got a gradient; neither model.parameters() nor an optimizer has them"
        evidence = (Evidence("unregistered_parameters", None, float(count), 0.0, how),)
        summary = (
            f"{count_of(count, 'tensor')} of layers that run {'is' if count == 1 else 'are'} unknown to the "
            "optimizer: it was made from a model that does not hold them."
        )
        return Judgement(Severity.SEVERE, (), self._seen.since, 0.95, summary, evidence)
