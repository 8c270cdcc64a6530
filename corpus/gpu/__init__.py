"""Trainings of realistic size for one GPU, by an author who knows no detection rule; tiny where there is none."""
