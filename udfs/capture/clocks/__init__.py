"""Clocks of captures: where they were set."""
