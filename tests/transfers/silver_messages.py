"""Messages on their way, as rows of silver, field by field; and what gold.message_transfers is of them, row by row.

The second half says the rules in words of its own: plain loops over rows, slow, for comparison with the real ones.
"""

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa

from schemas.bronze import CAPTURE_FILES
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from udfs.keys import key

S = 1_000_000
START = dt.datetime(2026, 3, 1, 9, 0, tzinfo=dt.UTC)
ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"
GUIDS = {address: f"{n}{n}{n}{n}0000-0000-0000-0000-000000000000" for n, address in enumerate((ONE, TWO, THREE), 1)}
TABLES = (MESSAGES, SENDINGS, ORDER_ACKS, SESSIONS, CAPTURE_FILES, FINDINGS)


def moment(at):
    """A time, from microseconds after ``START``."""
    return None if at is None else START + dt.timedelta(microseconds=at)


def micros(moment_):
    return None if moment_ is None else (moment_ - START) // dt.timedelta(microseconds=1)


@dataclass
class Silver:
    """Rows of silver by table; times are microseconds after ``START``. ``ends``: when captures of each server end.

    ``clones``: identifiers of queue managers that finding O07 names.
    """

    messages: list = field(default_factory=list)
    sendings: list = field(default_factory=list)
    acks: list = field(default_factory=list)
    sessions: list = field(default_factory=list)
    ends: dict = field(default_factory=dict)
    clones: set = field(default_factory=set)

    def session(
        self, name, client, server, at=0, *, ended=None, shown=(True, True), last=0, overlaps=None, holes=(),
        uncaptured=None,
    ):  # fmt: skip
        """Add a session; ``shown``: whether its handshake shows the queue managers of client and server.

        ``holes``: where a side may have sent more, (side, since, until, bytes); ``uncaptured``: a side not captured.
        """
        row = {
            "connection_id": name, "client_address": client, "server_address": server, "ended": ended,
            "initiator_queue_manager": GUIDS[client] if shown[0] else None,
            "acceptor_queue_manager": GUIDS[server] if shown[1] else None,
            "establish_requested_at": at, "establish_answered_at": at + 1, "last_packet_at": last,
            "overlapping_captures": overlaps, "uncaptured_side": uncaptured,
        }  # fmt: skip
        for side in ("client", "server"):
            row[f"{side}_holes"] = [
                {"since": moment(since), "until": moment(until), "size_bytes": size}
                for by, since, until, size in holes
                if by == side
            ] or None
        self.sessions.append(row)
        return row

    def message(self, at, **said):
        """Add a sighting of a message; by RPC with ``call_key``. Its ``source``, ``ordinal`` and ``sent`` name it."""
        source, ordinal, sent = said.pop("source", GUIDS[ONE]), said.pop("ordinal", 7), said.pop("sent", 0)
        seen_by = said.get("packet_key") or said["call_key"]
        row = {
            "sighting_key": key(seen_by), "seen_at": at, "source_queue_manager": source, "message_ordinal": ordinal,
            "message_id": f"{source}\\{ordinal}", "message_key": key(source, ordinal, sent), "sent_at": sent,
            "message_kind": "application", "class": 0, "destination_queue": r"srv\q", "errors": [],
            **said,
        }  # fmt: skip
        row["class_name"] = None if row["class"] is None else f"class {row['class']}"
        self.messages.append(row)
        return row

    def send(self, name, by, at, *, packet=None, number=1, acked=None, stored=None, **said):
        """Add a sending on a session by ``client`` or ``server``; ``acked`` and ``stored``: time and packet key."""
        session = next(each for each in self.sessions if each["connection_id"] == name)
        ends = ("client", "server") if by == "client" else ("server", "client")
        managers = {"client": "initiator", "server": "acceptor"}
        of_sending = ("capture_id", "transmit_ms", "length_bytes", "complete", "surely_acknowledged",
                      "acknowledgement_may_be_missing", "unnumbered_by_loss", "handshake_seen", "session_acked_in",
                      "stored_in")  # fmt: skip
        packet = packet or key(name, by, at, len(self.sendings))
        row = {
            "packet_key": packet, "connection_id": name, "server_address": session["server_address"], "sent_by": by,
            "sender_address": session[f"{ends[0]}_address"], "receiver_address": session[f"{ends[1]}_address"],
            "sender_queue_manager": session[f"{managers[ends[0]]}_queue_manager"],
            "receiver_queue_manager": session[f"{managers[ends[1]]}_queue_manager"],
            "sent_at": at, "length_bytes": 100, "complete": True, "session_number": number, "capture_id": "capture",
            "session_acked_at": acked and acked[0], "session_acked_by": acked and acked[1],
            "session_acked_in": acked and "capture", "stored_at": stored and stored[0],
            "stored_in": stored and "capture", "stored_by": stored and stored[1], "surely_acknowledged": False,
            "acknowledgement_may_be_missing": False,
            "unnumbered_by_loss": False, "handshake_seen": True, "transmit_ms": 0.5,
        }  # fmt: skip
        row |= {each: said.pop(each) for each in of_sending if each in said}
        self.sendings.append(row)
        return self.message(at, packet_key=packet, connection_id=name, **said)

    def ack(self, name, by, at, *, number=1, sequence=5, kind="order_ack", **said):
        """Add an order or final ack on a session."""
        session = next(each for each in self.sessions if each["connection_id"] == name)
        classes = {"order_ack": 0xFF, "final_ack": 0x4000}
        row = {
            "packet_key": key("ack", name, by, at, len(self.acks)), "connection_id": name, "sent_by": by, "sent_at": at,
            "client_address": session["client_address"], "server_address": session["server_address"], "kind": kind,
            "class": classes[kind], "queue_manager": GUIDS[TWO], "acknowledged_queue_manager": GUIDS[ONE],
            "transaction_sequence_id": sequence, "transaction_number": number, "capture_id": "capture",
            "acknowledged_message_id": None, **said,
        }  # fmt: skip
        row["class_name"] = f"class {row['class']}"
        self.acks.append(row)
        return row

    def tables(self):
        """The rows as Arrow tables."""
        files = [
            {"capture_id": server, "path": server, "servers": [server], "first_packet_at": 0, "last_packet_at": at}
            for server, at in self.ends.items()
        ]  # fmt: skip
        clones = [
            {"finding_key": name, "rule_id": "O07", "subject": f"queue manager {name}"} for name in sorted(self.clones)
        ]
        every = (self.messages, self.sendings, self.acks, self.sessions, files, clones)
        return {table: _table(table, rows) for table, rows in zip(TABLES, every, strict=True)}


