"""Builds message timelines: all that the tables know of a message, ordered by time, each event with its packet.

Rows in, events out, without Spark: ``inputs`` reads the rows, ``formatting`` prints the timelines. All rows with a
message's key belong to it. Reads without a key (no whole header was captured) and moves identify a message by its
lookup id in a queue. Where several messages had that lookup id, the event is in the timeline of each, and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pipeline.attempts.calls.decoded_call import CALL_ROLES
from pipeline.quality.coverage_gaps import GAP_MEANINGS
from pipeline.reports.trace.events import EventBuilder, TimelineEvent
from pipeline.reports.trace.missing_codes import MISSING_CODE_TEXTS
from pipeline.reports.trace.transfer_events import (
    TransferRows,
    acknowledgement_events,
    sending_events,
    transfers_once_per_hop,
)
from pipeline.reports.trace.verdict import Verdict, VerdictRows, find_verdict
from udfs.codes import result_name
from udfs.rows import RowMapping

QueueLocation = tuple[str | None, str | None, str | None]  # queue; server address and handle if the queue is unknown
NumberInQueue = tuple[QueueLocation, int]  # with a lookup id

CONSUMED_OUTCOMES: Final = ("acked", "rejected")  # the message left its queue: later purges do not affect it
NEVER_CAPTURED_NOTE: Final = (
    "captures never show reads and sends by programs on the queue's own machine, and transfers between queue managers "
    "only where TCP 1801 was captured"
)


@dataclass(slots=True)
class MessageTimeline:
    """One message with its properties, its events ordered by time, and what is not known about it."""

    message_key: str | None
    message_id: str | None
    verdict: Verdict
    labels: list[str]
    sender: dict[str, Any]  # columns of its packet, and sender_name if a recorded COM+ call says it
    header_fields: dict[str, Any]
    locations: list[tuple[str, int | None]]  # queue (server and handle if it is unknown), lookup id
    fates: list[dict[str, Any]]
    hops: list[dict[str, Any]]  # columns of its rows of gold.message_transfers
    events: list[TimelineEvent]
    not_known: list[str]
    application: dict[str, Any] = field(default_factory=dict)  # what its headers and body say, by column


@dataclass(slots=True)
class TraceRows:
    """Input of ``build_timelines``: rows of the tables about the requested messages, as dictionaries by column."""

    messages: Sequence[RowMapping] = ()
    replies: Sequence[RowMapping] = ()  # messages whose correlation_id is the message_id of a requested message
    attempts: Sequence[RowMapping] = ()
    sequences: Sequence[RowMapping] = ()
    operations: Sequence[RowMapping] = ()  # moves by lookup id, purges by queue
    opens: Mapping[str, RowMapping] = field(default_factory=dict)  # of the queues that they were read from, by call_key
    findings: Sequence[RowMapping] = ()
    comqc: Sequence[RowMapping] = ()
    transfer_rows: TransferRows = field(default_factory=TransferRows)
    calls: Mapping[str, RowMapping] = field(
        default_factory=dict
    )  # by call_key: bronze.rpc_calls, with silver's method, result
    paths: Mapping[str, str] = field(default_factory=dict)  # of captures, by capture_id
    coverage: Sequence[RowMapping] = ()


def queue_location(row: RowMapping) -> QueueLocation:
    """Return the queue of an attempt, sequence or operation; if the queue is unknown, server address and handle."""
    if row["queue"] is not None:
        return row["queue"], None, None
    handle = row.get("handle") or row.get("context_handle") or row.get("queue_handle")
    return None, row.get("server_address"), None if handle is None else str(handle)


def build_timelines(
    rows: TraceRows, keys: Iterable[str], numbers: Iterable[NumberInQueue] = ()
) -> list[MessageTimeline]:
    """Return the timelines of messages given by key, or by queue location and lookup id, ordered by first event.

    A message given by lookup id is left out if some attempt shows its message key.
    """
    builder = _TimelineBuilder(rows)
    timelines = [builder.for_message_key(key) for key in sorted(set(keys))]
    without_key = sorted(set(numbers) - builder.keys_by_number.keys(), key=str)
    timelines += [builder.for_lookup_id(*number) for number in without_key]
    return sorted(timelines, key=lambda each: (_first_event_at(each), each.message_id or "", each.message_key or ""))


class _TimelineBuilder:
    """Builds timelines from one set of rows, which it indexes once."""

    def __init__(self, rows: TraceRows) -> None:
        self.rows = rows
        self.show = EventBuilder(rows.calls, rows.transfer_rows.packets, rows.paths)
        self.attempts_by_key: dict[str | None, list[RowMapping]] = defaultdict(list)
        self.keys_by_number: dict[NumberInQueue, set[str]] = defaultdict(set)
        for row in rows.attempts:
            self.attempts_by_key[row["message_key"]].append(row)
            if row["message_key"] is not None and row["lookup_id"] is not None:
                self.keys_by_number[_location_and_number(row)].add(row["message_key"])
        self.comqc_by_sighting = _group_by(rows.comqc, "sighting_key")
        self.replies_by_message = _group_by(rows.replies, "correlation_id")
        acknowledgements = rows.transfer_rows.order_acks.values()
        self.acknowledgers = {(row["class"], row["sent_at"]): row["queue_manager"] for row in acknowledgements}
        self.acknowledgers |= {
            (row["class"], row["seen_at"]): row["source_queue_manager"] for row in rows.replies if row.get("class")
        }

    def for_message_key(self, key: str) -> MessageTimeline:
        """Return the timeline of the message with a key."""
        sightings = [row for row in self.rows.messages if row["message_key"] == key]
        sightings.sort(key=lambda row: (_time_text(row["seen_at"]), row["sighting_key"]))
        numbers = {number for number, keys in self.keys_by_number.items() if key in keys}
        return self._build(key, sightings, self.attempts_by_key[key], numbers)

    def for_lookup_id(self, location: QueueLocation, number: int) -> MessageTimeline:
        """Return the timeline of a message without key, by its queue location and lookup id."""
        return self._build(None, [], [], {(location, number)})

    def _build(
        self,
        key: str | None,
        sightings: Sequence[RowMapping],
        attempts: Sequence[RowMapping],
        numbers: set[NumberInQueue],
    ) -> MessageTimeline:
        rows = self.rows
        without_key = [row for row in self.attempts_by_key[None] if row["lookup_id"] is not None]
        attempts = [*attempts, *(row for row in without_key if _location_and_number(row) in numbers)]
        moves = [row for row in rows.operations if row["operation"] == "move" and _location_and_number(row) in numbers]
        unique: dict[tuple[Any, ...], TimelineEvent] = {}
        transfers = [row for row in rows.transfer_rows.transfers if row["message_key"] == key]
        for event in (
            *self._events(sightings, attempts, moves),
            *sending_events(self.show, rows.transfer_rows, transfers, sightings),
            *acknowledgement_events(self.show, rows.transfer_rows, transfers),
        ):
            unique.setdefault((event.kind, event.call_key or event.packet_key, event.row_key, event.text), event)
        arrived_at = min((row["arrived_at"] for row in sightings if row["arrived_at"] is not None), default=None)
        purges = [*self._purges(attempts, transfers, numbers, arrived_at)]
        events = [*unique.values(), *map(self._purge_event, purges)]
        evidence = {key for event in events for key in (event.call_key, event.packet_key)} - {None}
        evidence |= {each for row in (*attempts, *transfers) for each in row["evidence"] or ()}
        findings = [
            row
            for row in rows.findings
            if evidence.intersection((row["call_key"], row["packet_key"], *(row["evidence"] or ())))
        ]
        findings = [row for row in findings if row["severity"] != "info" or not self._is_open_call(row["call_key"])]
        events = sorted([*events, *map(self._finding_event, findings)], key=_sort_key)
        missing = {code for row in (*attempts, *moves, *transfers) for code in row["missing"] or ()}
        header = _first_values(sightings)
        sequences = [
            row
            for row in rows.sequences
            if (key is not None and row["message_key"] == key)
            or (row["message_key"] is None and self._has_number(row, numbers))
        ]
        return MessageTimeline(
            message_key=key,
            message_id=header.get("message_id"),
            verdict=find_verdict(
                VerdictRows(
                    sightings=sightings,
                    transfers=transfers,
                    sequences=self._surely_of(key, sequences),
                    attempts=self._surely_of(key, attempts),
                    moves=self._surely_of(key, moves),
                    purges=purges,
                    acknowledgers=self.acknowledgers,
                )
            ),
            labels=sorted({row["label"] for row in sightings if row["label"] is not None}),
            sender=self._sender(header, sightings),
            header_fields={name: header[name] for name in _HEADER_COLUMNS if header.get(name) is not None},
            application={name: header[name] for name in _APPLICATION_COLUMNS if header.get(name) is not None},
            locations=sorted({(_location_text(location), number) for location, number in numbers}, key=str),
            fates=[{name: row[name] for name in _FATE_COLUMNS} for row in sequences],
            hops=[{name: row[name] for name in _HOP_COLUMNS} for row in transfers_once_per_hop(transfers)],
            events=events,
            not_known=[
                *(f"{code}: {MISSING_CODE_TEXTS.get(code, code)}" for code in sorted(missing)),
                *self._coverage_gaps(events),
                *_decode_errors(sightings),
                NEVER_CAPTURED_NOTE,
            ],
        )

    def _sender(self, header: RowMapping, sightings: Sequence[RowMapping]) -> dict[str, Any]:
        """Return what the message says of its sender, and the name that a COM+ call recorded in it gives."""
        sender = {name: header[name] for name in _SENDER_COLUMNS if header.get(name) is not None}
        names = {
            recorded["caller_name"]
            for recorded in self.rows.comqc
            if recorded["sighting_key"] in {row["sighting_key"] for row in sightings}
            and recorded.get("caller_sid") == sender.get("sender_id") is not None
            and recorded.get("caller_name") is not None
        }
        return sender | ({"sender_name": min(names)} if names else {})

    def _has_number(self, row: RowMapping, numbers: set[NumberInQueue]) -> bool:
        return row["lookup_id"] is not None and _location_and_number(row) in numbers

    def _other_candidates(self, row: RowMapping) -> int:
        """Return how many messages besides one had the lookup id of an attempt or move."""
        return max(0, len(self.keys_by_number.get(_location_and_number(row), ())) - 1)

    def _surely_of(self, key: str | None, rows: Iterable[RowMapping]) -> list[RowMapping]:
        """Return the rows that cannot belong to another message: with its key, or a number that no other had."""
        return [
            row
            for row in rows
            if (key is not None and row.get("message_key") == key) or not self._other_candidates(row)
        ]

    def _events(
        self, sightings: Sequence[RowMapping], attempts: Sequence[RowMapping], moves: Sequence[RowMapping]
    ) -> Iterator[TimelineEvent]:
        yield from _header_events(sightings)
        for row in sightings:
            yield from self._sighting_events(row)
        yield from self._reply_events(sightings)
        for row in attempts:
            by_number = row["message_key"] is None and row["lookup_id"] is not None
            yield from self._attempt_events(row, self._other_candidates(row) if by_number else 0)
        for row in moves:
            target = row["target_queue"] or "an unknown queue"
            text = f"moved to {target}" if row["outcome"] == "done" else f"move to {target}: {row['outcome']}"
            yield self.show.request_event(
                "move", row["call_key"], _operation_time(row), text, other_candidates=self._other_candidates(row)
            )

    def _sighting_events(self, row: RowMapping) -> Iterator[TimelineEvent]:
        if row["packet_key"] is None:  # otherwise it is a sending
            call = self.rows.calls.get(row["call_key"], {})
            client = f"{call.get('client_address', '?')}:{call.get('client_port', '?')}"
            text = f"{call.get('server_address', '?')} -> {client}, {_body_size_text(row)}"
            yield self.show.sighting_event("seen", row, text + (", not fully decoded" if row["errors"] else ""))
        for recorded in self.comqc_by_sighting.get(row["sighting_key"], ()):
            method = f"interface {recorded['interface_id'] or '?'}, opnum {recorded['opnum']}"
            if recorded["is_dispatch"]:
                method += f", dispatch id {recorded['dispatch_id']}"
            if recorded["method"] is not None:
                method = f"{recorded['method']} ({method})"
            text = f"call {recorded['call_index']} of class {recorded['target_clsid'] or '?'}: {method}"
            yield self.show.sighting_event("COM+ call", row, text)

    def _reply_events(self, sightings: Iterable[RowMapping]) -> Iterator[TimelineEvent]:
        for message_id in {row["message_id"] for row in sightings} - {None}:
            for reply in self.replies_by_message.get(message_id, ()):
                where = f"in {reply['queue'] or '?'}"
                if reply["packet_key"] is not None:
                    where = f"to {reply['destination_queue'] or '?'}"
                text = f"{reply['class_name']} from {reply['source_queue_manager'] or '?'}, {where}"
                yield self.show.sighting_event("reply", reply, text)

    def _attempt_events(self, row: RowMapping, other_candidates: int) -> Iterator[TimelineEvent]:
        """Yield the events of a receive attempt: each call of its evidence, and its outcome."""
        action = {True: "receive", False: "peek", None: "read (sealed)"}[row["is_receive"]]
        end_call, outcome, key = None, row["outcome"], row["attempt_key"]
        reader = f"{row['client_address']}:{row['client_port']}"
        for call_key in row["evidence"] or ():
            call = self.rows.calls.get(call_key)
            if call is None:
                continue
            role = CALL_ROLES.get((call["interface_name"], call["opnum"]))
            if call["request_at"] is not None and call["request_at"] == row["ended_at"] and role != "start":
                end_call = call
            elif role == "start":
                at = row["started_at"] or row["returned_at"]
                text = f"{action} by {reader}, {_call_text(call)}"
                yield self.show.request_event("start", call_key, at, text, key, other_candidates)
            else:
                opened = self.rows.opens.get(call_key)
                text = _call_text(call) + ("" if opened is None else f", {_open_text(opened)}")
                yield self.show.request_event(role or "call", call_key, _call_time(call), text)
        text = f"{outcome} ({action} by {reader})"
        at = row["ended_at"] or (row["returned_at"] if outcome not in ("in_flight", "expired") else None)
        if end_call is not None:
            text = f"{text}, {_call_text(end_call)}"
            yield self.show.request_event("ended", end_call["call_key"], at, text, key, other_candidates)
        else:  # ended by the end of the connection, by a timer or by the response itself, or not ended
            yield TimelineEvent(
                at, "ended", text, connection_id=row["connection_id"], server_address=row["server_address"],
                row_key=key, other_candidates=other_candidates,
            )  # fmt: skip

    def _purges(
        self,
        attempts: Sequence[RowMapping],
        transfers: Sequence[RowMapping],
        numbers: set[NumberInQueue],
        arrived_at: datetime | None,
    ) -> Iterator[RowMapping]:
        """Yield purges of the message's queues, from its first known time there until it was consumed."""
        locations = {location for location, _ in numbers} | {queue_location(row) for row in attempts}
        delivered = [row for row in transfers if row["outcome"] in ("delivered", "received")]
        locations |= {(row["canonical_destination"], None, None) for row in delivered}
        starts = [row["started_at"] or row["returned_at"] for row in attempts]
        starts += [row[name] for row in delivered for name in ("order_acked_at", "arrival_acked_at")]
        since = min([at for at in (arrived_at, *starts) if at is not None], default=None)
        ends = [row["ended_at"] for row in attempts if row["outcome"] in CONSUMED_OUTCOMES]
        ends += [row[name] for row in delivered for name in ("final_acked_at", "receive_acked_at")]
        consumed_at = min((at for at in ends if at is not None), default=None)
        for row in self.rows.operations:
            at = _operation_time(row)
            if row["operation"] != "purge" or queue_location(row) not in locations or at is None:
                continue
            if since is not None and at >= since and (consumed_at is None or at < consumed_at):
                yield row

    def _purge_event(self, row: RowMapping) -> TimelineEvent:
        text = f"its queue was purged: {row['outcome']}"
        return self.show.request_event("purge", row["call_key"], _operation_time(row), text)

    def _finding_event(self, row: RowMapping) -> TimelineEvent:
        text = f"{row['severity']} {row['rule_id']} ({row['source']}): {row['message']}"
        if row["call_key"]:
            return self.show.request_event("finding", row["call_key"], row["observed_at"], text, row["finding_key"])
        if row["packet_key"]:
            return self.show.packet_event("finding", row["packet_key"], row["observed_at"], text, row["finding_key"])
        return TimelineEvent(row["observed_at"], "finding", text, row_key=row["finding_key"])

    def _is_open_call(self, call_key: str | None) -> bool:
        """Tell whether a call named or opened the queue. Findings of severity ``info`` about these are left out."""
        call = self.rows.calls.get(call_key or "", {})
        return CALL_ROLES.get((call.get("interface_name", ""), call.get("opnum", -1))) in ("open", "name")

    def _coverage_gaps(self, events: Sequence[TimelineEvent]) -> Iterator[str]:
        """Yield the gaps that gold.coverage counts in the hours of the events, at their servers or at no single one."""
        times = [event.at for event in events if event.at is not None and event.clock == "capture"]
        servers = {event.server_address for event in events} | {None}
        totals: dict[tuple[str, str, str], int] = defaultdict(int)
        for row in self.rows.coverage:
            counted = row["layer"], row["measure"]
            if counted not in GAP_MEANINGS or row["server_address"] not in servers or not row["value"] or not times:
                continue
            if row["hour"] is None or truncate_to_hour(min(times)) <= row["hour"] <= max(times):
                totals[row["server_address"] or "", *counted] += row["value"]
        for (server, layer, measure), value in sorted(totals.items()):
            scope = f"at {server}" if server else "in the captures"
            yield f"in these hours {scope}: {value} {GAP_MEANINGS[layer, measure]} ({layer})"


