"""Outputs of modules that carry no signal."""