def _table(table, rows):
    schema = table.schema()
    times = {each.name for each in schema if pa.types.is_timestamp(each.type)}
    found = []
    for row in rows:
        full = {name: row.get(name) for name in schema.names}
        full |= {name: moment(full[name]) for name in times if isinstance(full[name], int)}
        if full.get("transaction_sequence_id") is not None:
            full["transaction_sequence_id"] = Decimal(full["transaction_sequence_id"])
        dated = next((full[name] for name in table.event_date_columns if full[name] is not None), None)
        full |= {"run_id": "run", "event_date": dated and dated.date(), "errors": row.get("errors", [])}
        found.append({name: full.get(name) for name in schema.names})
    return pa.Table.from_pylist(found, schema)


# What the table is of this, row by row


def expected_rows(silver, *, wait, expire):
    """The rows of gold.message_transfers by key, without run_id; times and settings are microseconds."""
    said = {row["packet_key"]: row for row in silver.messages if row.get("packet_key")}
    groups = defaultdict(list)
    for sending in silver.sendings:
        message = said.get(sending["packet_key"])
        if message is not None and message["message_key"] is not None:
            name = message["message_key"], message["destination_queue"]
            hop = sending["sender_address"], sending["receiver_address"]
            groups[*name, *hop].append((sending, message))
    rows = {}
    for name, found in groups.items():
        found.sort(key=lambda each: (each[0]["sent_at"], each[0]["packet_key"]))
        first = found[0][0]["sent_at"]
        rows[name] = [each for each in found if each[0]["sent_at"] <= first + wait]
    own = {name: _row(silver, name, rows, wait, expire) for name in rows}
    taken = {name: _acknowledged_on(name, own) for name in own}
    found = {name: _row(silver, name, rows, wait, expire, own.get(taken[name])) for name in rows}
    for name, row in found.items():
        other = taken[name]
        on_hop = [own[each] for each in own if each[:2] == name[:2] and own[each]["hop_key"] == row["hop_key"]]
        rests_on = [own[other]] if other else on_hop if row["outcome"] in _NOT_ACKNOWLEDGED else []
        losses = {code for each in rests_on for code in each["missing"]} & {"capture_loss", "one_direction"}
        losses |= {"capture_begins"} if other is None and _may_take(name, own) else set()
        row["missing"] = sorted({*row["missing"], *losses})
        row["confidence"] = "partial" if row["missing"] else "complete"
        row["acknowledged_on"] = key(*other) if other else None
        best = min(
            (each for each in own if each[:2] == name[:2] and own[each]["hop_key"] == row["hop_key"]),
            key=lambda each: (
                max(OUTCOMES.index(found[each]["outcome"]), 3), taken[each] is not None,
                own[each]["session_acked_at"] or own[each]["last_sent_at"], each,
            ),
        )  # fmt: skip
        row["counts_on_hop"] = name == best
    for row in found.values():
        for each in ("surely", "cloned", "session_ack_event", "store_event"):
            row.pop(each, None)
    return {key(*name): row for name, row in found.items()}


