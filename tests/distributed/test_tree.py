"""Many ranks send by way of others, and what arrives is what all of them would have sent to the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pytest
import torch
from tests.distributed.test_shards import _blocks, _cut

from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import Want
from undertow.measure.shards import sketch_of_part
from undertow.probe.distributed import rank_tree
from undertow.probe.distributed.joint import Joint
from undertow.probe.distributed.portions import Portion
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.distributed.rank_messages import (
    LayerFacts,
    Measured,
    Message,
    Part,
    Roster,
    SlotFacts,
    decode,
    encode,
)
from undertow.probe.distributed.whole_frame import whole_frame
from undertow.probe.readings import RawFrame
from undertow.schema import LayerKind, LayerTable

SHAPES = {"wide": (41, 6), "narrow": (3, 50), "short": (7,)}
Cut = Callable[[int, tuple[int, ...]], Portion]  # what a rank holds of a tensor of this shape


@dataclass
class World:
    ranks: int
    cut: Cut
    missing: Sequence[int] = ()
    apart: dict[int, float] = field(default_factory=dict[int, float])  # rank → what is added to its first tensor
    is_sharded: bool = True

    def tensors(self, rank: int) -> dict[str, torch.Tensor]:
        source = torch.Generator().manual_seed(1)
        whole = {path: torch.randn(shape, generator=source) for path, shape in SHAPES.items()}
        whole["wide"] += self.apart.get(rank, 0.0)
        return whole

    def roster(self, rank: int) -> Roster:
        layers = [
            LayerFacts(path, LayerKind.WEIGHT, place, prod(shape), "", (), True, shape, "float32", "Linear")
            for place, (path, shape) in enumerate(SHAPES.items())
        ]
        held = [(path, self.cut(rank, shape)) for path, shape in SHAPES.items()]
        slots = [SlotFacts(path, one, self.is_sharded) for path, one in held]
        return Roster(rank, layers, slots, device="cpu")

    def part(self, rank: int) -> Part:
        blocks = [(tensor, self.cut(rank, tuple(tensor.shape))) for tensor in self.tensors(rank).values()]
        pieces = [_cut(tensor.reshape(block.shape), block).contiguous() for tensor, block in blocks]
        read = choose("cpu").measure(pieces, Want.MOMENTS | Want.EXPONENTS)
        runs = [block.runs() for _, block in blocks]
        sketches = [
            sketch_of_part(piece, *run, tensor.numel()) for piece, run, (tensor, _) in zip(pieces, runs, blocks)
        ]
        slots = np.arange(len(blocks))
        state = np.array([float(piece.numel() == 0) for piece in pieces], np.float32)
        measured = Measured(slots, read.moments, read.exponents, np.concatenate(sketches))
        kinds = {"gradients": [measured], "weights": [measured]}
        loss = float(rank) if rank != 5 else float("nan")
        flags = np.zeros(len(blocks), np.float32)
        return Part(
            rank, 3, 0, {"loss": loss}, slots, state, flags, flags, kinds, has_gradient=True, losses={rank: loss}
        )


def _travelled(message: Message) -> Message:
    return decode(encode(message))


def _frame(world: World, rank_layout: RankLayout, parts: list[Part]) -> RawFrame:
    return whole_frame(RawFrame(3, 0.0, rank_layout.layout, {}), parts, rank_layout)


def _by_star(world: World) -> RawFrame:
    rank_layout, present = RankLayout(LayerTable()), [rank for rank in range(world.ranks) if rank not in world.missing]
    for rank in range(world.ranks):
        rank_layout.enter(world.roster(rank))
    return _frame(world, rank_layout, [world.part(rank) for rank in present])


def _by_tree(world: World, apart: frozenset[str] = frozenset()) -> tuple[RawFrame, int, RankLayout]:
    """The frame, how many parts the first rank has merged, and what it knows of all ranks."""
    members = list(range(world.ranks))

    def gathered(rank: int) -> tuple[RankLayout, list[Part]]:
        rank_layout = RankLayout(LayerTable(), rank)
        rank_layout.enter(world.roster(rank))
        parts = [world.part(rank)]
        for child in rank_tree.branch_of(rank, members).children:
            roster, part = sent(child)
            rank_layout.enter(roster)
            if child not in world.missing:
                parts.append(part)
        return rank_layout, parts

    def sent(rank: int) -> tuple[Roster, Part]:
        rank_layout, parts = gathered(rank)
        joint = Joint(rank_layout, apart)
        roster, part = joint.roster, joint.part(parts, None)
        if not rank_tree.branch_of(rank, members).children:
            roster, part = rank_layout.own, parts[0]
        came = _travelled(roster), _travelled(part)
        assert isinstance(came[0], Roster)
        assert isinstance(came[1], Part)
        return came

    rank_layout, parts = gathered(0)
    return _frame(world, rank_layout, parts), len(parts), rank_layout


def _rows(rank: int, shape: tuple[int, ...], ranks: int) -> Portion:
    return _blocks(shape, 0, ranks)[rank]


def _rows_and_columns(rank: int, shape: tuple[int, ...]) -> Portion:
    """Columns over two ranks, rows over ten pairs."""
    rows, columns = _blocks(shape, 0, 10)[rank // 2], _blocks(shape, len(shape) - 1, 2)[rank % 2]
    if len(shape) == 1:
        return rows
    return Portion(shape, (rows.begin[0], columns.begin[1]), (rows.extent[0], columns.extent[1]))


WORLDS = {
    "shards": World(20, lambda rank, shape: _rows(rank, shape, 20)),
    "many shards": World(70, lambda rank, shape: _rows(rank, shape, 70)),
    "two copies of shards": World(18, lambda rank, shape: _rows(rank % 9, shape, 9)),
    "copies that begin within a branch": World(32, lambda rank, shape: _rows(rank % 16, shape, 16)),
    "stretches": World(18, lambda rank, shape: _blocks((prod(shape),), 0, 18)[rank]),
    "replicas": World(20, lambda rank, shape: Portion(shape, (0,) * len(shape), shape), is_sharded=False),
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_tree, "WIDTH", 3)


def _expect_the_same(found: RawFrame, expected: RawFrame) -> None:
    for kind in ("gradients", "weights"):
        (one,), (other,) = getattr(found, kind), getattr(expected, kind)
        assert one.slots.tolist() == other.slots.tolist()
        np.testing.assert_allclose(one.partials.moments, other.partials.moments, rtol=1e-9, atol=1e-9)
        assert (one.partials.exponents == other.partials.exponents).all()
        np.testing.assert_allclose(one.partials.sketches, other.partials.sketches, rtol=1e-9, atol=1e-12)
    assert found.state.tolist() == expected.state.tolist()
    np.testing.assert_equal(found.scalars, expected.scalars)


@pytest.mark.parametrize("name", WORLDS)
def test_the_frame_is_the_one_that_the_first_rank_would_make_of_all_parts(name: str) -> None:
    world = WORLDS[name]
    (found, merged, rank_layout), expected = _by_tree(world), _by_star(world)
    assert merged < world.ranks / 2
    assert (rank_layout.holding.counts >= 0).all()
    assert expected.scalars["ranks"] == world.ranks
    assert expected.scalars["rank_nonfinite"] == 5.0
    assert len(expected.gradients[0].slots) == len(SHAPES)
    _expect_the_same(found, expected)


def test_shards_that_must_not_be_joined_are_absent_until_they_come_apart() -> None:
    """Short tensors, of which both ranks of a pair hold the same: a branch that begins within a pair joins one half."""
    world = World(20, _rows_and_columns)
    joined, _, rank_layout = _by_tree(world)
    paths = [facts.path for facts in rank_layout.slot_facts]
    overlapping = {paths[slot] for slot in np.flatnonzero(rank_layout.holding.counts < 0)}
    assert overlapping
    told = [place for reading in joined.gradients for place in reading.slots.tolist()]
    assert {paths[slot] for slot in told} == set(SHAPES) - overlapping
    found, _, rank_layout = _by_tree(world, frozenset(overlapping))
    assert (rank_layout.holding.counts >= 0).all()
    _expect_the_same(found, _by_star(world))


def test_a_rank_that_sends_nothing_leaves_its_tensors_out() -> None:
    world = World(20, lambda rank, shape: _rows(rank, shape, 20), missing=[13])
    found, *_ = _by_tree(world)
    _expect_the_same(found, _by_star(world))
    assert found.gradients[0].slots.tolist() == [1, 2]  # that rank's shards of the others are empty


@pytest.mark.parametrize("rank", [7, 9, 10, 18])  # with others behind them and without
def test_the_rank_that_has_parted_is_named_wherever_it_stands(rank: int) -> None:
    world = WORLDS["replicas"]
    parted = World(world.ranks, world.cut, apart={rank: 0.5}, is_sharded=False)
    (found, *_), expected = _by_tree(parted), _by_star(parted)
    assert found.apart is not None
    assert expected.apart is not None
    assert found.apart.farthest.tolist() == expected.apart.farthest.tolist()
    assert expected.apart.farthest[0] == rank
    np.testing.assert_allclose(found.apart.weight, expected.apart.weight, rtol=1e-6)


def test_few_ranks_send_to_the_first_one_and_many_to_few() -> None:
    monkey = pytest.MonkeyPatch()
    monkey.setattr(rank_tree, "WIDTH", 8)
    few = [rank_tree.branch_of(rank, list(range(16))) for rank in range(16)]
    assert [one.parent for one in few] == [None] + [0] * 15
    members = list(range(0, 8192, 2))  # every other rank is watched
    many = {rank: rank_tree.branch_of(rank, members) for rank in members}
    monkey.undo()
    assert max(len(one.children) for one in many.values()) == 28
    assert sorted(child for one in many.values() for child in one.children) == members[1:]
    for rank, one in many.items():
        for child in one.children:
            assert many[child].parent == rank
            assert 0 < many[child].patience < one.patience
