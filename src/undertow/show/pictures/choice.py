"""What of a run is to be drawn: which layers, which steps, which quantity."""

from dataclasses import dataclass

from undertow.errors import SettingError, UnknownNameError, UnreadableRunError
from undertow.run import Run
from undertow.schema import Layer
from undertow.store.names import known_name
from undertow.views.line_points import Line, line_of_scalar
from undertow.views.tiles import drawable, fits, in_reading_order, subjects

USUAL = "gradient_norm"


@dataclass(frozen=True, slots=True)
class Choice:
    """As the user asked; None and nothing stand for all of it."""

    quantity: str | None = None
    globs: tuple[str, ...] = ()
    first: int | None = None
    last: int | None = None

    def quantity_of(self, run: Run) -> str:
        names = drawable(run.reader)
        if self.quantity is None and USUAL not in names and names:
            return names[0]
        return known_name(self.quantity or USUAL, names, "quantity")

    def span_of(self, run: Run) -> tuple[int, int]:
        """First and last step, no farther than the run."""
        if not len(run.steps):
            raise UnreadableRunError(
                f"{run.name} has no recorded steps, so there is nothing to draw", way_out="`undertow report` says why"
            )
        begin, end = int(run.steps[0]), int(run.steps[-1])
        first = begin if self.first is None else max(begin, self.first)
        last = end if self.last is None else min(end, self.last)
        if first > last:
            asked = f"{'' if self.first is None else self.first}:{'' if self.last is None else self.last}"
            raise SettingError(
                f"the run has no steps in {asked}", way_out=f"It has steps {begin} to {end}: --steps {begin}:{end}"
            )
        return first, last

    def layers_of(self, run: Run, quantity: str) -> list[Layer]:
        """Those the quantity is measured of, as executed."""
        ordered = in_reading_order(run.layers[number] for number in subjects(run.reader, quantity))
        chosen = [layer for layer in ordered if not self.globs or fits(layer.path, self.globs)]
        if not chosen:
            some = ", ".join(layer.path for layer in ordered[:4]) or "none"
            asked = f"no layer of {quantity} fits {' or '.join(map(repr, self.globs))}"
            raise UnknownNameError(asked if ordered else "it has no layers", way_out=f"There are: {some}, …")
        return chosen


def loss_line(run: Run, span: tuple[int, int], columns: int) -> Line | None:
    """The loss over these steps, if it was recorded."""
    if "loss" not in run.scalar_names:
        return None
    inside = (run.steps >= span[0]) & (run.steps <= span[1])
    return line_of_scalar(run.steps[inside], run.scalars("loss")[inside], columns)
