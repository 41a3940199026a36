"""Calls as columns, and what rules ask of them before any call becomes a row of Python."""
