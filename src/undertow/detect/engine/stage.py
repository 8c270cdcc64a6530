"""The order of causes: what sits at an earlier stage explains what sits at a later one and begins after it."""

from enum import IntEnum


class Stage(IntEnum):
    """Where a fault sits. A person can predict the diagnosis from this order alone: it is all that ranks causes."""

    PROGRAM = 0  # how the program is written: its wiring, its loss, modes, which parameters the optimizer holds
    DATA = 1  # inputs, targets, batches
    INITIALISATION = 2
    OPTIMIZER = 3  # learning rate, clipping, precision, and the single batch or gradient that upsets a step
    STEP = 4  # gradients, updates and single weights out of proportion
    SIGNAL = 5  # units and outputs that carry none
    BLOCKED = 6  # gradients that do not arrive, and steps too small to matter, because of that
    NONFINITE = 7
    COURSE = 8  # what the loss and the weights do over many steps
    OUTCOME = 9  # nothing is learned: follows from any fault that has a name
