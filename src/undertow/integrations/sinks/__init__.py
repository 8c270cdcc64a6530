"""Where else the numbers and the findings of a run go: other people's trackers, monitors and chats.

One file for each; `sink.py` says what a sink is, `feed.py` feeds them away from the training.
"""
