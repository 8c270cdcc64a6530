"""The watched layers: which tensor and module stands behind each, and in which order they execute."""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.partials import offsets_of
from undertow.probe.autograd_graph import Owner, Walk
from undertow.probe.discovery import Found, type_name
from undertow.probe.distributed.portions import Spread, spread_of
from undertow.schema import GraphNode, GraphSource, Layer, LayerGraph, LayerKind, LayerTable


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """How slots (positions in the list of watched tensors) map to rows of a block. Replaced, never changed."""

    parameter_ids: NDArray[np.int32]  # layer ids of the parameters that are there: the rows of a block
    row_of_slot: NDArray[np.int64]
    sizes: NDArray[np.int64]  # elements per slot
    offsets: NDArray[np.int64]  # of the slots' sketches, packed
    module_ids: NDArray[np.int32]
    spread: Spread | None = None  # over the ranks of a distributed training
    generation: int = 0  # another one when layers stand for other models than before
    reading_bytes: int = field(init=False)  # what a reading of all slots takes in memory, roughly

    def __post_init__(self) -> None:
        size = len(self.sizes) * 2200 + int(self.offsets[-1]) * 8
        object.__setattr__(self, "reading_bytes", size)

    def stretch(self, slot: int) -> slice:
        return slice(int(self.offsets[slot]), int(self.offsets[slot + 1]))