_SENDER_COLUMNS: Final = (
    "sender_id", "source_queue_manager", "sender_address", "connector_type", "sender_certificate_bytes", "signed",
    "authenticated",
)  # fmt: skip
_HEADER_COLUMNS: Final = (
    "class_name", "body_bytes", "body_sha256", "priority", "delivery", "transactional", "correlation_id",
    "destination_queue", "destination_list", "admin_queue", "admin_list", "response_queue", "response_list",
    "report_queue", "time_to_reach_queue_s", "time_to_be_received_s", "abort_count", "move_count", "subqueue",
    "subqueue_acknowledgement_class", "dead_letter_queue", "dead_letter_queue_invalid", "is_comqc", "comqc_rejected",
)  # fmt: skip
_APPLICATION_COLUMNS: Final = (
    "framework", "application_message_id", "conversation_id", "related_to", "sent_types", "intent",
    "originating_endpoint", "processing_endpoint", "reply_to", "application_sent_at", "failed_queue", "exception_type",
    "immediate_retries", "delayed_retries", "application_messages", "body_format", "body_root",
)  # fmt: skip
_HOP_COLUMNS: Final = (
    "transfer_key", "sender_address", "receiver_address", "other_addresses", "hop_key", "acknowledged_on",
    "sender_queue_manager", "receiver_queue_manager", "destination_queue", "hop_count", "outcome", "refused",
    "sendings", "sessions", "acknowledged_sendings", "first_sent_at",
    "last_sent_at", "expires_at", "session_ack_ms", "store_ms", "order_ack_ms", "final_ack_ms", "final_class_name",
    "arrival_ack_ms", "arrival_class_name", "receive_ack_ms", "receive_class_name", "dead_letter_class",
    "sequence_key", "transaction_number", "confidence",
)  # fmt: skip
_FATE_COLUMNS: Final = (
    "queue", "inferred_queue", "lookup_id", "attempts", "peeks", "outcomes", "readers", "fate", "redelivered",
    "loss_risk", "moved_to", "confidence",
)  # fmt: skip
# Order of events at the same time; other kinds come last.
_KIND_ORDER: Final = (
    "sent", "sending", "session ack", "stored", "order ack", "arrived", "name", "open", "start", "seen", "COM+ call",
    "call", "ended", "final ack",
)  # fmt: skip