def _acknowledged_on(name, own):
    """The row of the same message, queue and hop whose acknowledgement a row takes."""
    if _is_acknowledged(own[name]):
        return None
    others = [
        other for other in own
        if other[:2] == name[:2] and own[other]["hop_key"] == own[name]["hop_key"] and other != name
        and own[other]["outcome"] not in _NOT_ACKNOWLEDGED
        and (own[name]["outcome"] in _NOT_ACKNOWLEDGED or _is_acknowledged(own[other]))
    ]  # fmt: skip
    return min(others, default=None, key=lambda other: (
        not _is_acknowledged(own[other]), OUTCOMES.index(own[other]["outcome"]), own[other]["first_sent_at"], other[2:]
    ))  # fmt: skip


def _is_acknowledged(row):
    return row["surely"] or row["session_acked_at"] is not None


def _may_take(name, own):
    """Whether an acknowledged row of the message may be of the same hop, for all that handshakes show."""
    row = own[name]
    return row["outcome"] in _NOT_ACKNOWLEDGED and any(
        other[:2] == name[:2]
        and other != name
        and _may_be_one(row, own[other])
        and (own[other]["outcome"] not in _NOT_ACKNOWLEDGED or "capture_loss" in own[other]["missing"])
        for other in own
    )


def _may_be_one(row, other):
    ends = [(row[f"{end}_queue_manager"], other[f"{end}_queue_manager"]) for end in ("sender", "receiver")]
    cloned = row["cloned"] or other["cloned"]
    return not cloned and any(None in each for each in ends) and all(None in each or len({*each}) == 1 for each in ends)


