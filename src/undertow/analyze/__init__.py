"""Numbers from numbers: pure functions on arrays, without torch."""
