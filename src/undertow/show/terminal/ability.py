"""What a terminal can show: how many colours, which characters, and whether it can be drawn on at all."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import IO

_NEEDED = "▀▄▌▐█░▒▓╳▁▇…·–▲■✖"  # if one of them is missing, none is used
_TRUE_COLOUR = ("kitty", "ghostty", "alacritty", "wezterm", "foot", "contour", "direct")  # in TERM, without COLORTERM
LEAST_COLUMNS, LEAST_ROWS = 20, 6


class Depth(StrEnum):
    """How many colours."""

    NONE = "none"
    SIXTEEN = "16"
    PALETTE = "256"
    TRUE = "truecolour"


@dataclass(frozen=True, slots=True)
class Ability:
    depth: Depth = Depth.NONE
    unicode: bool = True

    @property
    def halves(self) -> bool:
        """Can one character show two colours?"""
        return self.unicode and self.depth is not Depth.NONE


def ability_of(stream: IO[str], environment: Mapping[str, str] = os.environ, depth: Depth | None = None) -> Ability:
    """`depth` is what the user asked for; without it the environment decides."""
    return Ability(depth_of(environment, stream.isatty()) if depth is None else depth, _encodes(stream))


def depth_of(environment: Mapping[str, str], is_terminal: bool) -> Depth:
    term = environment.get("TERM", "").lower()
    if environment.get("NO_COLOR") or not is_terminal or term in ("", "dumb", "unknown"):
        return Depth.NONE
    if environment.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return Depth.TRUE
    if any(name in term for name in _TRUE_COLOUR):
        return Depth.TRUE
    return Depth.PALETTE if "256" in term else Depth.SIXTEEN


def can_be_drawn_on(stream: IO[str], environment: Mapping[str, str] = os.environ) -> bool:
    """A terminal that understands where the cursor is sent, with somebody before it, and not too small."""
    try:
        if (
            os.name != "posix"
            or not stream.isatty()
            or environment.get("CI")
            or environment.get("TERM", "dumb") in ("dumb", "unknown", "")
        ):
            return False
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or replaced by something without a file
        return False
    return columns >= LEAST_COLUMNS and rows >= LEAST_ROWS


def _encodes(stream: IO[str]) -> bool:
    try:
        _NEEDED.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
