"""How many files are on the way of one gradient, from the hook to a line of the report?

    python -m benchmarks.walk

A small model whose first layer is cut off trains under a watch. At every station (the kernel that reads the gradient,
the rule that judges it, the bytes on disk, the line on stderr, the line of the report …) the call stack is taken: what
is on it is on the way. What merely runs beside it (other rules, signals, the table of layers) is not.
"""

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import undertow
from benchmarks import SOURCE

STATIONS = {  # a function of this file, by its qualified name: a place that the gradient or what is said of it passes
    "the training thread": (
        ("measure/kernels/native.py", "PlainTensors.read"),
        ("probe/mailbox.py", "Mailbox.post"),
    ),
    "the background thread": (
        ("measure/statistics.py", "statistics"),
        ("detect/rules/gradients/graph_cut.py", "GraphCut.observe"),
        ("store/segment_writer.py", "SegmentWriter.append"),
        ("store/journal.py", "Journal.append"),
        ("explain/ranking.py", "*"),
        ("recording/notifications.py", "Notifications.tell"),
    ),
    "the reader": (
        ("store/segment.py", "Segment.read"),
        ("detect/rules/gradients/graph_cut.py", "GraphCut.observe"),
        ("explain/ranking.py", "*"),
        ("show/report/text.py", "*"),
    ),
}
PACKAGE = SOURCE / "undertow"


def _caller(frame: FrameType) -> FrameType:
    assert frame.f_back is not None
    return frame.f_back


def _asked_for(frame: FrameType) -> Any:
    """Which tensors the reader of the probe was asked to read, however many calls of the kernel lie between."""
    while "of" not in frame.f_locals:
        frame = _caller(frame)
    return frame.f_locals["of"]


CARRIES_GRADIENT: dict[str, Callable[[FrameType], bool]] = {  # at stations that weights, layers or data pass as well
    "PlainTensors.read": lambda frame: _asked_for(frame).of_gradients,
    "Mailbox.post": lambda frame: getattr(frame.f_locals["item"], "has_gradient", False),
    "statistics": lambda frame: _file(_caller(frame)) == "probe/reading_batch.py",
}


class Walk:
    """The files on the stack whenever a station is reached, by the part of the way."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, None]] = {part: {} for part in STATIONS}
        self.reached: set[tuple[str, str, str]] = set()
        self.is_reading = False

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        trained_here = threading.current_thread() is threading.main_thread()
        part = "the reader" if self.is_reading else "the training thread" if trained_here else "the background thread"
        file, name = _file(frame), frame.f_code.co_qualname
        for station in STATIONS[part]:
            if station[0] == file and station[1] in (name, "*") and CARRIES_GRADIENT.get(name, bool)(frame):
                self.reached.add((part, *station))
                self.files[part].update(dict.fromkeys(reversed(_stack(frame))))


def _file(frame: FrameType) -> str:
    name, _, _ = frame.f_code.co_filename.partition(" (")  # a tap adds what keeps it from being counted by warnings
    return str(Path(name).relative_to(PACKAGE))


def _stack(frame: FrameType | None) -> list[str]:
    found: list[str] = []
    while frame is not None:
        is_call = frame.f_code.co_name not in ("<module>", "__getattr__")  # not what imports it
        if is_call and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.append(_file(frame))
        frame = frame.f_back
    return found


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.encoder(x)).detach())


def train(folder: Path) -> None:
    model = Cut()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Without the one step that is x-rayed for the lines of the program: everything in it passes one file more.
    with undertow.watch(model, run_dir=folder, every=1, source=False):
        for _ in range(60):
            x = torch.randn(16, 8)
            loss = nn.functional.mse_loss(model(x), x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def read(folder: Path) -> None:
    from undertow.cli import main as command

    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        command(["report", str(folder)])


def walk() -> Walk:
    taken = Walk()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        threading.setprofile(taken.called)
        sys.setprofile(taken.called)
        try:
            train(run)
            taken.is_reading = True
            read(run)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return taken


def main() -> None:
    torch.manual_seed(0)
    taken = walk()
    for part, files in taken.files.items():
        print(f"\non {part}: {len(files)} files")
        for file in files:
            print(f"  {file}")
    missed = {(part, *station) for part, stations in STATIONS.items() for station in stations} - taken.reached
    for part, file, name in sorted(missed):
        print(f"not reached on {part}: {file} {name}", file=sys.stderr)
    everything = set().union(*taken.files.values())
    print(f"\n{len(everything)} files on the way of one gradient")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
