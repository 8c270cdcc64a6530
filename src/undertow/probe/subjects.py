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
from undertow.measure.kernels.interface import Want
from undertow.measure.partials import Moment
from undertow.probe import autograd_graph, discovery
from undertow.probe.distributed.fsdp import flat_parameters, gathered_parameters
from undertow.probe.distributed.spread_list import list_of
from undertow.probe.reader import TensorReader
from undertow.probe.readings import Number, Slots
from undertow.probe.tensor_list import TensorList, are_trainable, have_gradient
from undertow.probe.watched_layers import SlotLayout, WatchedLayers
from undertow.probe.zero_grad_tracking import ZeroGradTracker

_RESCAN_STEPS = frozenset({1, 10, 100})
_RESCAN_EVERY = 1000
_GLANCE = 65_536  # elements of the largest tensor that is looked at in every step;
_QUICK = 4_096  # smaller ones are looked at rather
_MOST_REMEMBERED = 64
_ALL: Slots = np.empty(0, np.int64)  # stands for the slots of all tensors, without naming them

_NONFINITE = [Moment.NAN, Moment.POSITIVE_INFINITY, Moment.NEGATIVE_INFINITY]


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
        # Everything of the user's is referred to weakly. Names of models that are gone stay taken.
        self._roots = {name: weakref.ref(root) for name, root in (roots or {}).items()}
        self._found = discovery.describe(roots or {}, ())
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._slots_cache: dict[int, tuple[weakref.ref[Optimizer], tuple[int, ...], Slots]] = {}
        self.layers = WatchedLayers(include, exclude)
        self.ready = False
        self.is_compiled = False
        self.unowned = self.empty = self.whole = 0
        self.optimizer_of: NDArray[np.int64] = np.empty(0, np.int64)
        self.zero_grads = ZeroGradTracker()
        self._same: dict[tuple[int, ...], Slots] = {}
        # What has been worked out for slots (by identity) and flags of all tensors that come again at every step.
        self._lists: dict[tuple[int, bool], TensorList] = {}
        self._chosen: dict[tuple[int, bytes], Slots] = {}
        self._exposed: dict[int, Slots] = {}
        self._holders: dict[int, NDArray[np.float32]] = {}
        self.all_gradients: TensorList | None = None  # if, when last asked, every tensor had one
        self._sentinels: Slots | None = None
        self._glanced: TensorList | None = None  # their gradients, where all have one
        self.version = 0  # another one when slots, layers or optimizers may be others

    @property
    def layout(self) -> SlotLayout:
        return self.layers.layout

    def forget_tensors(self) -> None:
        """Nothing refers to any of them afterwards; the next rescan finds them again."""
        self._found.parameters = []
        self._forget_lists()
        self.zero_grads.move((), ())
        self.layers.forget_tensors()
        self.layers.have_gone = self.ready

    def _forget_lists(self) -> None:
        self._slots_cache, self._same, self._lists, self._chosen = {}, {}, {}, {}
        self.all_gradients = self._sentinels = self._glanced = None

    @property
    def _live_roots(self) -> dict[str, nn.Module]:
        return {name: root for name, ref in self._roots.items() if (root := ref()) is not None}

    # -- finding out --------------------------------------------------------------------------------------

    def discover(
        self, called: Sequence[nn.Module], loss: Sequence[Any] = (), stepping: Optimizer | None = None
    ) -> bool:
        """True once there is something to watch.

        Models and optimizers left over from earlier work in the same process are told apart from those in
        use by what has happened since watching began: a model was called, a loss reaches it, or it steps.
        """
        given = [optimizer for ref in self._given_optimizers if (optimizer := ref()) is not None]
        optimizers = given if self._given_optimizers else discovery.live_optimizers()
        if not self._is_given:
            in_use = autograd_graph.leaves(loss)
            in_use |= {id(p) for module in called for p in module.parameters()}
            in_use |= {id(t) for t in discovery.optimizer_tensors([stepping] if stepping is not None else [])}
        else:
            self._found = discovery.describe(self._live_roots, (), self._found)
            in_use = {id(one.reference()) for one in self._found.parameters}
        relevant = [o for o in optimizers if any(id(t) in in_use for t in discovery.optimizer_tensors([o]))]
        if not self._is_given:
            if not relevant:
                return False
            roots = discovery.find_roots(discovery.optimizer_tensors(relevant), called)
            self._roots = {name: weakref.ref(root) for name, root in discovery.name_roots(roots).items()}
        self._optimizers = [weakref.ref(optimizer) for optimizer in relevant]
        self._describe()
        self.ready = bool(self.layers.references)
        if not self.ready and self.layers.skipped:
            raise SettingError(
                "include and exclude leave no layer to watch",
                way_out=f"Layers are named like: {', '.join(sorted(self.layers.skipped)[:4])}",
            )
        return self.ready

    def _describe(self) -> bool:
        alive = [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]
        # With models given, tensors that only an optimizer knows belong to somebody else.
        extra = alive if not self._is_given or self._given_optimizers else []
        self._found = found = discovery.describe(self._live_roots, extra, self._found)
        self.is_compiled = found.is_compiled
        self.unowned, self.empty, self.whole = found.unowned, found.empty, found.whole
        before = self.layers.slot_of
        is_new = self.layers.update(found)
        self.zero_grads.move(before, self.layers.slot_of)
        self._forget_lists()
        self._number_optimizers()
        return is_new

    def _one(self, slots: Sequence[int]) -> Slots:
        """The one array that stands for these slots: equal lists are then the same object."""
        key = tuple(slots)
        array = self._same.get(key)
        if array is None:
            array = self._same[key] = np.array(key, np.int64)
        return array

    def _number_optimizers(self) -> None:
        self._exposed, self._holders = {}, {}
        self.version += 1
        owner = np.full(len(self.layers.references), -1, np.int64)
        for index, ref in enumerate(self._optimizers):
            optimizer = ref()
            for tensor in discovery.optimizer_tensors([optimizer]) if optimizer is not None else ():
                slot = self.layers.slot_of.get(id(tensor))
                if slot is not None:
                    owner[slot] = index
        self.optimizer_of = owner

    @property
    def has_one_optimizer(self) -> bool:
        return len(self._optimizers) == 1

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

    def slots_of(self, optimizer: Optimizer, layers_changed: Callable[[], None]) -> Slots:
        """The watched slots an optimizer steps; an optimizer not seen before is taken in."""
        sizes = tuple(len(group["params"]) for group in optimizer.param_groups)
        cached = self._slots_cache.get(id(optimizer))
        if cached is not None and cached[0]() is optimizer and cached[1] == sizes:
            return cached[2]
        tensors = discovery.optimizer_tensors([optimizer])
        known = [self.layers.knows(id(tensor)) for tensor in tensors]
        if not self._is_given or any(known) or self._own(tensors):
            self._adopt(optimizer)
            if all(known):
                self._number_optimizers()
            else:
                self._take_in(tensors)
                if self._describe():
                    layers_changed()
        slots = self._one(sorted({self.layers.slot_of[id(t)] for t in tensors if id(t) in self.layers.slot_of}))
        self._slots_cache[id(optimizer)] = (weakref.ref(optimizer), sizes, slots)
        return slots

    def _own(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a watched model holds one of these: a part of it may have been replaced since the last look."""
        wanted = {id(tensor) for tensor in tensors}
        return any(id(parameter) in wanted for root in self._live_roots.values() for parameter in root.parameters())

    def _take_in(self, tensors: Sequence[torch.Tensor]) -> None:
        """Models that nobody named and that turn up later."""
        if not self._is_given:
            for root in discovery.find_roots(tensors):
                if all(root is not known() for known in self._roots.values()):
                    self._roots[self._free_name(root)] = weakref.ref(root)

    def _adopt(self, optimizer: Optimizer) -> None:
        """An optimizer made anew every step takes the place of the one that is gone."""
        if any(ref() is optimizer for ref in self._optimizers):
            return
        for index, ref in enumerate(self._optimizers):
            if ref() is None:
                self._optimizers[index] = weakref.ref(optimizer)
                return
        self._optimizers.append(weakref.ref(optimizer))

    def _free_name(self, root: nn.Module) -> str:
        """A name for a model that turned up after the first ones had theirs."""
        if not self._roots:
            return ""
        return discovery.free_name(discovery.root_name(root), self._roots)

    # -- order and graph ----------------------------------------------------------------------------------

    def walk(self, roots: Sequence[Any], module_positions: dict[int, int]) -> bool:
        self._sentinels = self._glanced = None
        walked = autograd_graph.walk(roots, self.layers.owners, self._stands_for())
        return self.layers.ordered(walked, module_positions)

    def gathered(self) -> list[tuple[torch.Tensor, int]]:
        """Whole parameters that stand for shards while the model runs, and the slots of those."""
        if self.layout.spread is None:
            return []
        slot_of = self.layers.slot_of
        pairs = gathered_parameters(self._live_roots.values())
        return [(whole, slot_of[id(shard)]) for whole, shard in pairs if id(shard) in slot_of]

    def _stands_for(self) -> autograd_graph.Gathered:
        if self.layout.spread is None:
            return {}
        identities = list(self.layers.slot_of)
        whole = {id(whole): identities[slot] for whole, slot in self.gathered()}
        return {**whole, **flat_parameters(self._live_roots.values())}

    def first_nonfinite(self, roots: Sequence[Any]) -> dict[str, Any] | None:
        """Where in the forward pass of this loss non-finite values begin, for the journal."""
        origin = autograd_graph.first_nonfinite(roots, self.layers.owners, self._stands_for())
        if origin is None:
            return None
        return {"where": "forward", "layer": origin.path, "operation": origin.operation, "detail": origin.detail}

    def first_nonfinite_weight(self, reader: TensorReader) -> dict[str, Any] | None:
        """The first weight in execution order that is no longer finite, for the journal."""
        tensors = self.layers.tensors()
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return None  # looking would make the training wait
        bad: dict[int, int] = {}
        for reading in reader.read(self.weights(self._one(range(len(tensors)))), Want.MOMENTS):
            counts = reading.partials.moments[:, _NONFINITE].sum(axis=1)
            bad |= {slot: int(count) for slot, count in zip(reading.slots.tolist(), counts) if count}
        if not bad:
            return None
        slot = min(bad, key=self.layers.place)
        detail = f"{bad[slot]} of {tensors[slot].numel()} values are not finite"
        return {"where": "weight", "layer": self.layers.path(slot), "operation": "", "detail": detail}

    def unplaced(self) -> bool:
        """Some parameter has had a gradient although no graph seen so far showed where it is used."""
        return self.layers.has_unplaced(
            slot for slot, has_one in enumerate(have_gradient(self.layers.references)) if has_one
        )

    def gradients_went_bad(self, reader: TensorReader) -> bool:
        """A glance at the sentinels. False also where looking would make the training wait."""
        if self._glanced is not None:
            bad = self._glanced.plain.any_nonfinite()
            if bad is not None:  # all have a gradient, as last time
                return bad
        chosen, self._glanced = self.gradients(self.sentinels()), None
        bad = bool(len(chosen.slots)) and reader.any_nonfinite(chosen)
        if chosen.plain is not None and chosen.slots is self._sentinels:
            self._glanced = chosen
        return bad

    # -- tensors ------------------------------------------------------------------------------------------

    def gradients_now(self) -> TensorList:
        """Of all tensors that have one."""
        have = have_gradient(self.layers.references)
        found = self.gradients(self._pick(_ALL, have))
        self.all_gradients = found if b"\0" not in have else None
        return found

    def _pick(self, slots: Slots, flags: bytes) -> Slots:
        """Those of some slots whose tensors are flagged; the same array object whenever the answer is the same."""
        chosen = self._chosen.get((id(slots), flags))
        if chosen is None:
            candidates = range(len(flags)) if slots is _ALL else slots.tolist()
            chosen = self._one([slot for slot in candidates if flags[slot]])
            if len(self._chosen) < _MOST_REMEMBERED:
                self._chosen[id(slots), flags] = chosen
        return chosen

    def sentinels(self) -> Slots:
        """A few small tensors to glance at in every step: those executed first, and some spread over the rest.

        What goes wrong in a backward pass spreads towards the input, so the first layers tell of all behind them.
        """
        if self._sentinels is None:
            sizes = [0 if (tensor := one()) is None else tensor.numel() for one in self.layers.references]
            small = [slot for slot, size in enumerate(sizes) if 0 < size <= _GLANCE]
            small.sort(key=self.layers.place)
            tiny = [slot for slot in small if sizes[slot] <= _QUICK] or small
            chosen = {*small[:4], *tiny[:: max(1, len(tiny) // 4)]}
            self._sentinels = self._one(sorted(chosen))
        return self.with_gradient(self._sentinels)

    def with_gradient(self, slots: Slots) -> Slots:
        return self._pick(slots, have_gradient(self.layers.references))

    def gradients(self, slots: Slots) -> TensorList:
        """Of slots that have one."""
        return self._list(slots, of_gradients=True)

    def weights(self, slots: Slots) -> TensorList:
        return self._list(slots, of_gradients=False)

    def _list(self, slots: Slots, of_gradients: bool) -> TensorList:
        known = self._lists.get((id(slots), of_gradients))
        if known is None:
            references = self.layers.references
            chosen = [references[slot] for slot in slots.tolist()]
            known = list_of(slots, chosen, of_gradients, self.layout.spread)
            if len(self._lists) < _MOST_REMEMBERED:
                self._lists[id(slots), of_gradients] = known
        return known

    def frozen(self, slots: Slots) -> list[int]:
        """Places in `slots` of tensors that do not ask for a gradient."""
        trainable = are_trainable(self.layers.references)
        if b"\0" not in trainable:
            return []
        return [place for place, slot in enumerate(slots.tolist()) if not trainable[slot]]

    def exposed(self, slots: Slots) -> Slots:
        """What a step of an optimizer speaks of: its own tensors, and those that no optimizer holds."""
        known = self._exposed.get(id(slots))
        if known is None:
            both = np.union1d(slots, np.flatnonzero(self.optimizer_of == -1))
            known = self._exposed[id(slots)] = self._one(both.tolist())
        return known

    def moving(self, slots: Slots) -> Slots:
        trainable = are_trainable(self.layers.references)
        return self._pick(slots, trainable) if b"\0" in trainable else slots

    def note_cleared(self, reader: TensorReader) -> None:
        """Called as a backward pass begins: gradients that are None or zero now have been cleared."""
        present = have_gradient(self.layers.references)
        if not self.zero_grads.is_known(present) and (left := self.zero_grads.left(present)):
            slots = self._one(left)
            zero = reader.look_zero(self.gradients(slots))
            if zero is not None:  # else it cannot be told without making the training wait
                self.zero_grads.put(slots, zero, self.layers.references)

    def holders(self, slots: Slots) -> NDArray[np.float32]:
        """The index of the optimizer that holds each slot, -1 for none."""
        known = self._holders.get(id(slots))
        if known is None:
            known = self._holders[id(slots)] = self.optimizer_of[slots].astype(np.float32)
        return known

    # -- facts --------------------------------------------------------------------------------------------

    def learning_rates(self, optimizer: Optimizer) -> dict[str, Number]:
        groups = optimizer.param_groups
        if len(groups) == len(self._optimizers) == 1 and type(rate := groups[0].get("lr")) is float:
            return {"lr": rate}
        rates: dict[str, Number] = {}
        number = 0
        for ref in self._optimizers:
            known = ref()
            if known is None:
                continue
            for group in known.param_groups:
                rate = group.get("lr")
                if known is optimizer and isinstance(rate, (int, float, torch.Tensor)):
                    rates[f"lr_{number}"] = rate.detach().clone() if isinstance(rate, torch.Tensor) else float(rate)
                number += 1
        if not rates:
            return {}
        values = list(rates.values())
        if all(isinstance(value, float) for value in values):
            largest: Number = max(values)  # pyright: ignore[reportArgumentType]
        else:
            largest = torch.stack([torch.as_tensor(value) for value in values]).max()
        return {"lr": largest, **(rates if number > 1 else {})}

    def facts(self) -> dict[str, Any]:
        optimizers: list[dict[str, Any]] = []
        for ref in self._optimizers:
            optimizer = ref()
            if optimizer is not None:
                groups = [
                    {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
                    | {"parameters": len(group["params"])}
                    for group in optimizer.param_groups
                ]
                optimizers.append({"type": type(optimizer).__name__, "groups": groups})
        devices = sorted({str(tensor.device) for tensor in self.layers.tensors()})
        reasons: list[str] = []
        if self.unowned and self._roots:
            reasons.append(f"an optimizer holds {self.unowned} tensors that belong to no watched model")
        if self.empty:
            reasons.append(f"{self.empty} tensors on the meta device hold no values and are not watched")
        if self.whole:
            reasons.append(f"{self.whole} tensors of whole numbers get no gradient and are not watched")
        return {
            "optimizers": optimizers,
            "device": ", ".join(devices),
            "layers_skipped": len(self.layers.skipped),
            "reasons": reasons,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if not isinstance(value, torch.Tensor) else "tensor"
