"""Which line: call sites of what is tapped, and the x-ray step that gives every operation its line."""
