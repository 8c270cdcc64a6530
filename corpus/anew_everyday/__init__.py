"""Everyday supervised and self-supervised trainings, by an author who had read no rule.

The line that a reviewer would point at ends with the comment `# at fault`; where a file has several cases, the comment
names the one it belongs to: `# at fault: case`. A fault without such a line has none in the program.
"""
