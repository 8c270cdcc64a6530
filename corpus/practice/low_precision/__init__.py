"""Half precision and bfloat16, with and without a gradient scaler."""
