"""Which models are being trained, and what their parameters and modules are called.

Names are the model's own paths, with the parts that wrappers add (`_orig_mod`, `module`) taken out.
"""

import gc
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from sys import getrefcount
from types import FrameType, MappingProxyType
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from undertow.probe.autograd_graph import Owner
from undertow.probe.distributed.fsdp import Share, shares_of
from undertow.probe.unseen import modules_of, parameters_of, unseen
from undertow.schema import LayerKind

try:
    from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
except ImportError:  # built without a C compiler
    _native = None

_WRAPPER_TYPES = frozenset(
    {"OptimizedModule", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "AveragedModel"}
)
_WRAPPER_PARTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module"})

_SHOWS_VARIABLES = sys.version_info >= (3, 13)  # `frame.f_locals` then is a view of them
_OURS = 3  # references to a copy of them: by the frame, here, and by whoever counts
_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")


@dataclass(slots=True)
class FoundParameter:
    reference: ref[torch.Tensor]
    path: str
    kind: LayerKind
    group: str
    module_type: str = ""
    shared_with: list[str] = field(default_factory=list[str])
    owners: list[Owner] = field(default_factory=list[Owner])
    is_replicated: bool = False  # inside a wrapper that keeps it equal on all ranks
    share: Share | None = None  # where this process holds a stretch of it
    is_free: bool = False  # neither a model nor an optimizer holds it: somebody differentiates by it
    root: str | None = None  # the name of the model it is of; None where only an optimizer knows it


@dataclass(slots=True)
class FoundModule:
    reference: ref[nn.Module]
    path: str
    root: str


@dataclass(slots=True)
class Found:
    """Keeps nothing alive."""

    parameters: list[FoundParameter] = field(default_factory=list[FoundParameter])
    modules: list[FoundModule] = field(default_factory=list[FoundModule])
    is_compiled: bool = False
    empty: int = 0  # tensors on the meta device, which hold no values
    whole: int = 0  # tensors of whole numbers, as quantised weights are: no gradient ever reaches them
    unowned: int = 0  # tensors that an optimizer holds although no watched model has them


def instances(kind: type[Any]) -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


# Without it other threads may run meanwhile, and what they are making must not be referred to by anybody.
instances = getattr(_native, "instances", instances)


def live_optimizers() -> list[Optimizer]:
    return [one for one in instances(Optimizer) if "param_groups" in vars(one)]


