"""Numbers from tensors: one pass over memory, then small arrays."""