def _group_by(rows: Iterable[RowMapping], name: str) -> Mapping[Any, Sequence[RowMapping]]:
    found: defaultdict[Any, list[RowMapping]] = defaultdict(list)
    for row in rows:
        found[row[name]].append(row)
    return found


def _first_values(sightings: Sequence[RowMapping]) -> dict[str, Any]:
    """Return the first known value of each column. On TCP 1801, ``sender_address`` is of the first hop, or None."""
    values: dict[str, Any] = {}
    for row in sightings:
        values |= {name: value for name, value in row.items() if values.get(name) is None}
    addresses = (row["sender_address"] for row in sightings if row["packet_key"] is None or row["hop_count"] == 0)
    return values | {"sender_address": next((each for each in addresses if each is not None), None)} if values else {}


def _header_events(sightings: Sequence[RowMapping]) -> Iterator[TimelineEvent]:
    """Yield when the message was sent to its destinations, by its sender's clock, and arrived in its queues."""
    header = _first_values(sightings)
    sender = header.get("sender_address") or header.get("source_queue_manager") or "?"
    if header.get("sent_at") is not None:
        queues = sorted({row["destination_queue"] for row in sightings} - {None})
        text = f"by {sender} to {', '.join(queues) or '?'}"
        yield TimelineEvent(header["sent_at"], "sent", text, "sender", row_key=header["message_key"])
    arrived = _group_by((row for row in sightings if row["arrived_at"] is not None), "arrived_at")
    for at, rows in arrived.items():
        queues = sorted({row["queue"] or row["inferred_queue"] or "an unknown queue" for row in rows})
        yield TimelineEvent(at, "arrived", f"in {', '.join(queues)}", "queue manager", row_key=header["message_key"])


