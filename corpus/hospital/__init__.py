"""Sick trainings, one file per kind of fault. Others of them are in `undertow.demos`."""
