"""Update of gold.alerts from silver, gold and coverage.

Each source (``inputs.ALERT_SOURCES``) is a query over one or two tables and a plain function that finds the alerts in
its rows: in memory where the rows are few, in Spark by subject where they are many. The earliest day with a change
counts: alerts that ended some time before it (``_reach_us``) stay, the others are recomputed from the sources' rows
since the first of them began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import alert_rows
from pipeline.alerts.sources import ALERT_SOURCES, AlertContext, AlertSource, TimeWindow
from pipeline.arrow_rows import rows_to_table, times_to_us
from pipeline.attempts.attempts_state import AttemptsState
from pipeline.bronze.event_time import newest_event_time_us
from pipeline.concurrency import run_concurrently
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, KeptState, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import GroupedQuery, GroupFunction
from pipeline.silver.machines import UNNAMED, Machines, names_in_gold
from pipeline.silver.queue_aliases import AliasIndex
from pipeline.transfers.inputs import read_skipped
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.alerts import ALERTS
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import MACHINE_HISTORY, QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.table import EVENT_DATE, RUN_ID
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from udfs.codes import WSA_ERROR_NAMES
from udfs.keys import key
from udfs.rows import RowMapping
from udfs.times import DAY_US, EPOCH, datetime_to_us, timedelta_to_us, us_to_datetime

_FOLLOWED: Final = (
    QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES, RECEIVE_ATTEMPTS, MESSAGES, REMOTE_READ_CALLS, MANAGEMENT_CALLS,
    CLIENT_CALLS, RPC_CALLS, FINDINGS, COVERAGE, SNAPSHOTS_RAW, MACHINE_HISTORY, CONNECTIONS, SESSIONS, ORDER_ACKS,
    SENDINGS, MESSAGE_TRANSFERS, TRANSFER_SEQUENCES, ACK_SEQUENCES,
)  # fmt: skip
_ALERTS: Final = DerivedTable(
    ALERTS, (*_FOLLOWED, CAPTURE_FILES, QUEUE_ALIASES, HOSTS), code_version="10", needs=(CAPTURE_FILES, SNAPSHOTS_RAW)
)
_SCHEMA: Final = ALERTS.schema()
# The earliest date of what changed, and whether any changed row has none.
_FIRST_DAY: Final = f"SELECT min({EVENT_DATE}) AS first_day, bool_or({EVENT_DATE} IS NULL) AS undated FROM {{feed}}"


@dataclass(frozen=True, slots=True)
class _AlertsState(KeptState):
    """``names``: a hash of the names in the rows; ``now``: what counted as now, microseconds."""

    names: str
    now: int


def update(lake: Lake, limits: Thresholds, run_id: str, as_of: datetime | None = None) -> int:
    """Update the alerts; return how many rows are written.

    ``as_of`` is the time that counts as now, by default that of the newest packet or snapshot.
    """
    work = _AlertsUpdate.begin(lake, limits, run_id, as_of)
    return 0 if work is None or work.is_current else work.run()


def current_alerts(
    lake: Lake, limits: Thresholds, as_of: datetime | None = None, newest_us: int | None = None
) -> pa.Table:
    """Return the alerts with these thresholds as of a time, from the table where it has them. Nothing is written.

    ``newest_us`` is the time of the newest packet or snapshot, where it is known already.
    """
    work = _AlertsUpdate.begin(lake, limits, "", as_of)
    if work is None:
        return _SCHEMA.empty_table()
    work.newest_us = newest_us
    return lake.select(ALERTS, "TRUE") if work.is_current else work.find_all()


@dataclass(slots=True)
class _AlertsUpdate:
    """One update of the alerts."""

    step: IncrementalUpdate
    limits: Thresholds
    run_id: str
    context: AlertContext
    machines: Machines
    names: str  # a hash of all names
    is_current: bool
    newest_us: int | None = None  # cached

    @staticmethod
    def begin(lake: Lake, limits: Thresholds, run_id: str, as_of: datetime | None) -> _AlertsUpdate | None:
        """Return the update; None where no capture or snapshot was ever read."""
        names, attempts = names_in_gold(lake), AttemptsState.read(lake)
        ends = (attempts and attempts.ends) or {}
        skipped = read_skipped(lake) if lake.exists(CAPTURE_FILES) else {}
        settings = limits.as_provenance() | {"as_of": None if as_of is None else datetime_to_us(as_of)}
        step = _ALERTS.compare(lake, settings, {"context": _digest(names, ends, skipped)})
        if not step.exists(*_ALERTS.needs):
            return None
        is_current = step.is_current()
        canonical = {} if is_current else AliasIndex.load(lake).canonical_names
        machines = UNNAMED if is_current else Machines.of(lake, limits.machine_names)
        context = AlertContext(names, ends, canonical, skipped)
        return _AlertsUpdate(
            step, limits, run_id, context, machines, _digest(names, canonical, machines.texts()), is_current
        )

    @property
    def lake(self) -> Lake:
        return self.step.lake

    def run(self) -> int:
        """Recompute the alerts that changes affect, or all, and replace those that differ."""
        return self.step.recompute(self._changed_since, self._recompute)

    def _recompute(self, changed_since: list[int] | None) -> int:
        if changed_since is None:
            alerts, current = self.find_all(), self.lake.select(ALERTS, "TRUE")
        else:
            alerts, current = self._find_affected(changed_since[0])
        self.step.keep(_AlertsState(self.names, self._newest()))
        return self.step.replace_changed(alerts, current)

    def find_all(self) -> pa.Table:
        """Return all alerts."""
        return self._find_since(dict.fromkeys(ALERT_SOURCES))

    # What changed

    def _changed_since(self) -> list[int]:
        """Return the beginning of the earliest day with a change, microseconds; UnknownChangesError."""
        step, before = self.step, self.step.kept(_AlertsState)
        now = self._newest()
        is_comparable = before.names == self.names and step.provenance_now["as_of"] is None and now >= before.now
        if not is_comparable:
            raise UnknownChangesError
        days = [us_to_datetime(before.now).date()]
        if (found := step.all_changed_rows([(table, _FIRST_DAY) for table in _FOLLOWED])) is not None:
            if pc.any(found["undated"]).as_py():
                raise UnknownChangesError
            days += found["first_day"].drop_null().to_pylist()
        return [(min(days) - EPOCH.date()).days * DAY_US]

    def _reach_us(self) -> int:
        """Return how long before a change an alert that it affects can have begun or ended, microseconds."""
        limits = self.limits
        counts = 1 + max(
            limits.negative_acknowledgements,
            limits.rejected_containers,
            limits.failed_messages,
            limits.failed_calls,
            limits.refused_sessions,
        )
        spans = (
            limits.disconnected_after, limits.machine_disconnected_after, limits.on_hold_after, limits.stuck_after,
            limits.unacked_after, limits.unread_after, limits.stalled_after, limits.growth_window,
            limits.unacknowledged_read_after, limits.cleanup_interval, limits.max_gap, limits.failure_window * counts,
            limits.resend_window * 3, limits.refused_for, timedelta(hours=2),
        )  # fmt: skip
        return timedelta_to_us(max(spans) + limits.merge_within + limits.max_gap)

    def _find_affected(self, changed: int) -> tuple[pa.Table, pa.Table]:
        """Return the alerts that a change at a time affects, as they are now and in the table."""
        over = changed - self._reach_us()
        current = self.lake.select(ALERTS, f"(until IS NULL OR unix_micros(until) >= {over})")
        begun: dict[str, int] = {}
        starts = times_to_us(current["since"]).to_pylist()
        for condition, since in zip(current["condition"].to_pylist(), starts, strict=True):
            begun[condition] = min(since, begun.get(condition, since))
        since_by_source = {
            name: min([over, *(begun[each] for each in source.conditions if each in begun)]) - self._reach_us()
            for name, source in ALERT_SOURCES.items()
        }
        alerts = self._find_since(since_by_source)
        until = times_to_us(alerts["until"]).to_pylist()
        replaced, keys = {*current["alert_key"].to_pylist()}, alerts["alert_key"].to_pylist()
        affected = pa.array(
            [at is None or at >= over or name in replaced for name, at in zip(keys, until, strict=True)], pa.bool_()
        )
        return alerts.filter(affected), current

    # The sources

    def _find_since(self, since: Mapping[str, int | None]) -> pa.Table:
        """Return the alerts in each source's rows since a time (None: all)."""
        windows = {name: TimeWindow(since[name], self._newest()) for name in ALERT_SOURCES}
        found = run_concurrently(
            {name: partial(self._find_in, source, windows[name]) for name, source in ALERT_SOURCES.items()}
        )
        return self._with_names(self._with_reasons(pa.concat_tables(found.values())))

    def _newest(self) -> int:
        """Return the time that counts as now, microseconds."""
        as_of: int | None = self.step.provenance_now["as_of"]
        if as_of is None and self.newest_us is None:
            self.newest_us = newest_event_time_us(self.lake)
        return as_of if as_of is not None else self.newest_us or 0

    def _find_in(self, source: AlertSource, window: TimeWindow) -> pa.Table:
        """Return the alerts in one source's rows."""
        find = _alerts_function(source, self.limits, window.now, self.context, self.run_id)
        rows = {"rows": source.query(self.limits, window)}
        alerts = self.lake.map_few_groups(GroupedQuery(rows, source.grouping_columns, find, ALERTS.struct()))
        return alerts.cast(_SCHEMA)

    def _with_reasons(self, alerts: pa.Table) -> pa.Table:
        """Return the alerts; those of disconnected queues with what the queue manager says of the reason."""
        every = alerts.to_pylist()
        snapshots = [
            row["evidence"][-1] if row["condition"] == "queue_disconnected" and row["evidence"] else None
            for row in every
        ]
        wanted = {each for each in snapshots if each is not None}
        if not wanted:
            return alerts
        last = "SELECT snapshot_id, nexthops, try_element_at(connection_history, -1) AS last FROM {rows}"
        found = self.lake.query(f"{last} WHERE snapshot_id IN {{wanted}}", rows=QUEUE_SNAPSHOTS, wanted=wanted)
        by_id = {row["snapshot_id"]: row for row in found.to_pylist()}
        messages = [
            f"{row['message']}{_reason(by_id[snapshot])}" if snapshot in by_id else row["message"]
            for row, snapshot in zip(every, snapshots, strict=True)
        ]
        place = alerts.column_names.index("message")
        return alerts.set_column(place, alerts.schema.field("message"), pa.array(messages, pa.string()))

    def _with_names(self, alerts: pa.Table) -> pa.Table:
        """Return the alerts with the names of machines in their texts: ``subject_text`` and ``message``."""
        rows = alerts.select(["subject", "message", "queue"]).to_pylist()
        for column, text in (("subject_text", "subject"), ("message", "message")):
            named = pa.array([self.machines.in_text(row[text], row["queue"]) for row in rows], pa.string())
            alerts = alerts.set_column(alerts.column_names.index(column), alerts.schema.field(column), named)
        return alerts


def _digest(*values: Mapping[str, object]) -> str:
    return key(*(str(each) for of in values for item in sorted(of.items()) for each in item))


def _reason(snapshot: RowMapping) -> str:
    """Return what a snapshot says of why a queue is not connected, to be put behind a sentence."""
    last, parts = snapshot["last"], []
    if last is not None and last["status_name"]:
        parts.append(f"last {last['status_name']}")
    if last is not None and last["error"]:
        parts.append(f"error {WSA_ERROR_NAMES.get(last['error'], last['error_name'])}")
    if snapshot["nexthops"]:
        parts.append(f"next hops {', '.join(snapshot['nexthops'])}")
    return "".join(f"; {part}" for part in parts)


def _alerts_function(
    source: AlertSource, limits: Thresholds, now: int, context: AlertContext, run_id: str
) -> GroupFunction:
    """Return the function that finds the alerts in a source's rows; Spark's tasks call it too."""

    def find(parts: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
        found = alert_rows(source.find_alerts(parts["rows"].to_pylist(), limits, now, context))
        yield rows_to_table([{**row, RUN_ID: run_id} for row in found], _SCHEMA)

    return find
