"""Runs and what is found in them in the cells of a notebook."""
