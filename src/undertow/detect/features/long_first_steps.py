"""Whether first steps are long by design: RMSprop's second moment starts at zero, and nothing makes up for that."""

from undertow.detect.engine import FrameView, Limit
from undertow.detect.features.matrices import matrices_of


class LongFirstSteps:
    """With its usual memory the first step is ten times as long as later ones, the eighth still three times."""

    __slots__ = ("_begun", "is_long")

    covered = Limit.learning(8, "steps: in health five losses above the first go by while updates are too long")

    def __init__(self) -> None:
        self._begun: int | None = None
        self.is_long = False

    def begin(self, step: int) -> None:
        """The first of all steps; later ones change nothing."""
        if self._begun is None:
            self._begun = step

    def observe(self, view: FrameView) -> None:
        self.begin(view.step)
        if view.ids("optimizer") is not None:
            matrices = matrices_of(view.layout)
            scaled = matrices.values(view, "optimizer_eps_ratio") > 0
            self.is_long = bool((scaled & (matrices.values(view, "optimizer_momentum") == 0)).any())

    def covers(self, step: int) -> bool:
        """Such a step says nothing of the learning rate."""
        return self.is_long and self._begun is not None and step - self._begun < self.covered
