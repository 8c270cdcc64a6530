"""Text of any origin in a picture: what cannot be drawn is spelt out, what is too long keeps both ends."""

from bisect import bisect_left
from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from undertow.errors import SettingError

_LONGEST = 300  # signs of a name that are looked at: more never fit
_NOTHING = "\uffff"  # no font has it: how it is drawn shows how the font draws what it lacks


class Typeface:
    """The font that comes with Pillow, the same everywhere; or a file, for names in scripts which that one lacks."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.font = lru_cache(maxsize=None)(self._load)
        self._can_draw = lru_cache(maxsize=None)(self._look)
        self._ellipsis = "…" if self._can_draw("…") else "..."

    def _load(self, size: int) -> ImageFont.FreeTypeFont:
        if self._file is None:
            font = ImageFont.load_default(size)
            assert isinstance(font, ImageFont.FreeTypeFont)  # Pillow has had one since it takes a size
            return font
        try:
            return ImageFont.truetype(str(self._file), size, layout_engine=ImageFont.Layout.BASIC)
        except OSError as problem:
            raise SettingError(
                f"{self._file} cannot be used as a font: {problem}", way_out="Give a TrueType or OpenType file"
            ) from None

    def _look(self, sign: str) -> bool:
        # Not control signs, nor those that turn text around.
        return sign.isprintable() and self._drawn(sign) != self._drawn(_NOTHING)

    def _drawn(self, sign: str) -> bytes:
        image = Image.new("L", (64, 48))
        ImageDraw.Draw(image).text((8, 8), sign, fill=255, font=self.font(24))
        return image.tobytes()

    def legible(self, text: str) -> str:
        """Without signs that cannot be drawn or that change how others are: `\\u202e` in their place."""
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]}{self._ellipsis}{text[-_LONGEST // 2 :]}"
        return "".join(sign if self._can_draw(sign) else sign.encode("unicode_escape").decode() for sign in text)

    def width(self, text: str, size: int) -> float:
        return self.font(size).getlength(text)

    def fitted(self, text: str, room: float, size: int) -> str:
        """Legible, and no wider than that: both ends of a long path say more than its beginning."""
        text = self.legible(text)
        if self.width(text, size) <= room:
            return text

        def shortened(kept: int) -> str:
            tail = kept * 2 // 3
            return f"{text[: kept - tail]}{self._ellipsis}{text[len(text) - tail :]}"

        too_many = bisect_left(range(1, len(text) + 1), True, key=lambda kept: self.width(shortened(kept), size) > room)
        return shortened(too_many)
