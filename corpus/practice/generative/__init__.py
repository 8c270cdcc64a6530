"""Autoencoders, adversaries, flows, densities and diffusion."""
