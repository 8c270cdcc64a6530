"""The terminal: pictures made of characters."""
