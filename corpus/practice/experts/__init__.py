"""Mixtures of experts and the routers that choose among them."""
