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
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pipeline.arrow_rows import distinct_texts
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.concurrency import run_concurrently
from pipeline.lake.engine.tasks import MIN_TASKS
from pipeline.lake.incremental import CODE_VERSION
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, QueryAnswers
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.stage_groups import bucket_sql, stage_groups
from pipeline.lake.staging_files import StagingWriter, staged_rows
from pipeline.privacy.redacted_columns import REDACTED_SILVER_TABLES, columns_to_read, redact_rows, with_all_columns
from pipeline.runs.recovery import RunMarkers
from pipeline.silver import collected_snapshots
from pipeline.silver.decode import DECODED_TABLES, DECODER_VERSIONS
from pipeline.silver.hosts import DECODER_VERSION as HOSTS_VERSION
from pipeline.silver.update import LAST_COMMITTED_TABLE, DecodedState
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import PROPERTIES
from schemas.sessions import ORDER_ACKS, PINGS, SENDINGS, SESSION_PACKETS, SESSIONS
from schemas.table import RUN_ID, Table, quoted
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
_BATCH_ROWS: Final = 4096  # that are redacted at once


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
            scratch_lake.append(CAPTURE_FILES, lake.select(CAPTURE_FILES, "TRUE"))
        if lake.exists(SNAPSHOT_FILES):
            plain_paths = {pseudonyms.snapshot_path(path): path for path in snapshot_paths}
            ledger = lake.select(SNAPSHOT_FILES, "TRUE")
            texts = [plain_paths.get(path, path) for path in ledger.column("path").to_pylist()]
            ledger = ledger.set_column(ledger.schema.get_field_index("path"), "path", pa.array(texts, pa.string()))
            scratch_lake.append(SNAPSHOT_FILES, ledger)
        captures = scratch_lake.select(CAPTURE_FILES, "TRUE", ("capture_id",))["capture_id"].to_pylist()
        return cls(lake, scratch_lake, pseudonyms, frozenset(captures))

    def publish(self, *, run_id: str, read_paths: Collection[str]) -> dict[str, Any] | None:
        """Write the rows of the scratch lake to the lake, redacted; return the provenance for ``hosts.update_hosts``.

        None if ``silver.hosts`` is up to date. ``read_paths`` are the paths of the captures that were read: their
        earlier rows are removed.
        """
        ledger = self.scratch_lake.select(CAPTURE_FILES, "TRUE", ("capture_id", "path"))
        paths = {row["capture_id"]: row["path"] for row in ledger.to_pylist()}
        reread = {name for name, path in paths.items() if path in read_paths} & self.captures_to_redact
        self._remove_captures(reread | (self.captures_to_redact - paths.keys()))
        tables = [table for table in (*_BRONZE_DATA_TABLES, *REDACTED_SILVER_TABLES) if self.scratch_lake.exists(table)]
        run_concurrently({table: partial(self._publish_rows, table, "TRUE") for table in tables})
        for table in tables:
            self.lake.create(table)
        provenance = self._stamp_silver(any_rows=bool(tables))
        for table in _LEDGER_TABLES:
            self._publish_rows(table, f"left({RUN_ID}, {len(run_id)}) = {{run}}", run=run_id)
        return None if self.lake.versions.provenance(HOSTS).items() >= provenance.items() else provenance

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
            keys = lake.query(sql, rows=source, names=captures)[key_column].drop_null().to_pylist()
            for table in tables:
                lake.delete_values(table, key_column, keys, dates=None)
        for table in (*_TABLES_WITH_CAPTURE_ID, CAPTURE_FILES):
            lake.delete(table, condition, names=captures)

    def _publish_rows(self, table: Table, where: str, **values: str) -> None:
        """Write redacted rows: replace those of the same calls, connections, snapshots or files, add the others.

        They are staged in the scratch lake, for their keys are needed before: these are redacted too.
        """
        pseudonyms, column, schema = self.pseudonyms, _REPLACE_KEYS.get(table, table.key[0]), table.schema()
        names = columns_to_read(table)

        def redact(parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
            keys = []
            rows = parts["rows"].select(names).cast(select_fields(schema, names))
            for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
                redacted = redact_rows(table, with_all_columns(batch, schema), pseudonyms)
                staging.add(table.name, redacted)
                keys.append(redacted.column(column))
            return pa.table({column: pc.unique(pa.chunked_array(keys, pa.string()))})

        sql = f"SELECT {', '.join(map(quoted, names))}, {bucket_sql(table.key[0])} FROM {{rows}} WHERE {where}"
        query = BoundQuery(sql, {"rows": table, **values})
        folder = RunMarkers.of(self.scratch_lake).root / "redacted"
        keys = stage_groups(self.scratch_lake, folder, {"rows": query}, redact, StructType([table.struct()[column]]))
        if keys.num_rows:
            gone = distinct_texts(keys[column]) if self.lake.exists(table) else ()
            self.lake.delete_and_insert(table, column, gone, staged_rows(folder / table.name, table), dates=None)

    def _stamp_silver(self, *, any_rows: bool) -> dict[str, Any]:
        """Commit to silver's last table that silver is up to date; return the provenance for ``silver.hosts``."""
        lake = self.lake
        calls = lake.version(RPC_CALLS)
        if calls is not None and (any_rows or not lake.exists(LAST_COMMITTED_TABLE)):
            decoded = {CODE_VERSION: DECODER_VERSIONS, **DecodedState(emptied=True).as_provenance()}
            lake.note_provenance(LAST_COMMITTED_TABLE, json.dumps({str(RPC_CALLS): calls, **decoded}))
        snapshots = {collected_snapshots.SOURCE_TABLE_NAME: lake.version(SNAPSHOTS_RAW)}
        versions = {str(RPC_CALLS): calls, str(SESSIONS): lake.version(SESSIONS)}
        return {**snapshots, **versions, "decoder": DECODER_VERSIONS, "hosts": HOSTS_VERSION}
