"""The lease of a lake in a catalog: the one row of a table, which is made once and replaced as it was read.

Files of such a lake are on volumes, whose locks nobody vouches for. Commits exclude each other there: of two statements
that replace the same row one succeeds. The table is made with its row, in one commit; nothing is ever inserted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from pipeline.lake.engine.sessions import LazySession, own_session
from pipeline.lake.lake import Lake
from pipeline.lake.storage.log import TableLocations
from pipeline.runs.lease import LeaseLocation, LeaseTimes, Record
from schemas.table import STRING, Column, Table, literal

_HOLDER: Final = Column("holder", STRING, "JSON: which run works on the lake, and how often it has said so; {}: none")
LEASE: Final = Table("bronze", "lease", "One row: which run works on the lake", (_HOLDER.name,), (_HOLDER,))
_LOOKS, _PAUSE_S = 20, 0.25  # for a table that another run makes
# A run makes a commit a minute: the log of a day is kept.
_PROPERTIES: Final = {
    "delta.isolationLevel": "Serializable",
    "delta.enableDeletionVectors": "false",
    "delta.logRetentionDuration": "interval 1 day",
    "delta.deletedFileRetentionDuration": "interval 1 day",
}


def lease_location(lake: Lake) -> LeaseTable | None:
    """Return a table for the lease of a lake in a catalog; None where the lease is in the lake's folder.

    That is also where Spark in this process has the catalog: commits of another process may not exclude its own.
    """
    return None if lake.catalog is None or lake.is_in_own_spark else LeaseTable(lake.locations, lake.session)


class LeaseTable(LeaseLocation):
    """The record in a table of a catalog. A commit takes Spark seconds, and while it is busy longer."""

    times = LeaseTimes(beat_s=60.0, stale_s=300.0, poll_s=5.0, valid_s=120.0)
    is_read_before_commits = False
    record: str

    def __init__(self, locations: TableLocations, session: LazySession) -> None:
        self.record = locations.sql_name(LEASE)
        self._locations, self._session = locations, session

    def read(self) -> Record | None:
        """Return the record; None without a table."""
        with self._own_session() as spark:
            if not spark.catalog.tableExists(self.record):
                return None
            rows = spark.sql(f"SELECT {_HOLDER.name} FROM {self.record} LIMIT 2").collect()
        if len(rows) != 1 or rows[0][0] is None:
            raise OSError(f"{self.record} has not one row: if no run works on the lake, drop it")
        return Record(rows[0][0].encode())

    def put(self, data: bytes, before: Record | None) -> bool:
        """Write the record in place of one that was read, or of no table; False where another one is there."""
        try:
            with self._own_session() as spark:
                if before is None:
                    self._create(spark, data)
                    return True
                was, now = (literal(each.decode()) for each in (before.data, data))
                sql = f"UPDATE {self.record} SET {_HOLDER.name} = {now} WHERE {_HOLDER.name} = {was}"
                (done,) = spark.sql(sql).collect()
                return bool(done["num_affected_rows"])
        except OSError:  # somebody was faster, or Spark is out of reach, or its answer was lost
            found = self.read() if before is not None else self._read_when_made()
            if found == before:
                raise
            return found is not None and found.data == data

    def _read_when_made(self) -> Record | None:
        """Return the record of a table that somebody may be making: its files are there before the catalog knows it."""
        for _ in range(_LOOKS):
            if (found := self.read()) is not None:
                return found
            time.sleep(_PAUSE_S)
        return None

    def _create(self, spark: SparkSession, data: bytes) -> None:
        """Create the table with its row; an error where it exists."""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in _PROPERTIES.items())
        spark.sql(self._locations.create_schema_sql(LEASE))
        spark.sql(
            f"CREATE TABLE {self.record} USING DELTA COMMENT {LEASE.comment_literal()} TBLPROPERTIES ({properties}) "
            f"AS SELECT {literal(data.decode())} AS {_HOLDER.name}"
        )

    @contextmanager
    def _own_session(self) -> Iterator[SparkSession]:
        """Yield a session for statements; their errors are ``OSError``."""
        shared = self._session.spark
        try:
            with own_session(shared) as spark:
                yield spark
        except Exception as error:
            raise OSError(str(error)) from error
