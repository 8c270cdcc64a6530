"""The order of causes within a training step."""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """Where in a training a fault sits; earlier ones bring about later ones."""

    DATA = 0
    INITIALISATION = 1
    FORWARD = 2
    LOSS = 3
    BACKWARD = 4
    OPTIMIZER = 5
    UPDATE = 6
    OUTCOME = 7  # what the loss does over many steps: never a cause
