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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts
from pipeline.bronze.failed_inputs import mark_failed
from pipeline.concurrency import run_concurrently
from pipeline.lake.date_filters import distinct_dates, utc_date_sql
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, KeptState, commits_with_provenance
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.net_changes import NetChanges, net_changes
from pipeline.lake.queries.inputs import BoundQuery, ChangesSince, RowsOfDates
from pipeline.lake.schema_enforcement import select_fields
from pipeline.runs.recovery import RunMarkers
from pipeline.silver.decode import (
    DECODED_TABLES,
    DECODER_VERSIONS,
    DEFAULT_SETTINGS,
    INTERFACES_BY_TABLE,
    ROW_PER_CALL_TABLES,
    DecodeSettings,
)
from pipeline.silver.decode_tasks import (
    HAS_SILVER_TABLE_SQL,
    NO_STUBS_SQL,
    CallDecoder,
    DecodedWrite,
    copied_columns_sql,
    kept_rows_sql,
    stored_calls_sql,
)
from schemas.bronze import PENDING, RPC_CALLS
from schemas.table import EVENT_DATE, Table

STUBS_EMPTIED_PROVENANCE: Final = (
    "stubs emptied"  # provenance of commits of bronze.rpc_calls that silver does not follow
)
LAST_COMMITTED_TABLE: Final = DECODED_TABLES[-1]
DECODED: Final = DerivedTable(LAST_COMMITTED_TABLE, (RPC_CALLS,), code_version=DECODER_VERSIONS)
_CALLS: Final = str(RPC_CALLS)
_STUBS: Final = ("request_stub", "response_stub", "request_signed_bytes", "response_signed_bytes")
# Of the changed calls: what their rows in silver rest on.
_DATES: Final = {
    name: utc_date_sql(f"{half}_at") for name, half in (("requested_on", "request"), ("responded_on", "response"))
}
_FACTS: Final = {
    "interface_name": "interface_name", "answered": "response_at IS NOT NULL", EVENT_DATE: EVENT_DATE, **_DATES,
}  # fmt: skip
# The calls of the same interface ``{before}`` and ``{now}`` that have no stub now.
_BARE_SQL: Final = f"""
SELECT calls.call_key FROM {{calls}} AS calls
JOIN {{now}} AS now ON now.call_key = calls.call_key JOIN {{before}} AS earlier ON earlier.call_key = calls.call_key
WHERE earlier.interface_name = now.interface_name AND {NO_STUBS_SQL}"""
# Calls with stubs, without those that ``{pending}`` waits for.
_FINISHED_SQL: Final = f"""
SELECT call_key, {EVENT_DATE} FROM {{calls}} AS calls WHERE NOT ({NO_STUBS_SQL})
AND NOT EXISTS (SELECT 1 FROM {{pending}} AS pending WHERE pending.connection_id = calls.connection_id
  AND calls.outcome IN ('no_request', 'no_response', 'damaged', 'unbound'))
AND NOT EXISTS (SELECT 1 FROM (SELECT explode(call_keys) AS call_key FROM {{pending}}) AS named
  WHERE named.call_key = calls.call_key)"""


@dataclass(frozen=True, slots=True)
class DecodedState(KeptState):
    """``emptied``: stubs of some calls may have been emptied after they were decoded."""

    emptied: bool


def update(
    lake: Lake, settings: DecodeSettings = DEFAULT_SETTINGS, *, keep_stubs: bool, decoded: DecodedWrite | None = None,
    failures: dict[str, str] | None = None,
) -> dict[str, int]:  # fmt: skip
    """Update the decoded tables with the changes of bronze.rpc_calls; return how many rows of each are written.

    Without ``keep_stubs`` (store.stubs) the stubs in bronze are emptied afterwards, since they hold message bodies;
    those of unfinished calls (bronze.pending) are kept until they are finished. ``decoded``: what ``decoder`` decoded
    already, with the same settings. Captures at whose calls decoding failed are marked in the ledger, and added to
    ``failures`` with the reason. Where the declarations of COM+ methods differ from those before, all calls are decoded
    again whose stubs are still there.
    """
    written = {str(table): 0 for table in DECODED_TABLES}
    step = DECODED.compare(lake, {"declarations": settings.declarations.fingerprint()})
    if not step.exists(RPC_CALLS):
        return written
    before = DecodedState.of(step.provenance_before) or DecodedState(step.exists(LAST_COMMITTED_TABLE))
    step.keep(DecodedState(not keep_stubs or before.emptied))
    folder = RunMarkers.of(lake).root / "silver"
    work = _SilverUpdate(step, folder, settings, decoded, interrupted=folder.exists() or _is_ahead(step))
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


