"""Sound, sensors and time series."""