def optimizer_tensors(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    return [tensor for optimizer in optimizers for group in optimizer.param_groups for tensor in group["params"]]


def anything_compiled() -> bool:
    """Whether a module of this process is compiled: hooks around it would become part of what is compiled."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    return any(map(_is_compiled, _live_modules()))


def _is_compiled(module: nn.Module) -> bool:
    """But for the graphs of dynamo's own making that an export leaves behind."""
    if type(module).__name__ == "OptimizedModule":
        return "dynamo_compile_id" not in getattr(module._modules.get("_orig_mod"), "meta", ())
    return getattr(module, "_compiled_call_impl", None) is not None


def _live_modules() -> list[nn.Module]:
    """All but those whose `__init__` has not been called, or not yet."""
    return [one for one in instances(nn.Module) if "_modules" in vars(one)]


def find_roots(tensors: Iterable[torch.Tensor], called: Sequence[nn.Module] = ()) -> list[nn.Module]:
    """The outermost live modules that own any of these tensors.

    Where two outermost modules hold the same parameters (a model and a temporary list of its parts),
    the one that was called, or else the larger one, gives the names.
    """
    wanted = {id(tensor) for tensor in tensors}
    modules = _live_modules()
    children = {id(child) for module in modules for child in module._modules.values() if child is not None}
    called_ids = {id(module) for module in called}
    candidates: list[tuple[bool, int, nn.Module, set[int]]] = []
    for module in modules:
        if id(module) not in children:
            owned = {id(parameter) for parameter in parameters_of(module)}
            if owned & wanted:
                was_called = any(id(part) in called_ids for part in modules_of(module))
                candidates.append((was_called, len(owned), module, owned))
    candidates.sort(key=lambda candidate: candidate[:2], reverse=True)
    roots: list[nn.Module] = []
    covered: set[int] = set()
    for _, _, module, owned in candidates:
        if (owned & wanted) - covered:
            roots.append(module)
            covered |= owned
    return roots


def name_roots(roots: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """One root needs no name; several get the name of the variable that holds them, or of their class."""
    if len(roots) == 1:
        return {"": roots[0]}
    named: dict[str, nn.Module] = {}
    for base, root in sorted(((root_name(root), root) for root in roots), key=lambda pair: pair[0]):
        named[free_name(base, named)] = root
    return named


def root_name(root: nn.Module) -> str:
    return _variable_names({id(root)}).get(id(root)) or _snake(type(_unwrapped(root)).__name__)


def free_name(base: str, taken: Container[str]) -> str:
    name, number = base, 2
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def is_named_after(name: str, base: str) -> bool:
    """Whether `free_name` makes such a name of this one."""
    return name == base or (name.startswith(f"{base}_") and name[len(base) + 1 :].isdecimal())


def describe(
    roots: dict[str, nn.Module],
    optimizers: Sequence[Optimizer],
    before: Found | None = None,
    free: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> Found:
    """Every parameter and module of the models, then tensors of neither a model nor an optimizer (`free`, by name), and
    those that only an optimizer knows.

    Of models that are gone, by what was found before, those parts are left that the program still holds.
    """
    with unseen():  # classes of tensors are asked nothing
        return _describe(roots, optimizers, before, free)


def _describe(
    roots: dict[str, nn.Module],
    optimizers: Sequence[Optimizer],
    before: Found | None,
    free: Mapping[str, torch.Tensor],
) -> Found:
    found = Found()
    by_id: dict[int, FoundParameter] = {}
    for prefix, root in roots.items():
        shares = shares_of(root)
        replicated = {parameter for parameter, share in shares.items() if share.portion is None}
        for path, module in _named_modules(root, prefix):
            if type(module).__name__ == "DistributedDataParallel":
                replicated |= {id(parameter) for parameter in parameters_of(module)}
            if type(module).__name__ == "OptimizedModule":
                found.is_compiled = True
            if type(module).__name__ in _WRAPPER_TYPES:
                continue
            if path != prefix:
                found.modules.append(FoundModule(ref(module), path, prefix))
            for name, tensor in module._parameters.items():
                if tensor is None or isinstance(tensor, UninitializedParameter):
                    continue
                if tensor.is_meta or not is_measurable(tensor):
                    found.empty += tensor.is_meta
                    found.whole += not tensor.is_meta
                    continue
                full, group = f"{path}.{name}" if path else name, path
                if "/" in name:  # Keras keeps all weights in one flat dictionary, by paths of its own
                    full = f"{prefix}.{name}".strip(".").replace("/", ".")
                    group = full.rpartition(".")[0]
                owner = Owner(group, isinstance(module, (nn.Embedding, nn.EmbeddingBag)))
                known = by_id.get(id(tensor))
                if known is not None:
                    if full != known.path and full not in known.shared_with:
                        known.shared_with.append(full)
                        known.owners.append(owner)
                    continue
                by_id[id(tensor)] = FoundParameter(
                    ref(tensor), full, _kind(module, name, tensor), group, type_name(module), owners=[owner],
                    is_replicated=id(tensor) in replicated, share=shares.get(id(tensor)), root=prefix,
                )  # fmt: skip
    if before is not None:
        found.modules += [one for one in before.modules if one.root not in roots and one.reference() is not None]
        for one in before.parameters:
            tensor = one.reference() if one.root is not None and one.root not in roots else None
            if tensor is not None:
                by_id.setdefault(id(tensor), one)
    for name, tensor in free.items():
        kind = LayerKind.WEIGHT if tensor.dim() >= 2 else LayerKind.PARAMETER
        group = name.rpartition(".")[0]
        found_free = FoundParameter(ref(tensor), name, kind, group, owners=[Owner(name)], is_free=True)
        by_id.setdefault(id(tensor), found_free)
    found.parameters = list(by_id.values())
    for optimizer in optimizers:
        for tensor, parameter in _optimizer_only(optimizer, by_id):
            found.unowned += 1
            if not roots or tensor.grad is not None:
                by_id[id(tensor)] = parameter
                found.parameters.append(parameter)
    return found


def is_measurable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _optimizer_only(
    optimizer: Optimizer, known: dict[int, FoundParameter]
) -> Iterator[tuple[torch.Tensor, FoundParameter]]:
    for number, group in enumerate(optimizer.param_groups):
        given_names = group.get("param_names")
        label = str(group.get("name") or f"group{number}")
        for position, tensor in enumerate(group["params"]):
            if id(tensor) in known or isinstance(tensor, UninitializedParameter) or tensor.is_meta:
                continue
            if not is_measurable(tensor):
                continue
            path = given_names[position] if given_names else f"{label}.param{position}"
            group_path = path.rpartition(".")[0]
            yield tensor, FoundParameter(ref(tensor), path, LayerKind.PARAMETER, group_path, owners=[Owner(group_path)])


def _named_modules(root: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    seen: set[int] = set()
    stack: list[tuple[str, nn.Module]] = [(prefix, root)]
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        is_wrapper = type(module).__name__ in _WRAPPER_TYPES
        for name, child in reversed(list(module._modules.items())):
            if child is not None:
                inner = path if is_wrapper and name in _WRAPPER_PARTS else f"{path}.{name}" if path else name
                stack.append((inner, child))


def _unwrapped(module: nn.Module) -> nn.Module:
    while type(module).__name__ in _WRAPPER_TYPES:
        inner = next((module._modules[part] for part in _WRAPPER_PARTS if module._modules.get(part)), None)
        if inner is None:
            return module
        module = inner
    return module


def type_name(module: nn.Module) -> str:
    """The name of its class as the user knows it: `fully_shard` makes an `FSDPLinear` of a `Linear`."""
    kind = type(module)
    if kind.__name__.startswith("FSDP") and len(kind.__bases__) == 2 and kind.__bases__[0].__name__ == "FSDPModule":
        return kind.__bases__[1].__name__
    return kind.__name__


def _kind(module: nn.Module, name: str, tensor: torch.Tensor) -> LayerKind:
    type_name = type(module).__name__
    if any(norm in type_name for norm in _NORMS):
        return LayerKind.NORM_SHIFT if name == "bias" else LayerKind.NORM_SCALE
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return LayerKind.EMBEDDING
    if isinstance(module, nn.RNNBase) and name.startswith("weight_hh"):
        return LayerKind.RECURRENT
    if "bias" in name:
        return LayerKind.BIAS
    return LayerKind.WEIGHT if tensor.dim() >= 2 or "weight" in name else LayerKind.PARAMETER


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _variable_names(wanted: set[int]) -> dict[int, str]:
    """What the user's code calls these objects: variables of the calling frames, and attributes of their `self`."""
    names: dict[int, str] = {}
    for scope in scopes_of_the_user(sys._getframe()):
        for name, value in scope.items():
            if id(value) in wanted and not name.startswith("_"):
                names.setdefault(id(value), name)
    return names


def scopes_of_the_user(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """From the innermost function on: its variables, attributes of its `self`, and what its module holds."""
    while frame is not None:
        if _is_the_users(str(frame.f_globals.get("__name__", ""))):
            variables = frame.f_locals
            attributes = attributes_of(variables.get("self"))
            yield {name: value for name, value in variables.items() if name != "self"}
            yield dict(attributes)
            yield dict(frame.f_globals)
            # Before Python 3.13 these are a copy that lives as long as the function runs: so would what is in it now.
            # Where `locals()` has given the same copy to the program, it is the program's.
            if not _SHOWS_VARIABLES and frame.f_code.co_flags & CO_OPTIMIZED and getrefcount(variables) <= _OURS:
                variables.clear()
            del variables, attributes
        frame = frame.f_back


def attributes_of(value: Any) -> dict[str, Any]:
    """Those of its own, whatever its class makes of a question for them."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _is_the_users(module_name: str) -> bool:
    """The trainings that Undertow brings along are written as users write theirs."""
    return not module_name.startswith(("undertow.", "torch.")) or module_name.startswith("undertow.demos.")
