"""A run while it is being written: heatmap of gradients, loss, and one line of state."""

from __future__ import annotations

import threading

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from undertow.errors import UndertowError
from undertow.run import Run
from undertow.schema.layers import Layer, LayerTable
from undertow.show.terminal.heatmap import paint, side_by_side
from undertow.show.terminal.sparkline import sparkline
from undertow.views.heatmap import gradient_heatmap, rows_to_show

LABEL_WIDTH = 26  # or a third of the terminal, if that is less
_CHROME = 6  # lines that are not rows: title, legend, loss, state, and room for the prompt
_FRAMES_PER_SECOND = 6
_POLL_SECONDS = 0.1


class Picture:
    """Something rich can print: each time it is printed it reads what the run folder has by then."""

    def __init__(self, run: Run, title: str, total_steps: int, rows: int | None = None) -> None:
        self.run = run
        self.title = title
        self.total_steps = total_steps
        self.rows = rows
        self.verdict = ""
        self._last: list[Text] = [Text("waiting for the first step …", style="dim")]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self.rows or max(4, console.size.height - _CHROME)
        try:
            self.run.refresh()
            if "gradient_norm" in self.run.quantities:
                self._last = self._lines(options.max_width, rows, colour=console.color_system is not None)
        except UndertowError:
            pass  # caught in the middle of a write: the picture before this one is still true
        yield Group(Text(self.title, style="bold", no_wrap=True, overflow="ellipsis"), *self._last)

    def _lines(self, width: int, rows: int, colour: bool) -> list[Text]:
        run = self.run
        label_width = min(LABEL_WIDTH, width // 3)
        columns = max(10, width - label_width - 2)
        shown = rows_to_show(_in_reading_order(run.layers), rows)
        ids = [layer.id for layer in shown]
        norms, nonfinite, states = (
            run.matrix(f"gradient_{name}")[:, ids] for name in ("norm", "nonfinite_count", "state")
        )
        heatmap = gradient_heatmap(shown, run.steps, norms, nonfinite, states, columns)
        lines = paint(heatmap, label_width, colour, width)
        if "loss" in run.scalar_names:
            drawn = sparkline(run.scalars("loss"), columns)
            lines.append(Text(f"{'loss':>{label_width}} {drawn}", no_wrap=True))
        return [*lines, *side_by_side(self._state(len(shown)), " · ", label_width + 1, width)]

    def _state(self, shown: int) -> list[Text]:
        """The verdict first: it is what must not be cut off."""
        parts = [Text(self.verdict, style="bold")] if self.verdict else []
        parts.append(Text(progress(self.run, self.total_steps)))
        parameters = len(self.run.layers.parameters)
        if shown < parameters:
            parts.append(Text(f"{shown} of {parameters} tensors shown"))
        return parts


def _in_reading_order(layers: LayerTable) -> list[Layer]:
    """Execution order; but what is cut off from the loss has no place in it: then the model's own order."""
    if any(layer.order is None for layer in layers.parameters):
        return list(layers)
    return layers.in_execution_order()


def progress(run: Run, total_steps: int) -> str:
    """Where a run is, in a few words."""
    last = int(run.steps[-1]) + 1 if len(run.steps) else 0
    words = f"step {last} of {total_steps}"
    if "loss" in run.scalar_names and last:
        words += f" · loss {run.scalars('loss')[-1]:.4g}"
    return words


class Lines:
    """For a log file or a pipe: a line for each tenth of the training, then the picture once, at the end."""

    def __init__(self, picture: Picture, console: Console) -> None:
        self.picture = picture
        self.console = console
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="undertow-progress", daemon=True)

    def __enter__(self) -> Lines:
        self.console.print(self.picture.title, highlight=False)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def is_following(self) -> bool:
        return self._thread.is_alive()

    def _follow(self) -> None:
        run, tenth = self.picture.run, max(1, self.picture.total_steps // 10)
        due = tenth
        while not self._over.wait(_POLL_SECONDS):
            try:
                run.refresh()
                done = len(run.steps)
                if done >= due:
                    self.console.print(progress(run, self.picture.total_steps), highlight=False)
                    due = done - done % tenth + tenth
            except UndertowError:
                continue


def follow(picture: Picture, console: Console, live: bool) -> Live | Lines:
    """A context in which the picture is kept up to date, drawn in place or line by line."""
    if live:
        return Live(picture, console=console, refresh_per_second=_FRAMES_PER_SECOND, vertical_overflow="crop")
    return Lines(picture, console)
