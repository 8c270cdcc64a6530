"""The portable kernel: plain torch operations in float64, on any device that has float64.

Nothing here waits for the device; the one transfer at the end is `DevicePartials.to_host`, which may run later
and on another thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.sparse import is_sparse, measure_mixed
from undertow.measure.kernels.tensors import plain
from undertow.measure.kernels.torch_rows import Batch, RowLayout, layout_of
from undertow.measure.partials import EXPONENT_BUCKETS, SKETCH_BUCKETS, Moment, Partials, offsets_of
from undertow.measure.signs import FIRST_FACTOR, SECOND_FACTOR, WORD_OFFSET


@dataclass(frozen=True, slots=True)
class DevicePartials:
    """Partial values still on the device, in one block of float64: moments, exponents, sketches of full width."""

    block: torch.Tensor
    counts: tuple[int, ...]
    want: Want

    def to_host(self) -> Partials:
        """Waits for the device, once."""
        return self.unpack(self.block.cpu().numpy())

    def unpack(self, block: NDArray[np.float64]) -> Partials:
        """From a copy of `block` that has reached the host."""
        number = len(self.counts)
        counts = np.array(self.counts, np.int64)
        sizes = [number * len(Moment), number * EXPONENT_BUCKETS, number * SKETCH_BUCKETS]
        wanted = [bool(self.want & flag) for flag in (Want.MOMENTS, Want.EXPONENTS, Want.SKETCH)]
        ends = np.cumsum([size * asked for size, asked in zip(sizes, wanted)])
        moments = np.full((number, len(Moment)), np.nan)
        exponents = sketches = None
        if self.want & Want.MOMENTS:
            moments = block[: ends[0]].reshape(number, len(Moment)).copy()
        moments[:, Moment.COUNT] = counts
        if self.want & Want.EXPONENTS:
            exponents = block[ends[0] : ends[1]].reshape(number, EXPONENT_BUCKETS).astype(np.int64)
        if self.want & Want.SKETCH:
            full = block[ends[1] : ends[2]].reshape(number, SKETCH_BUCKETS)
            sketches = full[np.arange(SKETCH_BUCKETS) < counts[:, None]]
        return Partials(moments, exponents, sketches, offsets_of(counts))


class TorchKernel:
    name = "torch"

    def measure(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL) -> Partials:
        if any(map(is_sparse, tensors)):
            return measure_mixed(self.measure, tensors, want)
        return self.measure_on_device(tensors, want).to_host()

    @torch.no_grad()
    def measure_on_device(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL) -> DevicePartials:
        """All tensors must be on one device."""
        flat = [plain(tensor).reshape(-1) for tensor in tensors]
        counts = tuple(tensor.numel() for tensor in flat)
        device = flat[0].device if flat else torch.device("cpu")
        with _denormals_kept(device):
            return DevicePartials(_measure(flat, layout_of(counts, device), want, device), counts, want)

    @torch.no_grad()
    def unit_activity(self, tensor: torch.Tensor, unit_dim: int) -> NDArray[np.uint8]:
        tensor = plain(tensor).movedim(unit_dim, 0)
        units = tensor.shape[0]
        if tensor.numel() == 0:
            return np.zeros(units, np.uint8)
        with _denormals_kept(tensor.device):
            return (tensor != 0).reshape(units, -1).any(dim=1).to(torch.uint8).cpu().numpy()

    def fingerprint(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        return None


def _measure(flat: list[torch.Tensor], layout: RowLayout, want: Want, device: torch.device) -> torch.Tensor:
    number = len(flat)
    rows: list[torch.Tensor] = []
    sketches: list[torch.Tensor] = []
    exponents = torch.zeros(number * EXPONENT_BUCKETS, dtype=torch.int64, device=device)
    for batch in layout.batches:
        values = _rows(flat, batch)
        present = torch.arange(SKETCH_BUCKETS, device=device) < batch.filled[:, None]
        finite = torch.isfinite(values) & present
        calm = torch.where(finite, values, 0.0)
        if want & Want.MOMENTS:
            rows.append(_row_moments(values, calm, finite, present, batch.filled))
        if want & Want.EXPONENTS:
            _count_exponents(values, present, batch, exponents)
        if want & Want.SKETCH:
            sketches.append(_segment(calm * _signs(batch.first_words), batch.rows_of_pieces, "sum"))
    parts: list[torch.Tensor] = []
    if want & Want.MOMENTS:
        empty = torch.zeros(0, _ROW_COLUMNS, dtype=torch.float64, device=device)
        parts.append(_merge_rows(torch.cat([empty, *rows]), layout.rows_of_tensors).reshape(-1))
    if want & Want.EXPONENTS:
        parts.append(exponents.to(torch.float64))
    if want & Want.SKETCH:
        empty = torch.zeros(0, SKETCH_BUCKETS, dtype=torch.float64, device=device)
        parts.append(_segment(torch.cat([empty, *sketches]), layout.pieces_of_tensors, "sum").reshape(-1))
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=device)


def _rows(flat: list[torch.Tensor], batch: Batch) -> torch.Tensor:
    """The elements of a batch as (rows × width) float64; places without an element hold 0."""
    values = torch.zeros(len(batch.tensors), SKETCH_BUCKETS, dtype=torch.float64, device=batch.tensors.device)
    memory, at = values.view(-1), 0
    for piece in batch.pieces:
        memory[at : at + piece.stop - piece.start] = flat[piece.tensor][piece.start : piece.stop]
        at += piece.rows * SKETCH_BUCKETS
    return values


# Columns of the moments of a row: as Moment, with the number of finite elements in place of SUM1.
_ROW_COLUMNS = len(Moment)


def _row_moments(
    values: torch.Tensor, calm: torch.Tensor, finite: torch.Tensor, present: torch.Tensor, filled: torch.Tensor
) -> torch.Tensor:
    """Around the mean of each row, so that nothing cancels."""
    number = finite.sum(dim=1).to(torch.float64)
    mean = calm.sum(dim=1) / number.clamp(min=1.0)
    deviation = torch.where(finite, calm - mean[:, None], 0.0)
    square = deviation * deviation
    columns = [
        filled.to(torch.float64),
        torch.isnan(values).sum(dim=1),
        torch.isposinf(values).sum(dim=1),
        torch.isneginf(values).sum(dim=1),
        ((values == 0) & present).sum(dim=1),
        torch.where(finite, values, torch.inf).amin(dim=1),
        torch.where(finite, values, -torch.inf).amax(dim=1),
        mean,
        number,
        square.sum(dim=1),
        (square * deviation).sum(dim=1),
        (square * square).sum(dim=1),
        calm.abs().sum(dim=1),
        (calm * calm).sum(dim=1),
    ]
    return torch.stack([column.to(torch.float64) for column in columns], dim=1)


def _merge_rows(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The moments of tensors from those of their rows, all moved to the tensor's own mean."""
    number, mean = rows[:, Moment.SUM1], rows[:, Moment.PIVOT]
    total = _segment(number * 1.0, lengths, "sum")
    center = _segment(number * mean, lengths, "sum") / total.clamp(min=1.0)
    shift = mean - torch.repeat_interleave(center, lengths, output_size=len(rows))
    second, third, fourth = rows[:, Moment.SUM2], rows[:, Moment.SUM3], rows[:, Moment.SUM4]
    moved = rows.clone()
    moved[:, Moment.SUM1] = number * shift
    moved[:, Moment.SUM2] = second + number * shift**2
    moved[:, Moment.SUM3] = third + 3 * shift * second + number * shift**3
    moved[:, Moment.SUM4] = fourth + 4 * shift * third + 6 * shift**2 * second + number * shift**4
    out = _segment(moved, lengths, "sum")
    some = total > 0
    low, high = _segment(rows[:, Moment.MINIMUM], lengths, "min"), _segment(rows[:, Moment.MAXIMUM], lengths, "max")
    out[:, Moment.MINIMUM] = torch.where(some, low, torch.nan)
    out[:, Moment.MAXIMUM] = torch.where(some, high, torch.nan)
    out[:, Moment.PIVOT] = center
    return out


