"""A hospital of sick trainings and a zoo of healthy ones, to judge the rules by.

Every training is a small plain PyTorch program that knows nothing of Undertow. A sick one has a
healthy twin: the same program with the fault switched off.
"""
