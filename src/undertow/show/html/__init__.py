"""A run in one file: the pages of the dashboard with everything they need, to be opened from disk."""
