"""Gradients that are missing, zero, vanishing, exploding or unusable."""
