"""Every operation of one step with its line: what is cut, broadcast, squashed and lost on the way to the loss.

A function mode sees what the user's program asks of torch, before torch does it. Nothing is changed and nothing is
drawn; of tensors only weak references are kept. What an operation marks (a cut, a softmax…) is a bit, and an operation
hands the bits of its inputs to its outputs, so that the loss tells which of them it depends on.
"""

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from undertow.probe.signal_handlers import raised_by_handler
from undertow.probe.source import operations
from undertow.probe.source.frames import LIBRARY, OWN, TORCH, Site, kind_of, sites_from
from undertow.probe.source.operations import ARITHMETIC, HANDING_ON, LOSSES, SAYING, SQUASHING, UNSAFE, name_of
from undertow.probe.taps import uncounted

MOST_OPERATIONS = 20_000  # of one step, and before the first one: what comes after goes by unseen
_MOST_MARKS = 512
_MOST_UPSTREAM = 64  # cuts whose graph is searched for the parameters before it

_HALF = (torch.float16, torch.bfloat16)
_disable: Callable[[], Any] = torch._C.DisableTorchFunction
_now = time.perf_counter


@dataclass(slots=True)
class Mark:
    """Something that happens at a line, and may be what a finding is about."""

    kind: str
    operation: str
    sites: tuple[Site, ...]
    note: str = ""
    parameters: set[int] = field(default_factory=set)  # ids of those that are before a cut
    module: weakref.ref[nn.Module] | None = None  # of torch, that does it
    feeds: bool = False  # the loss depends on it
    order: int = 0


@dataclass(slots=True)
class Known:
    """What is known of a tensor, as long as it lives."""

    reference: weakref.ref[torch.Tensor]
    bits: int
    squash: int  # the mark of the operation that squashed these very values, or -1
    sites: tuple[Site, ...]
    operation: str
    before: "Known | None"  # of what it was made
    index: "Known | None" = None  # and what chose it there

    def lineage(self) -> "Iterator[Known]":
        one: Known | None = self
        for _ in range(64):
            if one is None:
                return
            yield one
            one = one.before


