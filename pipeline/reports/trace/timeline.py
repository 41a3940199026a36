"""The stories of messages: what each table knows of a message, in order of time, with the packet that shows it.

Rows in, events out, without Spark: ``inputs`` brings the rows, ``text`` prints
them. What shares a message's key belongs to it. Reads without a key (the header was not whole, or they brought none)
and moves know a message by its number in a queue; where several messages had that number, each is told of it, and the
event says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from pipeline.attempts.calls import ROLES
from pipeline.quality.coverage_gaps import MEANINGS

Row = Mapping[str, Any]
Place = tuple[str | None, str | None, str | None]  # queue; where it is not known its owner's address and the handle
Clock = Literal["capture", "sender", "queue manager"]

CONSUMED: Final = ("acked", "rejected")  # outcomes after which a purge takes nothing
MEANING: Final = {
    "capture_begins": "a capture begins inside a conversation that this rests on",
    "capture_ends": "the captures end before it did",
    "capture_loss": "bytes of a connection that this rests on are in no capture",
    "no_bind": "the bind of a call was not captured: which interface it is was inferred",
    "no_open": "no opening of the queue was captured",
    "no_request": "the request of a call was not captured",
    "no_response": "the answer to a call was not captured",
    "damaged": "a call was captured in part",
    "sealed": "a call is encrypted and no key opened it",
    "decode_error": "a call or packet did not decode",
    "no_snapshot": "no snapshot of the queue",
    "transaction_open": "whether the transaction was committed is not on the wire",
    "queue_unknown": "the queue is not known",
}
NEVER_SEEN: Final = (
    "reads and sends by programs on the queue's own machine, and messages on their way between queue managers, are in "
    "no capture of remote reads"
)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``at`` is UTC; None: when is not known. ``clock`` says whose time it is.

    ``call_key`` names the call that shows it; ``packet`` is the packet of ``capture`` (a path) with its request, for a
    sighting with its answer; ``answer_packet`` that of the answer. ``also`` counts other messages that it may be about.
    """

    at: datetime | None
    kind: str
    text: str
    clock: Clock = "capture"
    call_key: str | None = None
    capture: str | None = None
    packet: int | None = None
    answer_capture: str | None = None
    answer_packet: int | None = None
    connection_id: str | None = None
    server_address: str | None = None
    key: str | None = None  # of the row: attempt, sighting, finding
    also: int = 0


@dataclass(slots=True)
class Story:
    """One message: what it is, its events in order of time, and what is not known."""

    message_key: str | None
    message_id: str | None
    labels: list[str]
    facts: dict[str, Any]
    places: list[tuple[str, int | None]]  # queue (or where it is not known, its owner and handle), lookup identifier
    fates: list[dict[str, Any]]
    events: list[Event]
    not_known: list[str]


@dataclass(slots=True)
class Sources:
    """Rows of the tables, as dictionaries by column: what ``stories`` is told of the messages asked for."""

    messages: Sequence[Row] = ()
    reports: Sequence[Row] = ()  # messages whose correlation_id is the message_id of one asked for
    attempts: Sequence[Row] = ()
    sequences: Sequence[Row] = ()
    operations: Sequence[Row] = ()  # moves by number, purges by queue
    findings: Sequence[Row] = ()
    comqc: Sequence[Row] = ()
    calls: Mapping[str, Row] = field(default_factory=dict)  # of bronze, with what silver knows of them, by call_key
    paths: Mapping[str, str] = field(default_factory=dict)  # of captures
    coverage: Sequence[Row] = ()


def place_of(row: Row) -> Place:
    """Return where an attempt, move or message is: its queue, else its owner's address and the handle."""
    if row["queue"] is not None:
        return row["queue"], None, None
    handle = row.get("context_handle") or row.get("queue_handle")
    return None, row.get("server_address"), None if handle is None else str(handle)


def stories(found: Sources, keys: Iterable[str], numbers: Iterable[tuple[Place, int]] = ()) -> list[Story]:
    """Return the stories of messages by their keys, and of those known by place and number alone, by first event."""
    teller = _Teller(found)
    told = [teller.of_key(key) for key in sorted(set(keys))]
    told += [teller.of_number(*number) for number in sorted(set(numbers), key=str) if number not in teller.named]
    return sorted(told, key=lambda story: (_first(story), story.message_id or "", story.message_key or ""))


