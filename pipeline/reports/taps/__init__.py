"""Compares two captures of the same traffic."""
