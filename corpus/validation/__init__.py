"""Trainings that stand for the programs we have never seen: no rule has been written or tuned for them.

Each file is a program in the style of another author, with the mistakes people make in such a program; without a
mistake the same program is healthy. Whoever writes or tunes a rule must not read a tier before it has been measured;
a tier that has been read moves to `practice`. This one was measured on 2026-11-16; which of its cases were missed is
known since, the programs have not been read.
"""
