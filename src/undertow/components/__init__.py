"""The five components that work on plain arrays: history, animator, flow, weights, enhanced analysis.

Thin faces over `undertow.analyze`; methods and fields are named as in the gradient debugger they restate.
"""
