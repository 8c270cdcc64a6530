"""Updates that are too large, too small or missing."""
