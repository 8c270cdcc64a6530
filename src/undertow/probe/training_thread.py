"""Whose training this is: a step belongs to the thread that takes it."""

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from undertow.errors import UndertowError
from undertow.probe import taps
from undertow.probe.autograd_graph import leaves
from undertow.probe.discovery import optimizer_tensors
from undertow.probe.forward import ForwardTap
from undertow.probe.step_state import StepState
from undertow.probe.watched_layers import WatchedLayers

_ENOUGH = 3  # backward passes: fewer are no training


class TrainingThread:
    def __init__(
        self, layers: WatchedLayers, state: StepState, forward: ForwardTap, say: Callable[[str], object]
    ) -> None:
        self._layers, self._state, self._forward, self._say = layers, state, forward, say
        self.ident = 0  # 0 before anything is watched
        self.has_stepped = False  # so it is known to be the one
        self.in_tap = self.in_pass = False  # it is in a tap of ours, or in a backward pass
        self.others = threading.RLock()  # which report one at a time
        self._elsewhere = threading.local()  # `known` in threads whose optimizer holds nothing that is watched

    def follow(self) -> None:
        """The calling thread, from now on."""
        self.ident, self.has_stepped = get_ident(), False
        self._forward.follow(self.ident)

    def takes_over(self, subject: Any = None, *more: Any) -> bool:
        """Whether what another thread does belongs to the training that is watched: if so, that is now its own.

        One that trains something else is left alone; of two that train the same parameters at the same time nobody
        can tell the steps apart.
        """
        if not self.ident:
            return True  # nothing is watched yet
        if self.ident in {thread.ident for thread in threading.enumerate()}:
            if not self._concerns_watched(subject):
                return False
            if taps.in_backward():
                return self.in_pass  # autograd's own threads: optimizers that step inside a backward pass
            if self.has_stepped and (self.in_tap or self.in_pass or self._state.in_step):
                raise UndertowError(
                    "several threads train the same parameters at once, and their steps cannot be told apart",
                    way_out="Watch a training that steps from one thread at a time",
                )
            if not self.has_stepped:  # what was seen so far was something else
                self._state.forget()
        self.in_pass = False
        self.follow()
        return True

    def _concerns_watched(self, subject: Any) -> bool:
        """Of what a tap is told first: an optimizer, what a backward pass begins with, or a tensor."""
        elsewhere, layers = self._elsewhere, self._layers
        if isinstance(subject, Optimizer):
            found = any(layers.knows(id(tensor)) for tensor in optimizer_tensors([subject]))
            if not found and not getattr(elsewhere, "known", False):
                elsewhere.known = True  # going through its graphs would take its time
                self._say("another thread trains too, which is not part of this run")
            return found
        if isinstance(subject, tuple) and not getattr(elsewhere, "known", False):
            reached = leaves(subject)
            found = any(map(layers.knows, reached))
            if reached and not found:  # it may train without an optimizer that could say so
                passes = elsewhere.passes = getattr(elsewhere, "passes", 0) + 1
                if passes == _ENOUGH:
                    self._say("another thread takes gradients of other weights, which are not part of this run")
            return found
        return isinstance(subject, torch.Tensor) and layers.knows(id(subject))
