"""gold.alerts follows gold and silver: what a change below can touch is asked again, and nothing else.

Each source is a frame of what one or two tables tell, and the plain function that finds the alerts in its rows; here
where they are few, and in Spark, one subject's rows together, where they are many. The commit says of which versions
of the tables below the rows were made, with which thresholds, and of how many rows. Where these are few all is made
again; else what changed names the earliest day: alerts that were over some time before it (``_slack``) stay, and the
others are made again, of what is told since the first of them began.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import rows
from pipeline.alerts.inputs import SOURCES, Known, Plain, Source, Span
from pipeline.bronze.event_time import newest_at
from pipeline.lake.arrow_rows import microseconds, table_of, us, us_of
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake, versions_of
from pipeline.lake.local.commits import Commit
from pipeline.lake.settings import unmeasured
from schemas.alerts import ALERTS
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, RUN_ID
from udfs.keys import key

VERSION: Final = "1"  # another one when alerts are made in another way: then all are made again
MOST: Final = 200_000  # rows of a source that are looked at here; of more, in Spark
FEW: Final = 20_000  # rows of all sources that are looked at again rather than ask what changed
_FED: Final = (
    QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES, RECEIVE_ATTEMPTS, MESSAGES, REMOTE_READ_CALLS, MANAGEMENT_CALLS,
    CLIENT_CALLS, RPC_CALLS, FINDINGS, COVERAGE, SNAPSHOTS_RAW,
)  # fmt: skip
_BELOW: Final = (*_FED, CAPTURE_FILES)
_STANDING: Final = (REMOTE_READ_CALLS, RECEIVE_ATTEMPTS, QUEUE_HISTORY, FINDINGS, COVERAGE)
"""Those of which one has a new commit in any run that changed another: their commits stand for silver, gold, bronze."""

_SCHEMA: Final = to_arrow_schema(ALERTS.struct())
_DAY_US: Final = 86_400_000_000
# The earliest date of what changed, and whether any of it has none.
_FIRST_DAY: Final = f"SELECT min({EVENT_DATE}) AS first_day, bool_or({EVENT_DATE} IS NULL) AS undated FROM {{feed}}"


def gold(lake: Lake, limits: Thresholds, run_id: str, as_of: datetime | None = None) -> int:
    """Bring gold.alerts to what is told below; return how many rows were written. ``as_of``: what counts as now."""
    newest = lake.newest(*_STANDING, ALERTS)
    made = newest.get(ALERTS, Commit(0, None)).made()
    stands = {**versions_of(newest, _STANDING), **_said(limits, as_of)}
    if made and {name: made.get(name) for name in stands} == stands:
        return 0  # no other table is asked
    work = _Work.of(lake, limits, run_id, as_of)
    return 0 if work is None or work.is_done() else work.follow()


def is_there(lake: Lake) -> bool:
    """Tell whether captures or snapshots were ever read into a lake."""
    return lake.exists(CAPTURE_FILES) or lake.exists(SNAPSHOTS_RAW)


def current(lake: Lake, limits: Thresholds, as_of: datetime | None = None) -> pa.Table:
    """Return the alerts with these thresholds as of a time: the table's, if it is of these. Nothing is written."""
    work = _Work.of(lake, limits, "", as_of)
    if work is None:
        return _SCHEMA.empty_table()
    return lake.select(ALERTS, "TRUE") if work.is_done() else work.whole()[0]


