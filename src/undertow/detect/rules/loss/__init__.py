"""What the loss is given and what it rewards."""
