"""Rows of silver.sessions and silver.order_acks, from the packets of connections. No Spark session is needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import epoch_day, rows_to_table, table_to_rows
from pipeline.settings import Durations, PendingConfig, SessionsConfig
from pipeline.transfers.checkpoints import Hole
from pipeline.transfers.connection_packets import (
    CLIENT,
    CONNECTION_PARAMETERS,
    ESTABLISH_CONNECTION,
    FINAL_ACK,
    HANDSHAKE_KINDS,
    ORDER_ACK,
    SERVER,
    SESSION_ACK,
    SIDES,
    ConnectionPackets,
    SideRows,
    first_rows,
    window_sizes,
)
from pipeline.transfers.numbers.packet_numbers import NO_NUMBER
from pipeline.transfers.session_totals import side_counts, side_window_full_us
from pipeline.transfers.side_by_side import overlapping_captures
from pipeline.transfers.side_losses import LOSS_COLUMNS, UNLIMITED, missing_packets, side_losses
from schemas.sessions import ORDER_ACKS, SESSIONS
from schemas.table import EVENT_DATE, RUN_ID
from udfs.array_types import Ints
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NO_TIME
from udfs.columns.arrays import to_flags, utc_dates
from udfs.rows import RowDict
from udfs.sessions.acknowledgement_bodies import order_ack_columns
from udfs.sessions.handshake_packets import (
    connection_parameters_columns,
    establish_connection_columns,
    internal_header_columns,
)
from udfs.sessions.packet_layouts import DECODER_VERSION
from udfs.times import timedelta_to_us

SESSIONS_SCHEMA: Final = SESSIONS.schema()
ORDER_ACKS_SCHEMA: Final = ORDER_ACKS.schema()
_FROM_CONNECTION: Final = (
    "connection_id", "client_address", "client_port", "server_address", "server_port", "first_packet_at",
    "last_packet_at", "closed_at", "closed_by", "not_established", "uncaptured_side",
)  # fmt: skip
CONNECTION_COLUMNS: Final = tuple(dict.fromkeys((*_FROM_CONNECTION, "syn_seen", *LOSS_COLUMNS)))
"""The columns of ``bronze.connections`` that rows of silver.sessions are made of."""
_US_PER_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class SessionSettings(Durations):
    """The settings sessions.idle, sessions.silent_after and pending.expire."""

    idle: timedelta = SessionsConfig.idle
    silent_after: timedelta = SessionsConfig.silent_after
    expire: timedelta = PendingConfig.expire


def session_rows(
    connections: pa.Table,
    found: ConnectionPackets,
    capture_ends: Mapping[str, int],
    capture_begins: Mapping[str, int],
    settings: SessionSettings,
    run_id: str | None,
) -> pa.Table:
    """Return a row of silver.sessions for each connection.

    ``connections`` has ``CONNECTION_COLUMNS``, a row for each of ``found.connection_ids``; ``capture_ends``: by server
    address the time of the newest packet of captures with packets of that server; ``capture_begins``: by capture the
    time of its oldest packet; microseconds.
    """
    facts = _Handshakes.read(found)
    rows = []
    for connection in table_to_rows(connections.select(list(CONNECTION_COLUMNS))):
        place = bisect_left(found.connection_ids, connection["connection_id"])
        end = max(
            capture_ends.get(connection["server_address"], BEFORE_ALL), connection["last_packet_at"] or BEFORE_ALL
        )
        captures = () if connection["syn_seen"] else found.captures_of(place)
        begin = min((capture_begins[each] for each in captures if each in capture_begins), default=None)
        if not connection["syn_seen"] and not captures and connection["first_packet_at"] is not None:
            begin = connection["first_packet_at"] - timedelta_to_us(settings.silent_after)
        rows.append(_Session(connection, place, found, facts, begin, end, settings).row() | {RUN_ID: run_id})
    return rows_to_table(rows, SESSIONS_SCHEMA)


@dataclass(slots=True)
class _Handshakes:
    """What handshake packets say: by kind, then side, then connection the first packet; and who was refused."""

    first: dict[str, tuple[dict[int, RowDict], dict[int, RowDict]]]
    refused: set[int]
    windows: Ints  # WindowSize by row; -1 where none is said

    @staticmethod
    def read(found: ConnectionPackets) -> _Handshakes:
        decoders = {
            ESTABLISH_CONNECTION: establish_connection_columns,
            CONNECTION_PARAMETERS: connection_parameters_columns,
        }
        first = {}
        for kind, decode in decoders.items():
            both = []
            for side in (CLIENT, SERVER):
                row_of = first_rows(found, kind, side)
                chosen = np.array([*row_of.values()], np.int64)
                columns = decode(_packets(found, chosen))
                columns["sent_at"] = pa.array(found.shown_at[chosen])
                columns["clock_us"] = pa.array(found.packets.sent_at[chosen] - found.shown_at[chosen])
                columns["capture_id"] = found.table["capture_id"].take(pa.array(chosen))
                both.append(dict(zip(row_of, pa.table(columns).to_pylist(), strict=True)))
            first[kind] = (both[0], both[1])
        rows = np.flatnonzero(found.is_kind(*HANDSHAKE_KINDS) & (found.packets.side % 2 == SERVER))
        refused = internal_header_columns(_packets(found, rows))["refused"]
        places = found.packets.side[rows[to_flags(refused)]] // 2
        return _Handshakes(first, set(places.tolist()), window_sizes(found))


def _packets(found: ConnectionPackets, rows: Ints) -> pa.Array:
    return found.table["packet"].take(pa.array(rows, pa.int64())).combine_chunks()


@dataclass(slots=True)
class _Session:
    """One connection; ``place`` is its place in ``found.connection_ids``, ``capture_end`` stands for now.

    ``capture_begin``: of a connection without its SYN, when the earliest of its captures began. Of one without a packet
    of the protocol these are not known: an idle session had sent something at most sessions.silent_after before.
    """

    connection: RowDict
    place: int
    found: ConnectionPackets
    handshakes: _Handshakes
    capture_begin: int | None
    capture_end: int
    settings: SessionSettings

    def row(self) -> RowDict:
        """Return the row of silver.sessions."""
        connection = self.connection
        sides = [self.found.rows_of(self.place, side) for side in (CLIENT, SERVER)]
        ask, answer = (self._first(ESTABLISH_CONNECTION, side) for side in (CLIENT, SERVER))
        asked, answered = (self._first(CONNECTION_PARAMETERS, side) for side in (CLIENT, SERVER))
        silent = self._is_silent()
        outcome = self._outcome(sides)
        overlaps = self._overlapping_captures()
        row = {name: connection[name] for name in _FROM_CONNECTION}
        row |= {
            "initiator_queue_manager": _first_of(ask.get("client_guid"), answer.get("client_guid")),
            "acceptor_queue_manager": _first_of(answer.get("server_guid"), _asked(ask)),
            "asked_queue_manager": _asked(ask),
            "by_direct_name": ask.get("server_guid_is_zero"),
            "establish_requested_at": _time(ask),
            "parameters_requested_at": _time(asked),
            "establish_answered_at": _time(answer),
            "parameters_answered_at": _time(answered),
            "round_trip_ms": _round_trip_ms(ask, answer, overlaps),
            "initiator_uptime_ms": ask.get("uptime_ms"),
            "pinged": ask.get("pinged"),
            "server_class": ask.get("server_class"),
            "recoverable_ack_timeout_ms": _first_of(*(p.get("recoverable_ack_timeout_ms") for p in (answered, asked))),
            "ack_timeout_ms": _first_of(*(p.get("ack_timeout_ms") for p in (answered, asked))),
            "client_window": asked.get("window_size"),
            "server_window": answered.get("window_size"),
            "outcome": outcome,
            **self._holes(one_clock=not overlaps),
            "overlapping_captures": [{"one": one, "other": other} for one, other in overlaps] or None,
            "errors": [],
            "decoder_version": DECODER_VERSION,
            EVENT_DATE: epoch_day(connection["first_packet_at"]),
        }
        for side in (CLIENT, SERVER):
            counts = side_counts(self.found, self.place, side)
            counts["window_full_ms"] = self._window_full_ms(side, silent=silent)
            row |= {f"{SIDES[side]}_{name}": value for name, value in counts.items()}
        row["ended"], is_sure = self._ended(sides, outcome, row["ack_timeout_ms"], silent=silent)
        lacks = {
            "capture_begins": not connection["syn_seen"],
            "capture_ends": row["ended"] is None,
            "capture_loss": connection["missing_bytes"] or connection["uncaptured_side"] is not None,
            "clock_step": self.found.clocks_differ(self.place) or not is_sure,
            "one_direction": connection["uncaptured_side"] is not None,
        }
        row["missing"] = [code for code, lacking in lacks.items() if lacking]
        return row

    def _holes(self, *, one_clock: bool) -> dict[str, list[RowDict] | None]:
        """Return where packets of each side may be missing."""
        first, last = self.connection["first_packet_at"], self.connection["last_packet_at"]
        span = (BEFORE_ALL if first is None else first, AFTER_ALL if last is None else last)
        found: dict[str, list[RowDict] | None] = {}
        before = self._before_capture(span, one_clock=one_clock)
        for side in side_losses(self.found, self.place, self.connection):
            holes = before + missing_packets(self.found, self.place, side, span, one_clock=one_clock)
            rows = [
                {
                    "since": None if each.since_us == BEFORE_ALL else each.since_us,
                    "until": None if each.until_us == AFTER_ALL else each.until_us,
                    "size_bytes": each.size_bytes,
                }
                for each in sorted(holes, key=lambda hole: (hole.since_us, hole.until_us, hole.size_bytes))
            ]
            found[f"{SIDES[side.side]}_holes"] = rows or None
        return found

    def _before_capture(self, span: tuple[int, int], *, one_clock: bool) -> list[Hole]:
        """Return the hole of each side from when its captures began to the first captured packet, if there is one.

        There is none where the session was seen to begin: before a packet of the handshake there is only handshake.
        """
        begins = self.capture_begin
        if begins is None or any(self._first(kind, side) for kind in HANDSHAKE_KINDS for side in (CLIENT, SERVER)):
            return []
        until = span[0] - 1 if one_clock else span[1]
        return [Hole(begins, until, UNLIMITED, is_gap=True)] if begins <= until else []

    def _first(self, kind: str, side: int) -> RowDict:
        return self.handshakes.first[kind][side].get(self.place, {})

    def _overlapping_captures(self) -> list[tuple[str, str]]:
        """Return the pairs of captures that saw the connection side by side."""
        if len(self.found.captures_of(self.place)) < 2:
            return []
        first, end = self.found.rows_of(self.place, CLIENT).first, self.found.rows_of(self.place, SERVER).end
        captures = self.found.table["capture_id"].slice(first, end - first).combine_chunks()
        checkpoint = self.found.checkpoint(self.place)
        before = () if checkpoint is None else checkpoint.captures
        return overlapping_captures(captures, self.found.packets.sent_at[first:end], before)

    def _window_full_ms(self, side: int, *, silent: bool) -> int:
        closed, last = self.connection["closed_at"], self.connection["last_packet_at"]
        end = closed if closed is not None else last if silent else self.capture_end
        return side_window_full_us(self.found, self.place, side, self.handshakes.windows, end) // _US_PER_MS

    def _is_silent(self) -> bool:
        """Whether no end was captured, and the connection has been quiet for long before the captures' end."""
        last = self.connection["last_packet_at"]
        if last is not None and self.found.clocks_differ(self.place):  # it may be of another clock than the end
            both = slice(self.found.rows_of(self.place, CLIENT).first, self.found.rows_of(self.place, SERVER).end)
            last = max(last, int(self.found.packets.sent_at[both].max()))
        quiet = timedelta_to_us(self.settings.silent_after)
        return self.connection["closed_at"] is None and (last is None or self.capture_end - last >= quiet)

    def _outcome(self, sides: list[SideRows]) -> str:
        if self.place in self.handshakes.refused:
            return "refused"
        both = slice(sides[CLIENT].first, sides[SERVER].end)
        before = [self.found.side_before(self.place, side) for side in (CLIENT, SERVER)]
        talked = self.found.packets.counted[both].any() or self.found.is_kind_in(both, SESSION_ACK).any()
        earlier = any(each.counted or each.session_acks for each in before)
        if self._first(CONNECTION_PARAMETERS, SERVER) or talked or earlier:
            return "open"
        unseen = self.connection["uncaptured_side"] is not None  # it may have answered, or asked
        asked = [row for kind in HANDSHAKE_KINDS for row in self._rows_of_kind(sides[CLIENT], kind)]
        if asked:
            kind = self.found.table["kind"][max(asked)].as_py()
            if not self._first(kind, SERVER) and not unseen:
                return "unanswered"
        has_bytes = bool(self.connection["client_bytes"] or self.connection["server_bytes"])
        if has_bytes and both.start == both.stop:
            return "not_binary_protocol"
        is_known = not has_bytes and self.connection["syn_seen"] and not unseen
        return "not_established" if is_known else "unknown"

    def _rows_of_kind(self, rows: SideRows, kind: str) -> list[int]:
        inside = self.found.is_kind_in(slice(rows.first, rows.end), kind)
        return (rows.first + np.flatnonzero(inside)).tolist()

    def _ended(
        self, sides: list[SideRows], outcome: str, ack_timeout_ms: int | None, *, silent: bool
    ) -> tuple[str | None, bool]:
        """Return how it ended, and whether that is the same by whichever capture's clock the end was seen."""
        closed = self.connection["closed_at"]
        if closed is None and not silent:
            return None, True
        if outcome != "open":
            return "refused" if outcome == "refused" else "unopened", True
        if silent:
            return "silent", True
        by_cause = "reset" if self.connection["closed_by"] == "rst" else "closed"
        if self.found.clocks_differ(self.place):  # how long it was quiet before its end is not known
            return by_cause, True
        times = {closed, closed - self.found.captures_apart_us(self.place)}
        ways = {self._waited_until(sides, at, ack_timeout_ms) or by_cause for at in times}
        is_sure = len(ways) == 1
        return ways.pop() if is_sure else by_cause, is_sure

    def _waited_until(self, sides: list[SideRows], closed: int, ack_timeout_ms: int | None) -> str | None:
        """Return for what its end at a time was waited for: ack_timeout or idle; None if it was not."""
        if ack_timeout_ms is not None and any(
            self._timed_out(sides[side], sides[1 - side], closed - ack_timeout_ms * _US_PER_MS) for side in (0, 1)
        ):
            return "ack_timeout"
        idle = timedelta_to_us(self.settings.idle)
        both = slice(sides[CLIENT].first, sides[SERVER].end)
        counted = self.found.packets.sent_at[both][self.found.packets.counted[both]]
        checkpoint = self.found.checkpoint(self.place)
        if checkpoint is not None:
            counted = np.append(counted, checkpoint.last_counted_at)
        is_idle = closed - self.connection["first_packet_at"] >= idle and not (counted > closed - idle).any()
        return "idle" if is_idle else None

    def _timed_out(self, ours: SideRows, theirs: SideRows, until: int) -> bool:
        """Whether a side's first unacknowledged packet and the other side's last one are not later than a time."""
        span = slice(ours.first, ours.end)
        lacking = (self.found.numbers.session[span] != NO_NUMBER) & (self.found.acknowledged_at[span] == AFTER_ALL)
        if not lacking.any():
            return False
        first = self.found.packets.sent_at[ours.first + int(np.argmax(lacking))]
        any_sent = theirs.end > theirs.first
        last = self.found.packets.sent_at[theirs.end - 1] if any_sent else self.connection["first_packet_at"]
        return bool(first <= until and last <= until)


