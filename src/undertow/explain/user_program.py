"""The user's own program, as far as the run knows it: the optimizer, its settings and the modules, in code to paste."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from string import Template
from typing import Any

from undertow.explain import suggested_values as suggested
from undertow.explain.suggested_values import SuggestedRate, number
from undertow.schema import Finding, LayerKind, LayerTable, Remedy

# Optimizers of PyTorch; others are named as they are, without a module.
_OF_TORCH = frozenset((
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD", "SparseAdam",
))  # fmt: skip
_WIDTH = 72  # of a line to paste
_DECAY_OF_ADAMW = 0.01
# Layers that are initialised by kaiming_normal_ and its like.
_WITH_MATRICES = ("Linear", "Conv1d", "Conv2d", "Conv3d")
# Settings worth repeating when an optimizer is built anew, unless they are as PyTorch has them.
_USUAL: dict[str, Any] = {"momentum": 0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "nesterov": False}


@dataclass(frozen=True, slots=True)
class Program:
    """What of a training can be named in code; empty where a page speaks of trainings in general."""

    optimizer: str = ""
    settings: Mapping[str, Any] | None = None  # of the only parameter group
    layers: LayerTable | None = None
    groups: tuple[Mapping[str, Any], ...] = ()  # of all optimizers
    rate_now: float | None = None  # the learning rate when a finding was made; a program may set it at every step

    @classmethod
    def of(cls, optimizers: Sequence[Mapping[str, Any]], layers: LayerTable) -> Program:
        """From the facts of a run. With several groups or optimizers no single call builds them anew."""
        groups = tuple(
            {str(key): _tupled(value) for key, value in group.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            for optimizer in optimizers
            for group in optimizer.get("groups") or ()
            if isinstance(group, dict)
        )
        if len(optimizers) != 1:
            return cls(layers=layers, groups=groups)
        name = str(optimizers[0].get("type", ""))
        return cls(name if name.isidentifier() else "", groups[0] if len(groups) == 1 else None, layers, groups)

    @property
    def module_types(self) -> frozenset[str]:
        return frozenset(layer.module_type for layer in self.layers or () if layer.module_type)

    @property
    def dtypes(self) -> frozenset[str]:
        """Number formats of the weights."""
        known: list[str] = [layer.dtype for layer in self.layers or () if layer.dtype]
        return frozenset(one.removeprefix("torch.") for one in known)

    def has(self, *names: str) -> bool:
        """Is there a module whose type has one of these in its name?"""
        return any(name in one for one in self.module_types for name in names)

    def largest(self, setting: str) -> float | None:
        """Of all parameter groups; None where none has it."""
        known = [_number_in(group.get(setting)) for group in self.groups]
        return max((one for one in known if one is not None), default=None)

    def fill(self, remedy: Remedy, finding: Finding | None = None) -> Remedy:
        """The remedy with its sentence and its code for this optimizer, this layer and what was measured."""
        names = self._names(finding)
        what, how = (Template(text).substitute(names) for text in (remedy.what, remedy.how))
        return replace(remedy, what=what, how=how)

    def _names(self, finding: Finding | None) -> dict[str, str]:
        layer, tensor = self._places(finding)
        rate = self.rate(finding)
        first_step = self._longest_first_step()
        lower = None if rate is None else suggested.lower_rate(finding, rate, first_step)
        higher = None if rate is None else suggested.higher_rate(finding, rate, first_step)
        decay = suggested.weight_decay(rate)
        eps = suggested.eps(finding, self.largest("eps"))
        build = partial(self._build, finding=finding)
        return {
            "layer": layer,
            "tensor": tensor,
            "optimizer": self._class(),
            "rate": _written(rate or 1e-3),
            "accumulate": _accumulated(finding),
            "clip_bound": number(suggested.clip_bound(finding)),
            "clip_alarm": number(5 * suggested.clip_bound(finding)),
            "build_call": self._call(finding) or f"{self._class()}(model.parameters(), lr=1e-3)",
            "lower_rate": _sentence(lower) or " that makes updates 0.1% to 1% of the weights per step",
            "higher_rate": _sentence(higher) or " until updates are 0.1% to 1% of the weights per step",
            "build_lower_rate": build("lr", None if lower is None else lower.rate, unknown="/= 10"),
            "build_higher_rate": build("lr", None if higher is None else higher.rate, unknown="*= 10"),
            "small_decay": number(decay),
            "build_small_decay": build("weight_decay", decay),
            "build_some_decay": self._with_decay_on_matrices(finding, decay),
            "small_eps": number(eps),
            "build_small_eps": build("eps", eps),
            "build_usual_momentum": self._with_usual_momentum(finding),
            "group_rate": _group_rate(finding, "min"),
            "raised_group_rate": _group_rate(finding, "max"),
            "even_rate": _even_rate(finding),
            "norm_settings": _norm_settings(finding),
            "initialise": self._initialise(),
        }

    def _places(self, finding: Finding | None) -> tuple[str, str]:
        """The module and the tensor that a finding names first, as code."""
        first = finding.layers[0] if finding is not None and finding.layers else ""
        layer = None if self.layers is None else self.layers.get(first)
        if not first or layer is None:
            return 'model.get_submodule("layer")', 'model.get_parameter("layer.weight")'
        owner = first if layer.is_module else layer.group
        model, owner, path = self._within(owner, first)
        module = f'{model}.get_submodule("{owner}")' if owner else model
        return module, f"{module}.weight" if layer.is_module else f'{model}.get_parameter("{path}")'

    def _within(self, owner: str, path: str) -> tuple[str, str, str]:
        """The variable that holds the model, and both paths inside of it. Of several models each is one leading
        component of its paths, which no module of the table has alone.
        """
        name, _, rest = path.partition(".")
        names = {layer.path.partition(".")[0] for layer in self.layers or ()}
        several = len(names) > 1 and not any(self.layers and self.layers.get(one) is not None for one in names)
        if not several or not rest or not name.isidentifier():
            return "model", owner, path
        return name, owner.partition(".")[2], rest

    def _class(self) -> str:
        name = self.optimizer or "AdamW"
        return f"torch.optim.{name}" if name in _OF_TORCH else name

    def rate(self, finding: Finding | None) -> float | None:
        """The learning rate: as the finding measured it, else as it was set before a schedule took over, else as it
        was when the finding was made."""
        stated = suggested.measured(finding, "lr")
        known = stated[0] if stated and stated[0] > 0 else self.largest("initial_lr")
        return known or self.rate_now or self.largest("lr")

    def _longest_first_step(self) -> float | None:
        if not any("betas" in group for group in self.groups) and self.optimizer != "RMSprop":
            return None
        shapes = [
            layer.shape
            for layer in self.layers or ()
            if layer.kind in (LayerKind.WEIGHT, LayerKind.RECURRENT) and len(layer.shape) > 1
        ]
        return suggested.longest_first_step([prod(shape[1:]) for shape in shapes])

    def _call(self, finding: Finding | None = None, **changes: Any) -> str | None:
        """The call that builds this optimizer, with some settings changed; None when it is not known."""
        rate = self.rate(finding)
        if not self.optimizer or self.settings is None or rate is None or _number_in(self.settings.get("lr")) is None:
            return None
        known = {"lr": rate, **{name: self.settings.get(name) for name in _USUAL}, **changes}
        if self.optimizer == "AdamW" and known["weight_decay"] == _DECAY_OF_ADAMW:
            known["weight_decay"] = None  # its own default
        arguments = ["model.parameters()"]
        for name, value in known.items():
            if value is None or value == _USUAL.get(name) or isinstance(value, str):
                continue
            arguments.append(f"{name}={_written(value)}" if isinstance(value, float) else f"{name}={value}")
        return f"{self._class()}({', '.join(arguments)})"

    def _build(self, setting: str, value: float | None, finding: Finding | None, unknown: str = "") -> str:
        """The optimizer built anew with another value; where no one call builds it, all of its groups changed.

        `unknown` is the change where no value is known.
        """
        before = self.rate(finding) if setting == "lr" else self.largest(setting)
        call = None if value is None else self._call(finding, **{setting: float(number(value))})
        if call is None or setting not in (self.settings or {}):
            change = unknown if value is None else f"= {number(value)}"
            if value is not None and setting == "lr" and before and len(self.groups) > 1:  # each has its own
                change = f"/= {number(before / value)}" if value < before else f"*= {number(value / before)}"
            return f'for group in optimizer.param_groups:\n    group["{setting}"] {change}'
        remark = "" if before is None else f"  # {setting} was {before:g}"
        line = f"optimizer = {call}"
        if len(line) <= _WIDTH:
            return line + (remark if len(line + remark) <= _WIDTH else "")
        name, _, arguments = call.partition("(")
        return f"optimizer = {name}(\n    {arguments.removesuffix(')')}\n){remark}"

    def _with_usual_momentum(self, finding: Finding | None) -> str:
        if any("betas" in group for group in self.groups):
            betas = f'({suggested.MOMENTUM}, group["betas"][1])'
            return f'for group in optimizer.param_groups:\n    group["betas"] = {betas}'
        return self._build("momentum", suggested.MOMENTUM, finding)

    def _with_decay_on_matrices(self, finding: Finding | None, decay: float) -> str:
        """Adam's own weight decay is no decay; that of AdamW is."""
        name = "torch.optim.AdamW" if self.optimizer in ("", "Adam") else self._class()
        rate = self.rate(finding)
        return (
            "matrices = [p for p in model.parameters() if p.dim() > 1]\n"
            "rest = [p for p in model.parameters() if p.dim() <= 1]\n"
            f"optimizer = {name}(\n"
            f"    [{{'params': matrices, 'weight_decay': {number(decay)}}},\n"
            f"     {{'params': rest, 'weight_decay': 0.0}}], lr={_written(rate or 1e-3)})"
        )

    def _initialise(self) -> str:
        """For the layers that the model has, and the activation where all are of one kind."""
        known = [name for name in _WITH_MATRICES if name in self.module_types] or ["Linear", "Conv2d"]
        kinds = ", ".join(f"torch.nn.{name}" for name in known)
        lines = [
            "for module in model.modules():",
            f"    if isinstance(module, ({kinds})):" if len(known) > 1 else f"    if isinstance(module, {kinds}):",
        ]
        start = "        torch.nn.init.kaiming_normal_(module.weight)"
        if self.has("Tanh") and not self.has("ReLU", "GELU", "SiLU"):
            start = "        torch.nn.init.xavier_normal_(module.weight, gain=5 / 3)"
        return "\n".join([*lines, start])


