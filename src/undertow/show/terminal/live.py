"""A run while it is being written: heatmap of gradients, loss, and one line of state."""

from __future__ import annotations

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from undertow.run import Run
from undertow.show.terminal.heatmap import paint
from undertow.show.terminal.sparkline import sparkline
from undertow.views.heatmap import gradient_heatmap, rows_to_show

_LABEL_WIDTH = 26


class LivePicture:
    """Something rich can print: each time it is printed it reads what the run folder has by then."""

    def __init__(self, run: Run, title: str, total_steps: int, rows: int | None = None) -> None:
        self.run = run
        self.title = title
        self.total_steps = total_steps
        self.rows = rows
        self.verdict = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.run.refresh()
        rows = self.rows or max(4, console.size.height - 7)
        yield Group(*self.lines(options.max_width, rows, colour=console.color_system is not None))

    def lines(self, width: int, rows: int, colour: bool) -> list[Text]:
        columns = max(10, width - _LABEL_WIDTH - 2)
        lines = [Text(self.title, style="bold", no_wrap=True, overflow="ellipsis")]
        run = self.run
        if "gradient_norm" not in run.quantities:
            return [*lines, Text("waiting for the first step …", style="dim")]
        shown = rows_to_show(run.layers.in_execution_order(), rows)
        ids = [layer.id for layer in shown]
        matrices = [run.matrix(f"gradient_{name}")[:, ids] for name in ("norm", "nonfinite_count", "state")]
        steps = run.steps[: min(len(matrix) for matrix in matrices)]
        norms, nonfinite, states = (matrix[: len(steps)] for matrix in matrices)
        lines += paint(gradient_heatmap(shown, steps, norms, nonfinite, states, columns), _LABEL_WIDTH, colour)
        return [*lines, *self._loss(columns), self._state(len(shown))]

    def _loss(self, columns: int) -> list[Text]:
        if "loss" not in self.run.scalar_names:
            return []
        loss = self.run.scalars("loss").astype(np.float64)
        line = Text(f"{'loss':>{_LABEL_WIDTH}} {sparkline(loss, columns)}", no_wrap=True, overflow="crop")
        return [line]

    def _state(self, shown: int) -> Text:
        run = self.run
        last = int(run.steps[-1]) if len(run.steps) else 0
        parts = [f"step {last + 1} of {self.total_steps}"]
        if "loss" in run.scalar_names:
            parts.append(f"loss {run.scalars('loss')[-1]:.4g}")
        parameters = len(run.layers.parameters)
        if shown < parameters:
            parts.append(f"{shown} of {parameters} tensors shown")
        line = Text(f"{'':>{_LABEL_WIDTH}} {' · '.join(parts)}", no_wrap=True, overflow="ellipsis")
        if self.verdict:
            line.append(f"   {self.verdict}", style="bold")
        return line
