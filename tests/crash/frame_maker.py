"""Frames whose every number follows from their sequence number, and a process that writes them without end.

Run as a script with a run folder, a disk budget (0: none), a pause between writes and how many frames to write
at once: it reports each frame on its standard output after the write has returned.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from undertow.schema import STREAMS, Block, Frame, Layer, LayerGraph, LayerTable, RunFacts
from undertow.store.writer import RunWriter

LAYERS = 7


def make_block(stream: str, sequence: int, layers: int = LAYERS) -> Block:
    quantities = STREAMS[stream].quantities
    shape = (len(quantities), layers * quantities[0].width)
    values = (sequence + np.arange(shape[0] * shape[1]) / 1024).astype(np.float32).reshape(shape)
    return Block(stream, np.arange(layers, dtype=np.int32), values)


def make_frame(sequence: int) -> Frame:
    streams = ["gradient", "update"] + ["weight"] * (sequence % 3 == 0) + ["sketch"] * (sequence % 5 == 0)
    # A name more from frame 20 on: the scalars begin a new segment, and pack the old one, while being watched.
    scalars = {"loss": sequence / 3, **({"lr": 0.5} if sequence >= 20 else {})}
    return Frame(
        sequence, 2 * sequence, float(sequence), scalars, {name: make_block(name, sequence) for name in streams}
    )


def number_of(frame: Frame) -> int:
    """Its sequence number when it was made: one that is written again, by another process, may get a later one."""
    return frame.step // 2


def is_right(frame: Frame) -> bool:
    expected = make_frame(number_of(frame))
    return (
        (frame.step, frame.time, dict(frame.scalars)) == (expected.step, expected.time, dict(expected.scalars))
        and frame.blocks.keys() == expected.blocks.keys()
        and all(
            np.array_equal(frame.blocks[name].values, block.values)
            and np.array_equal(frame.blocks[name].layer_ids, block.layer_ids)
            for name, block in expected.blocks.items()
        )
    )


def new_writer(folder: Path, **options: object) -> RunWriter:
    writer = RunWriter(folder, RunFacts(name="crash"), **options)  # type: ignore[arg-type]
    writer.set_layers(LayerTable.of(Layer(f"layer.{i}") for i in range(LAYERS)), LayerGraph())
    return writer


def main() -> None:
    # A small budget makes it thin and pack all the time, so that kills land in there as well.
    budget, pause, at_once = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    writer = new_writer(Path(sys.argv[1]), disk_budget=budget or None, resume=True)
    sequence = writer._sequence + 1
    while True:
        frames = [make_frame(sequence + i) for i in range(at_once)]
        if writer.append_many(frames) == at_once:
            os.write(1, b"".join(frame.sequence.to_bytes(8, "little") for frame in frames))
        sequence += at_once
        time.sleep(pause)


if __name__ == "__main__":
    main()
