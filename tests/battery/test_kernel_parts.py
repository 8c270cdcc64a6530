"""Sketches of parts of tensors by the Triton program: they add up to those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.battery.conftest import INTERPRETED

from undertow.measure.kernels import available, choose
from undertow.measure.kernels.interface import Want
from undertow.measure.shards import places_of
from undertow.probe.distributed.portions import Portion, Spread
from undertow.probe.distributed.spread_list import SpreadList
from undertow.probe.readings import Reading, host

pytestmark = pytest.mark.skipif("triton" not in available(), reason="needs a GPU, or Triton's interpreter")
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
SHAPES = ((7,), (3000,), (40, 12), (5, 300), (64, 1056), (6, 8, 5), (2, 1000, 3))
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _cuts(shape: tuple[int, ...]) -> list[list[Portion]]:
    """Each dimension cut into three, the last part smaller or empty; then the first two at once."""
    along = [[(begin := min(i * -(-n // 3), n), min(-(-n // 3), n - begin)) for i in range(3)] for n in shape]
    cuts = [
        [
            Portion(
                shape,
                tuple(begin if d == dim else 0 for d in range(len(shape))),
                tuple(extent if d == dim else n for d, n in enumerate(shape)),
            )
            for begin, extent in along[dim]
        ]
        for dim in range(len(shape))
    ]
    if len(shape) > 1:
        both = [(one, other) for one in along[0] for other in along[1]]
        cuts.append(
            [
                Portion(shape, (one[0], other[0], *(0 for _ in shape[2:])), (one[1], other[1], *shape[2:]))
                for one, other in both
            ]
        )
    return cuts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_add_up_to_the_whole_triton(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERTOW_KERNEL", "triton")
    kernel = choose(DEVICE)
    for shape in SHAPES:
        tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).to(DEVICE)
        tensor.view(-1)[0] = float("nan")  # counted elsewhere, silent in the sketch
        whole = kernel.measure([tensor], Want.SKETCH).sketches
        for blocks in _cuts(shape):
            parts = [
                tensor[tuple(slice(b, b + e) for b, e in zip(one.begin, one.extent, strict=True))].contiguous()
                for one in blocks
            ]
            places = [places_of(*one.runs(), tensor.numel()) for one in blocks]
            found = kernel.sketch_parts_on_device(parts, places).to_host().sketches
            total = found.reshape(len(parts), -1).sum(axis=0)
            np.testing.assert_allclose(total, whole, rtol=1e-12, atol=1e-12, err_msg=f"{shape} {blocks}")


def test_a_part_of_many_rows_begins_anywhere_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than one program takes, and addresses that are not multiples of anything."""
    monkeypatch.setenv("UNDERTOW_KERNEL", "triton")
    kernel = choose(DEVICE)
    tensor = torch.randn(80_001, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    whole = kernel.measure([tensor], Want.SKETCH).sketches
    parts = [tensor[:777], tensor[777:70_003], tensor[70_003:]]
    places = [places_of(len(part), np.array([start]), 80_001) for part, start in zip(parts, (0, 777, 70_003))]
    found = kernel.sketch_parts_on_device(parts, places).to_host().sketches
    np.testing.assert_allclose(found.reshape(3, -1).sum(axis=0), whole, rtol=1e-12, atol=1e-12)


def test_readings_of_parts_have_the_sketches_of_the_whole_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards and a tensor that is no shard, as a rank reads them; statistics stay those of the parts."""
    monkeypatch.setenv("UNDERTOW_KERNEL", "triton")
    kernel = choose(DEVICE)
    one, two, plain = (torch.randn(90, 30, device=DEVICE) for _ in range(3))
    blocks = [Portion((90, 30), (40, 0), (50, 30)), Portion((90, 30), (0, 10), (90, 15)), None]
    held = [one[40:].contiguous(), two[:, 10:25].contiguous(), plain]
    of = SpreadList(np.arange(3), held, False, spread=Spread(tuple(blocks), frozenset()))
    reading = Reading(of.slots, kernel.measure_on_device(held))
    found = host(of.placed([reading], held, lambda _: kernel)[0].partials)
    one[:40], two[:, :10], two[:, 25:] = 0.0, 0.0, 0.0
    whole = kernel.measure([one, two, plain])
    assert found.offsets.tolist() == whole.offsets.tolist()
    np.testing.assert_allclose(found.sketches, whole.sketches, rtol=1e-12, atol=1e-12)
    assert found.moments[:, 0].tolist() == [1500, 1350, 2700]