def _time_text(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="microseconds")


def truncate_to_hour(at: datetime) -> datetime:
    """Return the start of the hour that a time is in."""
    return at.replace(minute=0, second=0, microsecond=0)


def _sort_key(event: TimelineEvent) -> tuple[bool, str, int, str]:
    order = _KIND_ORDER.index(event.kind) if event.kind in _KIND_ORDER else len(_KIND_ORDER)
    return event.at is None, _time_text(event.at), order, event.text


def _first_event_at(timeline: MessageTimeline) -> str:
    return _sort_key(timeline.events[0])[1] if timeline.events else ""


def _location_and_number(row: RowMapping) -> NumberInQueue:
    return queue_location(row), -1 if row["lookup_id"] is None else int(row["lookup_id"])


def _location_text(location: QueueLocation) -> str:
    queue, server, handle = location
    return queue if queue is not None else f"unknown queue at {server or '?'} (handle {handle or '?'})"


def _operation_time(row: RowMapping) -> datetime | None:
    at: datetime | None = row["requested_at"] or row["responded_at"]
    return at


def _call_time(call: RowMapping) -> datetime | None:
    at: datetime | None = call["request_at"] or call["response_at"]
    return at


def _call_text(call: RowMapping) -> str:
    """Return method and result of a call as text."""
    method = call["method"] or f"{call['interface_name'] or '?'} opnum {call['opnum']}"
    ack = f" {call['ack_name']}" if call.get("ack_name") else ""
    if call["outcome"] == "fault":
        status = call["fault_status"]
        return f"{method}{ack} -> fault{'' if status is None else f' {result_name(status)}'}"
    if call["outcome"] != "ok" and call.get("hresult_name") is None:
        return f"{method}{ack} -> {call['outcome']}"
    return f"{method}{ack} -> {call.get('hresult_name') or 'answered'}"


