"""Where to look: taps on a live model and optimizer, and when to use them."""
