"""The diagnosis as text, Markdown and JSON."""
