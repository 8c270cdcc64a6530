"""Graphs, molecules, knowledge and the tastes of customers."""
