"""Surrogates, operators, differential equations and regression with uncertainty."""
