"""Update of gold.message_transfers from silver.sendings, messages, order_acks and sessions.

A change affects messages by their message_id: those of changed sendings; those that changed acknowledgements and
reports name; of a sequence with changed order acks those that these may acknowledge first; those in flight on
connections that were closed since, or that expire before a later capture end; those whose ends' handshakes show other
queue managers now; those of queue managers whose identifier was found to be that of two machines, or is not any more;
those whose source's clock was found to differ; those on connections of which captures were found to have seen them side
by side; those sent, or under way, where the clock of a capture is known to have been set; and those of which other
packets may be missing now, between the machines of their hop, or between any machines where acknowledgements come from
others. All rows of an affected message_id are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import NO_TEXTS, distinct_texts
from pipeline.bronze.across_captures.capture_ends import changed_ends, read_sure_capture_ends
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.date_filters import DateSpan
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import MORE_ROWS_SQL, QueryInput, RowsOfDates
from pipeline.lake.staging_files import staged_rows
from pipeline.runs.recovery import RunMarkers
from pipeline.transfers.changed_connections import connections_in_captures
from pipeline.transfers.hops.address_queue_managers import (
    SHOWN_SQL,
    changed_handshakes,
    changed_spans,
    handshakes_sql,
)
from pipeline.transfers.hops.hop_keys import read_clones
from pipeline.transfers.hops.hop_state import NO_STATE, HopState
from pipeline.transfers.hops.missing_packets import ChangedHoles
from pipeline.transfers.hops.session_spans import TimeSpan
from pipeline.transfers.messages.message_inputs import GroupedMessages
from pipeline.transfers.messages.sender_clocks import CHANGED_CLOCKS_SQL, clocks_differ, read_clocks
from pipeline.transfers.messages.stage_transfers import stage_transfers
from pipeline.transfers.messages.transfer_context import TransferSettings
from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.table import EVENT_DATE
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.rows import RowDict
from udfs.times import timedelta_to_us

MAX_SENDINGS_TOGETHER: Final = 2_000_000  # whose rows are computed together
_SENDINGS_OF_MESSAGE: Final = 2  # about: what is affected is counted in messages
_MESSAGE_TRANSFERS: Final = DerivedTable(
    MESSAGE_TRANSFERS, (SENDINGS, MESSAGES, ORDER_ACKS, SESSIONS, CAPTURE_FILES), code_version="8", needs=(SENDINGS,)
)
_BUCKETS: Final = 1 << 16  # of message_ids, by the first four digits of a hash
_WAITS: Final = "outcome IN ('in_flight', 'unacknowledged')"
_CHANGED_MESSAGES: Final = """
SELECT DISTINCT message_id AS id FROM {feed} WHERE packet_key IS NOT NULL AND message_id IS NOT NULL"""
_ADMINISTRATION_ACKS: Final = """
SELECT DISTINCT correlation_id AS id FROM {feed}
WHERE message_kind = 'administration_ack' AND correlation_id IS NOT NULL"""
_REPORTS: Final = """
SELECT DISTINCT report.source_prefix AS prefix, report.message_ordinal AS ordinal FROM {feed}
WHERE report IS NOT NULL"""
_FINAL_ACKS: Final = """
SELECT DISTINCT acknowledged_message_id AS id FROM {feed}
WHERE kind = 'final_ack' AND acknowledged_message_id IS NOT NULL"""
_ORDER_ACKS: Final = """
SELECT CAST(transaction_sequence_id AS string) AS id, max(transaction_number) AS number,
  min(unix_micros(sent_at)) AS first_at, max(unix_micros(sent_at)) AS last_at FROM {feed}
