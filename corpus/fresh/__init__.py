"""Training programs written by authors who know no detection rule."""
