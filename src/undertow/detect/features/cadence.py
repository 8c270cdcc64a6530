"""How often a slow condition is judged: at nearly every step early on, then at steps ever further apart."""


class Cadence:
    """Due at the first frame and then when an eighth more steps have passed, so a long run costs a logarithm."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def is_due(self, step: int) -> bool:
        if step < self._next:
            return False
        self._next = step + 1 + step // 8
        return True
