"""Sick trainings, one file per disease."""
