"""The conditions, one file each, by family; they never import each other."""
