"""NUM003."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import count_of, name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity


class NonfiniteWeight:
    """A weight holds NaN or infinity.

    What it sees
    ------------
    The number of NaN and infinite elements of every weight after the optimizer's step. The layers listed are
    those hit at the first step at which any was.

    Why it is bad
    -------------
    A weight that is NaN stays NaN: every later output, loss and gradient is NaN too. The run cannot recover
    by itself, and every checkpoint saved from here on is lost.

    When it is wrong
    ----------------
    A parameter that is frozen and holds infinities by design, such as an attention mask kept as a parameter,
    is only noted. After a non-finite gradient this finding is the consequence, and is ranked below it.

    References
    ----------
    Wang et al., "DeepLocalize: Fault Localization for Deep Neural Networks", 2021 (arXiv 2103.03376).
    """

    code: ClassVar[str] = "NUM003"

    def __init__(self) -> None:
        self._frozen: NDArray[np.bool_] = np.zeros(0, bool)
        self._bad: NDArray[np.bool_] = np.zeros(0, bool)
        self._open: dict[str, Verdict] = {}

    def grow(self, count: int) -> None:
        self._frozen = grown(self._frozen, count, False)
        self._bad = grown(self._bad, count, False)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        states = view.row("gradient_state")
        if states is not None:
            known = ~np.isnan(states)
            self._frozen[view.ids("gradient")[known]] = states[known] == GradientState.FROZEN  # pyright: ignore[reportOptionalSubscript]
        counts = view.row("weight_nonfinite_count")
        ids = view.ids("weight")
        if counts is None or ids is None:
            return ()
        hit = counts > 0
        now = bool(hit.any())
        if not now and not self._open:
            return ()
        measured = ~np.isnan(counts)
        self._bad[ids[measured]] = hit[measured]
        if not now:
            if self._bad.any():  # another optimizer's frame says nothing about the layers that were hit
                return ()
            ended = tuple(Verdict(key, holds=False) for key in self._open)
            self._open.clear()
            return ended
        resting = self._frozen[ids] | ~view.layout.is_trainable[ids]
        for key, members in (("weight", hit & ~resting), ("frozen", hit & resting)):
            if key not in self._open and members.any():
                self._open[key] = _verdict(view, key, ids[members], counts[members])
        return tuple(self._open.values())

    @property
    def resting(self) -> bool:
        return not self._open

    def news(self, batch: FrameBatch) -> Flags:
        news = batch.none()
        if batch.has("weight"):
            news |= batch.flags("weight", batch.row("weight_nonfinite_count") > 0)
        if batch.has("gradient"):  # what is frozen is remembered
            news |= batch.changed("gradient", batch.row("gradient_state"))
        return news

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()


def _verdict(view: FrameView, key: str, ids: NDArray[np.int32], counts: NDArray[np.float32]) -> Verdict:
    layout = view.layout
    layers = layout.in_order(ids)
    named = name_layers(layout, layers)
    number = dict(zip(ids.tolist(), counts.tolist()))
    evidence = tuple(
        Evidence("weight_nonfinite_count", layout.path(i), number[i], 0.0,
                 f"NaN or infinite elements of {layout.layers[i].parameter_count:,} after step {view.step}")
        for i in layers[:5]
    )  # fmt: skip
    if key == "frozen":
        summary = f"{count_of(len(layers), 'frozen parameter')} hold NaN or infinity ({named}); a mask, perhaps."
        return Verdict(key, True, Severity.INFO, tuple(layers), view.step, 0.8, summary, evidence)
    summary = f"NaN or infinity in the weights of {named} after step {view.step}."
    return Verdict(key, True, Severity.CRITICAL, tuple(layers), view.step, 1.0, summary, evidence)