def _count_exponents(values: torch.Tensor, present: torch.Tensor, batch: Batch, out: torch.Tensor) -> None:
    """The eleven exponent bits of a float64, moved from its bias (1023) to that of float32 (127)."""
    stored = (values.view(torch.int64) >> 52) & 0x7FF
    biased = torch.where(stored == 0x7FF, EXPONENT_BUCKETS - 1, (stored - 896).clamp(0, EXPONENT_BUCKETS - 2))
    place = batch.tensors[:, None] * EXPONENT_BUCKETS + biased
    out.index_add_(0, place.view(-1), present.view(-1).to(torch.int64))


def _signs(first_words: torch.Tensor) -> torch.Tensor:
    """Signs of the rows, as `measure.signs` defines them; int64 arithmetic cut to 32 bits."""
    device = first_words.device
    word = (first_words[:, None] + torch.arange(SKETCH_BUCKETS // 32, device=device) + WORD_OFFSET) & 0xFFFFFFFF
    word = ((word ^ (word >> 16)) * FIRST_FACTOR) & 0xFFFFFFFF
    word = ((word ^ (word >> 13)) * SECOND_FACTOR) & 0xFFFFFFFF
    word = word ^ (word >> 16)
    bits = (word[:, :, None] >> torch.arange(32, device=device)) & 1
    return (1 - 2 * bits).reshape(-1, SKETCH_BUCKETS)


def _segment(data: torch.Tensor, lengths: torch.Tensor, reduce: str) -> torch.Tensor:
    """Sums (or extremes) of consecutive rows. In order, so the same input gives the same bits."""
    return torch.segment_reduce(data.contiguous(), reduce, lengths=lengths, axis=0, unsafe=True)


@contextmanager
def _denormals_kept(device: torch.device) -> Iterator[None]:
    """A user's `torch.set_flush_denormal(True)` would turn the smallest values into zeros."""
    flushing = device.type == "cpu" and torch.tensor(1e-40).to(torch.float64).item() == 0.0
    if flushing:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushing:
            torch.set_flush_denormal(True)
