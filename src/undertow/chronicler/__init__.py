"""WHO KEEPS THE RECORD: writes frames, judges them and explains findings, here or in a process of its own.

No torch: the process that does this besides a training has to start quickly and stay small.
"""
