"""Runs on a lake: one at a time, and what becomes of the work of one that was killed."""
