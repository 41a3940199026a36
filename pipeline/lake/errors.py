"""What is wrong with a lake, for people: jobs say it in one line. No import, for jobs without Spark say it too."""

from __future__ import annotations


class SchemaError(Exception):
    """A frame or a stored table that is not of its declared schema; the message names every column that differs."""
