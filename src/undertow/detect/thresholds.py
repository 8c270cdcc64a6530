"""Every number a statistical rule decides by, in one place, grouped by code; each with the reason for its size.

Exact invariants (a gradient that is None, a weight that is NaN) have no threshold and are not here. The detection
benchmark prints the hash of this file, so that a change of any number shows.

Healthy figures in the comments are those of the catalogue of faults (519 weight matrices in 96 healthy runs) and of
the zoo of this repository.
"""

from __future__ import annotations

# -- numerics, gradients, updates (NUM, GRD, UPD) ------------------------------------------------------------------

# Has the loss made progress since the start? (GRD001, GRD002, GRD005, GRD008, GRD009, GRD010, UPD001, UPD002)
PROGRESS_DEVIATIONS = 4.0  # of a single loss: a median of nine batches hardly strays by two
PROGRESS_REMAINING = 0.9  # of the starting loss: learning the mean of the labels alone gains a few per cent

# UPD002, WGT.
WRITTEN = 1e-5  # by which a norm changes between two steps; rounding changes it by 1e-7

# -- activations, weights, modes, inputs (ACT, WGT, MOD, DAT001, DAT003) -------------------------------------------

# WGT002. Rows that began equal and are told apart by one random neighbour differ by 1e-3 after a single step.
EQUAL_ROWS = 1e-4


# WGT005. Weight decay at usual settings shrinks a weight by 1e-6 to 1e-3 a step.
SHRINKS_BY = 3e-3  # of itself, a step
RADIAL_SHARE = 0.7  # of the update that only shortens the weight; healthy updates turn it
SHRINKS_FAST_BY = 0.01  # at one step: so fast, that it is enough if
RADIAL_SHARE_FAST = 0.5  # …this share of the update does, as where a penalty in the loss turns weights, too
SHRINKING_TOGETHER = 0.6  # of the matrices; in no healthy training do so many at a single measured step
SHRUNK_ALONE_TO = 0.3  # of the start, for one matrix whose siblings do not shrink
SHRINK_FRAMES = 3
SHRINKING_LEARNS = 0.7  # of the square of what is left of the weights, which is what is left of a penalty on them
GROWN_BEFORE = 1.1  # times the start: targets that are large are overshot, and the weights come back
GONE_TO = 0.01  # of the start: no healthy matrix has lost so much
GONE_FRAMES = 2

# WGT006. A model that begins far below the loss of a guess was trained before.
TRAINED_BEFORE = 0.5  # cross-entropy at the start over ln(classes)
FORGETTING = 1.5  # loss over that at the start, and…
FORGETTING_DRIFT = 0.3  # …distance of half of the matrices from where they started
COPIED = 2e-6  # relative difference of two norms that cannot be chance
COPIED_LATE, COPIED_LATE_FROM = 0.01, 0.1  # the same, once training has changed the first of them by so much

SET_BACK_TRAVEL = 1.5  # times the steps between two measured ones, times the longer of their updates…
SET_BACK_NOISE = 0.15  # …and a share of the distance, which is known from sketches only
SET_BACK_SHARE = 0.6  # of the matrices
SET_BACK_TIMES = 2
OVERWRITTEN_AGAIN = 5  # steps since the time before: what is projected or clamped is written to at every step
OVERWRITTEN_JUMP = 3.0  # deviations of the loss, right after it
