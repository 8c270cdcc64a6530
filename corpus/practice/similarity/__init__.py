"""Two views of one thing should lie close: contrastive and metric learning."""
