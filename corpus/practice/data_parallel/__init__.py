"""Copies of a network, each with a part of the batch, kept in step by hand."""