def _sentence(found: SuggestedRate | None) -> str:
    return "" if found is None else f" of {number(found.rate)}, {found.how_much} ({found.why})"


def _written(value: float) -> str:
    return number(value) if float(number(value)) == value else f"{value:g}"


def _number_in(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable and value else None


def _group_rate(finding: Finding | None, unknown: str) -> str:
    """The rate of the other groups, where it was measured."""
    stated = suggested.measured(finding, "optimizer_rate")
    if stated is not None and stated[1]:
        return _written(float(f"{stated[1]:.3g}"))
    return f"{unknown}(one['lr'] for one in optimizer.param_groups)"


def _even_rate(finding: Finding | None) -> str:
    """The other optimizer's rate; where that is not what is wrong, a quarter of this one's."""
    stated = suggested.measured(finding, "lr")
    if stated is None:
        return "group['lr'] / 4"
    return number(stated[1] or stated[0] / 4)


def _norm_settings(finding: Finding | None) -> str:
    shown = {one.quantity for one in finding.evidence} if finding is not None else set[str]()
    lines = {"norm_eps": "layer.eps = 1e-5", "norm_momentum": "layer.momentum = 0.1"}
    return "\n".join(line for name, line in lines.items() if name in shown or not shown & set(lines))


def _tupled(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _accumulated(finding: Finding | None) -> str:
    count = suggested.measured(finding, "backward_count")
    return f"{count[0]:.0f}" if count is not None and count[0] > 1 else "4"
