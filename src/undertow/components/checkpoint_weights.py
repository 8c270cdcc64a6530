"""`undertow.weights`: the health of the weights in a checkpoint, a module or a mapping, and their drift from another.

Composes `checkpoints` (one tensor at a time) and `analyze`. Torch is imported only for a torch file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from undertow import __version__
from undertow.analyze.one_thread import one_thread
from undertow.analyze.spectrum import EXACT_UP_TO
from undertow.analyze.tensor_weights import describe, find_duplicates, pool, pool_kinds
from undertow.analyze.weight_drift import Movement, movement, whole_drift
from undertow.checkpoints import Checkpoint, Entry, UnreadableCheckpointError, open_checkpoint
from undertow.checkpoints.bounded_pool import in_turn
from undertow.checkpoints.process_group import Team
from undertow.components.checkpoint_issues import find_issues, judged_drift
from undertow.schema import health_of
from undertow.schema.checkpoints import TensorWeights, WeightReport

Source = str | os.PathLike[str] | Mapping[str, Any] | Any
# Called with the bytes done, the bytes in all, and the path of the tensor whose turn it is.
Progress = Callable[[int, int, str], None]
MOST_WORKERS = 4


def weights(
    source: Source,
    against: Source | None = None,
    *,
    exact_up_to: int = EXACT_UP_TO,
    progress: Progress | None = None,
    workers: int | None = None,
) -> WeightReport:
    """The health of weights, tensor by tensor.

    `source` and `against` are each a checkpoint file or folder (safetensors, torch, torch distributed), a torch
    module, or a mapping from names to arrays. With `against`, the earlier one, also how far the weights moved.
    Singular values are all computed up to `exact_up_to` on the shorter side of a matrix, else the largest only.
    `workers` is how many tensors are worked on at a time, where memory allows: by default one for each core, up to 4.
    """
    report = weigh(source, against, None, exact_up_to=exact_up_to, progress=progress, workers=workers)
    assert report is not None
    return report


def weigh(
    source: Source,
    against: Source | None,
    team: Team | None,
    *,
    exact_up_to: int = EXACT_UP_TO,
    progress: Progress | None = None,
    workers: int | None = None,
) -> WeightReport | None:
    """The same by a team of processes, each with some of the tensors; the report is in the one that leads."""
    checkpoint = open_checkpoint(source)
    earlier = None if against is None else open_checkpoint(against)
    entries = checkpoint.entries
    if not entries:
        why = "".join(f": {one.path}: {one.reason}" for one in checkpoint.skipped[:1])
        way_out = "Weights are tensors of floating-point numbers"
        raise UnreadableCheckpointError(f"{checkpoint.source} holds no weights{why}", way_out=way_out)
    study = _Study(checkpoint, earlier, exact_up_to)
    places = list(range(len(entries))) if team is None else team.mine(entries, study.size)
    found: dict[int, _Found] | None = study.work([entries[place] for place in places], places, team, progress, workers)
    if team is not None:
        found = team.collect(found)
    return None if found is None else study.report([found[place] for place in range(len(entries))])


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found out about one tensor while it was loaded."""

    tensor: TensorWeights
    digest: bytes
    movement: Movement | None


class _Study:
    def __init__(self, checkpoint: Checkpoint, earlier: Checkpoint | None, exact_up_to: int) -> None:
        self.checkpoint, self.earlier, self.exact_up_to = checkpoint, earlier, exact_up_to
        self.shapes = {entry.path: entry.shape for entry in checkpoint.entries}
        self.before = {} if earlier is None else {entry.path: entry for entry in earlier.entries}

    def size(self, entry: Entry) -> int:
        before = self.before.get(entry.path)
        return entry.bytes + (0 if before is None else before.bytes)

    def take(self, entry: Entry) -> _Found:
        """In any thread: changes nothing."""
        elements = entry.load()
        fan_in = self._owner_fan_in(entry)
        tensor = describe(entry.path, entry.kind, elements, owner_fan_in=fan_in, exact_up_to=self.exact_up_to)
        before = self.before.get(entry.path)
        moved = None if before is None else movement(entry.path, entry.kind, elements, before.load())
        return _Found(tensor, elements.digest(), moved)

    def work(
        self, entries: Sequence[Entry], places: Sequence[int], team: Team | None, progress: Progress | None,
        workers: int | None,
    ) -> dict[int, _Found]:  # fmt: skip
        """What is found out about these tensors, by their places in the checkpoint."""
        done, total = 0, sum(entry.bytes for entry in entries)
        paths = [entry.path for entry in entries]
        if progress is not None and paths:
            progress(done, total, paths[0])
        out: dict[int, _Found] = {}
        with one_thread() as alone:
            allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
            # Where the threads of the linear algebra cannot be held back, ours would only stand in their way.
            cores = len(allowed) // (1 if team is None else team.on_this_machine)
            count = workers or (max(1, min(MOST_WORKERS, cores)) if alone else 1)
            turns = in_turn(entries, self.size, self.take, count)
            for place, upcoming, (entry, found) in zip(places, (*paths[1:], ""), turns, strict=True):
                out[place] = found
                done += entry.bytes
                if progress is not None:
                    progress(done, total, upcoming)
        return out

    def _owner_fan_in(self, bias: Entry) -> int | None:
        """Torch draws a bias from the fan-in of its weight."""
        if len(bias.shape) != 1 or not bias.path.endswith("bias"):
            return None
        shape = self.shapes.get(bias.path.removesuffix("bias") + "weight", ())
        return prod(shape[1:]) if len(shape) > 1 and shape[0] == bias.shape[0] else None

    def report(self, found: Sequence[_Found]) -> WeightReport:
        checkpoint, tensors = self.checkpoint, tuple(one.tensor for one in found)
        movements = [one.movement for one in found if one.movement is not None]
        duplicates = find_duplicates(
            tensors, [one.digest for one in found], [entry.storage for entry in checkpoint.entries]
        )
        drift = None
        notes = checkpoint.notes
        if self.earlier is not None:
            here, there = list(self.shapes), list(self.before)
            if not movements:
                names = f"Names here are like {here[0]!r}, there like {there[0]!r}" if there else "It has no weights"
                apart = f"{checkpoint.source} and {self.earlier.source} have no tensor in common"
                raise UnreadableCheckpointError(apart, way_out=names)
            only_here, only_there = sorted(set(here) - set(there)), sorted(set(there) - set(here))
            drift = whole_drift(self.earlier.source, movements, only_here, only_there)
            drift = judged_drift(drift, {one.drift.path for one in movements if not one.is_finite})
            notes += tuple(f"{self.earlier.source}: {note}" for note in self.earlier.notes)
        issues = find_issues(tensors, duplicates, drift)
        parameters = [tensor for tensor in tensors if tensor.kind != "buffer"]
        return WeightReport(
            undertow=__version__,
            source=checkpoint.source,
            format=checkpoint.format,
            health=health_of(issue.severity for issue in issues),
            parameter_count=sum(tensor.moments.count for tensor in parameters),
            bytes=checkpoint.bytes,
            overall=pool(tensor.moments for tensor in parameters),
            kinds=pool_kinds(tensors),
            issues=issues,
            tensors=tensors,
            duplicates=duplicates,
            drift=drift,
            skipped=checkpoint.skipped,
            notes=notes,
        )
