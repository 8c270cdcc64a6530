"""Loops that ordinary supervised examples do not cover, written by an author who knows no detection rule."""
