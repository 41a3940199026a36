"""Commits of Delta tables: their versions, and what they said of themselves.

Delta's DESCRIBE HISTORY runs two jobs of Spark, an eighth of a second for what is a line of a file, and a run asks it
of every table. So the line is read where the log lies in a folder of this machine, and Delta is asked elsewhere. The
files are those of Delta's protocol (Delta Log Entries; Last Checkpoint File; Commit Provenance Information).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import Row, SparkSession

# Operations of Delta that change no row and no column: what somebody does to keep a table fast and small.
MAINTENANCE: Final = frozenset({
    "OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "COMPUTE STATS", "CLUSTER BY",
    "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL", "ROW TRACKING BACKFILL",
})  # fmt: skip
_INFO: Final = ("userMetadata", "operationMetrics", "operation")  # what is read of a commit


class Snapshot(NamedTuple):
    """A table's commit: its version, from 0, what it said that the table is made of, and how many rows it wrote.

    ``operation`` is Delta's name of what was done.
    """

    version: int
    provenance_json: str | None
    rows_written: int = 0
    operation: str | None = None

    @property
    def keeps_provenance(self) -> bool:
        """Whether the table is still made of what an earlier commit says: this one says nothing and changed no row."""
        return self.provenance_json is None and self.operation in MAINTENANCE

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
        """The newest commit, with the provenance of the table.

        The provenance is looked for in earlier commits where the newest ones are maintenance only.
        """
        found = None if self.log is None else newest_in_log(self.log)
        newest = found or describe_history(self.spark, self.name, 1)[0]
        if newest.keeps_provenance:
            return newest._replace(provenance_json=self._provenance_before(newest.version))
        return newest

    def _provenance_before(self, version: int) -> str | None:
        """Return the provenance of the table before a version that is maintenance; None if the log begins later."""
        for commit in self._backwards(version - 1):
            if not commit.keeps_provenance:
                return commit.provenance_json
        return None

    def _backwards(self, version: int) -> Iterator[Snapshot]:
        """Yield the commits from a version back, as far as the log has them."""
        while version >= 0 and self.log is not None and (commit := _read(self.log, version)) is not None:
            yield commit
            version -= 1
        if version >= 0:
            history = describe_history(self.spark, self.name)
            yield from (commit for commit in history if commit.version <= version)

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


def describe_history(spark: SparkSession, name: str, count: int | None = None) -> list[Snapshot]:
    """The newest commits of a table, named in SQL, the newest first, as Delta tells them: so many of them, or all."""
    history = spark.sql(f"DESCRIBE HISTORY {name}" + ("" if count is None else f" LIMIT {count}"))
    rows: list[Row] = history.select("version", *_INFO).collect()
    return [_commit(*row) for row in rows]


def _commit(version: int, said: str | None, metrics: dict[str, str] | None, operation: str | None) -> Snapshot:
    return Snapshot(version, said, int((metrics or {}).get("numOutputRows", 0)), operation)


def _read(log: Path, version: int) -> Snapshot | None:
    try:
        with commit_file(log, version).open(encoding="utf-8") as lines:
            told = next((json.loads(line)["commitInfo"] for line in lines if line.startswith('{"commitInfo":')), None)
    except (OSError, ValueError):
        return None
    return None if told is None else _commit(version, *map(told.get, _INFO))


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
