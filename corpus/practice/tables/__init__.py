"""Rows and columns, categories and numbers."""
