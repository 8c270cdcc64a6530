"""Programs in the styles of other authors, each with the mistakes people make in it; without one it is healthy.

Rules may be tuned on these. Each was in the validation tier until a measurement on it had been read case by case.
"""
