"""Errors of a lake that jobs report in one line. No imports: jobs without Spark report them too."""

from __future__ import annotations


class SchemaError(Exception):
    """A frame or a stored table that differs from its declared schema; the message names every column that does."""


class StoreError(Exception):
    """A lake whose tables are stored otherwise than was asked for, or by another version."""


class LakeNameError(Exception):
    """A name of a lake's folder, or of its catalog, that Spark would not take as it is."""


class ConflictError(Exception):
    """Somebody else changed a table while a change of it was computed."""


class RestoreError(Exception):
    """A table cannot be restored to a version: its files or its log are gone."""