def _is_ahead(step: IncrementalUpdate) -> bool:
    """Whether some table rests on later calls than the last one: a run was killed before it kept what that rests on."""
    before = step.provenance_before.get(_CALLS)
    found = [each.provenance().get(_CALLS) for each in step.lake.versions.newest_commits(*DECODED_TABLES).values()]
    return before is not None and any(version is not None and version > before for version in found)


@dataclass(slots=True)
class _SilverUpdate:
    """One update of the decoded tables; ``interrupted``: an earlier run did not finish."""

    step: IncrementalUpdate
    folder: LakePath  # of the staging files
    settings: DecodeSettings
    decoded: DecodedWrite | None
    interrupted: bool
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
        if not self.step.same_code_and_settings or since is None or since > self.newest:
            return self._recompute_all()
        if (decoded := self._decoded_since(since)) is not None:
            return self._apply_decoded(decoded)
        if since == self.newest:
            return {}
        skipped = commits_with_provenance(self.lake, RPC_CALLS, since, STUBS_EMPTIED_PROVENANCE)
        if since + len(skipped) == self.newest:
            return {}
        where = HAS_SILVER_TABLE_SQL
        if skipped:
            where += f" AND _commit_version NOT IN ({', '.join(map(str, skipped))})"
        feed = ChangesSince(RPC_CALLS, since, self.newest)
        changed = partial(net_changes, self.lake, feed, "call_key", where=where)
        changes = changed(_FACTS)
        kept = None if changes is None else self._kept_calls(changes, changed)
        return self._recompute_all() if changes is None or kept is None else self._apply_changes(changes, kept)

    # What changed

    def _decoded_since(self, version: int) -> DecodedWrite | None:
        """Return what was decoded while written, if that is all that changed since a version."""
        known = self.decoded
        if known is None or self.interrupted:
            return None
        if (known.write.from_version, known.write.to_version) != (version, self.newest):
            return None
        if self.emptied and known.write.removed_calls.calls.num_rows:
            return None
        self.failures |= known.decoder.failures()
        return known

    def _kept_calls(
        self, changes: NetChanges, changed: Callable[[Mapping[str, str]], NetChanges | None]
    ) -> pa.Array | None:
        """Return the changed calls that have no stub and had none before: what was decoded of them stays.

        ``changed`` asks for the same changes with other facts; None where it gets none.
        """
        none = pa.array([], pa.string())
        if not self.emptied or not changes.before.num_rows:
            return none
        bare = self.lake.query(_BARE_SQL, calls=RPC_CALLS, before=changes.before, now=changes.now)["call_key"]
        if not len(bare):
            return none
        were_bare = changed({"bare": NO_STUBS_SQL})  # a query of its own: it reads the stubs of all that changed
        if were_bare is None:
            return None
        found = were_bare.before.filter(were_bare.before["bare"])["call_key"]
        return found.filter(pc.is_in(found, bare.combine_chunks())).combine_chunks()

    # Decoding

    def _decode(self, calls: BoundQuery, kept: Mapping[Table, BoundQuery]) -> tuple[CallDecoder, dict[str, int]]:
        """Decode calls to staging files, beside rows that are ``kept``; return the number of decoded rows by table."""
        folder = self.folder / uuid4().hex
        folder.make_folder()
        found = CallDecoder(str(folder), self.settings)
        written = found.decode_stored(self.lake, calls, kept)
        self.failures |= found.failures()
        return found, written

    # Writing

    def _recompute_all(self, decoded: CallDecoder | None = None) -> dict[str, int]:
        """Recompute all tables from all calls; ``decoded``: they are decoded, and no table has rows of calls yet."""
        lake, found = self.lake, decoded
        exists = run_concurrently({table: partial(lake.exists, table) for table in DECODED_TABLES})
        if found is None:
            self.step.renew_versions(RPC_CALLS)
            kept = {
                table: BoundQuery(sql, {"rows": table, "calls": RPC_CALLS})
                for table in DECODED_TABLES
                if exists[table] and (sql := kept_rows_sql(table, emptied=self.emptied)) is not None
            }
            found, written = self._decode(BoundQuery(stored_calls_sql("TRUE"), {"calls": RPC_CALLS}), kept)
        else:
            written = found.row_counts()
        provenance = self._provenance()

        def write(table: Table) -> None:
            # The last table is not written after the others here.
            of_table = None if table is LAST_COMMITTED_TABLE else provenance
            rows = found.decoded_rows(table)
            if decoded is None and exists[table]:
                lake.replace(table, rows, provenance=of_table)
                return
            if written[str(table)]:
                lake.append(table, rows, provenance=of_table)
            lake.create(table)

        run_concurrently({table: partial(write, table) for table in DECODED_TABLES})
        self.step.note_provenance()
        return written

    def _apply_decoded(self, decoded: DecodedWrite) -> dict[str, int]:
        """Insert what was decoded of new calls, and delete the rows of removed ones."""
        self.folder.make_folder()  # from here on tables may have rows that others do not have yet
        found, removed, provenance = decoded.decoder, decoded.write.removed_calls, self._provenance()
        written = found.row_counts()

        def write(table: Table) -> None:
            gone = removed.of_interfaces(INTERFACES_BY_TABLE[table])
            if written[str(table)] or len(gone):
                self.lake.delete_and_insert(
                    table, "call_key", gone, found.decoded_rows(table), dates=removed.silver_dates,
                    provenance=provenance, previous_provenance=provenance,
                )  # fmt: skip

        _write_tables(write, DECODED_TABLES)
        self.step.note_provenance()
        return written

    def _apply_changes(self, changes: NetChanges, kept: pa.Array) -> dict[str, int]:
        """Decode changed calls, and replace their rows; of the calls ``kept`` only what is copied from them changes."""
        lake, before, provenance = self.lake, json.dumps(self.step.provenance_before), self._provenance()
        dates = None  # after an interrupted run all dates
        if not self.interrupted:
            dates = {day for name in _DATES for day in pc.unique(changes.before[name]).to_pylist()}
        fresh = changes.now.filter(pc.invert(pc.is_in(changes.now["call_key"], kept)))
        calls = RowsOfDates(RPC_CALLS, distinct_dates(fresh))
        sql = stored_calls_sql("call_key IN (SELECT call_key FROM {keys})")
        found, written = self._decode(BoundQuery(sql, {"calls": calls, "keys": fresh}), {})

        def write(table: Table) -> None:
            if len(kept) and table in ROW_PER_CALL_TABLES:
                rows = self._copied_columns(table, kept)
                written[str(table)] += rows.num_rows
                lake.update_columns(table, rows, dates=dates, provenance=before)
            gone = self._deleted_calls(table, changes, kept)
            if len(gone) or written[str(table)]:
                lake.delete_and_insert(
                    table, "call_key", gone, found.decoded_rows(table), dates=dates, provenance=provenance,
                    previous_provenance=before,
                )  # fmt: skip

        _write_tables(write, DECODED_TABLES)
        self.step.note_provenance()
        return written

    def _copied_columns(self, table: Table, kept: pa.Array) -> pa.Table:
        """Return the columns of a table's rows of calls that are copied from the calls."""
        columns = copied_columns_sql(table)
        where = "call_key IN (SELECT call_key FROM {kept}) AND interface_name IN {interfaces}"
        selected = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
        found = self.lake.query(
            f"SELECT {selected} FROM {{calls}} AS calls WHERE {where}", calls=RPC_CALLS,
            kept=pa.table({"call_key": kept}), interfaces=INTERFACES_BY_TABLE[table],
        )  # fmt: skip
        return found.cast(select_fields(table.schema(), [*columns]))

    def _provenance(self) -> str:
        return json.dumps(self.step.provenance_now)

    def _deleted_calls(self, table: Table, changes: NetChanges, kept: pa.Array) -> pa.Array:
        """Return the calls whose rows are deleted from a table.

        After an interrupted run these are all calls that changed or came: some of their rows may exist already.
        """
        gone = changes.before
        if self.interrupted:
            keys = changes.keys
        else:
            ours = pc.is_in(gone["interface_name"], pa.array(INTERFACES_BY_TABLE[table]))
            keys = gone.filter(ours if table in ROW_PER_CALL_TABLES else pc.and_(ours, gone["answered"]))["call_key"]
        return distinct_texts(keys.filter(pc.invert(pc.is_in(keys, kept))))


def _write_tables(write: Callable[[Table], None], tables: Sequence[Table]) -> None:
    """Write tables concurrently, the last table after all others: its commit stands for them."""
    run_concurrently({table: partial(write, table) for table in tables if table is not LAST_COMMITTED_TABLE})
    if LAST_COMMITTED_TABLE in tables:
        write(LAST_COMMITTED_TABLE)


def _empty_stubs(lake: Lake) -> None:
    """Set the stubs of all finished calls to null."""
    calls = lake.query(_FINISHED_SQL, calls=RPC_CALLS, pending=PENDING)
    nothing = {name: pa.nulls(calls.num_rows, pa.binary()) for name in _STUBS}
    dates = distinct_dates(calls)
    rows = pa.table({"call_key": calls["call_key"], **nothing})
    if dates:
        lake.update_columns(RPC_CALLS, rows, dates=dates, provenance=STUBS_EMPTIED_PROVENANCE)
