"""What a training and the process that keeps its record say to each other, as MessagePack and plain float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.chronicler.account import Told
from undertow.schema.facts import RunFacts
from undertow.schema.findings import Finding
from undertow.schema.frames import Block, Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import Layer, LayerTable
from undertow.schema.quantities import STREAMS
from undertow.store.batch import batches, plain

_NO_LIMIT = 1 << 30


class Begin(msgspec.Struct, tag=True):
    """Take over the run in this folder."""

    folder: str
    facts: RunFacts
    disk_budget: int | None
    seam_due: bool


class Group(msgspec.Struct, array_like=True):
    """Blocks of one stream and set of layers; their values follow the message, group after group."""

    stream: str
    layer_ids: bytes
    places: list[int]  # of their frames


class Frames(msgspec.Struct, tag=True):
    keys: list[tuple[int, int, float]]  # sequence, step, time
    scalars: list[dict[str, float]]
    groups: list[Group]


class Layers(msgspec.Struct, tag=True):
    layers: list[dict[str, Any]]
    graph: LayerGraph
    optimizers: list[dict[str, Any]]

    def table(self) -> LayerTable:
        return LayerTable(tuple(map(Layer.from_dict, self.layers)))


class Event(msgspec.Struct, tag=True):
    kind: str
    step: int | None
    fields: dict[str, Any]
    explains: bool  # whether a finding may follow from it


class Facts(msgspec.Struct, tag=True):
    facts: RunFacts


class Ask(msgspec.Struct, tag=True):
    """What has been found so far?"""


class Close(msgspec.Struct, tag=True):
    facts: RunFacts


Request = Begin | Frames | Layers | Event | Facts | Ask | Close


class Ready(msgspec.Struct, tag=True):
    """Everything is imported."""


class Done(msgspec.Struct, tag=True):
    """The answer to every request, in their order."""

    told: list[Told]
    bytes_written: int
    frames_dropped: int
    seams: list[int]
    found: list[Finding] | None
    seconds: float = 0.0  # processor time it took


class Failed(msgspec.Struct, tag=True):
    why: str


Answer = Ready | Done | Failed


_encoder = msgspec.msgpack.Encoder(enc_hook=str)  # as the journal does with what it does not know
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)
encode = _encoder.encode
decode_request = _requests.decode
decode_answer = _answers.decode


def layers_message(layers: LayerTable, graph: LayerGraph, optimizers: list[dict[str, Any]]) -> Layers:
    return Layers([layer.to_dict() for layer in layers], graph, optimizers)


def frames_message(frames: Sequence[Frame]) -> tuple[Frames, list[NDArray[np.float32]]]:
    """The message, and the values that follow it. Frames that were made together are sent together: the cost of a
    small model's frame is the number of calls.
    """
    keys = [(frame.sequence, frame.step, frame.time) for frame in frames]
    scalars = [dict(plain(frame.scalars)) for frame in frames]
    groups: list[Group] = []
    values: list[NDArray[np.float32]] = []
    for batch in batches(frames, _NO_LIMIT, _NO_LIMIT):
        for group in batch.groups:
            groups.append(Group(group.first.stream, group.first.layer_ids.tobytes(), group.places))
            values.append(np.ascontiguousarray(group.values()))
    return Frames(keys, scalars, groups), values


class FrameReader:
    """Makes frames again. Those of one layout share their array of layer ids, as they did before."""

    def __init__(self) -> None:
        self._ids: dict[bytes, NDArray[np.int32]] = {}

    def frames(self, message: Frames, body: bytes) -> list[Frame]:
        blocks: list[dict[str, Block]] = [{} for _ in message.keys]
        start = 0
        for group in message.groups:
            ids = self._ids.get(group.layer_ids)
            if ids is None:
                ids = self._ids[group.layer_ids] = np.frombuffer(group.layer_ids, np.int32)
            quantities = STREAMS[group.stream].quantities
            shape = (len(group.places), len(quantities), len(ids) * quantities[0].width)
            count = shape[0] * shape[1] * shape[2]
            values = np.frombuffer(body, np.float32, count, start).reshape(shape)
            start += values.nbytes
            for place, one in zip(group.places, values):
                blocks[place][group.stream] = Block(group.stream, ids, one)
        return [Frame(*key, scalars, found) for key, scalars, found in zip(message.keys, message.scalars, blocks)]
