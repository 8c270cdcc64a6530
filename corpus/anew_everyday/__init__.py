"""Everyday supervised and self-supervised trainings, by an author who had read no rule.

The line that a reviewer would point at ends with the comment `# at fault` and the name of its case.
"""
