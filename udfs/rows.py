"""Names for a table's row as a dictionary: values by column name, times in microseconds since the epoch (UTC)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

RowDict: TypeAlias = dict[str, Any]
"""A row that may be changed."""

RowMapping: TypeAlias = Mapping[str, Any]
"""A row that is only read."""
