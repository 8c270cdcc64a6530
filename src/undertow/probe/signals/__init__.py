"""Signals that rules need beside statistics of tensors: what the loss was given, labels, modes, attention, gates,
and what an optimizer keeps. Read from the graph of the loss just before it is used, from sampled forward passes,
and from the optimizer's state; never from the user's code."""
