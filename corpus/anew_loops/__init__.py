"""Unusual loops by an author who has read no rule: agents, adversaries, learners of learners, bare updates.

The comment `# at fault: NAME` marks the lines a colleague would point at in the case NAME, the deciding one first; a
fault that lies in no line has none. `corpus.marks` finds them.
"""
