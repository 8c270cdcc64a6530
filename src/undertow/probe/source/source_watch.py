"""The lines of a training: noted where they happen, once each, and sent to be written down.

`SourceWatch` listens to what happens seldom: something is made, a mode is set. `_Steps` listens to whole steps, a few
at the start and one after each alarm, and then to nothing.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from undertow.probe import discovery, taps
from undertow.probe.autograd_graph import leaf_tensors
from undertow.probe.readings import Note
from undertow.probe.source import xray_places
from undertow.probe.source.definitions import Definitions
from undertow.probe.source.frames import sites_from, sites_outside
from undertow.probe.source.modes import EnteredModes, other_mode
from undertow.probe.source.places import RawPlace, working_folder
from undertow.probe.source.xray import XRay
from undertow.probe.subjects import Subjects

_FIRST = 2  # steps before the first x-ray: the first ones do what no other does
_MOST_STEPS = 4  # of one x-ray: optimizers that step in turn have one each
_MOST_EARLY = 64
_MOST_AGAIN = 4  # x-rays after alarms
_EAGER = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)

Post = Callable[[Note], object]


class SourceWatch:
    """`is_early`: it begins before models are made, so that what makes and fills them can be seen.

    A mode of ours changes nothing but the line that a warning names. So it looks at a step only after an alarm, unless
    it is asked to do so `from_the_start`.
    """

    def __init__(
        self, subjects: Subjects, post: Post, step: Callable[[], int], is_early: bool, from_the_start: bool
    ) -> None:
        self.subjects, self._post, self._step = subjects, post, step
        self.definitions = Definitions()
        self.set_up: XRay | None = None
        self.modes = EnteredModes()
        self._until_called: Any = None  # the hook that notices the first call of a module
        self._is_early, self.from_the_start = is_early and from_the_start, from_the_start
        self._folder = working_folder()
        self._seen: set[tuple[Any, ...]] = set()
        self._is_compiled = discovery.anything_compiled()
        self._steps = _Steps(self)
        self._early_modes: list[tuple[weakref.ref[nn.Module], RawPlace]] = []  # set before it was known of what
        self._alarms: set[tuple[str, str]] = set()  # those that a step was looked at for

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.definitions.start()
        taps.add(self)  # pyright: ignore[reportArgumentType]  it hears of some events only
        taps.add(self._steps)  # pyright: ignore[reportArgumentType]
        if self._is_early and self.may_see():
            self.set_up = XRay(lambda tensors: [])
            self._until_called = register_module_forward_pre_hook(self._called)
            self.modes.enter(self.set_up)

    def _called(self, module: nn.Module, inputs: Any) -> None:
        """A model runs: whoever traces or compiles it must not find a mode of ours."""
        self.end_set_up()

    def end_set_up(self) -> None:
        if self._until_called is not None:
            self._until_called.remove()
            self._until_called = None
        if self.set_up is not None and not self.set_up.is_over:
            self.modes.end(self.set_up)
            self.set_up.forget_dead()

    def stop(self) -> None:
        """From any thread; a mode can be left only by the thread that entered it."""
        self.definitions.stop()
        self.end_set_up()
        taps.remove(self)  # pyright: ignore[reportArgumentType]
        self._steps.stop()
        self.modes.end_all()

    def look_again(self, alarm: tuple[str, str]) -> None:
        """From the background thread: an alarm was raised, and the step after it may show its line."""
        if alarm not in self._alarms and len(self._alarms) < _MOST_AGAIN:
            self._alarms.add(alarm)
            self._steps.look_again()

    def may_see(self) -> bool:
        """Not beside another mode, and not where something is compiled: that would become part of it."""
        if self._is_compiled or other_mode():
            return False
        if any(not one.training for kind in _EAGER for one in discovery.instances(kind) if "training" in vars(one)):
            return False  # they take a faster way in evaluation, unless a mode looks on
        return not discovery.anything_compiled()

    # -- what happens seldom ------------------------------------------------------------------------------

    def constructed(self, made: Any) -> None:
        role = next((role for kind, role in _ROLES if isinstance(made, kind)), None)
        sites = sites_outside(sys._getframe(1), made) if role is not None else ()
        if role is None or not sites:
            return
        settings = ""
        if isinstance(made, Optimizer):
            rates = [group.get("lr") for group in made.param_groups]
            settings = ",".join(f"{float(rate):.6g}" for rate in rates if isinstance(rate, (int, float)))
        self.note(RawPlace(role, sites, operation=settings))

    def mode_set(self, module: Any, mode: Any) -> None:
        place = RawPlace("training mode" if mode else "evaluation mode", sites_from(sys._getframe(1)))
        if self.subjects.ready:
            self._note_mode(module, place)
        elif isinstance(module, nn.Module) and len(self._early_modes) < _MOST_EARLY:
            self._early_modes.append((weakref.ref(module), place))

    def _note_mode(self, module: Any, place: RawPlace) -> None:
        """If it is of a watched model, as a whole or in part."""
        path = self.names().get(id(module))
        if path is not None or id(module) in self.subjects.known_modules():
            place.subjects = [path] if path else []
            self.note(place)

    def compiling(self) -> None:
        self._is_compiled = True
        self.end_set_up()
        self.modes.end_all()

    def exporting(self) -> None:
        self.end_set_up()
        self.modes.end_all()

    def note(self, *places: RawPlace) -> None:
        """Those that are new."""
        new = [one for one in places if one.sites and self._is_new(one)]
        if new:
            self._post(Note("source", max(self._step(), 0), {"places": new, "folder": self._folder}))

    def _is_new(self, place: RawPlace) -> bool:
        key = place.role, place.sites[0], place.operation, tuple(place.subjects), place.element
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    # -- what is known of tensors and modules -------------------------------------------------------------

    def names(self) -> dict[int, str]:
        """Paths of parameters and modules by id."""
        found = self.subjects.found
        pairs: list[tuple[Any, str]] = [(one.reference(), one.path) for one in (*found.parameters, *found.modules)]
        return {id(thing): path for thing, path in pairs if thing is not None}

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self.subjects.roots.items()
        for one in self.subjects.found.modules:
            module = one.reference()
            if module is not None:
                yield one.path, module

    def note_definitions(self) -> None:
        for reference, place in self._early_modes:
            self._note_mode(reference(), place)
        self._early_modes.clear()
        modules = dict(self.modules())
        self.note(*self.definitions.places(modules.items(), modules))
        if self.set_up is not None:
            self.note(*xray_places.of_set_up(self.set_up, self.subjects.found))


class _Steps:
    """Whole steps: their calls, and what an x-ray sees of them."""

    def __init__(self, watch: SourceWatch) -> None:
        self._watch = watch
        self._thread = 0
        self._done = 0  # steps
        self._stepped: set[int] = set()  # optimizers, by id
        self._left: set[int] = set()  # those that an x-ray has still to see
        self._steps_left = 0
        self._xray: XRay | None = None
        self._is_wanted = watch.from_the_start
        self._is_stopped = False
        self.is_listening = True

    def look_again(self) -> None:
        self._is_wanted = True
        if not self.is_listening and not self._is_stopped:
            self.is_listening = True
            taps.add(self)  # pyright: ignore[reportArgumentType]
            if self._is_stopped:  # meanwhile, by another thread
                taps.remove(self)  # pyright: ignore[reportArgumentType]

    def before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        if not self._is_mine():
            return
        self._watch.end_set_up()
        self._watch.note(RawPlace("backward", sites_from(sys._getframe(1))))
        if self._xray is not None:
            self._xray.reached(roots)
            self._xray.is_active = False

    def after_backward(self) -> None:
        if self._xray is not None and self._is_mine():
            self._xray.is_active = True

    def before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        if not self._is_mine():
            return
        self._watch.note(RawPlace("step", sites_from(sys._getframe(1))))
        self._left.discard(id(optimizer))
        self._stepped.add(id(optimizer))
        self._steps_left -= 1
        if self._xray is not None and not has_closure and (self._steps_left <= 0 or self._seen_all()):
            self._end_xray()

    def closure_evaluated(self, optimizer: Optimizer) -> None:
        """Forward and backward were part of the step; what comes now is the optimizer's."""
        if self._xray is not None and self._is_mine():
            self._xray.is_active = False
            if self._steps_left <= 0 or self._seen_all():
                self._end_xray()

    def _seen_all(self) -> bool:
        """Every optimizer has stepped once since the x-ray began."""
        return not self._left

    def after_step(self, optimizer: Optimizer) -> None:
        if not self._is_mine():
            return
        self._done += 1
        self._watch.modes.leave()
        if self._done == 1:
            self._watch.note_definitions()
        if self._xray is None and self._is_wanted and self._done >= _FIRST and not taps.in_backward():
            self._begin_xray()
        elif self._xray is None and self._done > _FIRST and not self._watch.modes.are_entered:
            self.is_listening = False
            taps.remove(self)  # pyright: ignore[reportArgumentType]

    def stop(self) -> None:
        self._is_stopped, self._xray = True, None
        taps.remove(self)  # pyright: ignore[reportArgumentType]

    # -- the mode -----------------------------------------------------------------------------------------

    def _begin_xray(self) -> None:
        self._is_wanted = False
        if not self._watch.may_see():
            return
        self._xray = xray = XRay(leaf_tensors)
        if self._watch.set_up is not None:
            xray.known = dict(self._watch.set_up.known)
        self._left, self._steps_left = set(self._stepped), _MOST_STEPS
        self._watch.modes.enter(xray)

    def _end_xray(self) -> None:
        xray, self._xray = self._xray, None
        if xray is not None:
            watch = self._watch
            watch.modes.end(xray)
            watch.note(*xray_places.of_step(xray, watch.subjects.found, watch.names(), watch.definitions))
            xray.known.clear()

    def _is_mine(self) -> bool:
        thread = get_ident()
        if not self._thread:
            self._thread = thread
        return thread == self._thread


_ROLES: tuple[tuple[type[Any], str], ...] = (
    (Optimizer, "optimizer"),
    (LRScheduler, "schedule"),
    (DataLoader, "loader"),
    (GradScaler, "scaler"),
)
