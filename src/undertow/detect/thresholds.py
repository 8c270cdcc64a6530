"""Every number a statistical rule decides by, in one place, grouped by code; each with the reason for its size.

Exact invariants (a gradient that is None, a weight that is NaN) have no threshold and are not here. The detection
benchmark prints the hash of this file, so that a change of any number shows.

Healthy figures in the comments are those of the catalogue of faults (519 weight matrices in 96 healthy runs) and of
the zoo of this repository.
"""

from __future__ import annotations

# -- numerics, gradients, updates (NUM, GRD, UPD) ------------------------------------------------------------------

# -- activations, weights, modes, inputs (ACT, WGT, MOD, DAT001, DAT003) -------------------------------------------

# -- optimisation, data, loss (OPT, DAT, LSS) ----------------------------------------------------------------------
