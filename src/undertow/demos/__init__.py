"""Small trainings that are broken on purpose, for `undertow demo`; each is a plain PyTorch program.

They are cases of the corpus as well: see `corpus/` in the repository for hundreds of others.
"""
