"""What several conditions share: the loss trend, the chance level, the structure of the model."""
