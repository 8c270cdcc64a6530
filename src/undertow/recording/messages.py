"""What a training's process asks of the recorder, and what that answers; MessagePack if it is another process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import FindingChange
from undertow.schema import STREAMS, Block, Diagnosis, Frame, Layer, LayerGraph, LayerTable, RunFacts, StepRange
from undertow.store.write_batch import batches, plain

_NO_LIMIT = 1 << 30


class TakeOver(msgspec.Struct, tag=True):
    """Go on with the run in this folder, which another process has begun."""

    folder: str
    facts: RunFacts
    disk_budget: int | None
    seam_due: bool


class RecordFrames(msgspec.Struct):
    frames: Sequence[Frame]


class SetLayers(msgspec.Struct, tag=True):
    layers: list[dict[str, Any]]
    graph: LayerGraph
    optimizers: list[dict[str, Any]]


class WriteEvent(msgspec.Struct, tag=True):
    kind: str
    step: int | None
    time: float
    fields: dict[str, Any]
    explains: bool = False  # whether a finding may follow from it


class WriteFacts(msgspec.Struct, tag=True):
    facts: RunFacts


class Diagnose(msgspec.Struct, tag=True):
    run: str
    facts: RunFacts
    steps: StepRange


class Close(Diagnose, tag=True):
    """The status in the facts is set; the last diagnosis comes back."""


Request = TakeOver | RecordFrames | SetLayers | WriteEvent | WriteFacts | Diagnose | Close


class Ready(msgspec.Struct, tag=True):
    """The other process has imported everything."""


class Answer(msgspec.Struct, tag=True):
    """To every request, in their order."""

    changes: list[FindingChange]  # with their findings explained, unless they are over
    bytes_written: int
    frames_dropped: int
    seams: list[int]
    seam_due: bool
    seconds: float  # processor time it took
    diagnosis: Diagnosis | None = None


class Failed(msgspec.Struct, tag=True):
    why: str


def layers_of(request: SetLayers) -> LayerTable:
    return LayerTable(tuple(map(Layer.from_dict, request.layers)))


# -- on the wire --------------------------------------------------------------------------------------------


class _Group(msgspec.Struct, array_like=True):
    """Blocks of one stream and set of layers."""

    stream: str
    layer_ids: bytes
    places: list[int]  # of their frames
    values: bytes


class _Frames(msgspec.Struct, tag="RecordFrames"):
    """Blocks that are alike are sent together: the cost of a small model's frame is the number of calls."""

    keys: list[tuple[int, int, float]]  # sequence, step, time
    scalars: list[dict[str, float]]
    groups: list[_Group]

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> _Frames:
        groups = [
            _Group(group.first.stream, group.first.layer_ids.tobytes(), group.places, group.values().tobytes())
            for batch in batches(frames, _NO_LIMIT, _NO_LIMIT)
            for group in batch.groups
        ]
        keys = [(frame.sequence, frame.step, frame.time) for frame in frames]
        return cls(keys, [dict(plain(frame.scalars)) for frame in frames], groups)

    def request(self) -> RecordFrames:
        blocks: list[dict[str, Block]] = [{} for _ in self.keys]
        for group in self.groups:
            ids = _layer_ids(group.layer_ids)
            count, width = len(STREAMS[group.stream].quantities), STREAMS[group.stream].quantities[0].width
            values = np.frombuffer(group.values, np.float32).reshape(len(group.places), count, len(ids) * width)
            for place, one in zip(group.places, values):
                blocks[place][group.stream] = Block(group.stream, ids, one)
        return RecordFrames(
            [Frame(*key, scalars, found) for key, scalars, found in zip(self.keys, self.scalars, blocks)]
        )


@lru_cache(maxsize=256)
def _layer_ids(raw: bytes) -> NDArray[np.int32]:
    """Frames of one layout share the array, as they did before they were sent."""
    return np.frombuffer(raw, np.int32)


_encoder = msgspec.msgpack.Encoder(enc_hook=str)  # as the journal does with what it does not know
_requests = msgspec.msgpack.Decoder(TakeOver | _Frames | SetLayers | WriteEvent | WriteFacts | Diagnose | Close)
_answers = msgspec.msgpack.Decoder(Ready | Answer | Failed)


def encode(message: Request | Ready | Answer | Failed) -> bytes:
    if isinstance(message, RecordFrames):
        return _encoder.encode(_Frames.of(message.frames))
    return _encoder.encode(message)


def decode_request(message: bytes) -> Request:
    request = _requests.decode(message)
    return request.request() if isinstance(request, _Frames) else request


def decode_answer(message: bytes) -> Ready | Answer | Failed:
    return _answers.decode(message)
