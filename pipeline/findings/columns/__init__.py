"""Calls as rules see them: as columns, before any becomes a row of Python, and as rows (``call_history.py``)."""