def _row(silver, name, rows, wait, expire, other=None):
    """A row; ``other``: the one whose acknowledgement it takes."""
    message_key, queue, sender, receiver = name
    sendings, messages = ([each[place] for each in rows[name]] for place in (0, 1))
    first, since = sendings[0], sendings[0]["sent_at"]

    def of_message(column):
        return next((each[column] for each in messages if each.get(column) is not None), None)

    row = {column: of_message(column) for column in (
        "message_id", "message_kind", "class", "class_name", "source_queue_manager", "destination_queue_manager",
        "delivery", "transactional", "body_bytes", "acknowledgement_requested", "journaling", "hop_count",
        "transaction_number", "transaction_sequence_id", "sent_at", "final_acknowledgement_requested", "admin_queue",
        "application_message_id", "conversation_id", "sent_types",
    )}  # fmt: skip
    row |= {
        "transfer_key": key(*name), "message_key": message_key, "destination_queue": queue, "sender_address": sender,
        "receiver_address": receiver,
    }  # fmt: skip
    for end, address in (("sender", sender), ("receiver", receiver)):
        own = first[f"{end}_queue_manager"]
        row[f"{end}_queue_manager"] = own or _shown(silver, address, since, expire)
    ends = row["sender_queue_manager"], row["receiver_queue_manager"]
    row["cloned"] = bool({*ends} & silver.clones)
    row["hop_key"] = key(*name[2:]) if None in ends or row["cloned"] else key(*ends)
    sequence = row["transaction_sequence_id"]
    row["sequence_key"] = None if sequence is None else key(row["source_queue_manager"], queue, sequence, *name[2:])
    reach = of_message("time_to_reach_queue_s")
    row["expires_at"] = None if reach is None or row["sent_at"] is None else row["sent_at"] + reach * S
    acked = sorted((each["session_acked_at"], at) for at, each in enumerate(sendings) if each["session_acked_at"])
    stored = sorted((each["stored_at"], at) for at, each in enumerate(sendings) if each["stored_at"])
    row |= {
        "packet_bytes": first["length_bytes"], "resent_bytes": sum(each["length_bytes"] for each in sendings[1:]),
        "transmit_ms": first["transmit_ms"], "sendings": len(sendings),
        "sessions": len({each["connection_id"] for each in sendings}), "first_sent_at": since,
        "last_sent_at": sendings[-1]["sent_at"], "acknowledged_sendings": len(acked),
    }  # fmt: skip
    began_anew = min((at for at in _firsts(rows, name, row["message_id"]) if at > since), default=None)
    queues = {other[1] for other in rows if other[0] == message_key} - {None}
    copies = len(queues) > 1 or any(len(each.get("destination_list") or ()) > 1 for each in messages)

    def counts(at, *, anew=True):
        return since <= at <= since + wait and not (anew and began_anew is not None and at >= began_anew)

    def side_by_side(event, capture):
        pair = sorted((first["capture_id"], capture or ""))
        sessions = [each for each in silver.sessions if each["connection_id"] in (first["connection_id"], event)]
        known = [(p["one"], p["other"]) for each in sessions for p in each["overlapping_captures"] or ()]
        return tuple(pair) in known

    events = {}
    for stage, found, by in (("session_ack", acked, "session_acked"), ("store", stored, "stored")):
        if found:
            at, place = found[0]
            its = sendings[place]
            events[stage] = at, its[f"{by}_by"], its["connection_id"], its[f"{by}_in"]
        elif other is not None and f"{stage}_event" in other and other[f"{stage}_event"][0] >= since:
            events[stage] = other[f"{stage}_event"]
        if found:
            row[f"{stage}_event"] = events[stage]
    order, elsewhere = _order_ack(silver, row, name, counts)
    row["order_acked_elsewhere"] = None if order is None else elsewhere
    final = _final_ack(silver, row, name, counts, copies=copies)
    for stage, ack in (("order_ack", order), ("final_ack", final)):
        if ack is not None:
            events[stage] = ack["sent_at"], ack["packet_key"], ack["connection_id"], ack["capture_id"]
    packets = {each["packet_key"]: each for each in silver.sendings}
    classes = {"final": final and final["class"]}
    for stage, bit in (("arrival", 0), ("receive", 0x4000)):
        acks = [
            each for each in silver.messages
            if each["message_kind"] == "administration_ack" and each.get("correlation_id") == row["message_id"]
            and each["class"] & 0x4000 == bit and counts(each["seen_at"])
            and (not copies or each.get("response_queue") in {queue, None})
        ]  # fmt: skip
        ack = min(acks, key=_when, default=None)
        classes[stage] = ack and ack["class"]
        if ack is not None:
            seen_by = ack.get("packet_key") or ack["call_key"]
            capture = packets[seen_by]["capture_id"] if seen_by in packets else None
            events[f"{stage}_ack"] = ack["seen_at"], seen_by, ack.get("connection_id"), capture
    names = {
        "session_ack": "session_acked_at", "store": "stored_at", "order_ack": "order_acked_at",
        "final_ack": "final_acked_at", "arrival_ack": "arrival_acked_at", "receive_ack": "receive_acked_at",
    }  # fmt: skip
    for stage, column in names.items():
        at, _, connection, capture = events.get(stage, (None,) * 4)
        row[column] = at
        known = at is not None and at >= since and not side_by_side(connection, capture)
        row[f"{stage}_ms"] = (at - since) / 1000 if known else None
    for stage, kind in classes.items():
        row |= {f"{stage}_class": kind, f"{stage}_class_name": None if kind is None else f"class {kind}"}
    negative = [kind for kind in classes.values() if kind is not None and kind & 0x8000]
    row["dead_letter_class"] = negative[0] if negative and (row["journaling"] or 0) & 1 else None
    reports = _reports(silver, row, of_message("message_ordinal"), counts)
    row["reports"] = [
        {"at": each["seen_at"], "queue_manager": each["source_queue_manager"], "hop_count": each["report"]["hop_count"],
         "next_hop": each["report"]["next_hop"]}
        for each in reports
    ] or None  # fmt: skip
    sessions = {each["connection_id"]: each for each in silver.sessions}
    ends = [
        silver.ends.get(each["server_address"], sessions[each["connection_id"]]["last_packet_at"]) for each in sendings
    ]
    lost = any(each["acknowledgement_may_be_missing"] for each in sendings)
    if negative:
        outcome = "rejected"
    elif 0x4000 in (classes["final"], classes["receive"]):
        outcome = "received"
    elif order is not None or classes["arrival"] == 2:
        outcome = "delivered"
    elif acked or any(each["surely_acknowledged"] for each in sendings):
        outcome = "transferred"
    elif lost or any(each["session_number"] is None for each in sendings):
        outcome = "unknown"
    elif row["expires_at"] is not None and row["expires_at"] < max(ends):
        outcome = "expired"
    elif any(sessions[each["connection_id"]]["ended"] is None for each in sendings):
        outcome = "in_flight"
    else:
        outcome = "unacknowledged"
    row["surely"] = any(each["surely_acknowledged"] for each in sendings)
    if other is not None:
        outcome = min(outcome, other["outcome"], key=OUTCOMES.index)
    missing = set()
    missing |= {"capture_begins"} if any(not each["handshake_seen"] for each in sendings) else set()
    lost = lost or any(each["unnumbered_by_loss"] for each in sendings)
    if _may_be_otherwise(silver, row, outcome, sendings, wait) or (lost and outcome in _NOT_ACKNOWLEDGED):
        missing.add("capture_loss")
        if _may_be_otherwise(silver, row, outcome, sendings, wait, unseen=True):
            missing.add("one_direction")
    for name in ("final_acknowledgement_requested", "admin_queue"):
        row.pop(name)
    missing |= {"damaged"} if any(not each["complete"] for each in sendings) else set()
    whole = [m for s, m in zip(sendings, messages, strict=True) if s["complete"]]
    missing |= {"decode_error"} if any(each["errors"] for each in whole) else set()
    is_open = outcome in ("expired", "in_flight", "unacknowledged")
    if row["expires_at"] is not None and is_open and _clock_differs(silver, row["source_queue_manager"], since):
        missing.add("clocks_differ")
    missing |= {"capture_ends"} if outcome == "in_flight" else set()
    evidence = {each["packet_key"] for each in sendings} | {event[1] for event in events.values()}
    evidence |= {each.get("packet_key") or each["call_key"] for each in reports}
    return row | {
        "outcome": outcome, "missing": sorted(missing), "confidence": "partial" if missing else "complete",
        "evidence": sorted(evidence), "errors": [], "event_date": moment(since).date(),
    }  # fmt: skip


