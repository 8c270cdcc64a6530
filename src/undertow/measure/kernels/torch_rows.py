"""How a list of tensors is laid out as rows of one sketch width, and which rows belong to which tensor.

Rows of many tensors are measured together, so the number of operations does not grow with the number of
tensors. The layout depends on the numbers of elements only and is kept for the next call.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from undertow.measure.partials import SKETCH_BUCKETS


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements `start` to `stop` of one tensor, a whole number of rows except at the tensor's end."""

    tensor: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return -(-(self.stop - self.start) // SKETCH_BUCKETS)


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces that are measured together, and facts about their rows as small tensors on the device."""

    pieces: tuple[Piece, ...]
    tensors: torch.Tensor  # of each row: its tensor
    first_words: torch.Tensor  # of each row: the index of its first group of 32 elements
    filled: torch.Tensor  # of each row: how many of its places hold an element
    rows_of_pieces: torch.Tensor


@dataclass(frozen=True, slots=True)
class RowLayout:
    batches: tuple[Batch, ...]
    rows_of_tensors: torch.Tensor
    pieces_of_tensors: torch.Tensor


@lru_cache(maxsize=16)
def layout_of(counts: tuple[int, ...], device: torch.device) -> RowLayout:
    # Small enough for a CPU's cache; on a device large enough to fill it.
    most_rows = 256 if device.type == "cpu" else 8192
    groups: list[list[Piece]] = [[]]
    room = most_rows
    for tensor, count in enumerate(counts):
        start = 0
        while start < count:
            if room == 0:
                groups.append([])
                room = most_rows
            piece = Piece(tensor, start, min(count, start + room * SKETCH_BUCKETS))
            groups[-1].append(piece)
            room -= piece.rows
            start = piece.stop
    pieces = [0] * len(counts)
    for group in groups:
        for piece in group:
            pieces[piece.tensor] += 1
    return RowLayout(
        tuple(_batch(tuple(group), device) for group in groups if group),
        _on(device, [-(-count // SKETCH_BUCKETS) for count in counts]),
        _on(device, pieces),
    )


def _batch(pieces: tuple[Piece, ...], device: torch.device) -> Batch:
    tensors: list[int] = []
    first_words: list[int] = []
    filled: list[int] = []
    for piece in pieces:
        for start in range(piece.start, piece.stop, SKETCH_BUCKETS):
            tensors.append(piece.tensor)
            first_words.append(start // 32)
            filled.append(min(SKETCH_BUCKETS, piece.stop - start))
    return Batch(
        pieces,
        _on(device, tensors),
        _on(device, first_words),
        _on(device, filled),
        _on(device, [piece.rows for piece in pieces]),
    )


def _on(device: torch.device, numbers: list[int]) -> torch.Tensor:
    """Copied without waiting for the device: from pinned memory."""
    tensor = torch.tensor(numbers, dtype=torch.int64)
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
