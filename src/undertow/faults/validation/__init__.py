"""Trainings that no rule was written or tuned for: they stand for the programs we have never seen.

Whoever writes or tunes a rule must not read this folder. Each file is a program in the style of another author,
with the mistakes people make in such a program; without a mistake the same program is healthy.
"""
