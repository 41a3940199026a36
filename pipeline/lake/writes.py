"""What one commit does to the rows of a table (``Lake.commit``)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.lake.engine.tasks import PartitionedRows

Dates: TypeAlias = Collection[date | None]


class ReplaceChanged(NamedTuple):
    """Put ``rows`` in the place of ``current``, as far as they differ; for a table with one key column.

    ``current`` are the rows that the table has now, of all keys whose rows may change or go; ``dates`` are their event
    dates, None among them for rows without one.
    """

    rows: pa.Table
    current: pa.Table
    dates: Dates


class ReplaceAll(NamedTuple):
    """Make ``rows`` all that the table has."""

    rows: DataFrame | pa.Table | PartitionedRows


class Append(NamedTuple):
    """Add ``rows``, whose keys the table does not have."""

    rows: DataFrame | pa.Table


class ProvenanceOnly(NamedTuple):
    """Change no row: the table rests on newer inputs than before, and comes out the same."""


Write: TypeAlias = ReplaceChanged | ReplaceAll | Append | ProvenanceOnly