WHERE kind = 'order_ack' AND transaction_sequence_id IS NOT NULL AND transaction_number IS NOT NULL
  AND sent_at IS NOT NULL GROUP BY transaction_sequence_id"""
_OPENED_OR_CLOSED, _SIDE_BY_SIDE = "opened or closed", "side by side"
_CHANGED_SESSIONS: Final = f"""
SELECT DISTINCT '{_OPENED_OR_CLOSED}' AS change, connection_id AS id FROM (
  SELECT connection_id FROM {{feed}} GROUP BY connection_id, ended IS NULL HAVING {MORE_ROWS_SQL} <> 0
) UNION ALL
SELECT DISTINCT '{_SIDE_BY_SIDE}' AS change, connection_id AS id FROM (
  SELECT connection_id FROM {{feed}} WHERE overlapping_captures IS NOT NULL
  GROUP BY connection_id, CAST(overlapping_captures AS string) HAVING {MORE_ROWS_SQL} <> 0
)"""
_HANDSHAKES: Final = f"""
SELECT address, queue_manager, shown_at FROM ({{handshakes}}) WHERE {SHOWN_SQL} AND address IN {{addresses}}"""
_CHANGED_SENDINGS: Final = """
SELECT DISTINCT message_id AS id FROM {messages}
WHERE packet_key IN (SELECT packet_key FROM {feed}) AND message_id IS NOT NULL"""
_CHANGED: Final = (
    (MESSAGES, _CHANGED_MESSAGES), (MESSAGES, _ADMINISTRATION_ACKS), (ORDER_ACKS, _FINAL_ACKS),
    (SENDINGS, _CHANGED_SENDINGS),
)  # fmt: skip
_TRACED: Final = """
SELECT DISTINCT m.message_id AS id FROM {messages} AS m JOIN {reports} AS r
  ON r.ordinal = m.message_ordinal AND r.prefix = substr(m.source_queue_manager, 1, 4)
WHERE m.packet_key IS NOT NULL AND m.message_id IS NOT NULL"""
_ACKNOWLEDGED: Final = """
SELECT DISTINCT g.message_id AS id FROM {rows} AS g JOIN {acks} AS a
  ON a.id = CAST(g.transaction_sequence_id AS string) AND g.transaction_number <= a.number
WHERE unix_micros(g.first_sent_at) <= a.last_at AND unix_micros(g.first_sent_at) + {wait} >= a.first_at
  AND (g.order_acked_at IS NULL OR unix_micros(g.order_acked_at) >= a.first_at OR g.order_acked_elsewhere)"""
_ON_CONNECTIONS: Final = """
SELECT DISTINCT m.message_id AS id FROM {messages} AS m
WHERE m.connection_id IN {connections} AND m.packet_key IS NOT NULL AND m.message_id IS NOT NULL"""
_WAITING_ON_CONNECTIONS: Final = f"""
SELECT DISTINCT g.message_id AS id FROM (SELECT * FROM {{rows}} WHERE {_WAITS}) AS g
JOIN ({_ON_CONNECTIONS}) AS c ON c.id = g.message_id"""
_EXPIRING: Final = f"""
SELECT DISTINCT message_id AS id FROM {{rows}}
WHERE unix_micros(expires_at) < {{until}} AND unix_micros(expires_at) >= {{since}}
  AND ({_WAITS} OR outcome = 'expired')"""
_EVENT_TIMES: Final = "session_acked_at, stored_at, order_acked_at, final_acked_at, arrival_acked_at, receive_acked_at"
_AT_PLACES: Final = f"""
SELECT message_id AS id FROM {{rows}} WHERE {_WAITS} AND expires_at IS NOT NULL
UNION
SELECT g.message_id AS id FROM {{rows}} AS g JOIN {{places}} AS p
  ON p.since <= unix_micros(greatest(first_sent_at, {_EVENT_TIMES}))
    AND p.until >= unix_micros(least(first_sent_at, {_EVENT_TIMES}))"""
_BY_CLOCKS: Final = f"""
SELECT DISTINCT g.message_id AS id FROM (
  SELECT * FROM {{rows}} WHERE ({_WAITS} OR outcome = 'expired') AND expires_at IS NOT NULL
) AS g JOIN {{clocks}} AS c ON c.source = g.source_queue_manager AND c.day = g.{EVENT_DATE}
WHERE c.differs <> array_contains(g.missing, 'clocks_differ')"""
_OF_ADDRESSES: Final = """
SELECT m.message_id AS id FROM {messages} AS m JOIN (
  SELECT s.packet_key FROM {sendings} AS s JOIN {spans} AS x ON x.address = s.sender_address
  WHERE s.sender_queue_manager IS NULL AND unix_micros(s.sent_at) >= x.since AND unix_micros(s.sent_at) < x.until
  UNION
  SELECT s.packet_key FROM {sendings} AS s JOIN {spans} AS x ON x.address = s.receiver_address
  WHERE s.receiver_queue_manager IS NULL AND unix_micros(s.sent_at) >= x.since AND unix_micros(s.sent_at) < x.until
) AS f ON f.packet_key = m.packet_key WHERE m.message_id IS NOT NULL GROUP BY m.message_id"""
# ``message_rows`` says which messages these are: routed ones, and those whose acknowledgements go to another machine.
_ACKNOWLEDGED_FROM_ANYWHERE: Final = """
SELECT g.message_id AS id FROM {rows} AS g LEFT JOIN (
  SELECT DISTINCT message_id FROM {messages} WHERE packet_key IS NOT NULL AND acknowledgement_requested <> 0
    AND coalesce(substr(admin_queue, 1, length(source_queue_manager)) <> source_queue_manager, TRUE)
) AS m ON m.message_id = g.message_id
WHERE {condition} AND outcome NOT IN ('rejected', 'received') AND (m.message_id IS NOT NULL OR hop_count > 0
  OR (destination_queue_manager IS NOT NULL AND coalesce(destination_queue_manager <> receiver_queue_manager, TRUE)))