class WatchedLayers:
    def __init__(self, include: Sequence[str] | None, exclude: Sequence[str] | None) -> None:
        self._include = include
        self._exclude = exclude
        self._adopted = LayerTable()
        self._layers: list[Layer] = []
        self._id_of_path: dict[str, int] = {}
        self.sequence: list[int] = []  # layer ids in execution order
        self._graph = LayerGraph()
        self._connections: dict[tuple[str, str], int] = {}  # what shares of gradient are measured along
        self.flow_unmeasured = ""  # why they are not, for good
        self.owners: dict[int, tuple[Owner, ...]] = {}
        self.references: list[ref[torch.Tensor]] = []  # to the watched tensors, by slot: they are the user's
        self.have_gone = False  # some of them, since the last update
        self.slot_of: dict[int, int] = {}  # id of a tensor → its slot; of one that is gone until the next update
        self.free: list[int] = []  # slots of tensors that are trained whatever their flag says
        self._elements: list[int] = []  # of each tensor, by slot
        self.module_layer: dict[int, int] = {}  # id of a module → layer id
        self.skipped: set[str] = set()
        self.generation = 0
        self.layout = self._make_layout([])

    def adopt(self, table: LayerTable) -> None:
        """Begin with the layers of the run that is being resumed: their ids are what its segments hold."""
        self._adopted = table
        self._layers = list(table)
        self._id_of_path = {layer.path: layer.id for layer in table}
        self.sequence = [layer.id for layer in table.in_execution_order() if layer.order is not None]
        self.layout = self._make_layout([])

    def start_over(self) -> None:
        """As if nothing had been found since the run began."""
        self._graph = LayerGraph()
        self.forget_tensors()
        self.have_gone = False
        self.skipped = set()
        self.adopt(self._adopted)

    def shape(self, path: str) -> tuple[int, ...]:
        return self._layers[self._id_of_path[path]].shape

    def replace(self, tensors: dict[str, torch.Tensor]) -> None:
        """Others of the same shapes take the places of tensors that are gone, by path."""
        owners, slot_of = dict[int, tuple[Owner, ...]](), dict[int, int]()
        for slot, identity in enumerate(self.slot_of):  # a new tensor may lie where another one of them lay
            tensor = tensors.get(self.path(slot))
            if tensor is not None:
                self.references[slot] = ref(tensor, self.note_gone)
            now = identity if tensor is None else id(tensor)
            owners[now], slot_of[now] = self.owners[identity], slot
        self.owners, self.slot_of = owners, slot_of
        self.have_gone = False

    @property
    def table(self) -> LayerTable:
        order = {layer_id: place for place, layer_id in enumerate(self.sequence)}
        return LayerTable(tuple(layer.replace(order=order.get(layer.id)) for layer in self._layers))

    @property
    def graph(self) -> LayerGraph:
        connections = tuple(self._connections)
        return replace(self._graph, connections=connections, unmeasured=self.flow_unmeasured)

    def connect(self, pairs: Sequence[tuple[str, str]]) -> tuple[NDArray[np.int32], bool]:
        """Their places among all connections; True when there are new ones."""
        before = len(self._connections)
        places = [self._connections.setdefault(pair, len(self._connections)) for pair in pairs]
        return np.array(places, np.int32), len(self._connections) > before

    def path(self, slot: int) -> str:
        return self._layers[int(self.layout.parameter_ids[self.layout.row_of_slot[slot]])].path

    def layer_of(self, identity: int) -> int | None:
        """The layer of a parameter, by the id of its tensor."""
        slot = self.slot_of.get(identity)
        return None if slot is None else int(self.layout.parameter_ids[self.layout.row_of_slot[slot]])

    def of_slots(self, slots: NDArray[np.int64]) -> NDArray[np.int32]:
        return self.layout.parameter_ids[self.layout.row_of_slot[slots]]

    def knows(self, identity: int) -> bool:
        """Whether a tensor, by its id, is watched: another one may lie where one lay that is gone."""
        slot = self.slot_of.get(identity)
        return slot is not None and self.references[slot]() is not None

    def elements(self, slots: NDArray[np.int64]) -> list[int]:
        """Of the tensor in each slot, as they were found; a complex number is one."""
        return [self._elements[slot] for slot in slots.tolist()]

    def tensors(self) -> list[torch.Tensor]:
        """Those that are still there."""
        return [tensor for one in self.references if (tensor := one()) is not None]

    def layer_path(self, layer_id: int) -> str:
        return self._layers[layer_id].path

    def depth(self, layer_id: int) -> int:
        return self._layers[layer_id].path.count(".")

    def place(self, slot: int) -> tuple[int, int]:
        """Sorts slots by execution order; those never seen executing come last."""
        layer_id = int(self.layout.parameter_ids[self.layout.row_of_slot[slot]])
        return (self.sequence.index(layer_id) if layer_id in self.sequence else len(self._layers), slot)

    def update(self, found: Found) -> bool:
        """Take in what discovery found; True when there are layers that were not there before, or not of this shape."""
        before = [layer.shape for layer in self._layers]
        wanted = [parameter for parameter in found.parameters if self._wanted(parameter.path)]
        watched = [(parameter, tensor) for parameter in wanted if (tensor := parameter.reference()) is not None]
        shapes = [tuple(tensor.shape) if one.share is None else one.share.shape for one, tensor in watched]
        for (parameter, tensor), shape in zip(watched, shapes):
            self._add(
                parameter.path,
                kind=parameter.kind,
                parameter_count=prod(shape),
                group=parameter.group,
                shared_with=tuple(parameter.shared_with),
                trainable=tensor.requires_grad or parameter.is_free,
                shape=shape,
                dtype=str(tensor.dtype).removeprefix("torch."),
                module_type=parameter.module_type,
            )
        self.module_layer = {}
        for one in found.modules:
            module = one.reference()
            if module is not None and self._wanted(one.path):
                self._add(
                    one.path,
                    kind=LayerKind.MODULE,
                    group=one.path.rpartition(".")[0],
                    module_type=type_name(module),
                )
                self.module_layer[id(module)] = self._id_of_path[one.path]
        self.owners = {id(tensor): tuple(one.owners) for one, tensor in watched}
        self.have_gone = False
        self.references = [ref(tensor, self.note_gone) for _, tensor in watched]
        self.slot_of = {id(tensor): slot for slot, (_, tensor) in enumerate(watched)}
        self.free = [slot for slot, (one, _) in enumerate(watched) if one.is_free]
        stretches = [None if one.share is None else one.share.portion for one, _ in watched]
        spread = spread_of([tensor for _, tensor in watched], [one.is_replicated for one, _ in watched], stretches)
        self._elements = [tensor.numel() for _, tensor in watched]
        # A complex number is measured as two.
        sizes = [prod(shape) * (2 if tensor.is_complex() else 1) for shape, (_, tensor) in zip(shapes, watched)]
        ids = [self._id_of_path[one.path] for one, _ in watched]
        self.layout = self._make_layout(list(zip(ids, sizes)), spread)
        return [layer.shape for layer in self._layers] != before

    def note_gone(self, reference: ref[torch.Tensor] | None = None) -> None:
        """In whatever thread and moment a tensor is freed, or has got another size: only noted, since anything may be
        under way."""
        self.have_gone = True

    def _wanted(self, path: str) -> bool:
        wanted = (self._include is None or any(fnmatch.fnmatchcase(path, glob) for glob in self._include)) and not (
            self._exclude is not None and any(fnmatch.fnmatchcase(path, glob) for glob in self._exclude)
        )
        if not wanted:
            self.skipped.add(path)
        return wanted

    def _add(self, path: str, **facts: object) -> None:
        known = self._id_of_path.get(path)
        if known is None:
            self._id_of_path[path] = len(self._layers)
            self._layers.append(Layer(path, id=len(self._layers), **facts))  # pyright: ignore[reportArgumentType]
        else:
            self._layers[known] = self._layers[known].replace(**facts)

    def _make_layout(self, slots: list[tuple[int, int]], spread: Spread | None = None) -> SlotLayout:
        """From the layer id and the elements of each slot. Layers that are gone have no row."""
        parameters = sorted({layer_id for layer_id, _ in slots})
        modules = sorted(set(self.module_layer.values()))
        row = {layer_id: place for place, layer_id in enumerate(parameters)}
        sizes = np.array([size for _, size in slots], np.int64)
        return SlotLayout(
            np.array(parameters, np.int32),
            np.array([row[layer_id] for layer_id, _ in slots], np.int64),
            sizes,
            offsets_of(sizes),
            np.array(modules, np.int32),
            spread,
            self.generation,
        )

    def ordered(self, walk: Walk, module_positions: dict[int, int]) -> bool:
        """Merge what a walk saw into the order and the graph; True when anything is new.

        `module_positions` maps layer ids of modules to the sequence number of their last operation, so that
        modules and parameters sort on one axis. Walks of different losses (several models) join: a layer not
        yet placed goes right behind the one before it.
        """
        keyed = [
            (walk.position[parameter], place, self._layer_of(parameter))
            for place, parameter in enumerate(walk.order)
            if parameter in self.slot_of
        ]
        keyed += [(position, len(walk.order), layer) for layer, position in module_positions.items()]
        seen = {layer_id for _, _, layer_id in keyed}
        for layer in self._layers:  # a parameter the loss does not reach stands where its module runs
            if not layer.is_module and layer.id not in seen:
                position = self._position(layer.group, module_positions)
                if position is not None:
                    keyed.append((position, -1, layer.id))
        keyed.sort()
        known = {layer_id: place for place, layer_id in enumerate(self.sequence)}
        new = [layer_id for _, _, layer_id in keyed if layer_id not in known]
        if new:
            behind: dict[int, list[int]] = {}
            anchor = -1
            for _, _, layer_id in keyed:
                if layer_id in known:
                    anchor = layer_id
                else:
                    behind.setdefault(anchor, []).append(layer_id)
            merged: list[int] = behind.pop(-1, []) if anchor != -1 else []
            for layer_id in self.sequence:
                merged += [layer_id, *behind.pop(layer_id, [])]
            for rest in behind.values():
                merged += rest
            self.sequence = list(dict.fromkeys(merged))
        grown = join(self._graph, walk.graph)
        changed = bool(new) or grown != self._graph
        self._graph = grown
        return changed

    def _position(self, group: str, module_positions: dict[int, int]) -> int | None:
        """Where a module ran, or the nearest one around it (attention uses its projections without calling them)."""
        while group:
            layer_id = self._id_of_path.get(group)
            if layer_id in module_positions:
                return module_positions[layer_id]
            group = group.rpartition(".")[0]
        return None

    def has_unplaced(self, slots: Iterable[int]) -> bool:
        placed = set(self.sequence)
        rows, ids = self.layout.row_of_slot, self.layout.parameter_ids
        return any(int(ids[rows[slot]]) not in placed for slot in slots)

    def forget_tensors(self) -> None:
        self.references, self.slot_of, self.module_layer, self.owners, self.free = [], {}, {}, {}, []

    def _layer_of(self, parameter: int) -> int:
        return int(self.layout.parameter_ids[self.layout.row_of_slot[self.slot_of[parameter]]])


def join(first: LayerGraph, second: LayerGraph) -> LayerGraph:
    """Both graphs as one: modules meet by path; merges of the second are kept when it shows new modules."""
    known = {node.path: node.id for node in first.nodes if not node.is_merge}
    if not second.nodes or all(node.is_merge or node.path in known for node in second.nodes):
        return first
    nodes, translate = list(first.nodes), dict[int, int]()
    for node in second.nodes:
        if not node.is_merge and node.path in known:
            translate[node.id] = known[node.path]
        else:
            translate[node.id] = len(nodes)
            nodes.append(GraphNode(len(nodes), node.path, node.operation, node.is_merge))
    edges = dict.fromkeys(first.edges)
    edges |= dict.fromkeys((translate[a], translate[b]) for a, b in second.edges)
    source = second.source if first.source is GraphSource.NONE else first.source
    return LayerGraph(tuple(nodes), tuple(edges), source)
