"""The user's own optimizer and layer in the code to paste."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Any

from undertow.schema import Finding, LayerTable, Remedy

# Optimizers of PyTorch; others are named as they are, without a module.
_OF_TORCH = frozenset((
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD", "SparseAdam",
))  # fmt: skip
_WIDTH = 72  # of a line to paste
_LARGEST_DECAY = 0.01
_EPS = 1e-8
_MOMENTUM = 0.9
# Settings worth repeating when an optimizer is built anew, unless they are as PyTorch has them.
_USUAL: dict[str, Any] = {"momentum": 0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "nesterov": False}


@dataclass(frozen=True, slots=True)
class Program:
    """What of a training can be named in code; empty where a page speaks of trainings in general."""

    optimizer: str = ""
    settings: Mapping[str, Any] | None = None  # of the only parameter group
    layers: LayerTable | None = None

    @classmethod
    def of(cls, optimizers: Sequence[Mapping[str, Any]], layers: LayerTable) -> Program:
        """From the facts of a run. With several groups or optimizers no single call builds them anew."""
        if len(optimizers) != 1:
            return cls(layers=layers)
        name, groups = str(optimizers[0].get("type", "")), optimizers[0].get("groups") or ()
        alone: dict[str, Any] | None = None
        if len(groups) == 1 and isinstance(groups[0], dict):
            alone = {str(key): _tupled(value) for key, value in groups[0].items()}  # pyright: ignore[reportUnknownVariableType]
        return cls(name if name.isidentifier() else "", alone, layers)

    def fill(self, remedy: Remedy, finding: Finding | None = None) -> Remedy:
        """The remedy with its code for this optimizer and this layer."""
        return replace(remedy, how=Template(remedy.how).substitute(self._names(finding)))

    def _names(self, finding: Finding | None) -> dict[str, str]:
        layer, tensor = self._places(finding)
        rate = self._number("lr")
        return {
            "layer": layer,
            "tensor": tensor,
            "optimizer": self._class(),
            "rate": f"{rate or 1e-3:g}",
            "accumulate": _accumulated(finding),
            "build_call": self._call() or f"{self._class()}(model.parameters(), lr=1e-3)",
            "build_lower_rate": self._changed("lr", None if not rate else rate / 10)
            or 'for group in optimizer.param_groups:\n    group["lr"] *= 0.1',
            "build_higher_rate": self._changed("lr", None if not rate else rate * 10)
            or 'for group in optimizer.param_groups:\n    group["lr"] *= 10',
            "build_small_decay": self._changed("weight_decay", _LARGEST_DECAY)
            or f'for group in optimizer.param_groups:\n    group["weight_decay"] = {_LARGEST_DECAY}',
            "build_default_eps": self._changed("eps", _EPS)
            or f'for group in optimizer.param_groups:\n    group["eps"] = {_EPS}',
            "build_default_momentum": self._with_usual_momentum(),
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

    def _number(self, setting: str) -> float | None:
        value = (self.settings or {}).get(setting)
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if usable and value else None

    def _call(self, **changes: Any) -> str | None:
        """The call that builds this optimizer, with some settings changed; None when it is not known."""
        if not self.optimizer or self.settings is None or self._number("lr") is None:
            return None
        known = {"lr": self._number("lr"), **{name: self.settings.get(name) for name in _USUAL}, **changes}
        if self.optimizer == "AdamW" and known["weight_decay"] == _LARGEST_DECAY:
            known["weight_decay"] = None  # its own default
        arguments = ["model.parameters()"]
        for name, value in known.items():
            if value is None or value == _USUAL.get(name) or isinstance(value, str):
                continue
            arguments.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
        return f"{self._class()}({', '.join(arguments)})"

    def _changed(self, setting: str, value: float | None) -> str | None:
        if value is None or self.settings is None or setting not in self.settings:
            return None
        call = self._call(**{setting: value})
        if call is None:
            return None
        before = self._number(setting)
        remark = "" if before is None else f"  # {setting} was {before:g}"
        line = f"optimizer = {call}"
        if len(line) <= _WIDTH:
            return line + (remark if len(line + remark) <= _WIDTH else "")
        name, _, arguments = call.partition("(")
        return f"optimizer = {name}(\n    {arguments.removesuffix(')')}\n){remark}"

    def _with_usual_momentum(self) -> str:
        if self.settings is not None and "betas" in self.settings:
            return f'for group in optimizer.param_groups:\n    group["betas"] = ({_MOMENTUM}, group["betas"][1])'
        return (
            self._changed("momentum", _MOMENTUM)
            or f'for group in optimizer.param_groups:\n    group["momentum"] = {_MOMENTUM}'
        )


def _tupled(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _accumulated(finding: Finding | None) -> str:
    for evidence in finding.evidence if finding is not None else ():
        if evidence.quantity == "backward_count" and evidence.value and evidence.value > 1:
            return f"{evidence.value:.0f}"
    return "4"
