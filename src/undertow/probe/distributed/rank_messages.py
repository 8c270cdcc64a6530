"""What travels between ranks. Numbers as raw arrays; nothing is pickled."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.measure import sketches
from undertow.measure.partials import offsets_of
from undertow.probe.distributed.portions import Portion, Summand
from undertow.schema import LayerKind

FOLD_WIDTH = 64  # of the sketches by which equal tensors of two ranks are compared


class LayerFacts(msgspec.Struct, array_like=True):
    """A row of a rank's layer table: the fields of `Layer` but its id."""

    path: str
    kind: LayerKind
    order: int | None
    parameter_count: int
    group: str
    shared_with: tuple[str, ...]
    trainable: bool
    shape: tuple[int, ...]
    dtype: str
    module_type: str


class SlotFacts(msgspec.Struct, array_like=True, frozen=True):
    """A tensor as one rank holds it: a block of the whole."""

    path: str
    block: Portion
    is_sharded: bool = False  # as opposed to a plain tensor, which other ranks may have under the same name
    wrapped: bool = False  # a plain tensor that the wrapper of data-parallel training keeps equal on all ranks


class Roster(msgspec.Struct, tag=True, array_like=True):
    """Who is watched on a rank: sent before the first part that speaks of it, and whenever it changes."""

    rank: int
    layers: list[LayerFacts]
    slots: list[SlotFacts]
    optimizers: list[Any] = []
    device: str = ""


class Measured(msgspec.Struct, array_like=True):
    """One kind of reading. Sketches are those of whole tensors, or of a block by the places in the whole."""

    slots: np.ndarray
    moments: np.ndarray
    exponents: np.ndarray | None = None
    sketches: np.ndarray | None = None  # end to end, as long as the whole tensor's
    folds: np.ndarray | None = None  # in place of both, where another rank sends the same tensor
    terms: dict[int, Summand] = {}  # by slot; these are not among `slots`
    distance: np.ndarray | None = None  # of the farthest replica among ranks that were merged already, by slot
    farthest: np.ndarray | None = None  # whose it is

    def folded(self, sizes: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Short sketches of tensors of these sizes; None where there are no sketches."""
        if self.folds is not None or self.sketches is None:
            return self.folds
        return sketches.fold(self.sketches, offsets_of(sizes), FOLD_WIDTH)


class Part(msgspec.Struct, tag=True, array_like=True):
    """What one rank measured in one step, or in one optimizer's part of it; or a rank and those that send to it."""

    rank: int
    step: int
    number: int  # of the frame in its step
    scalars: dict[str, float]
    exposed: np.ndarray
    state: np.ndarray
    carried: np.ndarray
    optimizer: np.ndarray
    kinds: dict[str, list[Measured]]
    micro: list[list[Measured]] = []
    has_gradient: bool = False
    stepped_as_they_were: bool = True
    before_is_previous: bool = False
    ranks: int = 1  # that it speaks for
    losses: dict[int, float] = {}  # by rank
    bad: list[int] = []  # ranks among these of which something alone is not finite

    @property
    def key(self) -> tuple[int, int]:
        return (self.step, self.number)


class Word(msgspec.Struct, tag=True, array_like=True):
    """A line for the journal of the run."""

    rank: int
    kind: str
    step: int | None
    fields: dict[str, Any]


class Pace(msgspec.Struct, tag=True, array_like=True):
    """From the first rank to all others: how often each kind is measured, from a step on."""

    from_step: int
    intervals: dict[str, int]


class Witness(msgspec.Struct, tag=True, array_like=True):
    """To a rank, from the one it sends to: of these slots a short sketch is enough, somebody else sends the rest."""

    slots: np.ndarray


class Separate(msgspec.Struct, tag=True, array_like=True):
    """To ranks that pass others' parts on: shards of these tensors must not be joined on their way."""

    paths: list[str]


class Farewell(msgspec.Struct, tag=True, array_like=True):
    """The last message, either way."""

    reason: str = ""


Message = Roster | Part | Word | Pace | Witness | Separate | Farewell


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array: NDArray[Any] = np.ascontiguousarray(value)
        return (array.dtype.str, array.shape, array.data.cast("B") if array.size else b"")
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


def _decode_array(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        dtype, shape, raw = value
        return np.frombuffer(raw, np.dtype(dtype)).reshape(shape)
    raise NotImplementedError(kind)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoder = msgspec.msgpack.Decoder(Message, dec_hook=_decode_array)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(raw: bytes) -> Message:
    return _decoder.decode(raw)
