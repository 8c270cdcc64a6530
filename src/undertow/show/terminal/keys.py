"""Keys from the bytes that a terminal sends for them."""

import re

_NAMES = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
    "[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
    "[5~": "page up", "[6~": "page down", "[Z": "back tab", "[3~": "delete",
    "[1;2C": "page down", "[1;2D": "page up", "[1;5C": "page down", "[1;5D": "page up",
}  # fmt: skip
_SINGLE = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape",
    "\x03": "interrupt", "\x1a": "suspend", "\x0c": "redraw", " ": "space",
}  # fmt: skip
_ESCAPE = re.compile(r"\x1b(\[[0-9;<>?]*[ -/]*[@-~]|O[@-~])")


def keys_in(text: str) -> list[str]:
    """Names of keys, or the characters themselves. A sequence that means nothing here is passed over whole."""
    found: list[str] = []
    place = 0
    while place < len(text):
        match = _ESCAPE.match(text, place)
        if match is not None:
            place = match.end()
            name = _NAMES.get(match[1])
            if name is not None:
                found.append(name)
            continue
        letter = text[place]
        place += 1
        if letter in _SINGLE:
            found.append(_SINGLE[letter])
        elif letter.isprintable():
            found.append(letter)
    return found