@dataclass(slots=True)
class _Work:
    """One run's work: what the last commit said, and what this one's will say."""

    lake: Lake
    limits: Thresholds
    run_id: str
    made: dict[str, Any]
    rests_on: dict[str, Any]
    known: Known
    now: int | None = None  # asked for once

    @staticmethod
    def of(lake: Lake, limits: Thresholds, run_id: str, as_of: datetime | None) -> _Work | None:
        """Return the work; None where there is nothing to tell of."""
        newest = lake.newest(*_BELOW, ALERTS)
        if CAPTURE_FILES not in newest and SNAPSHOTS_RAW not in newest:
            return None
        names = newest.get(QUEUE_HISTORY, Commit(0, None)).made().get("names") or {}
        called = key(*chain(*sorted(names.items())))
        rests_on = {**versions_of(newest, _BELOW), **_said(limits, as_of), "names": called}
        ends = newest.get(RECEIVE_ATTEMPTS, Commit(0, None)).made().get("ends") or {}
        made = newest.get(ALERTS, Commit(0, None)).made()
        return _Work(lake, limits, run_id, made, rests_on, Known(names, ends))

    def is_done(self) -> bool:
        """Whether the table is of this already."""
        return bool(self.made) and {name: self.made.get(name) for name in self.rests_on} == self.rests_on

    def follow(self) -> int:
        """Bring the table to what there is now."""
        lake = self.lake
        since = self._changed_since()
        if since is None:
            found, looked = self.whole()
            there = lake.select(ALERTS, "TRUE")
        else:
            found, there, looked = self._part(since)
        says = json.dumps(self.rests_on | {"looked": looked, "now": self._newest()})
        dates = set(there[EVENT_DATE].to_pylist())
        lake.create(ALERTS)
        return lake.put(ALERTS, found, there, dates=dates, made_of=says, was_made_of=json.dumps(self.made))

    def whole(self) -> tuple[pa.Table, int]:
        """Return all alerts, and of how many rows they were made."""
        return self._found(dict.fromkeys(SOURCES))

    # What changed

    def _changed_since(self) -> int | None:
        """Return the beginning of the earliest day on which something changed; None where all is to be made again."""
        same = (*self.limits.said(), "as_of", "alerts", "names")
        if any(self.made.get(name) != self.rests_on[name] for name in same) or self.rests_on["as_of"] is not None:
            return None
        before, now = self.made.get("now"), self._newest()
        if self.made.get("looked", 0) <= FEW or before is None or now < before:
            return None
        feeds = Feeds(self.lake, self.made, self.rests_on)
        moved = [table for table in _FED if self.made.get(str(table)) != self.rests_on[str(table)]]
        found = gather({table: partial(feeds.rows, table, _FIRST_DAY, 1) for table in moved})
        if any(told is None for told in found.values()):
            return None
        days = [date(1970, 1, 1) + timedelta(microseconds=before)]
        for told in found.values():
            for row in told or ():
                if row["undated"]:
                    return None
                days += [row["first_day"]] if row["first_day"] is not None else []
        return (min(days) - date(1970, 1, 1)).days * _DAY_US

    def _slack(self) -> int:
        """Return how long before a change what it changes can have begun without being told of, or have ended."""
        limits = self.limits
        counts = max(limits.negative, limits.failures) + 1
        spans = (
            limits.disconnected_after, limits.on_hold_after, limits.stuck_after, limits.unacked_after,
            limits.unread_after, limits.stalled_after, limits.slow_window, limits.held_after, limits.cleanup,
            limits.max_gap, limits.window * counts, timedelta(hours=2),
        )  # fmt: skip
        return us(max(spans) + limits.rejoin + limits.max_gap)

    def _part(self, changed: int) -> tuple[pa.Table, pa.Table, int]:
        """Return the alerts that a change on a day can have touched as they are now and as they were; and a count."""
        over = changed - self._slack()
        there = self.lake.select(ALERTS, f"(until IS NULL OR unix_micros(until) >= {over})")
        begun: dict[str, int] = {}
        at = microseconds(there["since"]).to_pylist()
        for condition, since in zip(there["condition"].to_pylist(), at, strict=True):
            begun[condition] = min(since, begun.get(condition, since))
        since = {
            name: min([over, *(begun[each] for each in source.conditions if each in begun)]) - self._slack()
            for name, source in SOURCES.items()
        }
        found, looked = self._found(since)
        until = microseconds(found["until"]).to_pylist()
        mask = pa.array([each is None or each >= over for each in until], pa.bool_())
        return found.filter(mask), there, max(looked, FEW + 1)

    # What is told

    def _found(self, since: Mapping[str, int | None]) -> tuple[pa.Table, int]:
        """Return the alerts of what each source tells since a time, None: all; and how many rows tell it."""
        spans = {name: Span(since[name], self._newest()) for name in SOURCES}
        found = gather({name: partial(self._ask, source, spans[name]) for name, source in SOURCES.items()})
        table = pa.concat_tables([part for part, _ in found.values()])
        return self._with_reasons(table), sum(count for _, count in found.values())

    def _newest(self) -> int:
        """Return the time of the newest packet or snapshot, or what was said to count as now."""
        at: int | None = self.rests_on["as_of"] if self.now is None else self.now
        if at is None:
            at = self.now = newest_at(self.lake) or 0
        return at

    def _ask(self, source: Source, span: Span) -> tuple[pa.Table, int]:
        """Return the alerts of what a source tells of a time, and how many rows tell it."""
        asked = source.rows(self.limits, span)
        make = _maker(source, self.limits, span.now, self.known, self.run_id)
        told = self.lake.query(f"{asked.sql} LIMIT {MOST + 1}", **asked.of)
        if told.num_rows <= MOST:
            return make(told), told.num_rows
        with unmeasured(self.lake.spark):
            rows = self.lake.frame(asked.sql, **asked.of)
            return rows.groupBy(*source.subject).applyInArrow(make, ALERTS.struct()).toArrow().cast(_SCHEMA), MOST + 1

    def _with_reasons(self, found: pa.Table) -> pa.Table:
        """Return alerts, of queues that are not connected with what the queue manager says of why."""
        every = found.to_pylist()
        last_told = [
            row["evidence"][-1] if row["condition"] == "queue_disconnected" and row["evidence"] else None
            for row in every
        ]
        ours = {each for each in last_told if each is not None}
        if not ours:
            return found
        last = "SELECT snapshot_id, nexthops, try_element_at(connection_history, -1) AS last FROM {rows}"
        asked = self.lake.query(f"{last} WHERE snapshot_id IN {{ours}}", rows=QUEUE_SNAPSHOTS, ours=ours)
        told = {row["snapshot_id"]: row for row in asked.to_pylist()}
        messages = [
            f"{row['message']}{_reason(told[snapshot])}" if snapshot in told else row["message"]
            for row, snapshot in zip(every, last_told, strict=True)
        ]
        place = found.column_names.index("message")
        return found.set_column(place, found.schema.field("message"), pa.array(messages, pa.string()))


def _said(limits: Thresholds, as_of: datetime | None) -> dict[str, Any]:
    """Return what a commit says of settings, as it gives it back."""
    at = None if as_of is None else us_of(as_of)
    said: dict[str, Any] = json.loads(json.dumps(limits.said() | {"as_of": at, "alerts": VERSION}))
    return said


def _reason(told: Plain) -> str:
    """Return what a queue manager says of a connection, to be put behind a sentence."""
    last, parts = told["last"], []
    if last is not None and last["status_name"]:
        parts.append(f"last {last['status_name']}")
    if last is not None and last["error"]:
        parts.append(f"error {last['error_name']}")
    if told["nexthops"]:
        parts.append(f"next hops {', '.join(told['nexthops'])}")
    return "".join(f"; {part}" for part in parts)


def _maker(source: Source, limits: Thresholds, now: int, known: Known, run_id: str) -> Callable[[pa.Table], pa.Table]:
    """Return the function that gives the alerts of a source's rows."""

    def make(told: pa.Table) -> pa.Table:
        found = rows(source.alerts(told.to_pylist(), limits, now, known))
        return table_of([{**row, RUN_ID: run_id} for row in found], _SCHEMA)

    return make
