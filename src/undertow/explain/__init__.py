"""Why, where, what next: ranking, localisation, remedies and words; no torch."""
