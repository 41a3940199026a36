"""Update of silver's decoded tables from bronze.rpc_calls.

Changed calls are decoded in one pass to staging files, from which each table takes its rows. Calls that a run only
adds to bronze.rpc_calls are decoded while they are written there (``DecodedWrite``). The last table,
silver.remote_read_calls, is committed after all others, even without a change: its provenance stands for all. The
folder of the staging files remains where a run was killed: some tables may have rows of it then, and the next run
replaces any rows of the same calls. All tables are recomputed where the changes are not known: in a first run, after
a change of decoders or of declarations, or without a change feed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.bronze.failed_inputs import mark_failed
from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.engine.frames import read_parquet_folder
from pipeline.lake.incremental import IncrementalUpdate, commits_with_provenance
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.net_changes import NetChanges, net_changes
from pipeline.lake.queries.inputs import CHANGE_FEED_ERRORS
from pipeline.lake.recovery import RunMarkers
from pipeline.silver.decode import DECODED_TABLES, DECODER_VERSIONS, INTERFACES_BY_TABLE, ROW_PER_CALL_TABLES
from pipeline.silver.decode_tasks import (
    CallDecoder,
    DecodedWrite,
    has_no_stubs,
    has_silver_table,
    keep_decoded_columns,
    silver_event_dates,
)
from schemas.bronze import PENDING, RPC_CALLS
from schemas.table import EVENT_DATE, Table
from udfs.comqc.declared_interfaces import NO_DECLARATIONS, Declarations

STUBS_EMPTIED_PROVENANCE: Final = (
    "stubs emptied"  # provenance of commits of bronze.rpc_calls that silver does not follow
)
LAST_COMMITTED_TABLE: Final = DECODED_TABLES[-1]
_CALLS: Final = str(RPC_CALLS)
_STUBS: Final = ("request_stub", "response_stub", "request_signed_bytes", "response_signed_bytes")
_UNFINISHED: Final = ("no_request", "no_response", "damaged", "unbound")


def make_call_decoder(
    lake: Lake, *, keep_packets: bool, keep_bodies: bool = False, declarations: Declarations = NO_DECLARATIONS
) -> CallDecoder:
    """Return a decoder for calls while they are written to bronze.rpc_calls; files of an earlier one are deleted."""
    folder = RunMarkers.of(lake).root / "decoded"
    folder.remove_folder()
    return CallDecoder(str(folder), keep_packets, keep_bodies, declarations)


def update(
    lake: Lake, *, keep_packets: bool, keep_stubs: bool, keep_bodies: bool = False, decoded: DecodedWrite | None = None,
    failures: dict[str, str] | None = None, declarations: Declarations = NO_DECLARATIONS,
) -> dict[str, int]:  # fmt: skip
    """Update the decoded tables with the changes of bronze.rpc_calls; return how many rows of each are written.

    Without ``keep_stubs`` (store.stubs) the stubs in bronze are emptied afterwards, since they hold message bodies;
    those of unfinished calls (bronze.pending) are kept until they are finished. ``decoded``: what ``decoder`` decoded
    already, with the same settings. Captures at whose calls decoding failed are marked in the ledger, and added to
    ``failures`` with the reason. ``declarations`` name methods of COM+ calls: where they differ from those before, all
    calls are decoded again whose stubs are still there.
    """
    written = {str(table): 0 for table in DECODED_TABLES}
    settings = {"decoder": DECODER_VERSIONS, "declarations": declarations.fingerprint()}
    step = IncrementalUpdate.begin(lake, LAST_COMMITTED_TABLE, (RPC_CALLS,), settings)
    if not step.exists(RPC_CALLS):
        return written
    step.provenance_now["emptied"] = not keep_stubs or step.provenance_before.get(
        "emptied", step.exists(LAST_COMMITTED_TABLE)
    )
    folder = RunMarkers.of(lake).root / "silver"
    work = _SilverUpdate(
        step, folder, decoded, interrupted=folder.exists(), keep_packets=keep_packets, keep_bodies=keep_bodies,
        declarations=declarations,
    )  # fmt: skip
    written |= work.run()
    mark_failed(lake, work.failures)
    if failures is not None:
        failures.update(work.failures)
    folder.remove_folder()
    if decoded is not None:
        LakePath(decoded.decoder.staging_folder).remove_folder()
    if not keep_stubs:
        _empty_stubs(lake)
    return written


@dataclass(slots=True, kw_only=True)
class _DecodeOptions:
    interrupted: bool  # an earlier run did not finish
    keep_packets: bool
    keep_bodies: bool
    declarations: Declarations


@dataclass(slots=True)
class _SilverUpdate(_DecodeOptions):
    """One update of the decoded tables."""

    step: IncrementalUpdate
    folder: LakePath  # of the staging files
    decoded: DecodedWrite | None
    failures: dict[str, str] = field(default_factory=dict)  # by capture, of decoding

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.step.lake

    @property
    def newest(self) -> int:
        """The version of bronze.rpc_calls that the tables are updated to."""
        version: int = self.step.provenance_now[_CALLS]
        return version

    @property
    def emptied(self) -> bool:
        """Whether stubs of some calls may have been emptied after they were decoded."""
        return bool(self.step.provenance_now["emptied"])

    def run(self) -> dict[str, int]:
        """Update all tables to the newest version."""
        since = self.step.provenance_before.get(_CALLS)
        if not self.step.provenance_before:  # a first run
            decoded = self._decoded_since(-1)
            return self._recompute_all(None if decoded is None else decoded.decoder)
        if not self.step.has_same_inputs("decoder", "declarations") or since is None or since > self.newest:
            return self._recompute_all()
        if (decoded := self._decoded_since(since)) is not None:
            return self._apply_decoded(decoded)
        if since == self.newest:
            return {}
        skipped = commits_with_provenance(self.lake, RPC_CALLS, since, STUBS_EMPTIED_PROVENANCE)
        if since + len(skipped) == self.newest:
            return {}
        net = self._net_changes(since, skipped)
        return self._recompute_all() if net is None else self._apply_changes(net)

    # What changed

    def _decoded_since(self, version: int) -> DecodedWrite | None:
        """Return what was decoded while written, if that is all that changed since a version."""
        known = self.decoded
        if known is None or self.interrupted:
            return None
        if (known.write.from_version, known.write.to_version) != (version, self.newest):
            return None
        if self.emptied and known.write.removed_calls.call_keys:
            return None
        self.failures |= known.decoder.failures()
        return known

    def _net_changes(self, since: int, skipped: Sequence[int]) -> NetChanges | None:
        """Return the net change of the calls that silver decodes; None where the change feed cannot be read."""
        try:
            feed = self.lake.changes(RPC_CALLS, since).where(has_silver_table())
            if skipped:
                feed = feed.where(~F.col("_commit_version").isin(*skipped))
            facts = {
                "bare": has_no_stubs(),
                "interface_name": F.col("interface_name"),
                "answered": F.col("response_at").isNotNull(),
            }
            return net_changes(feed, "call_key", silver_event_dates(), facts)
        except CHANGE_FEED_ERRORS:
            return None

    # Decoding

    def _decode(self, calls: DataFrame | None) -> CallDecoder:
        """Decode calls in Spark to staging files; None: there are none, and Spark is not needed."""
        folder = self.folder / uuid4().hex
        folder.make_folder()
        found = CallDecoder(str(folder), self.keep_packets, self.keep_bodies, self.declarations)
        if calls is not None:
            found.decode_in_spark(calls)
        self.failures |= found.failures()
        return found

    def _rows(self, table: Table, found: CallDecoder, count: int) -> DataFrame:
        """Return a table's decoded rows as a frame; without a row there is no file."""
        spark = self.lake.spark
        if not count:
            return spark.createDataFrame([], table.struct())
        return read_parquet_folder(spark, LakePath(found.staging_folder) / table.name, table.struct())

    # Writing

    def _recompute_all(self, decoded: CallDecoder | None = None) -> dict[str, int]:
        """Recompute all tables from all calls; ``decoded``: they are decoded already."""
        lake = self.lake
        exists = run_concurrently({table: partial(lake.exists, table) for table in DECODED_TABLES})
        if decoded is None:
            self.step.prepare_full_reads(RPC_CALLS)
            any_call = lake.query("SELECT call_key FROM {rows} LIMIT 1", rows=RPC_CALLS)
            decoded = self._decode(lake.read(RPC_CALLS) if any_call.num_rows else None)
        found, written, provenance = decoded, decoded.row_counts(), self._provenance()
        bare = lake.read(RPC_CALLS).where(has_no_stubs()).select("call_key") if self.emptied else None

        def write(table: Table) -> None:
            count = written[str(table)]
            of_table = (
                None if table is LAST_COMMITTED_TABLE else provenance
            )  # the last table is not written after the others here
            if not exists[table]:
                if count:
                    lake.append(table, found.decoded_rows(table), provenance=of_table)
                lake.create(table)
                return
            rows = self._rows(table, found, count)
            if bare is not None and table in ROW_PER_CALL_TABLES:
                rows = keep_decoded_columns(table, rows, bare, lake.read(table))
            elif bare is not None:
                rows = rows.unionByName(lake.read(table).join(bare, "call_key", "left_semi"))
            if "source" in table.names:  # the collector's rows do not come from calls
                rows = rows.unionByName(lake.read(table).where("source = 'collector'"))
            if "packet_key" in table.names:  # nor do those of the binary protocol
                rows = rows.unionByName(lake.read(table).where("packet_key IS NOT NULL"))
            lake.replace(table, rows, provenance=of_table)

        run_concurrently({table: partial(write, table) for table in DECODED_TABLES})
        self.step.commit_provenance()
        return written

    def _apply_decoded(self, decoded: DecodedWrite) -> dict[str, int]:
        """Insert what was decoded of new calls, and delete the rows of removed ones."""
        self.folder.make_folder()  # from here on tables may have rows that others do not have yet
        found, removed, provenance = decoded.decoder, decoded.write.removed_calls, self._provenance()
        written = found.row_counts()

        def write(table: Table) -> None:
            if written[str(table)] or removed.call_keys:
                self.lake.delete_and_insert(
                    table, "call_key", removed.call_keys, found.decoded_rows(table), dates=removed.silver_dates,
                    provenance=provenance, previous_provenance=provenance,
                )  # fmt: skip

        _write_tables(write, DECODED_TABLES)
        self.step.commit_provenance()
        return written

    def _apply_changes(self, net: NetChanges) -> dict[str, int]:
        """Decode changed calls, and replace their rows."""
        lake = self.lake
        found = self._decode(net.rows)
        written = found.row_counts()
        rows = {table: self._rows(table, found, written[str(table)]) for table in DECODED_TABLES if written[str(table)]}
        bare = self._still_bare(net) if self.emptied and net.has_earlier_keys else None
        named = _call_keys(bare) if bare is not None and net.keys_before is not None else frozenset()
        merged = [table for table in DECODED_TABLES if bare is not None and table in ROW_PER_CALL_TABLES]
        others = [table for table in DECODED_TABLES if table not in merged]
        deleted = {table: self._deleted_calls(table, net, bare, named) for table in others}
        provenance = self._provenance()
        with lake.commit_message(
            json.dumps(self.step.provenance_before)
        ):  # two commits take a fraction of a MERGE's time
            _write_tables(
                lambda table: lake.delete_values(table, "call_key", deleted[table], dates=self._dates(net)), others
            )
        new = [table for table in others if table in rows]
        _write_tables(lambda table: lake.append(table, rows[table], provenance=provenance), new)
        if bare is not None:
            for table in merged:
                if table in rows or not _is_empty(self._deleted_calls(table, net, None, frozenset())):
                    self._merge(table, rows.get(table), net, bare)
        self.step.commit_provenance()
        return written

    def _provenance(self) -> str:
        return json.dumps(self.step.provenance_now)

    def _dates(self, net: NetChanges) -> frozenset[date | None] | None:
        """Return the dates of the changed calls' rows; all dates after an interrupted run."""
        return None if self.interrupted else net.dates

    def _deleted_calls(
        self, table: Table, net: NetChanges, kept: DataFrame | None, named: frozenset[str]
    ) -> frozenset[str] | DataFrame:
        """Return the calls whose rows are deleted from a table, without those ``kept`` (``named``, if they are few).

        After an interrupted run these are all changed and new calls: some of their rows may exist already.
        """
        interfaces = INTERFACES_BY_TABLE[table]
        if net.keys_before is not None and not self.interrupted:
            every = table in ROW_PER_CALL_TABLES
            before = net.keys_before.items()
            ours = {key for key, row in before if row["interface_name"] in interfaces and (every or row["answered"])}
            return frozenset(ours - named)
        if self.interrupted:
            found = net.changed_keys.select("call_key").union(net.rows.select("call_key")).distinct()
        else:
            found = net.changed_keys.where(F.col("was") & F.col("interface_name").isin(*interfaces)).select("call_key")
        return found if kept is None else found.join(kept, "call_key", "left_anti")

    def _merge(self, table: Table, rows: DataFrame | None, net: NetChanges, bare: DataFrame) -> None:
        """Replace rows in one commit, keeping what was decoded before of calls whose stubs are empty now."""
        rows = self.lake.spark.createDataFrame([], table.struct()) if rows is None else rows
        rows = keep_decoded_columns(table, rows, bare, self.lake.read(table)).withColumn("gone", F.lit(False))  # noqa: FBT003
        gone = net.changed_keys
        if not self.interrupted:
            gone = gone.where(F.col("was") & F.col("interface_name").isin(*INTERFACES_BY_TABLE[table]))
        gone = gone.select("call_key").join(rows.select("call_key"), "call_key", "left_anti")
        rows = rows.unionByName(gone.withColumn("gone", F.lit(True)), allowMissingColumns=True)  # noqa: FBT003
        self.lake.merge(table, rows, dates=self._dates(net), delete_when="gone", provenance=self._provenance())

    def _still_bare(self, net: NetChanges) -> DataFrame:
        """Return the calls that have no stub and had none before: their decoded rows stay."""
        now = net.rows.where(has_no_stubs()).select("call_key")
        return now.join(net.changed_keys.where("was AND bare"), "call_key", "left_semi")