def _round_trip_ms(ask: RowDict, answer: RowDict, overlaps: list[tuple[str, str]]) -> float | None:
    """Return how long the answer took; None where two captures that were running side by side saw them.

    Nor where the clock was set between them.
    """
    began, ended = _time(ask), _time(answer)
    if began is None or ended is None or ended < began or ask["clock_us"] != answer["clock_us"]:
        return None
    one, other = sorted((ask["capture_id"], answer["capture_id"]))
    return None if (one, other) in overlaps else (ended - began) / _US_PER_MS


def _asked(request: RowDict) -> Any:  # noqa: ANN401 - a GUID as text, or None
    return None if request.get("server_guid_is_zero") else request.get("server_guid")


def _time(packet: RowDict) -> int | None:
    at = packet.get("sent_at")
    return None if at is None or at == NO_TIME else at


def _first_of(*values: Any) -> Any:  # noqa: ANN401 - of the column
    return next((value for value in values if value is not None), None)


def order_ack_rows(found: ConnectionPackets, sessions: pa.Table, run_id: str | None) -> pa.Table:
    """Return a row of silver.order_acks for each order and final acknowledgement that is ``to_write``.

    ``sessions`` are the rows of silver.sessions of all connections of ``found``.
    """
    rows = np.flatnonzero(found.is_kind(ORDER_ACK, FINAL_ACK) & found.to_write)
    table = found.table.take(pa.array(rows))
    decoded = order_ack_columns(_packets(found, rows))
    place = pc.index_in(table["connection_id"], sessions["connection_id"].combine_chunks())
    by_client = pc.equal(table["sent_by"], SIDES[CLIENT])
    receiving = pc.if_else(
        by_client,
        sessions["acceptor_queue_manager"].take(place),
        sessions["initiator_queue_manager"].take(place),
    )
    seen = decoded["queue_manager"].is_valid()  # else it is not known whether an address stands in the header
    receiving = pc.if_else(seen, receiving.combine_chunks(), pa.scalar(None, pa.string()))
    columns = {name: table[name].combine_chunks() for name in table.column_names if name in ORDER_ACKS.names}
    columns |= {name: column for name, column in decoded.items() if name in ORDER_ACKS.names}
    columns |= found.number_columns(rows)
    columns["acknowledged_queue_manager"] = pc.coalesce(
        decoded["acknowledged_source"], decoded["addressed_queue_manager"], receiving
    )
    columns[EVENT_DATE] = utc_dates(found.shown_at[rows])
    columns["decoder_version"] = pa.repeat(pa.scalar(DECODER_VERSION), len(rows))
    columns[RUN_ID] = pa.repeat(pa.scalar(run_id, pa.string()), len(rows))
    return pa.Table.from_arrays(
        [columns[field.name].cast(field.type) for field in ORDER_ACKS_SCHEMA], schema=ORDER_ACKS_SCHEMA
    )
