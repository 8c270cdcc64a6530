"""A training that runs in several processes: each measures what it holds, and the first one adds it up.

Nothing here is a collective operation, so none can be missed: every rank sends what it has measured to the first one,
or to one that adds it to its own and passes that on, over a process group of its own (gloo, between two processes),
from the background thread.
"""