class _Teller:
    """Tells one story after the other of the same rows."""

    def __init__(self, found: Sources) -> None:
        self.found = found
        self.by_sighting = {row["sighting_key"]: row for row in found.messages}
        self.by_call = {row["call_key"]: row for row in found.messages}
        self.attempts_of: dict[str | None, list[Row]] = defaultdict(list)
        self.named: dict[tuple[Place, int], set[str]] = defaultdict(set)  # keys of the messages that had a number there
        for row in found.attempts:
            self.attempts_of[row["message_key"]].append(row)
            if row["message_key"] is not None and row["lookup_id"] is not None:
                self.named[place_of(row), int(row["lookup_id"])].add(row["message_key"])

    def of_key(self, key: str) -> Story:
        """Tell of a message by its key."""
        sightings = [row for row in self.found.messages if row["message_key"] == key]
        numbers = {number for number, keys in self.named.items() if key in keys}
        return self._story(key, sightings, self.attempts_of[key], numbers)

    def of_number(self, place: Place, number: int) -> Story:
        """Tell of a message that no header tells anything of: by its place and number."""
        return self._story(None, [], [], {(place, number)})

    def _story(
        self, key: str | None, sightings: Sequence[Row], attempts: Sequence[Row], numbers: set[tuple[Place, int]]
    ) -> Story:
        found = self.found
        nameless = [
            row for row in self.attempts_of[None] if row["lookup_id"] is not None
            and (place_of(row), int(row["lookup_id"])) in numbers
        ]  # fmt: skip
        moves = [row for row in found.operations if row["operation"] == "move" and _numbered(row) in numbers]
        ours = [*attempts, *nameless]
        events: dict[tuple[Any, ...], Event] = {}
        for event in self._events(sightings, ours, moves):
            events.setdefault((event.kind, event.call_key, event.key, event.text), event)
        first = min((row["arrived_at"] for row in sightings if row["arrived_at"] is not None), default=None)
        purged = list(self._purges(ours, numbers, first))
        told = sorted([*events.values(), *purged], key=_when)
        proof = {event.call_key for event in told} | {call for row in ours for call in row["evidence"] or ()}
        about = [row for row in found.findings if {row["call_key"], *(row["evidence"] or ())} & proof - {None}]
        about = [row for row in about if row["severity"] != "info" or not self._opens(row["call_key"])]
        told = sorted([*told, *map(self._finding, about)], key=_when)
        missing = {code for row in (*ours, *moves) for code in row["missing"] or ()}
        facts = dict(sightings[0]) if sightings else {}
        return Story(
            message_key=key,
            message_id=facts.get("message_id"),
            labels=sorted({row["label"] for row in sightings if row["label"] is not None}),
            facts={name: facts[name] for name in _FACTS if facts.get(name) is not None},
            places=sorted({(_place_text(place), number) for place, number in numbers}, key=str),
            fates=[
                {name: row[name] for name in _FATE}
                for row in found.sequences
                if (key is not None and row["message_key"] == key) or self._same(row, numbers)
            ],
            events=told,
            not_known=[*(f"{code}: {MEANING.get(code, code)}" for code in sorted(missing)), *self._unseen(told),
                       *_unread(sightings), NEVER_SEEN],
        )  # fmt: skip

    def _same(self, row: Row, numbers: set[tuple[Place, int]]) -> bool:
        place: Place = (row["queue"], None, None)
        if row["queue"] is None:
            place = None, row["server_address"], row["handle"]
        return row["lookup_id"] is not None and (place, int(row["lookup_id"])) in numbers

    def _events(self, sightings: Sequence[Row], attempts: Sequence[Row], moves: Sequence[Row]) -> Iterator[Event]:
        for row in sightings:
            yield from self._sighting(row)
        for row in attempts:
            also = 0
            if row["message_key"] is None and row["lookup_id"] is not None:
                also = max(0, len(self.named.get((place_of(row), int(row["lookup_id"])), ())) - 1)
            yield from self._attempt(row, also)
        for row in moves:
            also = max(0, len(self.named.get(_numbered(row), ())) - 1)
            target = row["target_queue"] or "a queue that is not known"
            text = f"moved to {target}" if row["outcome"] == "done" else f"move to {target}: {row['outcome']}"
            yield self._by_call("move", row["call_key"], row["requested_at"] or row["responded_at"], text, also=also)

    def _sighting(self, row: Row) -> Iterator[Event]:
        if row["sent_at"] is not None:
            sender = row["sender_address"] or row["source_queue_manager"] or "?"
            text = f"by {sender} to {row['destination_queue'] or '?'}"
            yield Event(row["sent_at"], "sent", text, "sender", key=row["message_key"])
        if row["arrived_at"] is not None:
            text = f"in {row['queue'] or row['inferred_queue'] or 'a queue that is not known'}"
            yield Event(row["arrived_at"], "arrived", text, "queue manager", key=row["message_key"])
        call = self.found.calls.get(row["call_key"], {})
        where = f"{call.get('server_address', '?')} -> {call.get('client_address', '?')}:{call.get('client_port', '?')}"
        text = f"{where}, {_bytes(row)}" + (", did not decode whole" if row["errors"] else "")
        yield self._by_answer("seen", row["call_key"], row["seen_at"], text, row["sighting_key"])
        for each in self.found.comqc:
            if each["sighting_key"] == row["sighting_key"]:
                what = f"interface {each['interface_id'] or '?'}, opnum {each['opnum']}"
                if each["is_dispatch"]:
                    what += f", dispatch id {each['dispatch_id']}"
                text = f"call {each['call_index']} of class {each['target_clsid'] or '?'}: {what}"
                yield self._by_answer("COM+ call", row["call_key"], row["seen_at"], text, row["sighting_key"])
        for each in self.found.reports:
            if row["message_id"] is not None and each["correlation_id"] == row["message_id"]:
                text = f"{each['class_name']} from {each['source_queue_manager'] or '?'}, in {each['queue'] or '?'}"
                yield self._by_answer("answer", each["call_key"], each["seen_at"], text, each["sighting_key"])

    def _attempt(self, row: Row, also: int) -> Iterator[Event]:
        """Yield what was done to read it: each call that the attempt rests on, and how the attempt ended."""
        what = {True: "receive", False: "peek", None: "read (sealed)"}[row["is_receive"]]
        ended, outcome = None, row["outcome"]
        for key in row["evidence"] or ():
            call = self.found.calls.get(key)
            if call is None:
                continue
            role = ROLES.get((call["interface_name"], call["opnum"]))
            if call["request_at"] is not None and call["request_at"] == row["ended_at"] and role != "start":
                ended = call
            elif role == "start":
                text = f"{what} by {row['client_address']}:{row['client_port']}, {_did(call)}"
                yield self._by_call(
                    "asked", key, row["started_at"] or row["returned_at"], text, row["attempt_key"], also
                )
            else:
                yield self._by_call(role or "call", key, _at(call), _did(call))
        text = f"{outcome} ({what} by {row['client_address']}:{row['client_port']})"
        at = row["ended_at"] or (row["returned_at"] if outcome not in ("in_flight", "expired") else None)
        if ended is not None:
            yield self._by_call("ended", ended["call_key"], at, f"{text}, {_did(ended)}", row["attempt_key"], also)
        else:  # by a connection's end, a timer, the answer itself, or not at all
            key = row["attempt_key"]
            yield Event(at, "ended", text, connection_id=row["connection_id"], server_address=row["server_address"],
                        key=key, also=also)  # fmt: skip

    def _purges(
        self, attempts: Sequence[Row], numbers: set[tuple[Place, int]], first: datetime | None
    ) -> Iterator[Event]:
        """Yield purges of its queues from when it is known to be there, until it was taken."""
        places = {place for place, _ in numbers} | {place_of(row) for row in attempts}
        begins = [row["started_at"] or row["returned_at"] for row in attempts]
        since = min([at for at in (first, *begins) if at is not None], default=None)
        taken = [row["ended_at"] for row in attempts if row["outcome"] in CONSUMED and row["ended_at"] is not None]
        for row in self.found.operations:
            at = row["requested_at"] or row["responded_at"]
            if row["operation"] != "purge" or place_of(row) not in places or at is None:
                continue
            if since is not None and at >= since and not any(end <= at for end in taken):
                yield self._by_call("purge", row["call_key"], at, f"its queue was purged: {row['outcome']}")

    def _finding(self, row: Row) -> Event:
        text = f"{row['severity']} {row['rule_id']} ({row['source']}): {row['message']}"
        event = self._by_call("finding", row["call_key"], row["observed_at"], text, row["finding_key"])
        return event if row["call_key"] else Event(row["observed_at"], "finding", text, key=row["finding_key"])

    def _opens(self, call_key: str | None) -> bool:
        """Tell whether a call opened or named the queue: what is merely worth knowing of that is not the message's."""
        call = self.found.calls.get(call_key or "", {})
        return ROLES.get((call.get("interface_name", ""), call.get("opnum", -1))) in ("open", "name")

    def _by_call(
        self, kind: str, call_key: str | None, at: datetime | None, text: str, key: str | None = None, also: int = 0
    ) -> Event:
        """Return an event that a call's request shows, else its answer."""
        call = self.found.calls.get(call_key or "", {})
        return Event(
            at, kind, text, call_key=call_key,
            capture=self._path(call.get("capture_id") if call.get("request_packet") else None),
            packet=call.get("request_packet"), answer_capture=self._path(call.get("response_capture_id")),
            answer_packet=call.get("response_packet"), connection_id=call.get("connection_id"),
            server_address=call.get("server_address"), key=key, also=also,
        )  # fmt: skip

    def _by_answer(self, kind: str, call_key: str, at: datetime | None, text: str, key: str) -> Event:
        """Return an event that a call's answer shows."""
        call = self.found.calls.get(call_key, {})
        return Event(
            at, kind, text, call_key=call_key, capture=self._path(call.get("response_capture_id")),
            packet=call.get("response_packet"), connection_id=call.get("connection_id"),
            server_address=call.get("server_address"), key=key,
        )  # fmt: skip

    def _path(self, capture_id: str | None) -> str | None:
        return None if capture_id is None else self.found.paths.get(capture_id, capture_id)

    def _unseen(self, events: Sequence[Event]) -> Iterator[str]:
        """Yield what gold.coverage says was not seen at these servers, or nobody's in particular, in these hours."""
        times = [event.at for event in events if event.at is not None and event.clock == "capture"]
        servers = {event.server_address for event in events} | {None}
        totals: dict[tuple[str, str, str], int] = defaultdict(int)
        for row in self.found.coverage:
            what = row["layer"], row["measure"]
            if what not in MEANINGS or row["server_address"] not in servers or not row["value"] or not times:
                continue
            if row["hour"] is None or hour_of(min(times)) <= row["hour"] <= max(times):
                totals[row["server_address"] or "", *what] += row["value"]
        for (server, layer, measure), value in sorted(totals.items()):
            where = f"at {server}" if server else "in the captures"
            yield f"in these hours {where}: {value} {MEANINGS[layer, measure]} ({layer})"


