"""Ranks and replicas."""
