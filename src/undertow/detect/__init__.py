"""What is wrong: rules over frames, the same online and offline; no torch."""
