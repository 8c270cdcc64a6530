"""TensorBoard: event files, by default in the run's own folder. Findings are texts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from undertow.schema import Finding


class TensorBoard:
    """Written with TensorBoard's own writer, which is all that torch's SummaryWriter wraps."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=5)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        entries = [Summary.Value(tag=f"undertow/{name}", simple_value=value) for name, value in values.items()]
        self._add(step, Summary(value=entries))

    def finding(self, finding: Finding) -> None:
        self._add(finding.detected_step, text_pb(f"undertow/{finding.code}", in_words(finding)))

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, summary: Summary) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def in_words(finding: Finding) -> str:
    """Markdown, as TensorBoard shows it."""
    lines = [f"**{finding.code} {finding.name}** ({finding.severity}), from step {finding.first_step}", finding.summary]
    lines += [f"- {remedy.what}" for remedy in finding.remedies[:3]]
    return "\n\n".join(lines)


def open_sink(target: str, folder: Path, name: str) -> TensorBoard:
    return TensorBoard(Path(target).expanduser() if target else folder / "tensorboard")
