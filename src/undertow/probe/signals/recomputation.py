"""Modules that run once more in the backward pass, and whether they then draw the same random numbers.

Checkpointing that does not keep the state of the generators makes other dropout masks than the loss was made with.
What counts is the state that a module begins with; nothing is drawn and no generator is changed.
"""

from typing import Any

import torch
from torch import nn

_MOST_MODULES = 512
_State = int | tuple[int, int]


class RecomputedModules:
    """Which modules run again is learnt from the first sample; from the second one on their states are noted."""

    def __init__(self) -> None:
        self._again: set[int] = set()
        self._begun: dict[int, set[_State]] = {}  # of each module, the states with which it began and drew
        self._under_way: dict[int, _State | None] = {}

    def knows(self, module: nn.Module) -> bool:
        return bool(self._again) and id(module) in self._again

    def enter(self, module: nn.Module, inputs: Any) -> None:
        self._under_way[id(module)] = _state(inputs)

    def leave(self, module: nn.Module, inputs: Any) -> None:
        state = self._under_way.pop(id(module), None)
        if state is not None and state != _state(inputs):
            self._begun.setdefault(id(module), set()).add(state)

    def again(self, module: nn.Module, inputs: Any) -> bool | None:
        """A module runs in the backward pass: whether with another state than before; None if that is unknown."""
        if len(self._again) < _MOST_MODULES:
            self._again.add(id(module))
        begun = self._begun.get(id(module))
        return None if begun is None else _state(inputs) not in begun

    def clear(self) -> None:
        self._begun.clear()
        self._under_way.clear()


def _state(inputs: Any) -> _State | None:
    """The state of the generator from which a module with these inputs draws; None where it cannot be had."""
    given = next((one for one in inputs if isinstance(one, torch.Tensor)), None) if isinstance(inputs, tuple) else None
    try:
        if given is None or given.device.type == "cpu":
            return hash(torch.default_generator.get_state().numpy().tobytes())
        if given.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        generator = torch.cuda.default_generators[given.device.index or 0]
        return generator.initial_seed(), generator.get_offset()
    except (RuntimeError, TypeError):  # inside of a transformation of torch's that has no such state
        return None
