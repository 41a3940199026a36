"""Captures and snapshots to bronze: which files to read, reading them, merging what crosses files."""