OUTCOMES = ["rejected", "received", "delivered", "transferred", "unknown", "expired", "in_flight", "unacknowledged"]
_MANAGERS = {"client": "initiator", "server": "acceptor"}
_NOT_ACKNOWLEDGED = {"unknown", "expired", "in_flight", "unacknowledged"}


def _clock_differs(silver, source, since):
    """Whether messages of a queue manager show on a day that its clock is ahead by 5 s, or all are 30 days late."""
    took = [
        each["seen_at"] - each["sent_at"] for each in silver.messages
        if each.get("packet_key") and each["source_queue_manager"] == source and each["sent_at"] is not None
        and moment(each["seen_at"]).date() == moment(since).date()
    ]  # fmt: skip
    return bool(took) and (min(took) <= -5 * S or min(took) >= 30 * 86_400 * S)


def _may_be_otherwise(silver, row, outcome, sendings, wait, *, unseen=False):
    """Whether a packet that was not captured may change the outcome; ``unseen``: of a side that was not captured."""
    since, sender, receiver = row["first_sent_at"], row["sender_address"], row["receiver_address"]

    def lost(ends, size, until, managers=None):
        size = 1 << size.bit_length() - 1  # a power of two that is not above it
        for session in silver.sessions:
            for side, hop in (("client", ("client", "server")), ("server", ("server", "client"))):
                shown = tuple(session[f"{_MANAGERS[end]}_queue_manager"] for end in hop)
                if ends not in (None, tuple(session[f"{end}_address"] for end in hop)) and managers != shown:
                    continue
                if unseen and session["uncaptured_side"] != side:
                    continue
                for hole in session[f"{side}_holes"] or ():
                    begins, finishes = micros(hole["since"]), micros(hole["until"])
                    if hole["size_bytes"] >= size and finishes >= since and begins <= until:
                        return True
        return False

    asked, in_sequence = row["acknowledgement_requested"] or 0, row["transaction_sequence_id"] is not None
    back, ack_bytes = (receiver, sender), 100 if asked else 150
    arrives = row["destination_queue_manager"] in (None, row["receiver_queue_manager"])
    at_source = (row["admin_queue"] or "").split("\\")[0] == row["source_queue_manager"]
    managers = None if row["cloned"] else (row["sender_queue_manager"], row["receiver_queue_manager"])
    if managers is not None and None in managers:
        managers = None
    managers_back = managers and managers[::-1]
    if not arrives or row["hop_count"] or (asked and not at_source):
        back = None  # acknowledgements come from anywhere, or go there
    if outcome in {"rejected", "received"}:
        return False
    if outcome == "delivered":
        final = row["final_acknowledgement_requested"] is not False or bool(row["journaling"])
        arrived = [at for at in (row["order_acked_at"], row["arrival_acked_at"]) if at is not None]
        arrived = min(arrived, default=since + wait)
        if (asked or in_sequence) and lost(back, ack_bytes, arrived, managers_back):
            return True
        return bool((asked & 10) or (in_sequence and final)) and lost(back, ack_bytes, since + wait, managers_back)
    if (asked or in_sequence) and lost(back, ack_bytes, since + wait, managers_back):
        return True
    again = min(each["length_bytes"] for each in sendings) - 16
    return outcome in _NOT_ACKNOWLEDGED and lost((sender, receiver), again, since + wait, managers)


