"""Who is being watched: the models, the optimizers that step them, and the state of every watched tensor."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from undertow.errors import SettingError
from undertow.probe import autograd_graph, discovery
from undertow.probe.distributed.fsdp import flat_parameters, gathered_parameters
from undertow.probe.reader import TensorReader
from undertow.probe.readings import Slots
from undertow.probe.slot_lists import SlotLists
from undertow.probe.tensor_list import have_gradient
from undertow.probe.tensor_names import names_of
from undertow.probe.unseen import parameters_of
from undertow.probe.watched_layers import SlotLayout, WatchedLayers
from undertow.probe.watched_optimizers import WatchedOptimizers
from undertow.probe.zero_grad_tracking import ZeroGradTracker

_RESCAN_STEPS = frozenset({1, 10, 100})
_RESCAN_EVERY = 1000
_MOST_GONE = 100  # models of one name: each that is gone keeps its layers to itself


class Subjects:
    """`roots` None: find the models by the optimizers that are alive when training begins."""

    def __init__(
        self,
        roots: dict[str, nn.Module] | None,
        optimizers: Sequence[Optimizer] | None,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
    ) -> None:
        self._is_given = roots is not None
        self._given_optimizers = [weakref.ref(optimizer) for optimizer in optimizers or ()]
        # Everything of the user's is referred to weakly. Names of models that are gone stay taken for long.
        self._roots = {name: weakref.ref(root) for name, root in (roots or {}).items()}
        self._found = discovery.describe(roots or {}, ())
        self.optimizers = WatchedOptimizers()
        self._slots_cache: dict[int, tuple[weakref.ref[Optimizer], tuple[int, ...], Slots]] = {}
        self.layers = WatchedLayers(include, exclude)
        self.ready = False
        self.is_tentative = False  # found by a loss alone: no optimizer holds what it reaches
        self.free: dict[str, weakref.ref[torch.Tensor]] = {}  # weights of no model and no optimizer, by name
        self.is_compiled = False
        self.unowned = self.empty = self.whole = 0
        self._optimizer_of: NDArray[np.int64] = np.empty(0, np.int64)
        self.zero_grads = ZeroGradTracker()
        self.lists = SlotLists(self.layers)
        self._exposed: dict[int, Slots] = {}  # by identity of slots, as the next
        self._holders: dict[int, NDArray[np.float32]] = {}
        self.version = 0  # another one when slots, layers or optimizers may be others

    @property
    def layout(self) -> SlotLayout:
        return self.layers.layout

    def forget_tensors(self) -> None:
        """Nothing refers to any of them afterwards; the next rescan finds them again, if they are of models."""
        self.free = {}
        self._found.parameters = []
        self._slots_cache = {}
        self.lists.forget()
        self.zero_grads.move((), ())
        self.layers.forget_tensors()
        self.layers.have_gone = self.ready

    @property
    def roots(self) -> dict[str, nn.Module]:
        return {name: root for name, ref in self._roots.items() if (root := ref()) is not None}

    # -- finding out --------------------------------------------------------------------------------------

    def discover(
        self,
        called: Sequence[nn.Module],
        loss: Sequence[Any] = (),
        stepping: Optimizer | None = None,
        by: Sequence[Any] | None = None,
    ) -> bool:
        """True once there is something to watch. `by`: what the loss is differentiated by, if not by all it reaches.

        Models and optimizers left over from earlier work in the same process are told apart from those in
        use by what has happened since watching began: a model was called, a loss reaches it, or it steps.
        """
        given = [optimizer for ref in self._given_optimizers if (optimizer := ref()) is not None]
        optimizers = given if self._given_optimizers else discovery.live_optimizers()
        reached = autograd_graph.leaf_tensors(loss)
        if not self._is_given:
            in_use = {id(tensor) for tensor in reached}
            in_use |= {id(p) for module in called for p in parameters_of(module)}
            in_use |= {id(t) for t in discovery.optimizer_tensors([stepping] if stepping is not None else [])}
        else:
            self._found = discovery.describe(self.roots, (), self._found)
            in_use = {id(one.reference()) for one in self._found.parameters}
        relevant = [o for o in optimizers if any(id(t) in in_use for t in discovery.optimizer_tensors([o]))]
        if not self._is_given:
            wanted = discovery.optimizer_tensors(relevant) if relevant else _weights_among(reached, by)
            if not wanted:
                return False
            self.is_tentative = not relevant
            roots = discovery.find_roots(wanted, called)
            self._roots = {name: weakref.ref(root) for name, root in discovery.name_roots(roots).items()}
            if not relevant:
                self._set_free(wanted, roots)
        self.optimizers.begin(relevant)
        self._describe()
        self.ready = bool(self.layers.references)
        if not self.ready and self.layers.skipped:
            raise SettingError(
                "include and exclude leave no layer to watch",
                way_out=f"Layers are named like: {', '.join(sorted(self.layers.skipped)[:4])}",
            )
        return self.ready

    def start_over(self) -> None:
        """Nothing of what was found so far is watched any more."""
        self._roots, self.free, self.ready, self.is_tentative = {}, {}, False, False
        self._found = discovery.describe({}, ())
        self.optimizers.begin(())
        self.layers.start_over()
        self._slots_cache = {}
        self.lists.forget()
        self.zero_grads.move((), ())

    def _set_free(self, tensors: Sequence[torch.Tensor], roots: Sequence[nn.Module]) -> None:
        """Weights that no model owns go by the names that the program gives them."""
        owned = {id(parameter) for root in roots for parameter in parameters_of(root)}
        loose = [tensor for tensor in tensors if id(tensor) not in owned]
        names = names_of(loose, set(self.free))
        self.free |= {name: weakref.ref(tensor) for name, tensor in zip(names, loose)}

    def leaves_of(self, roots: Sequence[Any]) -> list[torch.Tensor]:
        """Of a loss, where new tensors may have taken the places of free ones that are gone."""
        return autograd_graph.leaf_tensors(roots) if self.free and self.layers.have_gone else []

    def replace(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether these have taken the places of all free tensors that are gone, with the same shapes: a functional
        loop makes new ones at every step. A single one may be the data, which is new at every step as well."""
        if not self.free:
            return False
        new = [leaf for leaf in leaves if not self.layers.knows(id(leaf))]
        gone = [name for name, reference in self.free.items() if reference() is None]
        shapes = [tuple(leaf.shape) for leaf in new]
        if len(gone) < 2 or shapes != [self.layers.shape(name) for name in gone]:
            return False
        self.free |= {name: weakref.ref(leaf) for name, leaf in zip(gone, new)}
        if not {*map(self.layers.path, range(len(self.layers.references)))}.issuperset(gone):
            self.layers.have_gone = True  # some have no place any more, and get one when all are looked for again
            return False
        self.layers.replace(dict(zip(gone, new)))
        self._slots_cache = {}
        self.lists.forget()
        self._number_optimizers()
        return True

    def take_in(self, loss: Sequence[Any], is_out_of_place: Callable[[torch.Tensor], bool]) -> bool:
        """Models that a loss reaches and that nobody has found yet; True when there are new layers."""
        if self._is_given:
            return False
        leaves = [leaf for leaf in autograd_graph.leaf_tensors(loss) if isinstance(leaf, nn.Parameter)]
        unknown = [leaf for leaf in leaves if not self.layers.knows(id(leaf)) and not is_out_of_place(leaf)]
        if not unknown:
            return False
        return self._take_in(unknown)

    def _describe(self) -> bool:
        # With models given, tensors that only an optimizer knows belong to somebody else.
        extra = self.optimizers.real if not self._is_given or self._given_optimizers else []
        free = {name: tensor for name, one in self.free.items() if (tensor := one()) is not None}
        self._found = found = discovery.describe(self.roots, extra, self._found, free)
        self.is_compiled = found.is_compiled
        self.unowned, self.empty, self.whole = found.unowned, found.empty, found.whole
        before = self.layers.slot_of
        is_new = self.layers.update(found)
        self.zero_grads.move(before, self.layers.slot_of)
        self._slots_cache = {}
        self.lists.forget()
        self._number_optimizers()
        return is_new

    def _number_optimizers(self) -> None:
        self._exposed, self._holders = {}, {}
        self.version += 1
        self._optimizer_of = self.optimizers.of_slots(self.layers.slot_of)

    def rescan(self) -> bool:
        """Look for parameters added since; True when there are new layers."""
        return self._describe()

    def due(self, steps: int) -> bool:
        return steps in _RESCAN_STEPS or (steps > 0 and steps % _RESCAN_EVERY == 0)

    def steps_until_due(self, steps: int) -> int:
        later = [step - steps for step in _RESCAN_STEPS if step > steps]
        return min([*later, _RESCAN_EVERY - steps % _RESCAN_EVERY])

    def watches(self, tensor: Any) -> bool:
        return self.layers.knows(id(tensor))

    @property
    def found(self) -> discovery.Found:
        """All parameters and modules with their paths."""
        return self._found

    def known_modules(self) -> set[int]:
        """Ids of the modules of watched models, and of those themselves, which are no layers."""
        return {*self.layers.module_layer, *(id(root) for root in self.roots.values())}

    def outside(self, optimizers: Sequence[Optimizer]) -> Slots:
        """What none of these holds."""
        held = {id(tensor) for tensor in discovery.optimizer_tensors(optimizers)}
        return self.lists.one([slot for identity, slot in self.layers.slot_of.items() if identity not in held])

    def holder(self, slots: Slots) -> Optimizer | None:
        """The optimizer that holds all of these."""
        holders = set(self._optimizer_of[slots].tolist())
        return self.optimizers.at(holders.pop()) if len(holders) == 1 and min(holders) >= 0 else None

    def slots_of(self, optimizer: Optimizer, layers_changed: Callable[[], None]) -> Slots:
        """The watched slots an optimizer steps; an optimizer not seen before is taken in."""
        sizes = tuple(len(group["params"]) for group in optimizer.param_groups)
        cached = self._slots_cache.get(id(optimizer))
        if cached is not None and cached[0]() is optimizer and cached[1] == sizes:
            return cached[2]
        tensors = discovery.optimizer_tensors([optimizer])
        known = [self.layers.knows(id(tensor)) for tensor in tensors]
        if not self._is_given or any(known) or self._own(tensors):
            self.optimizers.adopt(optimizer)
            if all(known):
                self._number_optimizers()
            elif self._take_in(tensors):
                layers_changed()
        slots = self.lists.one(sorted({self.layers.slot_of[id(t)] for t in tensors if self.layers.knows(id(t))}))
        self._slots_cache[id(optimizer)] = (weakref.ref(optimizer), sizes, slots)
        return slots

    def _own(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a watched model holds one of these: a part of it may have been replaced since the last search."""
        wanted = {id(tensor) for tensor in tensors}
        return any(id(parameter) in wanted for root in self.roots.values() for parameter in parameters_of(root))

    def _take_in(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Models that nobody named and that turn up later; True when there are new layers, or old ones are reused."""
        generation = self.layers.generation
        if not self._is_given:
            for root in discovery.find_roots(tensors):
                if all(root is not known() for known in self._roots.values()):
                    self._roots[self._free_name(root)] = weakref.ref(root)
        return self._describe() or generation != self.layers.generation

    def _free_name(self, root: nn.Module) -> str:
        """A name for a model that turned up after the first ones had theirs. Where very many of one name have come and
        gone, that of the first of them: a run has a bounded number of layers."""
        if not self._roots:
            return ""
        base = discovery.root_name(root)
        there = {one.root for one in self._found.parameters if one.reference() is not None}
        there |= {name for name, known in self._roots.items() if known() is not None}
        gone = [name for name in self._roots if name not in there and discovery.is_named_after(name, base)]
        if len(gone) < _MOST_GONE:
            return discovery.free_name(base, self._roots)
        del self._roots[gone[0]]  # the latest comes last
        self.layers.generation += 1
        return gone[0]

    # -- order and graph ----------------------------------------------------------------------------------

    def walk(self, roots: Sequence[Any], module_positions: dict[int, int]) -> bool:
        walked = autograd_graph.walk(roots, self.layers.owners, self.stands_for())
        return self.layers.ordered(walked, module_positions)

    def gathered(self) -> list[tuple[torch.Tensor, int]]:
        """Whole parameters that stand for shards while the model runs, and the slots of those."""
        if self.layout.spread is None:
            return []
        slot_of = self.layers.slot_of
        pairs = gathered_parameters(self.roots.values())
        return [(whole, slot_of[id(shard)]) for whole, shard in pairs if id(shard) in slot_of]

    def stands_for(self) -> autograd_graph.Gathered:
        if self.layout.spread is None:
            return {}
        identities = list(self.layers.slot_of)
        whole = {id(whole): identities[slot] for whole, slot in self.gathered()}
        return {**whole, **flat_parameters(self.roots.values())}

    def unplaced(self) -> bool:
        """Some parameter has had a gradient although no graph seen so far showed where it is used."""
        return self.layers.has_unplaced(
            slot for slot, has_one in enumerate(have_gradient(self.layers.references)) if has_one
        )

    def frozen(self, slots: Slots) -> list[int]:
        """Places in `slots` of tensors that do not ask for a gradient."""
        trainable = self.lists.trainable_flags()
        if b"\0" not in trainable:
            return []
        return [place for place, slot in enumerate(slots.tolist()) if not trainable[slot]]

    def exposed(self, slots: Slots) -> Slots:
        """What a step of an optimizer speaks of: its own tensors, and those that no optimizer holds."""
        known = self._exposed.get(id(slots))
        if known is None:
            both = np.union1d(slots, np.flatnonzero(self._optimizer_of == -1))
            known = self._exposed[id(slots)] = self.lists.one(both.tolist())
        return known

    def note_cleared(self, reader: TensorReader) -> None:
        """Called as a backward pass begins: gradients that are None or zero now have been cleared."""
        present = have_gradient(self.layers.references)
        if not self.zero_grads.is_known(present) and (left := self.zero_grads.left(present)):
            slots = self.lists.one(left)
            zero = reader.are_zero(self.lists.gradients(slots))
            if zero is not None:  # else it cannot be told without making the training wait
                self.zero_grads.put(slots, zero, self.layers.references)

    def holders(self, slots: Slots) -> NDArray[np.float32]:
        """The index of the optimizer that holds each slot, -1 for none."""
        known = self._holders.get(id(slots))
        if known is None:
            known = self._holders[id(slots)] = self._optimizer_of[slots].astype(np.float32)
        return known

    def facts(self) -> dict[str, Any]:
        devices = sorted({str(tensor.device) for tensor in self.layers.tensors()})
        reasons: list[str] = []
        if self.unowned and self._roots:
            reasons.append(f"an optimizer holds {self.unowned} tensors that belong to no watched model")
        if self.empty:
            reasons.append(f"{self.empty} tensors on the meta device hold no values and are not watched")
        if self.whole:
            reasons.append(f"{self.whole} tensors of whole numbers get no gradient and are not watched")
        return {
            "optimizers": self.optimizers.facts(),
            "device": ", ".join(devices),
            "layers_skipped": len(self.layers.skipped),
            "reasons": reasons,
        }


def _weights_among(leaves: Sequence[torch.Tensor], by: Sequence[Any] | None) -> list[torch.Tensor]:
    """Beside parameters of modules, other leaves are data that somebody differentiates by."""
    parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    if by is not None:
        known = {id(parameter) for parameter in parameters}
        leaves = [one for one in by if isinstance(one, torch.Tensor) and one.grad_fn is None]
        parameters = [leaf for leaf in leaves if id(leaf) in known or not known]
    return [leaf for leaf in parameters or leaves if discovery.is_measurable(leaf)]