def _open_text(row: RowMapping) -> str:
    """Return by whom, how and until when a queue was open, as text."""
    client = " at ".join(row[name] for name in ("principal", "workstation") if row[name] is not None)
    mode = " ".join(row[name] for name in ("access_name", "share_mode_name") if row[name] is not None)
    by = ", ".join(text for text in (f"by {client}" if client else "", mode) if text)
    until = "" if row["closed_at"] is None else f" at {row['closed_at'].strftime('%H:%M:%S.%f')}"
    ended = {"open": "not closed in the captures", "unknown": "how it ended is unknown", None: row["outcome"]}
    end = ended.get(row["ended_by"]) or f"{row['ended_by'].replace('_', ' ')}{until}"
    return f"{by}; {end}" if by else end


def _body_size_text(row: RowMapping) -> str:
    if row["body_bytes"] is None:
        return "unknown size"
    seen = "" if row["body_complete"] else f", {row['body_bytes_seen'] or 0} of them captured"
    return f"body of {row['body_bytes']} bytes{seen}"


def _decode_errors(sightings: Sequence[RowMapping]) -> Iterator[str]:
    """Yield the first decoding error of the sightings, if there is one."""
    for row in sightings:
        for error in row["errors"] or ():
            yield f"its packet could not be decoded: {error['code']} at {error['field'] or '?'}"
            return
