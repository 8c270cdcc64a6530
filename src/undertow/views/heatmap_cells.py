"""What a cell of layer × step says, whatever it is drawn with."""

from enum import IntEnum


class Cell(IntEnum):
    """What a cell says. Later ones win when several steps fall into one cell."""

    NOT_SAMPLED = 0
    FROZEN = 1
    NO_GRADIENT = 2
    ZERO = 3
    VALUE = 4
    NONFINITE = 5
