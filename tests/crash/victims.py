"""Processes that record a run until they are killed.

Each tells `report` the number of a frame once its write has returned, and first, as a negative number, the process
that writes for it, if there is one. Frames come from `frame_maker`, or from a training whose loss and gradient are the
number of the step, so that every value that is read back can be checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tests.crash import frame_maker

from undertow.recording.messages import RecordFrames, SetLayers
from undertow.recording.recorder_client import RecorderClient
from undertow.schema import Layer, LayerGraph, RunFacts
from undertow.store.reader import RunReader

Report = Callable[[list[int]], None]

SMALL_BUDGET = 700_000  # bytes: segments are thinned and packed all the time


def _some_frames(first: int, chance: random.Random) -> Iterator[list[frame_maker.Frame]]:
    while True:
        count = chance.choice((1, 1, 1, 7, 40))
        yield [frame_maker.make_frame(first + i) for i in range(count)]
        first += count


def write(folder: Path, report: Report, chance: random.Random, budget: int | None = None) -> None:
    """The store alone; a run that is there already is resumed."""
    writer = frame_maker.new_writer(folder, disk_budget=budget, resume=True)
    for frames in _some_frames(writer.last_sequence + 1, chance):
        if writer.append_many(frames) == len(frames):
            report([frame.sequence for frame in frames])


def write_thinned(folder: Path, report: Report, chance: random.Random) -> None:
    write(folder, report, chance, SMALL_BUDGET)


def record(folder: Path, report: Report, chance: random.Random, process: str = "never") -> None:
    """The store and the rules, in this process or in another."""
    client = RecorderClient(folder, RunFacts(name="crash"), False, None, process, lambda: False)
    if client._process is not None:
        report([-client._process.pid])
    layers = [Layer(f"layer.{i}", id=i).to_dict() for i in range(frame_maker.LAYERS)]
    client.submit(SetLayers(layers, LayerGraph(), []))
    for frames in _some_frames(0, chance):
        client.submit(RecordFrames(frames))
        client.collect(everything=chance.random() < 0.2)
        while client.answered:
            answered, answer = client.answered.popleft()
            if not answer.frames_dropped:
                report([frame.sequence for frame in answered])


def record_elsewhere(folder: Path, report: Report, chance: random.Random) -> None:
    record(folder, report, chance, "always")


def train(folder: Path, report: Report, chance: random.Random, process: str = "never") -> None:
    """A real watched training: loss and gradient are the number of the step, since the weight stays 1."""
    import torch

    import undertow

    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = undertow.watch(model, optimizer, run_dir=folder, every=1, activations=False, quiet=True, chronicler=process)
    other = watch._run.recording._client._process
    if other is not None:
        report([-other.pid])
    waiting: list[int] = []
    step = 0
    while True:
        optimizer.zero_grad()
        model(torch.full((1, 1), float(step))).sum().backward()
        optimizer.step()
        waiting.append(step)
        step += 1
        if chance.random() < 0.1 and watch._mailbox.flush(60):
            report(waiting)
            waiting = []


def train_elsewhere(folder: Path, report: Report, chance: random.Random) -> None:
    train(folder, report, chance, "always")


# -- what is left of them -----------------------------------------------------------------------------------


def frames_of(reader: RunReader) -> list[int]:
    return [frame_maker.number_of(frame) for frame in reader.frames()]


def steps_of(reader: RunReader) -> list[int]:
    return [frame.step for frame in reader.frames()]


def wrong_frames(reader: RunReader) -> list[int]:
    return [frame_maker.number_of(frame) for frame in reader.frames() if not frame_maker.is_right(frame)]


def wrong_thinned(reader: RunReader) -> list[int]:
    """Blocks may be gone, but what is there is right."""
    wrong: list[int] = []
    for frame in reader.frames():
        expected = frame_maker.make_frame(frame_maker.number_of(frame))
        blocks = all(
            name in expected.blocks and np.array_equal(block.values, expected.blocks[name].values)
            for name, block in frame.blocks.items()
        )
        if frame.scalars != expected.scalars or not blocks:
            wrong.append(frame_maker.number_of(frame))
    return wrong


def wrong_steps(reader: RunReader) -> list[int]:
    steps = reader.steps
    right = reader.scalars("loss") == steps if "loss" in reader.scalar_names else np.zeros(len(steps), bool)
    if "gradient_norm" in reader.quantities:
        right &= reader.series("gradient_norm", 0) == steps
    return steps[~right].tolist()
