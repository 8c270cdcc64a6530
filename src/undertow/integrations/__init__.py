"""Other people's loops, trackers and test runners. Each needs its own package, and only when it is used."""
