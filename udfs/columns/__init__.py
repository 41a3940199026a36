"""Columns as arrays: from Arrow to numpy and back, codes of values, groups of rows, and rows by key and time."""
