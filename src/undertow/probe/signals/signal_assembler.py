"""Puts the signals of a step into its frame. Runs in the background thread, after the statistics are in."""

import time
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from undertow.measure.statistics import statistics
from undertow.probe.forward import ModuleReading
from undertow.probe.readings import RawFrame, host
from undertow.probe.signals.labels import LabelBook
from undertow.probe.signals.loss import LossReading
from undertow.probe.signals.loss_numbers import loss_numbers
from undertow.schema import Block, Frame, Repeat
from undertow.schema.quantities import ACTIVATION, OPTIMIZER, STATISTIC_NAMES, WEIGHT

_SMOOTH = 0.25
_LINE = {name: line for line, name in enumerate(ACTIVATION.names)}
_AS_NUMPY_KNOWS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element

# Quantities that are fields of a module's reading as they are.
_OF_MODULE = (
    "norm_values", "norm_samples", "norm_average", "recomputed_apart", "attention_state", "padding_inside",
    "latent_nats", "router_outputs",
)  # fmt: skip
_MEANS_OF_CALLS = {
    "activation_sample_spread": "spreads",
    "attention_entropy": "attention_entropies",
    "router_load_max": "router_loads",
}


class SignalAssembler:
    def __init__(self) -> None:
        self._labels = LabelBook()
        self._batches = BatchBook()
        self._data_address = 0
        self.seconds_per_loss = 0.0  # at a loss

    def complete(self, raws: Sequence[RawFrame], frames: Sequence[Frame]) -> None:
        """Fill what successive frames lack; their scalars and blocks are still ours alone."""
        began = time.thread_time()
        seen = [(raw.signals.loss, frame) for raw, frame in zip(raws, frames) if raw.signals and raw.signals.loss]
        for (loss, frame), found in zip(seen, loss_numbers([loss for loss, _ in seen], self._labels)):
            assert isinstance(frame.scalars, dict)
            frame.scalars.update(found)
            frame.scalars.update(self._batches.numbers(loss))
        if seen:
            seconds = (time.thread_time() - began) / len(seen)
            self.seconds_per_loss += _SMOOTH * (seconds - self.seconds_per_loss)
        for raw, frame in zip(raws, frames):
            if raw.signals is not None or raw.held or raw.modules:
                self._complete(raw, frame)

    def _complete(self, raw: RawFrame, frame: Frame) -> None:
        scalars, blocks = frame.scalars, frame.blocks
        assert isinstance(scalars, dict)
        assert isinstance(blocks, dict)
        signals = raw.signals
        if signals is not None:
            scalars.update(signals.numbers)
            if signals.data is not None:
                values = statistics(host(signals.data))[:, 0]
                for name in ("mean", "std", "max_abs"):
                    scalars[f"input_{name}"] = float(values[STATISTIC_NAMES.index(name)])
                scalars["input_moved"] = float(signals.data_address != self._data_address)
                self._data_address = signals.data_address
        if raw.held:
            blocks["optimizer"] = _optimizer_block(raw)
            if "weight" in blocks:
                _fill_rows(raw, blocks["weight"])
        if raw.modules and "activation" in blocks:
            _fill_modules(raw.modules, blocks["activation"])


class BatchBook:
    """Whether a batch is the one before it again: keeps a check sum of the latest targets, and where they lay."""

    def __init__(self) -> None:
        self._sum = -1
        self._address: int | None = None

    def numbers(self, reading: LossReading) -> dict[str, float]:
        targets = reading.labels if reading.labels is not None else reading.target
        if targets is None or reading.address is None or not targets.numel():
            return {}
        before, self._sum = self._sum, _check_sum(targets)
        place, self._address = self._address, reading.address
        if before < 0:
            return {}
        if before != self._sum:
            return {"targets_repeated": Repeat.NEW}
        # The same tensor again is a choice, as where all data are one batch; a copy of it was loaded anew.
        return {"targets_repeated": Repeat.SAME_TENSOR if place == reading.address else Repeat.SAME_VALUES}


def _check_sum(targets: torch.Tensor) -> int:
    """By numpy: torch would share a large copy among threads (see `loss_numbers`)."""
    known = targets.detach().cpu().view(_AS_NUMPY_KNOWS[targets.element_size()])
    return zlib.crc32(np.ascontiguousarray(known.numpy()).data)


def _optimizer_block(raw: RawFrame) -> Block:
    layout = raw.layout
    values = np.full((len(OPTIMIZER.quantities), len(layout.parameter_ids)), np.nan, np.float32)
    for held in raw.held:
        values[:, layout.row_of_slot[held.slots]] = held.state
    return Block(OPTIMIZER.name, layout.parameter_ids, values)


def _fill_rows(raw: RawFrame, block: Block) -> None:
    for held in raw.held:
        rows = raw.layout.row_of_slot[held.slots]
        block.values[WEIGHT.names.index("weight_row_spread"), rows] = held.row_spread
        block.values[WEIGHT.names.index("weight_rows_unused"), rows] = held.rows_unused


def _fill_modules(readings: dict[int, ModuleReading], block: Block) -> None:
    row_of = {layer: row for row, layer in enumerate(block.layer_ids.tolist())}
    for layer, reading in readings.items():
        row = row_of.get(layer)
        if row is not None:
            for name, value in _of_module(reading).items():
                block.values[_LINE[name], row] = np.float32(value)


def _of_module(reading: ModuleReading) -> dict[str, float]:
    found = dict(reading.constants)
    facts = {"activation_training": reading.training} | {name: getattr(reading, name) for name in _OF_MODULE}
    found |= {name: float(value) for name, value in facts.items() if value is not None}
    for name, field in _MEANS_OF_CALLS.items():
        if values := getattr(reading, field):
            found[name] = float(np.mean(values))
    if reading.attention_logits:
        found["attention_logit_max"] = max(reading.attention_logits)
    if reading.dropped is not None:
        found["dropout_rate"] = max(reading.dropped, found.get("dropout_rate", 0.0))
    return found
