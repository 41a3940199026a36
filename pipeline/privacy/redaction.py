"""Redaction: a run works in a scratch lake, and publishes its rows to the lake with pseudonyms in place of names.

Captures are full of names, and only reading and decoding finds them. Both are done by the usual code, in a scratch
lake: a folder that only this user may read and that is removed when the run ends. It starts with the lake's ledgers, so
that nothing is read twice. Rows of bronze, and of the silver tables that come from single calls, are then written to
the lake as ``redacted_columns`` says. All other tables are computed from these.

Stubs and unfinished calls are not kept, so that a run sees no bytes of another one. Calls that a run's captures do not
finish stay unfinished, keys do not decrypt calls of earlier runs, and a capture that has grown is read again from its
beginning.

The ledgers are written last. A run that was killed is repeated, and replaces the rows that it had written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.engine.settings import small_arrow_batches
from pipeline.lake.engine.tasks import MIN_TASKS
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import MAX_IN_LIST
from pipeline.lake.recovery import RunMarkers
from pipeline.privacy.redacted_columns import REDACTED_SILVER_TABLES, redact_rows
from pipeline.silver import collected_snapshots
from pipeline.silver.decode import DECODED_TABLES, DECODER_VERSIONS
from pipeline.silver.hosts import DECODER_VERSION as HOSTS_VERSION
from pipeline.silver.update import LAST_COMMITTED_TABLE
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import PROPERTIES
from schemas.sessions import ORDER_ACKS, PINGS, SENDINGS, SESSION_PACKETS, SESSIONS
from schemas.table import RUN_ID, Table
from udfs.errors import remove_failure_values
from udfs.pseudonyms import Pseudonymizer

# Jobs make pseudonyms and log errors, and may not import udfs.
__all__ = [
    "Pseudonymizer", "RedactionError", "RedactionRun", "is_redacted", "mark_redacted",
    "remove_failure_values", "require_unredacted", "tasks_reach",
]  # fmt: skip

_LEDGER_TABLES: Final = (CAPTURE_FILES, SNAPSHOT_FILES)
_TABLES_WITH_CAPTURE_ID: Final = (RPC_CALLS, RPC_BINDS, SESSION_PACKETS, PINGS, QUARANTINE, PENDING)
_BRONZE_DATA_TABLES: Final = (*_TABLES_WITH_CAPTURE_ID, CONNECTIONS, SNAPSHOTS_RAW)
# The column by which rows are replaced together, where it is not the table's key.
_REPLACE_KEYS: Final[Mapping[Table, str]] = {PROPERTIES: "snapshot_id", COMQC_CALLS: "sighting_key"}
_MARKER_FILE: Final = "_redaction.json"
_REACHED_FILE: Final = "_reached"


class RedactionError(Exception):
    """The lake is redacted in another way. The message says what to do."""


def is_redacted(lake: Lake) -> bool:
    """Whether the names in a lake are redacted."""
    return (lake.folder / _MARKER_FILE).exists()


def require_unredacted(lake: Lake) -> None:
    """Raise RedactionError if names in the lake are redacted: a run without redaction would add plain ones."""
    if is_redacted(lake):
        raise RedactionError(
            f"{lake.root}: names in this lake are redacted; set privacy.redact as before and give --redact-key"
        )


def mark_redacted(lake: Lake, pseudonyms: Pseudonymizer) -> None:
    """Note in an empty lake what is redacted; RedactionError if the lake is redacted in another way, or not at all.

    The note has a check value of the key. It helps to guess a key as much as any pseudonym: keys have to be random.
    """
    marker = lake.folder / _MARKER_FILE
    wanted = {"kinds": sorted(pseudonyms.kinds), "check": pseudonyms.key_fingerprint()}
    if marker.exists():
        found = json.loads(marker.read_text())
        if found != wanted:
            raise RedactionError(
                f"{lake.root}: names in this lake are redacted with another key, or of other kinds "
                f"({', '.join(found['kinds'])}): the rows of this run would not match them"
            )
        return
    if any(lake.exists(table) for table in (*_LEDGER_TABLES, RPC_CALLS)):
        raise RedactionError(
            f"{lake.root}: this lake was filled without redaction; use another folder for --lake and read all captures"
            " again"
        )
    marker.write_text(json.dumps(wanted))


def tasks_reach(spark: SparkSession, folder: Path) -> bool:
    """Whether Spark's tasks find in a folder what this process writes there: others may have a folder of that name."""
    marker, token = LakePath(str(folder)) / _REACHED_FILE, uuid4().hex
    marker.write_text(token)

    def find(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            try:
                is_found = marker.read_text() == token
            except OSError:
                is_found = False
            yield pa.RecordBatch.from_pydict({"is_found": [is_found] * batch.num_rows})

    answers = spark.range(0, MIN_TASKS, 1, MIN_TASKS).mapInArrow(find, "is_found boolean").collect()
    marker.remove_file()
    return all(row["is_found"] for row in answers)


@dataclass(slots=True)
class RedactionRun:
    """One redacting run: the lake, the scratch lake that it works in, and the captures that the lake held before."""

    lake: Lake
    scratch_lake: Lake
    pseudonyms: Pseudonymizer
    captures_to_redact: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def create(
        cls, lake: Lake, folder: Path, pseudonyms: Pseudonymizer, snapshot_paths: Iterable[str] = ()
    ) -> RedactionRun:
        """Make the scratch lake in a folder, with the ledgers of the lake. ``snapshot_paths`` are the given files.

        delta-rs stores it, whatever stores the lake: nothing of it is in a catalog, or in files of Spark's own.
        """
        scratch_lake = Lake(lake.session, str(folder), store="delta-rs", overflow_folder=lake.overflow_folder)
        cutoff = RetentionCutoff.load(RunMarkers.of(lake))
        if cutoff is not None:
            cutoff.save(RunMarkers.of(scratch_lake))
        if lake.exists(CAPTURE_FILES):
            scratch_lake.append(CAPTURE_FILES, lake.read(CAPTURE_FILES))
        if lake.exists(SNAPSHOT_FILES):
            plain_paths = {pseudonyms.snapshot_path(path): path for path in snapshot_paths}
            ledger = lake.read(SNAPSHOT_FILES).toArrow()
            texts = [plain_paths.get(path, path) for path in ledger.column("path").to_pylist()]
            ledger = ledger.set_column(ledger.schema.get_field_index("path"), "path", pa.array(texts, pa.string()))
            scratch_lake.append(SNAPSHOT_FILES, arrow_to_frame(lake.spark, ledger))
        captures = frozenset(row[0] for row in scratch_lake.read(CAPTURE_FILES).select("capture_id").collect())
        return cls(lake, scratch_lake, pseudonyms, captures)

    def publish(self, *, run_id: str, read_paths: Collection[str]) -> dict[str, Any] | None:
        """Write the rows of the scratch lake to the lake, redacted; return the provenance for ``hosts.update_hosts``.

        None if ``silver.hosts`` is up to date. ``read_paths`` are the paths of the captures that were read: their
        earlier rows are removed.
        """
        ledger = self.scratch_lake.read(CAPTURE_FILES).select("capture_id", "path").collect()
        paths = {row["capture_id"]: row["path"] for row in ledger}
        reread = {name for name, path in paths.items() if path in read_paths} & self.captures_to_redact
        self._remove_captures(reread | (self.captures_to_redact - paths.keys()))
        tables = [table for table in (*_BRONZE_DATA_TABLES, *REDACTED_SILVER_TABLES) if self.scratch_lake.exists(table)]
        with small_arrow_batches(self.lake.spark):
            writes = {table: partial(self._publish_rows, table, self.scratch_lake.read(table)) for table in tables}
            run_concurrently(writes)
        provenance = self._stamp_silver(any_rows=bool(tables))
        for table in _LEDGER_TABLES:
            fresh = self.scratch_lake.read(table).where(F.col(RUN_ID).startswith(run_id))
            if not fresh.isEmpty():
                self._publish_rows(table, fresh)
        return None if self.lake.provenance(HOSTS).items() >= provenance.items() else provenance

    def _remove_captures(self, captures: Collection[str]) -> None:
        """Delete the rows of captures that are read again, or are part of another capture now."""
        lake = self.lake
        if not captures or not lake.exists(RPC_CALLS):
            return
        condition = "capture_id IN {names}"
        for key_column, source, tables in (
            ("call_key", RPC_CALLS, DECODED_TABLES),
            ("packet_key", SESSION_PACKETS, (MESSAGES, COMQC_CALLS, ORDER_ACKS, SENDINGS)),
            ("connection_id", SESSION_PACKETS, (SESSIONS,)),
        ):
            sql = f"SELECT DISTINCT {key_column} FROM {{rows}} WHERE {condition}"
            keys = lake.frame(sql, rows=source, names=captures)
            for table in tables:
                if lake.exists(table):
                    lake.delete_values(table, key_column, keys, dates=None)
        for table in (*_TABLES_WITH_CAPTURE_ID, CAPTURE_FILES):
            lake.delete(table, condition, names=captures)

    def _publish_rows(self, table: Table, rows: DataFrame) -> None:
        """Write redacted rows: replace those of the same calls, connections, snapshots or files, add the others."""
        lake, pseudonyms = self.lake, self.pseudonyms

        def redacted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (redact_rows(table, batch, pseudonyms) for batch in batches)

        published = rows.mapInArrow(redacted, table.struct())
        if lake.exists(table):
            column = _REPLACE_KEYS.get(table, table.key[0])
            lake.delete_values(table, column, _named_keys(published.select(column).distinct()), dates=None)
        lake.append(table, published)

    def _stamp_silver(self, *, any_rows: bool) -> dict[str, Any]:
        """Commit to silver's last table that silver is up to date; return the provenance for ``silver.hosts``."""
        lake = self.lake
        calls = lake.version(RPC_CALLS)
        provenance = {str(RPC_CALLS): calls, "decoder": DECODER_VERSIONS}
        if calls is not None and (any_rows or not lake.exists(LAST_COMMITTED_TABLE)):
            lake.commit_provenance(LAST_COMMITTED_TABLE, json.dumps({**provenance, "emptied": True}))
        snapshots = {collected_snapshots.SOURCE_TABLE_NAME: lake.version(SNAPSHOTS_RAW)}
        return {**snapshots, **provenance, str(SESSIONS): lake.version(SESSIONS), "hosts": HOSTS_VERSION}


def _named_keys(keys: DataFrame) -> Collection[str] | DataFrame:
    """Return keys as values if they are few, else as they are."""
    found = [row[0] for row in keys.limit(MAX_IN_LIST + 1).collect()]
    return keys if len(found) > MAX_IN_LIST else [name for name in found if name is not None]