def _firsts(rows, name, message_id):
    """When other messages with this message_id were first sent on this hop."""
    first = {}
    for other, found in rows.items():
        if other[0] != name[0] and other[2:] == name[2:] and found[0][1]["message_id"] == message_id:
            at = found[0][0]["sent_at"]
            first[other[0]] = min(at, first.get(other[0], at))
    return first.values()


def _when(row):
    return row.get("seen_at", row.get("sent_at")), row.get("packet_key") or row["call_key"]


def _shown(silver, address, at, expire):
    shown = set()
    for each in silver.sessions:
        ends = (
            ("client_address", "initiator_queue_manager", "establish_requested_at"),
            ("server_address", "acceptor_queue_manager", "establish_answered_at"),
        )
        for of, manager, when in ends:
            if each[of] == address and each[manager] is not None and abs(each[when] - at) <= expire:
                shown.add(each[manager])
    return shown.pop() if len(shown) == 1 else None


def _hop(ack):
    ends = ack["client_address"], ack["server_address"]
    return ends if ack["sent_by"] == "client" else ends[::-1]


def _order_ack(silver, row, name, counts):
    """The first order ack of a row, and whether it is of another hop."""
    if row["transaction_sequence_id"] is None or row["transaction_number"] is None:
        return None, False
    mine = [
        each for each in silver.acks
        if each["kind"] == "order_ack" and each["transaction_sequence_id"] == row["transaction_sequence_id"]
        and (each["transaction_number"] or 0) >= row["transaction_number"] and counts(each["sent_at"], anew=False)
        and each["acknowledged_queue_manager"] in {row["source_queue_manager"], None}
    ]  # fmt: skip
    destination, far = row["destination_queue_manager"], row["receiver_queue_manager"]
    same = [each for each in mine if _hop(each) == (name[3], name[2]) and each["queue_manager"] == (
        destination or each["queue_manager"])]  # fmt: skip
    if same:
        return min(same, key=_when), False
    wanted = destination or far
    return min((each for each in mine if wanted in {None, each["queue_manager"]}), key=_when, default=None), True


def _final_ack(silver, row, name, counts, *, copies):
    mine = [
        each for each in silver.acks
        if each["kind"] == "final_ack" and each["acknowledged_message_id"] == row["message_id"]
        and counts(each["sent_at"])
        and (not copies or (row["transaction_sequence_id"] is not None
                            and each["transaction_sequence_id"] == row["transaction_sequence_id"]))
    ]  # fmt: skip
    same = [each for each in mine if _hop(each) == (name[3], name[2])]
    return min(same or mine, key=_when, default=None)


def _reports(silver, row, ordinal, counts):
    """The reports on a message, each at its first sighting."""
    first = {}
    for each in sorted((each for each in silver.messages if each.get("report")), key=_when):
        first.setdefault(each["message_key"], each)
    return [
        each for each in first.values()
        if each["report"]["source_prefix"] == row["source_queue_manager"][:4]
        and each["report"]["message_ordinal"] == ordinal and counts(each["seen_at"])
    ]  # fmt: skip