_FACTS: Final = (
    "class_name", "body_bytes", "body_sha256", "priority", "delivery", "transactional", "correlation_id",
    "source_queue_manager", "destination_queue", "admin_queue", "response_queue", "time_to_reach_queue_s",
    "time_to_be_received_s", "abort_count", "move_count", "subqueue", "is_comqc", "comqc_rejected",
)  # fmt: skip
_FATE: Final = (
    "queue", "inferred_queue", "lookup_id", "attempts", "peeks", "outcomes", "readers", "fate", "redelivered",
    "loss_risk", "moved_to", "confidence",
)  # fmt: skip
# Of what happened in one moment: what comes before what.
_ORDER: Final = ("sent", "arrived", "name", "open", "asked", "seen", "COM+ call", "call", "ended")


def hour_of(at: datetime) -> datetime:
    """Return the beginning of a time's hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def _when(event: Event) -> tuple[bool, str, int, str]:
    order = _ORDER.index(event.kind) if event.kind in _ORDER else len(_ORDER)
    return event.at is None, "" if event.at is None else event.at.isoformat(timespec="microseconds"), order, event.text


def _first(story: Story) -> str:
    return _when(story.events[0])[1] if story.events else ""


def _numbered(row: Row) -> tuple[Place, int]:
    return place_of(row), -1 if row["lookup_id"] is None else int(row["lookup_id"])


def _place_text(place: Place) -> str:
    queue, server, handle = place
    return queue if queue is not None else f"unknown queue at {server or '?'} (handle {handle or '?'})"


def _at(call: Row) -> datetime | None:
    found: datetime | None = call["request_at"] or call["response_at"]
    return found


def _did(call: Row) -> str:
    """Return a call as its method and what came of it."""
    method = call["method"] or f"{call['interface_name'] or '?'} opnum {call['opnum']}"
    given = f" {call['ack_name']}" if call.get("ack_name") else ""
    if call["outcome"] == "fault":
        return f"{method}{given} -> fault 0x{call['fault_status'] or 0:08X}"
    if call["outcome"] != "ok" and call.get("hresult_name") is None:
        return f"{method}{given} -> {call['outcome']}"
    return f"{method}{given} -> {call.get('hresult_name') or 'answered'}"


def _bytes(row: Row) -> str:
    if row["body_bytes"] is None:
        return "size not known"
    seen = "" if row["body_complete"] else f", {row['body_bytes_seen'] or 0} of them seen"
    return f"body of {row['body_bytes']} bytes{seen}"


def _unread(sightings: Sequence[Row]) -> Iterator[str]:
    for row in sightings:
        for error in row["errors"] or ():
            yield f"its packet did not decode: {error['code']} at {error['field'] or '?'}"
            return
