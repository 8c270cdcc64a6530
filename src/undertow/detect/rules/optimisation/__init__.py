"""The loss over time, the learning rate and the optimizer's settings."""
