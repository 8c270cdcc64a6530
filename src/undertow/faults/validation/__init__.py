"""Trainings that stand for the programs we have never seen: no rule had been written or tuned for them.

Each file is a program in the style of another author, with the mistakes people make in such a program; without a
mistake the same program is healthy. Whoever writes or tunes a rule must not read a tier before it has been measured.
This one was measured on 2026-11-16 and has been read since, so its figures are no longer held out: the next honest
measurement needs a new tier, and this one then belongs to `practice`.
"""
