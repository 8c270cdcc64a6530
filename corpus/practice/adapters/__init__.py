"""A trained network is taught something else through a few added parameters."""
