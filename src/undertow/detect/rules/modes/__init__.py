"""Modules in the wrong mode, and normalisation that cannot work."""
