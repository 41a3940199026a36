"""What tests ask of a lake, and no step of the pipeline does."""

from __future__ import annotations

from pyspark.sql import DataFrame

from pipeline.lake.lake import Lake
from pipeline.lake.queries.answer import check_feed
from schemas.table import Table


def changes(lake: Lake, table: Table, since: int, until: int | None = None) -> DataFrame:
    """Return the rows inserted, deleted and updated after a version, up to ``until`` or the newest, as a frame."""
    return lake.frame(
        "SELECT * FROM {feed}", feed=check_feed(table, since, lake.version(table) if until is None else until)
    )


def versions_text(lake: Lake, *tables: Table) -> str:
    """Return the Delta versions of tables as one text, which changes when one of them does."""
    return " ".join(f"{table}={lake.version(table)}" for table in tables)
