"""Numbers that several conditions decide by; those of a single one are limits in its class.

Exact invariants (a gradient that is None, a weight that is NaN) have no threshold and are not here. The detection
benchmark prints the hash of this file, so that a change of any number shows.

Healthy figures in the comments are those of the catalogue of faults (519 weight matrices in 96 healthy runs) and of
the zoo of this repository.
"""

from __future__ import annotations

# Has the loss made progress since the start? (GRD001, GRD002, GRD005, GRD008, GRD009, GRD010, UPD001, UPD002)
PROGRESS_DEVIATIONS = 4.0  # of a single loss: a median of nine batches hardly strays by two
PROGRESS_REMAINING = 0.9  # of the starting loss: learning the mean of the labels alone gains a few per cent
