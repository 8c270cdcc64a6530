"""Puts the signals of a step into its frame. Runs in the background thread, after the statistics are in."""

import time
from collections.abc import Sequence

import numpy as np

from undertow.measure.statistics import statistics
from undertow.probe.forward import ModuleReading
from undertow.probe.readings import RawFrame, host
from undertow.probe.signals.batches import BatchBook
from undertow.probe.signals.labels import LabelBook
from undertow.probe.signals.loss_numbers import loss_numbers
from undertow.probe.signals.modules import constants
from undertow.schema import Block, Frame
from undertow.schema.quantities import ACTIVATION, OPTIMIZER, STATISTIC_NAMES, WEIGHT

_SMOOTH = 0.25
_LINE = {name: line for line, name in enumerate(ACTIVATION.names)}


class SignalAssembler:
    def __init__(self) -> None:
        self._labels = LabelBook()
        self._batches = BatchBook()
        self._data_address = 0
        self.seconds_of_a_look = 0.0  # at a loss

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
            self.seconds_of_a_look += _SMOOTH * (seconds - self.seconds_of_a_look)
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
    found = constants(reading.module)
    if reading.training is not None:
        found["activation_training"] = float(reading.training)
    if reading.spreads:
        found["activation_sample_spread"] = float(np.mean(reading.spreads))
    if reading.norm_values is not None:
        found["norm_values"] = float(reading.norm_values)
    if reading.norm_samples is not None:
        found["norm_samples"] = float(reading.norm_samples)
    if reading.recomputed_apart is not None:
        found["recomputed_apart"] = reading.recomputed_apart
    if reading.norm_average is not None:
        found["norm_average"] = reading.norm_average
    if reading.attention_logits:
        found["attention_logit_max"] = max(reading.attention_logits)
    if reading.attention_entropies:
        found["attention_entropy"] = float(np.mean(reading.attention_entropies))
    if reading.attention_state is not None:
        found["attention_state"] = reading.attention_state
    if reading.padding_inside is not None:
        found["padding_inside"] = reading.padding_inside
    if reading.dropped is not None:
        found["dropout_rate"] = max(reading.dropped, found.get("dropout_rate", 0.0))
    if reading.latent_nats is not None:
        found["latent_nats"] = reading.latent_nats
    if reading.router_outputs is not None:
        found["router_load_max"] = float(np.mean(reading.router_loads))
        found["router_outputs"] = float(reading.router_outputs)
    return found
