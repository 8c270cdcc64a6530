"""Where a non-finite value began: what the journal's walk over the loss's graph adds to the findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undertow.schema import Evidence, Finding, Layer, LayerTable

# Names under which autograd saves the weight of an operation.
_WEIGHT_OPERANDS = ("'mat2'", "'weight'")
# Names under which it saves what the operation was given.
_GIVEN_OPERANDS = ("'mat1'", "'input'", "'self'")
# Operations that modules with a matrix do themselves; any other one came after their output.
_OWN_OPERATIONS = ("Addmm", "Mm", "Bmm", "Convolution", "Embedding", "Baddbmm", "Linear")
# Operations that can make a non-finite value of finite ones.
_UNSAFE_OPERATIONS = frozenset({
    "Div", "Sqrt", "Rsqrt", "Log", "Log2", "Log10", "Log1P", "Reciprocal", "Pow", "Acos", "Asin", "Atanh",
})  # fmt: skip
# Modules of PyTorch without parameters: what they do is known, so an operation of another kind is not theirs.
_PLAIN_MODULES = frozenset({
    "ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "GLU", "SiLU", "Mish", "Tanh", "Sigmoid", "Hardtanh",
    "Hardswish", "Hardsigmoid", "Softplus", "Softsign", "Softmax", "LogSoftmax", "Softmax2d", "Dropout", "Dropout1d",
    "Dropout2d", "Dropout3d", "AlphaDropout", "Flatten", "Unflatten", "Identity", "MaxPool1d", "MaxPool2d", "AvgPool1d",
    "AvgPool2d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "Upsample", "PixelShuffle", "Sequential", "ModuleList",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """The event `first_nonfinite` of a run."""

    step: int
    where: str  # "forward", "backward" or "weight"
    layer: str | None
    operation: str
    detail: str


def origin_in(events: Sequence[Mapping[str, Any]]) -> Origin | None:
    """The first such event; a damaged one is passed over."""
    for event in events:
        step = event.get("step")
        if event.get("kind") == "first_nonfinite" and isinstance(step, int):
            layer, where = event.get("layer"), event.get("where")
            return Origin(
                step=step,
                where=where if isinstance(where, str) else "forward",
                layer=layer if isinstance(layer, str) and layer else None,
                operation=str(event.get("operation") or ""),
                detail=str(event.get("detail") or ""),
            )
    return None


def at_its_module(origin: Origin | None, layers: LayerTable) -> Origin | None:
    """The origin at the user's own module right behind the layer, where the operation is none of the layer's.

    The graph of a loss knows modules by their parameters only; one that has none is found by its place.
    """
    layer = None if origin is None or origin.layer is None else layers.get(origin.layer)
    if origin is None or layer is None or origin.where != "forward":
        return origin
    owner = layer if layer.is_module else layers.get(layer.group)
    if owner is None or owner.order is None:
        return origin
    owners = {parameter.group for parameter in layers.parameters}
    if origin.operation in _OWN_OPERATIONS:
        if not any(name in origin.detail for name in _GIVEN_OPERANDS):
            return origin
        return _before_the_first(origin, owner, layers)
    after = [(m.order, m) for m in layers.modules if m.order is not None and m.order > owner.order]
    for _, behind in sorted(after, key=lambda pair: pair[0]):
        if behind.path in owners or not behind.module_type:
            return origin
        if behind.module_type not in _PLAIN_MODULES or behind.module_type == origin.operation:
            return replace(origin, layer=behind.path)
    return origin


def _before_the_first(origin: Origin, owner: Layer, layers: LayerTable) -> Origin:
    """What the first layer with parameters is given was made by the user's own module before it, if there is one.

    Such a module has no place in the graph of the loss, and so no order.
    """
    names = [*dict.fromkeys(parameter.group for parameter in layers.parameters)]
    orders = [m.order for m in layers.modules if m.path in names and m.order is not None]
    if owner.order != min(orders, default=None):
        return origin
    others = [m for m in layers.modules if m.order is None and not owner.path.startswith(f"{m.path}.") and m.path]
    own = [m for m in others if m.module_type not in _PLAIN_MODULES and not _holds_parameters(m, names)]
    before = [m for m in own if m.id < owner.id] or own[:1]  # in the order in which they were made, at a guess
    return replace(origin, layer=before[-1].path, operation="") if before else origin


def _came_in_with_the_data(origin: Origin, layers: LayerTable) -> bool:
    """The first layer of all was given it, and no module comes before that layer."""
    if origin.operation not in _OWN_OPERATIONS or not any(name in origin.detail for name in _GIVEN_OPERANDS):
        return False
    layer = layers.get(origin.layer or "")
    owner = None if layer is None else layer if layer.is_module else layers.get(layer.group)
    orders: list[int] = [m.order for m in layers.modules if m.order is not None]
    return owner is not None and owner.order is not None and bool(owner.order == min(orders))


def _holds_parameters(module: Layer, names: Sequence[str]) -> bool:
    return any(name == module.path or name.startswith(f"{module.path}.") for name in names)


def poisoned_weight(findings: Sequence[Finding], origin: Origin | None, layers: LayerTable) -> str | None:
    """The weight that was non-finite before the step in which all else turned so, if it was one."""
    if origin is None or origin.layer is None:
        return None
    if origin.where != "weight" and not any(name in origin.detail for name in _WEIGHT_OPERANDS):
        return None
    earlier = (f for f in findings if f.code == "NUM001" and f.severity.is_alarm and f.first_step < origin.step)
    if any(earlier):  # a bad gradient was stepped with: that is where the weight comes from
        return None
    for finding in findings:
        if finding.code == "NUM003" and finding.first_step <= origin.step:
            for path in finding.layers:
                layer = layers.get(path)
                if path == origin.layer or (layer is not None and layer.group == origin.layer):
                    return path
    return origin.layer if origin.where == "weight" else None


def placed(finding: Finding, origin: Origin | None, poisoned: str | None, layers: LayerTable) -> Finding:
    """The finding with the place of its origin first."""
    if finding.code == "NUM003" and poisoned is not None and origin is not None and finding.first_step == origin.step:
        rest = tuple(path for path in finding.layers if path != poisoned)
        how = f"it was already non-finite when the forward pass of step {origin.step} began"
        evidence = (Evidence("weight_nonfinite_count", poisoned, None, 0.0, how), *finding.evidence)
        return replace(finding, layers=(poisoned, *rest), evidence=evidence)
    if origin is None or finding.code not in ("NUM001", "NUM002", "NUM004") or finding.first_step != origin.step:
        return finding
    is_exact = origin.where == "forward" and origin.operation in _UNSAFE_OPERATIONS
    if finding.code == "NUM004" and not is_exact and not _is_earlier(origin, finding, layers):
        return finding  # its own list begins where the outputs do; a module that runs twice comes where it ran first
    if finding.code == "NUM001" and origin.where != "backward":
        return finding  # a consequence of the forward pass: its own list says how far it came
    how = f"first non-finite value in the {origin.where} pass: operation {origin.operation or 'unknown'}"
    if origin.detail:
        how += f", {origin.detail}"
    quantity = "unsafe_operation" if origin.operation in _UNSAFE_OPERATIONS else "first_nonfinite"
    if _came_in_with_the_data(origin, layers):
        quantity, how = "nonfinite_input", f"{how}: what the first layer is given holds it"
    evidence = (Evidence(quantity, origin.layer, None, None, how), *finding.evidence)
    if origin.layer is None:
        return replace(finding, evidence=evidence)
    if finding.code == "NUM002":
        summary = finding.summary.rstrip(".") + f": the first non-finite value came from {origin.layer}"
        summary += f", in {origin.operation}." if origin.operation else "."
        return replace(finding, layers=(origin.layer,), evidence=evidence, summary=summary)
    inside = [path for path in finding.layers if path == origin.layer or path.startswith(f"{origin.layer}.")]
    first = inside or [origin.layer]
    return replace(finding, layers=(*first, *(p for p in finding.layers if p not in first)), evidence=evidence)


def _is_earlier(origin: Origin, finding: Finding, layers: LayerTable) -> bool:
    """Did the forward pass come through the origin before the first module that is named?"""
    mine = layers.get(origin.layer or "")
    named = layers.get(finding.layers[0]) if finding.layers else None
    if origin.where != "forward" or mine is None or mine.order is None:
        return False
    return named is None or named.order is None or bool(mine.order < named.order)