def _write_tables(write: Callable[[Table], None], tables: Sequence[Table]) -> None:
    """Write tables concurrently, the last table after all others: its commit stands for them."""
    run_concurrently({table: partial(write, table) for table in tables if table is not LAST_COMMITTED_TABLE})
    if LAST_COMMITTED_TABLE in tables:
        write(LAST_COMMITTED_TABLE)


def _is_empty(calls: frozenset[str] | DataFrame) -> bool:
    return isinstance(calls, frozenset) and not calls


def _call_keys(frame: DataFrame) -> frozenset[str]:
    return frozenset(row[0] for row in frame.select("call_key").collect())


def _empty_stubs(lake: Lake) -> None:
    """Set the stubs of all finished calls to null."""
    pending = lake.read(PENDING)
    calls = lake.read(RPC_CALLS).where(~has_no_stubs()).select("call_key", "connection_id", "outcome", EVENT_DATE)
    unfinished = F.col("outcome").isin(*_UNFINISHED)
    waiting = pending.select("connection_id").distinct().withColumnRenamed("connection_id", "waiting")
    calls = calls.join(waiting, (F.col("connection_id") == F.col("waiting")) & unfinished, "left_anti")
    calls = calls.join(pending.select(F.explode("call_keys").alias("call_key")), "call_key", "left_anti")
    dates = [row[0] for row in calls.select(EVENT_DATE).distinct().collect()]
    if dates:
        nothing = (F.lit(None).cast("binary").alias(name) for name in _STUBS)
        lake.update_columns(
            RPC_CALLS, calls.select("call_key", *nothing), dates=dates, provenance=STUBS_EMPTIED_PROVENANCE
        )
