"""Values that are not finite, or fall out of the range of their format."""