class XRay(TorchFunctionMode):
    def __init__(self, leaves: Callable[[Any], list[torch.Tensor]]) -> None:
        """`leaves` finds the parameters that the graph of a tensor begins with."""
        super().__init__()
        self.is_active = True  # not while it pauses
        self.is_over = False
        self.marks: list[Mark] = []
        self.known: dict[int, Known] = {}
        self.written: dict[int, tuple[tuple[Site, ...], str]] = {}  # by address of the memory: who wrote it last
        self.frozen: dict[int, tuple[Site, ...]] = {}  # by id of the parameter
        self.totals: list[Known] = []  # what backward passes began with
        self.inputs: list[Known] = []
        self.targets: list[Known] = []
        self.count = 0
        self.seconds = 0.0
        self._leaves = leaves
        self._index: dict[tuple[Any, ...], int] = {}
        self._sites: dict[tuple[CodeType, int], tuple[Site, ...]] = {}
        self._numbers: dict[CodeType, int] = {}  # by function: the mark of what last became plain numbers there

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.is_active:
            began = _now()
            try:
                with _disable():
                    self._note(func, args, kwargs, result)
            except Exception as error:  # of an odd kind of tensor, say: the program goes on without being looked at
                self.is_active = False
                if raised_by_handler(error):
                    raise
            self.seconds += _now() - began
        return result

    def reached(self, roots: Iterable[Any]) -> None:
        """A backward pass begins with these: everything whose bit they carry matters to the loss."""
        for root in roots:
            known = self._known(root)
            if known is not None:
                self.totals.append(known)
                for number, mark in enumerate(self.marks):
                    if known.bits >> number & 1:
                        mark.feeds = True

    def forget_dead(self) -> None:
        self.known = {key: one for key, one in self.known.items() if one.reference() is not None}

    # -- one operation ------------------------------------------------------------------------------------

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name, in_place = name_of(func)
        if not name or name in SAYING:
            return
        self.count += 1
        if self.count > MOST_OPERATIONS:
            self.is_active = False
            return
        inputs = list(_tensors((*args, *kwargs.values()) if kwargs else args))
        outputs = inputs[:1] if in_place else list(_tensors((result,)))
        sites, code, through, module = self._place()
        if through == "library" and name not in LOSSES and name not in operations.CUTS:
            name = operations.LIBRARY  # what a library computes on its own account is no line of the user's
        if not sites:
            return
        before = [known for one in inputs if (known := self._known(one)) is not None]
        bits, squash = 0, -1
        for known in before:
            bits |= known.bits
        if before and name in HANDING_ON:
            squash = before[0].squash
        if in_place and name != "grad":
            self._wrote(name, inputs, (*args[1:], *(kwargs or {}).values()), sites, through)
        if through in ("zero_grad", "clip"):
            self._mark(through, "", sites)
            return
        self._note_precision(name, inputs, outputs, sites)
        number = self._marked(name, inputs, outputs, before, sites, code, module)
        if number is not None:
            bits |= 1 << number
            if self.marks[number].kind == "squash":
                squash = number
        if name in operations.FROM_NUMBERS and code in self._numbers:
            bits |= 1 << self._numbers[code]
        origin, index = before[0] if before else None, before[1] if name == "getitem" and len(before) > 1 else None
        for output in outputs:
            self.known[id(output)] = Known(weakref.ref(output), bits, squash, sites, name, origin, index)

    def _marked(
        self,
        name: str,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        before: list[Known],
        sites: tuple[Site, ...],
        code: CodeType | None,
        module: nn.Module | None,
    ) -> int | None:
        learning = [one for one in inputs if one.requires_grad]
        if learning and not any(one.requires_grad for one in outputs):
            return self._cut(name, learning, outputs, sites, code)
        if name in LOSSES:
            number = self._mark("loss", name, sites)
            if number is not None and len(inputs) > 1:
                self._compare(name, inputs[0], inputs[1], sites)
                if (given := self._known(inputs[0])) is not None and given.squash >= 0:
                    squash = self.marks[given.squash]
                    squash.note = f"{squash.operation} feeds {name}"
                    squash.order = 1 + number
            return number
        if name in SQUASHING:
            return self._mark("squash", name, sites, module=module)
        if name in UNSAFE:
            return self._mark("operation", UNSAFE[name], sites)
        if name in ("neg", "negative"):
            return self._mark("sign", name, sites, note="the sign is turned here")
        if name in ARITHMETIC and len(inputs) == 2 and outputs:
            return self._arithmetic(name, inputs, outputs[0], sites)
        if learning and inputs and not inputs[0].requires_grad and isinstance(learning[0], nn.Parameter):
            self._entered(inputs[0])
        return None

    def _cut(
        self,
        name: str,
        learning: list[torch.Tensor],
        outputs: list[torch.Tensor],
        sites: tuple[Site, ...],
        code: CodeType | None,
    ) -> int | None:
        switched_off = not torch.is_grad_enabled()
        if not outputs and name not in operations.TO_NUMBERS:
            return None
        operation = "no_grad" if switched_off else name
        number = self._mark("cut", operation, sites, note=operations.CUTS.get(operation, f"{name} has no gradient"))
        if number is None:
            return None
        mark = self.marks[number]
        if len(mark.parameters) == 0 and mark.order < _MOST_UPSTREAM:
            mark.parameters.update(id(leaf) for leaf in self._leaves(learning))
        mark.parameters.update(id(one) for one in learning if one.is_leaf)
        if not outputs and code is not None:
            self._numbers[code] = number
        return number

    def _arithmetic(
        self, name: str, inputs: list[torch.Tensor], output: torch.Tensor, sites: tuple[Site, ...]
    ) -> int | None:
        one, two = inputs
        if one.requires_grad != two.requires_grad and name in ("sub", "rsub", "mul", "subtract", "multiply"):
            known = self._known(two if one.requires_grad else one)
            if known is not None and len(self.targets) < _MOST_MARKS:
                self.targets.append(known)
        return self._broadcast(name, one, two, output.shape, sites)

    def _compare(self, name: str, one: torch.Tensor, two: torch.Tensor, sites: tuple[Site, ...]) -> None:
        """What a loss is given: prediction and target."""
        known = self._known(two)
        if known is not None:
            self.targets.insert(0, known)
        if name.endswith("loss") and one.shape != two.shape and two.is_floating_point():
            try:
                shape = torch.broadcast_shapes(one.shape, two.shape)
            except RuntimeError:
                return
            number = self._broadcast(name, one, two, shape, sites)
            if number is not None:
                self.marks[number].feeds = True

    def _broadcast(
        self, name: str, one: torch.Tensor, two: torch.Tensor, shape: torch.Size, sites: tuple[Site, ...]
    ) -> int | None:
        """Both are made larger: a column against a row becomes a table."""
        if one.shape == two.shape or shape.numel() <= max(one.numel(), two.numel()):
            return None
        shapes = " against ".join(str(list(each.shape)) for each in (one, two))
        return self._mark("broadcast", name, sites, note=f"{shapes} makes {list(shape)}")

    def _note_precision(
        self, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], sites: tuple[Site, ...]
    ) -> None:
        """Half of the bits from here on: a cast, or the block that casts for all."""
        if not inputs or not outputs or outputs[0].dtype not in _HALF or inputs[0].dtype in _HALF:
            return
        operation = name if name in ("half", "bfloat16", "to", "type", "type_as") else "autocast"
        if operation != "autocast" or torch.is_autocast_enabled(inputs[0].device.type):
            self._mark("precision", operation, sites)

    def _entered(self, data: torch.Tensor) -> None:
        """The first tensor without a gradient that parameters are applied to: what the model is given."""
        known = self._known(data)
        if known is not None and not known.bits and len(self.inputs) < 8:
            self.inputs.append(known)

    def _wrote(
        self, name: str, inputs: list[torch.Tensor], given: Iterable[Any], sites: tuple[Site, ...], through: str
    ) -> None:
        if not inputs or through == "initialisation":
            return
        if name == "requires_grad":
            if any(value is False for value in given):
                self.frozen[id(inputs[0])] = sites
            return
        if inputs[0].is_floating_point() and inputs[0].layout is torch.strided:
            self.written[inputs[0].untyped_storage().data_ptr()] = sites, name

    # -- the rest -----------------------------------------------------------------------------------------

    def _known(self, tensor: Any) -> Known | None:
        known = self.known.get(id(tensor))
        return known if known is not None and known.reference() is tensor else None

    def _mark(
        self, kind: str, operation: str, sites: tuple[Site, ...], note: str = "", module: nn.Module | None = None
    ) -> int | None:
        key = kind, operation, sites[0], id(module) if module is not None else 0
        number = self._index.get(key)
        if number is None and len(self.marks) < _MOST_MARKS:
            number = self._index[key] = len(self.marks)
            held = None if module is None else weakref.ref(module)
            self.marks.append(Mark(kind, operation, sites, note, module=held))
        return number

    def _place(self) -> tuple[tuple[Site, ...], CodeType | None, str, nn.Module | None]:
        """The user's lines, their function, what of torch is in between, and the module of torch that is running."""
        frame: FrameType | None = sys._getframe(3)
        through, inner = "", None
        while frame is not None and (kind := kind_of(frame.f_code)) != OWN:
            code = frame.f_code
            if kind == LIBRARY and not through:
                through = "library"
            word = _BETWEEN.get(code.co_name)
            if word is not None and code.co_filename.startswith(TORCH):
                if word == "module":
                    inner = inner or frame
                elif not through:
                    through = word
            frame = frame.f_back
        if frame is None:
            return sites_from(sys._getframe(3)), None, through, None
        key = frame.f_code, frame.f_lasti
        sites = self._sites.get(key)
        if sites is None:
            sites = self._sites[key] = sites_from(frame)
        module = None if inner is None else inner.f_locals.get("self")
        return sites, frame.f_code, through, module if isinstance(module, nn.Module) else None


uncounted(XRay.__torch_function__)

# Functions of torch between an operation and the user's line, and what they say about it.
_BETWEEN = {
    "zero_grad": "zero_grad", "clip_grad_norm_": "clip", "clip_grad_value_": "clip", "clip_grads_with_norm_": "clip",
    "_clip_grads_with_norm_": "clip", "reset_parameters": "initialisation", "_reset_parameters": "initialisation",
    "init_weights": "initialisation", "_apply": "initialisation", "forward": "module",
}  # fmt: skip


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for one in value:  # pyright: ignore[reportUnknownVariableType]
                if isinstance(one, torch.Tensor):
                    yield one
