"""Commits of Delta tables: their versions, and what they said of themselves.

Delta's DESCRIBE HISTORY runs two jobs of Spark, an eighth of a second for what is a line of a file, and a run asks it
of every table. So the line is read where the log lies in a folder of this machine, and Delta is asked elsewhere. The
files are those of Delta's protocol (Delta Log Entries; Last Checkpoint File; Commit Provenance Information).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession


class Snapshot(NamedTuple):
    """A table's commit: its version, from 0, what it said that the table is made of, and how many rows it wrote."""

    version: int
    provenance_json: str | None
    rows_written: int = 0

    def provenance(self) -> dict[str, Any]:
        """What ``provenance`` tells, read as JSON; nothing when it says nothing, or in other words."""
        try:
            made = json.loads(self.provenance_json or "")
        except ValueError:
            return {}
        return made if isinstance(made, dict) else {}


class CommitHistory(NamedTuple):
    """The commits of a table that exists: its name in SQL, and its log where that is a folder of this machine."""

    spark: SparkSession
    name: str
    log: Path | None

    def newest(self) -> Snapshot:
        """The newest commit."""
        found = None if self.log is None else newest_in_log(self.log)
        return found or describe_history(self.spark, self.name, 1)[0]

    def since(self, version: int, until: int) -> list[Snapshot]:
        """The commits after a version, up to ``until``, which is the newest."""
        found = None if self.log is None else snapshots_in_log(self.log, version + 1, until)
        return describe_history(self.spark, self.name, until - version)[::-1] if found is None else found


def newest_in_log(log: Path) -> Snapshot | None:
    """The newest commit of a log; None where there is no such folder, or what is in it is not as expected."""
    version = last_checkpoint(log)
    while commit_file(log, version + 1).is_file():
        version += 1
    return _read(log, version)


def snapshots_in_log(log: Path, first: int, last: int) -> list[Snapshot] | None:
    """The commits of these versions and all between, the oldest first; None as for ``newest``."""
    found = [_read(log, version) for version in range(first, last + 1)]
    told = [commit for commit in found if commit is not None]
    return told if len(told) == last + 1 - first else None


def describe_history(spark: SparkSession, name: str, count: int) -> list[Snapshot]:
    """The newest commits of a table, as it is named in SQL: so many of them, the newest first, told by Delta."""
    history = spark.sql(f"DESCRIBE HISTORY {name} LIMIT {count}")
    rows: list[Row] = history.select("version", "userMetadata", "operationMetrics").collect()
    return [_commit(*row) for row in rows]


def _commit(version: int, said: str | None, metrics: dict[str, str] | None) -> Snapshot:
    return Snapshot(version, said, int((metrics or {}).get("numOutputRows", 0)))


def _read(log: Path, version: int) -> Snapshot | None:
    try:
        with commit_file(log, version).open(encoding="utf-8") as lines:
            told = next((json.loads(line)["commitInfo"] for line in lines if line.startswith('{"commitInfo":')), None)
    except (OSError, ValueError):
        return None
    return None if told is None else _commit(version, told.get("userMetadata"), told.get("operationMetrics"))


def commit_file(log: Path, version: int) -> Path:
    """Where a commit is described: a line for each action."""
    return log / f"{version:020}.json"


def last_checkpoint(log: Path) -> int:
    """The version of the newest checkpoint, before which entries may be gone; 0 where there is none."""
    try:
        version = json.loads((log / "_last_checkpoint").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, LookupError, TypeError):
        return 0
    return version if isinstance(version, int) else 0
