"""Weights that begin or end where they should not."""
