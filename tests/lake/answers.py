"""Answers as both engines give them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import pyarrow as pa


def alike(value):
    """A value as both engines give it: numbers are numbers, whatever their type."""
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, float):
        return round(value, 9)  # sums depend on the order of their terms
    if isinstance(value, dict):
        return tuple((name, alike(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(alike, value))
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def rows_of(found: pa.Table):
    """The rows of an answer, in its order."""
    return [tuple(map(alike, row.values())) for row in found.to_pylist()]


def told(found: pa.Table):
    """An answer, whatever the order of its rows."""
    return found.column_names, Counter(rows_of(found))
