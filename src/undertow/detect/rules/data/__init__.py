"""Inputs, targets and batches."""