GROUP BY g.message_id"""
_OF_QUEUE_MANAGERS: Final = """
SELECT DISTINCT message_id AS id FROM {rows}
WHERE sender_queue_manager IN {names} OR receiver_queue_manager IN {names}"""
_SPANS_SCHEMA: Final = pa.schema([("address", pa.string()), ("since", pa.int64()), ("until", pa.int64())])


def update(lake: Lake, run_id: str, settings: TransferSettings | None = None) -> int:
    """Update the messages that changes affect; return how many rows are written.

    Call it when silver.sessions and the tables beside it are up to date.
    """
    settings = settings or TransferSettings()
    step = _MESSAGE_TRANSFERS.begin(lake, settings.as_provenance())
    return 0 if step is None else _MessagesUpdate(step, settings, run_id).run()


@dataclass(slots=True)
class _MessagesUpdate:
    """One update; ``affected``: message_ids, also the same several times."""

    step: IncrementalUpdate
    settings: TransferSettings
    run_id: str
    now: HopState = NO_STATE
    affected: list[pa.Array] = field(default_factory=list)

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.step.lake

    def run(self) -> int:
        """Recompute the rows of affected messages, or all; return how many are written."""
        places = read_clock_steps(self.lake).places()
        self.now = HopState(read_sure_capture_ends(self.lake), sorted(read_clones(self.lake)), places)
        self.step.keep(self.now)
        return self.step.recompute(self._find_affected, self._recompute)

    def _recompute(self, affected: pa.Array | None) -> int:
        with RunMarkers.of(self.lake).staging_folder("message_transfers") as folder:
            if affected is None:
                return self._recompute_all(folder)
            for label, scope in self._scopes(len(affected) * _SENDINGS_OF_MESSAGE):
                of_affected = f"m.message_id IN {{chosen}} AND {scope}"
                self._stage(folder, label, GroupedMessages.read(self.lake, of_affected, chosen=affected))
            return self.step.write_changes(folder)

    def _recompute_all(self, folder: LakePath) -> int:
        """Recompute all rows."""
        count = self.lake.query("SELECT count(*) AS n FROM {rows}", rows=SENDINGS)["n"][0].as_py()
        for label, scope in self._scopes(count):
            self._stage(folder, label, GroupedMessages.read(self.lake, scope), replaced=False)
        return self.step.replace_all(staged_rows(folder / MESSAGE_TRANSFERS.name, MESSAGE_TRANSFERS))

    def _stage(self, folder: LakePath, label: str, messages: GroupedMessages, *, replaced: bool = True) -> None:
        clones = frozenset(self.now.clones)
        context = messages.read_context(self.lake, self.settings, self.run_id, self.now.capture_ends, clones)
        stage_transfers(self.lake, folder, messages, context, label, replaced=replaced)

    def _scopes(self, count: int) -> Iterator[tuple[str, str]]:
        """Yield conditions that together all messages meet, each one once; of so many sendings few meet one.

        Before each goes a label.
        """
        parts = max(-(-count // MAX_SENDINGS_TOGETHER), 1)
        bounds = [f"{_BUCKETS * part // parts:04x}" for part in range(1, parts)]
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            at_least = "TRUE" if low is None else f"substr(md5(m.message_id), 1, 4) >= '{low}'"
            below = "TRUE" if high is None else f"substr(md5(m.message_id), 1, 4) < '{high}'"
            yield low or "", f"{at_least} AND {below}"

    # What changed

    def _find_affected(self) -> pa.Array:
        """Return the messages that changes affect; UnknownChangesError."""
        before = self.step.kept(HopState)
        if (changed := self.step.all_changed_rows(_CHANGED, messages=MESSAGES)) is not None:
            self.affected += changed["id"].chunks
        if reports := self.step.changes(MESSAGES, _REPORTS):
            self._add_by(_TRACED, messages=MESSAGES, reports=pa.Table.from_pylist(reports))
        self._add_by_order_acks(self.step.changes(ORDER_ACKS, _ORDER_ACKS))
        opened_or_closed, side_by_side = self._changed_sessions()
        if len(opened_or_closed):
            messages = {"rows": MESSAGE_TRANSFERS, "messages": MESSAGES}
            self._add_by(_WAITING_ON_CONNECTIONS, connections=opened_or_closed, **messages)
        if holes := ChangedHoles.read(self.step, self.settings.wait):
            sent_at = "unix_micros(g.first_sent_at)"
            for query in holes.affected_rows(MESSAGE_TRANSFERS, "message_id", sent_at, "first_sent_at"):
                self._add_by(query.sql, **query.inputs)
            condition = holes.affects_anywhere_sql("first_sent_at")
            sql = _ACKNOWLEDGED_FROM_ANYWHERE.replace("{condition}", condition)
            self._add_by(sql, rows=MESSAGE_TRANSFERS, messages=MESSAGES)
        if len(side_by_side):
            self._add_side_by_side(side_by_side)
        if others := {*self.now.clones} ^ {*before.clones}:
            self._add_by(_OF_QUEUE_MANAGERS, rows=MESSAGE_TRANSFERS, names=others)
        self._add_by_clocks(self.step.changes(MESSAGES, CHANGED_CLOCKS_SQL))
        self._add_by_capture_end(before.capture_ends)
        self._add_by_clock_steps(before)
        self._add_by_handshakes(changed_handshakes(self.step))
        return distinct_texts(*self.affected)

    def _changed_sessions(self) -> tuple[pa.Array, pa.Array]:
        """Return the sessions that were opened or closed, and those that captures saw side by side otherwise.

        UnknownChangesError where that is not known.
        """
        found = self.step.changed_rows(SESSIONS, _CHANGED_SESSIONS)
        if found is None:
            return NO_TEXTS, NO_TEXTS
        opened_or_closed, side_by_side = (
            distinct_texts(found["id"].filter(pc.equal(found["change"], change)))
            for change in (_OPENED_OR_CLOSED, _SIDE_BY_SIDE)
        )
        return opened_or_closed, side_by_side

    def _add_by(self, sql: str, **inputs: QueryInput) -> None:
        """Add the messages that a query finds."""
        self.affected += self.lake.query(sql, **inputs)["id"].chunks

    def _add_by_order_acks(self, acks: list[RowDict]) -> None:
        """Add the messages that order acks may acknowledge first; ``acks``: by sequence, of changed ones."""
        if acks:
            wait = timedelta_to_us(self.settings.wait)
            sent = DateSpan.of_times(min(row["first_at"] for row in acks) - wait, max(row["last_at"] for row in acks))
            sql, rows = _ACKNOWLEDGED.replace("{wait}", str(wait)), RowsOfDates(MESSAGE_TRANSFERS, sent)
            self._add_by(sql, rows=rows, acks=pa.Table.from_pylist(acks))

    def _add_side_by_side(self, connections: pa.Array) -> None:
        """Add the messages whose sendings or acknowledgements went over connections."""
        self._add_by(_ON_CONNECTIONS, messages=MESSAGES, connections=connections)
        for table, sql in ((ORDER_ACKS, _FINAL_ACKS), (MESSAGES, _ADMINISTRATION_ACKS)):
            self._add_by(f"{sql} AND connection_id IN {{names}}", feed=table, names=connections)
        sql = _ORDER_ACKS.replace(" GROUP BY", " AND connection_id IN {names} GROUP BY")
        self._add_by_order_acks(self.lake.query(sql, feed=ORDER_ACKS, names=connections).to_pylist())

    def _add_by_clocks(self, changed: list[RowDict]) -> None:
        """Add the messages that expire by a clock that differs now and did not before, or the other way round.

        ``changed``: sources and days of changed messages.
        """
        if not changed:
            return
        sources = pa.array([row["id"] for row in changed], pa.string())
        days = pa.array([row[EVENT_DATE] for row in changed], pa.date32())
        known = read_clocks(self.lake, sources, {*days.to_pylist()})
        differ = clocks_differ(known["least_transit_us"], self.settings.max_clock_difference)
        apart = {(row["source_queue_manager"], row[EVENT_DATE]) for row in known.filter(pa.array(differ)).to_pylist()}
        differs = pa.array([each in apart for each in zip(sources.to_pylist(), days.to_pylist(), strict=True)])
        clocks = pa.table({"source": sources, "day": days, "differs": differs})
        self._add_by(_BY_CLOCKS, rows=MESSAGE_TRANSFERS, clocks=clocks)

    def _add_by_capture_end(self, before: Mapping[str, int]) -> None:
        """Add the messages that expire between the capture ends of before and those of now."""
        now = self.now.capture_ends
        changed = frozenset.union(*changed_ends(before, now))
        if not changed:
            return
        ends = [each.get(server) for server in changed for each in (before, now)]
        known = [end for end in ends if end is not None]
        # Without an end, that of the connection counts, which is not later.
        since = f"{min(known)}" if len(known) == len(ends) else "-9000000000000000000"
        sql = _EXPIRING.replace("{since}", since).replace("{until}", str(max(known)))
        self._add_by(sql, rows=MESSAGE_TRANSFERS)

    def _add_by_clock_steps(self, before: HopState) -> None:
        """Add the messages that were sent in captures of which other places are known where their clocks were set.

        Between sendings and acknowledgements in different captures such a place may be in any capture. Whether a
        message that waits has expired is less sure at all servers of a capture whose clock was set.
        """
        if captures := self.now.captures_with_other_places(before):
            connections = connections_in_captures(self.lake, captures)
            self._add_by(_ON_CONNECTIONS, messages=MESSAGES, connections=connections)
            places = [each.clock_places.get(name, ()) for each in (before, self.now) for name in captures]
            since, until = zip(*chain.from_iterable(places), strict=True)
            self._add_by(_AT_PLACES, rows=MESSAGE_TRANSFERS, places=pa.table({"since": since, "until": until}))

    def _add_by_handshakes(self, changes: list[RowDict]) -> None:
        """Add the messages at whose ends handshakes show other queue managers now."""
        if not changes:
            return
        addresses, times = {row["address"] for row in changes}, [row["at"] for row in changes]
        expire_us = timedelta_to_us(self.settings.expire)
        # What a handshake may change rests on others too, as long before and after.
        near = TimeSpan(min(times), max(times)).widened(2 * expire_us, 2 * expire_us)
        sql = _HANDSHAKES.replace("{handshakes}", handshakes_sql(near))
        now = self.lake.query(sql, rows=SESSIONS, addresses=addresses)
        names = ("address", "queue_manager", "shown_at")
        count = dict.fromkeys((tuple(row[name] for name in names) for row in changes), 0)
        for row in now.to_pylist():
            shown = tuple(row[name] for name in names)
            count[shown] = count.get(shown, 0) + 1
        for row in changes:
            count[tuple(row[name] for name in names)] -= int(row["more"])
        before = [dict(zip(names, shown, strict=True)) for shown, times in count.items() if times > 0]
        spans = [each._asdict() for each in changed_spans(pa.Table.from_pylist(before, now.schema), now, expire_us)]
        if spans:
            sent = DateSpan.of_times(min(each["since"] for each in spans))
            messages, sendings = (RowsOfDates(table, sent) for table in (MESSAGES, SENDINGS))
            table = pa.Table.from_pylist(spans, _SPANS_SCHEMA)
            self._add_by(_OF_ADDRESSES, messages=messages, sendings=sendings, spans=table)
