"""Healthy trainings, many of them there to break a naive rule."""
