"""Where we are in a run, and what keys change about it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from undertow.schema.seeds.flow_records import ColorScheme
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.picture import Moment
from undertow.views.palette import NAMES

WHOLE_RUN_SECONDS = 10.0  # to play all of it at speed 1
_SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_PAGE = 0.1  # of the steps shown
_LEAST_SPAN = 8  # steps
# The last two are shown in every terminal, the others as far as there is room.
KEYS = ("space play", "←→ step", "n finding", "+- zoom", "↑↓ layer", "m quantity", "/ filter", "? keys", "q quit")
HELP = (
    ("space, p", "play or pause"),
    ("← →", "back, on"),
    (", .", "one recorded step back, on"),
    ("page up, page down", "a tenth of the picture back, on"),
    ("home, end", "to the first, the last step"),
    ("f", "follow a run that is being written"),
    ("n, N", "to the next, the last finding"),
    ("< >", "slower, faster"),
    ("+ -, 0", "zoom the steps; all of them"),
    ("↑ ↓, escape", "choose a layer and read it; none"),
    ("m, M", "another quantity"),
    ("/", "show some layers: attn, or blocks.*.mlp.* head.*"),
    ("c", "other colours"),
    ("?", "these lines"),
    ("q", "quit"),
)


@dataclass
class Playback:
    camera: Camera
    following: bool = False
    playing: bool = True
    speed: float = 1.0
    span: int | None = None  # steps shown; None: all
    selected: str | None = None
    helping: bool = False
    over: bool = False
    typing: str | None = None  # the filter while it is typed
    palette: ColorScheme = ColorScheme.DEFAULT
    position: float = field(default=0.0, init=False)
    _before: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if len(self.camera.steps):
            self.position = float(self.camera.steps[0])

    @property
    def first(self) -> int:
        return int(self.camera.steps[0]) if len(self.camera.steps) else 0

    @property
    def last(self) -> int:
        return int(self.camera.steps[-1]) if len(self.camera.steps) else 0

    def advance(self, seconds: float) -> None:
        """Let that much time pass."""
        if self.following:
            self.position = float(self.last)
        elif self.playing:
            self.position += seconds * self.speed * (self.last - self.first) / WHOLE_RUN_SECONDS
            if self.position >= self.last:
                self.position = float(self.last)
                self.playing = False

    def moment(self, status: str) -> Moment:
        step = int(self.position)
        first, last = self.first, self.last
        if self.span is not None and self.span < last - first + 1:
            first = min(max(step - self.span // 2, first), last - self.span + 1)
            last = first + self.span - 1
        growing = status == "running" and self.span is None
        return Moment(step, first, last, growing, self._state(status), self.selected, self._keys())

    def press(self, key: str) -> None:
        if self.typing is not None:
            self._type(key)
        elif self.helping:
            self.helping = False
        elif key in ("q", "interrupt"):
            self.over = True
        elif key in _ACTS:
            _ACTS[key](self)

    # -- what keys do -------------------------------------------------------------------------------------

    def toggle(self) -> None:
        moves = self.following or self.playing
        if not moves and self.position >= self.last:
            self.position = float(self.first)
        self.following, self.playing = False, not moves

    def move(self, share: float) -> None:
        """Back or on by a share of the steps shown, at least one."""
        shown = self.span or (self.last - self.first + 1)
        self.go(int(self.position) + int(np.copysign(max(1, round(abs(share) * shown)), share)))

    def one(self, direction: int) -> None:
        steps = self.camera.steps
        if len(steps):
            place = int(np.searchsorted(steps, int(self.position), "right")) - 1 + direction
            self.go(int(steps[min(max(place, 0), len(steps) - 1)]))

    def go(self, step: int) -> None:
        self.following = self.playing = False
        self.position = float(min(max(step, self.first), self.last))

    def follow(self) -> None:
        self.following, self.position = True, float(self.last)

    def finding(self, direction: int) -> None:
        places = sorted({one.detected_step for one in self.camera.findings if one.severity.is_alarm})
        ahead = [step for step in places if (step - int(self.position)) * direction > 0]
        if ahead:
            self.go(ahead[0] if direction > 0 else ahead[-1])

    def change_speed(self, direction: int) -> None:
        place = _SPEEDS.index(self.speed) + direction
        self.speed = _SPEEDS[min(max(place, 0), len(_SPEEDS) - 1)]

    def zoom(self, factor: float) -> None:
        whole = self.last - self.first + 1
        span = max(_LEAST_SPAN, round((self.span or whole) * factor))
        self.span = None if span >= whole else span

    def show_all(self) -> None:
        self.span = None

    def select(self, direction: int) -> None:
        paths = [layer.path for layer in self.camera.layers()]
        if self.selected in paths:
            self.selected = paths[(paths.index(self.selected) + direction) % len(paths)]
        elif paths:
            self.selected = paths[0 if direction > 0 else -1]

    def unselect(self) -> None:
        self.selected = None

    def quantity(self, direction: int) -> None:
        names = self.camera.quantities
        if names:
            place = names.index(self.camera.quantity) if self.camera.quantity in names else -direction
            self.camera.quantity = names[(place + direction) % len(names)]
            self.selected = None

    def recolour(self) -> None:
        schemes = list(NAMES.values())
        self.palette = schemes[(schemes.index(self.palette) + 1) % len(schemes)]

    def help(self) -> None:
        self.helping = True

    def start_typing(self) -> None:
        self.typing = self._before = self.camera.pattern

    def _type(self, key: str) -> None:
        text = self.typing or ""
        if key in ("enter", "interrupt"):
            self.typing = None
            return
        if key == "escape":
            self.typing, self.camera.pattern = None, self._before
            return
        if key == "backspace":
            text = text[:-1]
        elif key == "space" or len(key) == 1:
            text += " " if key == "space" else key
        self.typing = self.camera.pattern = text

    # -- in words -----------------------------------------------------------------------------------------

    def _state(self, status: str) -> str:
        if self.following:
            return "● live" if status == "running" else status
        speed = f" {self.speed:g}×" if self.speed != 1 else ""
        return f"▶{speed}" if self.playing else "paused"

    def _keys(self) -> tuple[str, ...]:
        if self.typing is not None:
            return (f"show layers: {self.typing}_", "enter keeps, escape takes back")
        return KEYS


_KEYS: tuple[tuple[tuple[str, ...], Callable[[Playback], None]], ...] = (
    (("space", "p"), Playback.toggle),
    (("left", "h"), lambda playback: playback.move(-0.01)),
    (("right", "l"), lambda playback: playback.move(0.01)),
    ((",",), lambda playback: playback.one(-1)),
    ((".",), lambda playback: playback.one(1)),
    (("page up",), lambda playback: playback.move(-_PAGE)),
    (("page down",), lambda playback: playback.move(_PAGE)),
    (("home", "g"), lambda playback: playback.go(playback.first)),
    (("end", "G"), lambda playback: playback.go(playback.last)),
    (("f",), Playback.follow),
    (("n",), lambda playback: playback.finding(1)),
    (("N",), lambda playback: playback.finding(-1)),
    (("<",), lambda playback: playback.change_speed(-1)),
    ((">",), lambda playback: playback.change_speed(1)),
    (("+", "="), lambda playback: playback.zoom(0.5)),
    (("-",), lambda playback: playback.zoom(2.0)),
    (("0",), Playback.show_all),
    (("up", "k"), lambda playback: playback.select(-1)),
    (("down", "j"), lambda playback: playback.select(1)),
    (("escape",), Playback.unselect),
    (("m", "tab"), lambda playback: playback.quantity(1)),
    (("M", "back tab"), lambda playback: playback.quantity(-1)),
    (("c",), Playback.recolour),
    (("/",), Playback.start_typing),
    (("?",), Playback.help),
)
_ACTS = {key: act for keys, act in _KEYS for key in keys}
