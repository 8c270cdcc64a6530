"""The vocabulary of Undertow: plain data, no torch, no input or output."""
