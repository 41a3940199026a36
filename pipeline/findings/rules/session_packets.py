"""Rules on packets of the binary protocol and their sessions: T01 to T20, T22, T24, T25, T27, T29. No Spark.

A check looks at all packets at once and returns those that break its rule. What a rule needs and was not seen is not
evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pipeline.findings.rules import message_packets
from pipeline.findings.rules.message_packets import MAX_HOP_COUNT
from pipeline.findings.rules.registry import CallCheck, packet_rule, session_rule
from pipeline.findings.rules.session_facts import PacketFacts, PacketViolation, SessionFacts
from pipeline.transfers.connection_packets import (
    CLIENT,
    CONNECTION_PARAMETERS,
    ESTABLISH_CONNECTION,
    FINAL_ACK,
    ORDER_ACK,
    SERVER,
    SESSION_ACK,
    window_sizes,
)
from pipeline.transfers.numbers.flow_control import latest_windows
from pipeline.transfers.numbers.packet_numbers import NO_NUMBER
from pipeline.transfers.numbers.session_acknowledgements import ack_steps
from pipeline.transfers.session_totals import said_windows
from udfs.array_types import Bools, Ints
from udfs.codes import MESSAGE_CLASS_NAMES
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE
from udfs.keys import key
from udfs.messages.header_layouts import BASE_FLAG_IN, BASE_FLAG_SH, INFINITE_TIMEOUT, USER_FLAG_SH, USER_FLAG_TH
from udfs.sessions import packet_layouts as layouts

_PACKET_SIZES: Final = (
    (CONNECTION_PARAMETERS, layouts.CONNECTION_PARAMETERS_BYTES, "MS-MQQB 2.2.2"),
    (ESTABLISH_CONNECTION, layouts.ESTABLISH_CONNECTION_BYTES, "MS-MQQB 2.2.3"),
    (SESSION_ACK, layouts.SESSION_ACK_BYTES, "MS-MQQB 2.2.6"),
)
_PRIORITY_BITS: Final = 7
_ADMIN_AND_RESPONSE_QUEUE: Final = 7 << 13 | 7 << 16  # AQ, RQ of UserHeader.Flags
_DELIVERY_BITS: Final = 3 << 5
_RECOVERABLE: Final = 1 << 5
_RECOVERABLE_TIMEOUT_MS: Final = (500, 120_000)
_ACK_TIMEOUT_MS: Final = (20_000, 120_000)
_DEFAULT_ACK_TIMEOUT_MS: Final = 20_000
_TIMEOUT_SLACK_US: Final = 10_000_000
_MODULUS: Final = 1 << 16
_HALF: Final = 1 << 15
_NEAR_PACKETS: Final = 64  # before and behind a run in time, that may end where it begins
EARLIEST_RESEND_US: Final = 25_000_000
_SEEN: Final = "the field was captured"


def _violations(rows: Bools | Ints, actual: str, *values: Ints) -> Iterator[PacketViolation]:
    """Yield a violation for each row, a mask or positions; ``actual`` is formatted with its values."""
    for row in (np.flatnonzero(rows) if rows.dtype == np.bool_ else rows).tolist():
        yield PacketViolation(row, actual.format(*(int(each[row]) for each in values)))


# Single packets


@packet_rule("T02", _SEEN)
def packet_type_unknown(facts: PacketFacts) -> Iterator[PacketViolation]:
    """An internal packet has a type other than 1, 2, 3."""
    kind = facts.fields["packet_type"]
    yield from _violations(facts.seen("packet_type") & ((kind < 1) | (kind > 3)), "PT {}", kind)


@packet_rule("T03", _SEEN)
def session_ack_refuses(facts: PacketFacts) -> Iterator[PacketViolation]:
    """A SessionAck has the flag that refuses a connection."""
    yield from _violations(facts.is_kind(SESSION_ACK) & (facts.fields["refused"] == 1), "CS is set")


@packet_rule("T04", _SEEN)
def internal_packet_expires(facts: PacketFacts) -> Iterator[PacketViolation]:
    """A packet that is no user message has a time to reach its queue."""
    ours = facts.is_kind(ORDER_ACK, FINAL_ACK) | (facts.fields["flags"] & BASE_FLAG_IN != 0)
    reach = facts.fields["time_to_reach_queue"]
    wrong = ours & facts.seen("time_to_reach_queue") & (reach != INFINITE_TIMEOUT)
    yield from _violations(wrong, "TimeToReachQueue {}", reach)


@packet_rule("T05", _SEEN)
def packet_size_invalid(facts: PacketFacts) -> Iterator[PacketViolation]:
    """An internal packet is not as large as its kind is."""
    size = facts.fields["packet_size"]
    for kind, right, source in _PACKET_SIZES:
        for violation in _violations(facts.is_kind(kind) & (size != right), "PacketSize {}", size):
            yield violation._replace(source=source)


@packet_rule("T06", _SEEN)
def release_invalid(facts: PacketFacts) -> Iterator[PacketViolation]:
    """RE of an EstablishConnection packet is not 0x10."""
    release = facts.fields["release"]
    yield from _violations(facts.seen("release") & (release != layouts.RELEASE), "RE 0x{:02X}", release)


@packet_rule("T11", _SEEN)
def time_outs_out_of_range(facts: PacketFacts) -> Iterator[PacketViolation]:
    """A time-out of ConnectionParameters is out of its range."""
    wrong = np.zeros(len(facts.found.packets), np.bool_)
    for name, (low, high) in (
        ("recoverable_ack_timeout_ms", _RECOVERABLE_TIMEOUT_MS),
        ("ack_timeout_ms", _ACK_TIMEOUT_MS),
    ):
        value = facts.fields[name]
        wrong |= facts.seen(name) & ((value < low) | (value > high))
    times = facts.fields["recoverable_ack_timeout_ms"], facts.fields["ack_timeout_ms"]
    yield from _violations(wrong, "RecoverableAckTimeout {}, AckTimeout {}", *times)


def _wrong_acknowledgements(facts: PacketFacts, kind: str) -> dict[str, Bools]:
    """Return which packets of a kind break what holds for order and final acks, by what it is."""
    ours, fields = facts.is_kind(kind), facts.fields
    user, user_seen = fields["user_flags"], facts.seen("user_flags")
    return {
        "BaseHeader.Flags": ours & (fields["flags"] & ~(_PRIORITY_BITS | BASE_FLAG_SH) != 0),
        "UserHeader.Flags": ours & user_seen & (user & (_ADMIN_AND_RESPONSE_QUEUE | USER_FLAG_TH | USER_FLAG_SH) != 0),
        "Properties.Flags": ours & (fields["requested"] > 0),
        "BodyType": ours & (fields["body_type"] > 0),
        "MessageSize": ours & facts.seen("body_bytes") & (fields["body_bytes"] != layouts.ACKNOWLEDGEMENT_BODY_BYTES),
    }


def _named(wrong: dict[str, Bools]) -> Iterator[PacketViolation]:
    """Yield a violation for each packet, with the names of all fields that are wrong in it."""
    for row in np.flatnonzero(np.logical_or.reduce([*wrong.values()])).tolist():
        yield PacketViolation(row, ", ".join(name for name, rows in wrong.items() if rows[row]))


@packet_rule("T19", _SEEN)
def order_ack_invalid(facts: PacketFacts) -> Iterator[PacketViolation]:
    """An order ack has what it must not have, or a previous number other than the one before."""
    number, previous = facts.fields["number"], facts.fields["previous"]
    seen = facts.is_kind(ORDER_ACK) & facts.seen("number") & facts.seen("previous")
    wrong = _wrong_acknowledgements(facts, ORDER_ACK)
    yield from _named(wrong | {"TxPreviousSequenceNumber": seen & (previous != number - 1)})


@packet_rule("T20", _SEEN)
def final_ack_invalid(facts: PacketFacts) -> Iterator[PacketViolation]:
    """A final ack has what no acknowledgement has, is not recoverable, or is of a class that is not defined."""
    ours, user = facts.is_kind(FINAL_ACK), facts.fields["user_flags"]
    wrong = _wrong_acknowledgements(facts, FINAL_ACK)
    wrong["DM"] = ours & facts.seen("user_flags") & (user & _DELIVERY_BITS != _RECOVERABLE)
    kinds = facts.fields["class"]
    wrong["MessageClass"] = ours & facts.seen("class") & ~np.isin(kinds, list(MESSAGE_CLASS_NAMES))
    yield from _named(wrong)


# User messages


def _of_messages(facts: PacketFacts, check: CallCheck) -> Iterator[PacketViolation]:
    """Yield the packets whose message breaks a rule that also holds for messages that reads return."""
    rows = [*facts.messages]
    for found in check(facts.message_columns):
        for place in np.flatnonzero(found.calls).tolist():
            row = rows[place]
            yield PacketViolation(row, found.text(found.actual, place, facts.messages[row]))


@packet_rule("T22", "the TransactionHeader was captured", messages="transactional")
def sent_transaction_number_invalid(facts: PacketFacts) -> Iterator[PacketViolation]:
    """The number in the sequence is 0, or the preceding number is not below it."""
    yield from _of_messages(facts, message_packets.transaction_number_invalid)


@packet_rule("T24", "BaseHeader and UserHeader were captured", messages="transactional")
def sent_transactional_message_with_priority(facts: PacketFacts) -> Iterator[PacketViolation]:
    """A message with a TransactionHeader has a priority other than 0."""
    yield from _of_messages(facts, message_packets.transactional_message_with_priority)


@packet_rule(
    "T25", "the UserHeader was captured", messages=f"transactional OR hop_count > {MAX_HOP_COUNT} OR size(errors) > 0"
)
def sent_user_header_flags_invalid(facts: PacketFacts) -> Iterator[PacketViolation]:
    """MP is 0, DQ or AQ is not allowed, a transactional message is not recoverable, or RC is above 0x1D."""
    yield from _of_messages(facts, message_packets.user_header_flags_invalid)


@packet_rule("T27", "the MessagePropertiesHeader was captured", messages="message_kind = 'administration_ack'")
def sent_acknowledgement_message_invalid(facts: PacketFacts) -> Iterator[PacketViolation]:
    """An administration ack has a time limit, asks for acknowledgements or journaling, or has a privacy level."""
    for row, message in facts.messages.items():
        if message["message_kind"] != "administration_ack":
            continue
        names = (
            "time_to_reach_queue_s", "time_to_be_received_s", "acknowledgement_requested", "journaling",
            "privacy_level",
        )  # fmt: skip
        wrong = [
            f"{name} {message[name]}"
            for name in names
            if (message[name] is not None if name.endswith("_s") else message[name])
        ]
        if wrong:
            yield PacketViolation(row, f"class 0x{message['class']:04X} with {', '.join(wrong)}")


# Sessions


@session_rule("T01", "the byte behind the packet was captured")
def no_packet_follows(session: SessionFacts) -> Iterator[PacketViolation]:
    """Where this packet ends no other one begins: version or signature is wrong there, or the size impossible."""
    connection, packets = session.connection, session.facts.found.packets
    ends = [connection[name] for name in ("client_address", "client_port", "server_address", "server_port")]
    ends += [] if connection["tunnel_identifier"] is None else [connection["tunnel_identifier"]]
    rows = np.concatenate([session.rows(side)[_ends_alone(session, side)] for side in (CLIENT, SERVER)])
    rows = rows[np.argsort(packets.sent_at[rows], kind="stable")]
    behind = (session.facts.fields["tcp_sequence"][rows] + packets.length[rows]) % (1 << 32)
    for quarantine_key, seen_at in session.not_packets:
        near = int(np.searchsorted(packets.sent_at[rows], seen_at, side="right"))
        for place in range(max(near - _NEAR_PACKETS, 0), min(near + _NEAR_PACKETS, len(rows))):
            if key(*ends, int(behind[place]), seen_at, "not_a_packet") == quarantine_key:
                yield PacketViolation(int(rows[place]), "no packet begins where this one ends")


def _ends_alone(session: SessionFacts, side: int) -> Bools:
    """Return which packets of a side are not followed by another one without a byte between."""
    packets, rows = session.facts.found.packets, session.rows(side)
    alone = np.ones(len(rows), np.bool_)
    alone[:-1] = packets.offset[rows[1:]] != (packets.offset[rows] + packets.length[rows])[:-1]
    return alone


@session_rule("T29", "both sendings were captured", messages="transactional")
def number_sent_again_early(session: SessionFacts) -> Iterator[PacketViolation]:
    """A number of a sequence is sent again on the same connection less than 25 s after its last sending."""
    sent_at, messages = session.facts.found.packets.sent_at, session.facts.messages
    shift = sent_at - session.facts.found.shown_at  # it differs between clocks, which give no duration
    for side in (CLIENT, SERVER):
        last: dict[Any, int] = {}
        for row in session.rows(side).tolist():
            message = messages.get(row)
            if message is None or message["transaction_number"] is None or sent_at[row] == NO_TIME:
                continue
            names = ("source_queue_manager", "destination_queue", "transaction_sequence_id", "transaction_number")
            number = tuple(message[name] for name in names)
            before = last.get(number)
            one_clock = before is not None and shift[row] == shift[before]
            if before is not None and one_clock and 0 <= sent_at[row] - sent_at[before] < EARLIEST_RESEND_US:
                after = (int(sent_at[row]) - int(sent_at[before])) / 1_000_000
                yield PacketViolation(row, f"number {number[-1]} again after {after:g} s", (before, row))
            last[number] = row


@session_rule("T07", "request and answer were captured")
def answer_does_not_repeat_request(session: SessionFacts) -> Iterator[PacketViolation]:
    """The answer's ClientGuid, TimeStamp or SE is not the request's."""
    request, answer = (session.first(side, ESTABLISH_CONNECTION) for side in (CLIENT, SERVER))
    if request is None or answer is None:
        return
    pairs: list[tuple[str, Any, Any]] = [
        ("ClientGuid", session.text("client_guid", request), session.text("client_guid", answer))
    ]
    pairs += [
        (name, session.value(field, request), session.value(field, answer))
        for name, field in (("TimeStamp", "uptime_ms"), ("SE", "pinged"))
    ]
    wrong = [name for name, asked, said in pairs if asked is not None and said is not None and asked != said]
    if wrong:
        yield PacketViolation(answer, f"other {', '.join(wrong)} than the request", (request, answer))


@session_rule("T08", "the answer was captured completely")
def answer_padding_invalid(session: SessionFacts) -> Iterator[PacketViolation]:
    """The padding of the answer is not all 0x5A."""
    answer = session.first(SERVER, ESTABLISH_CONNECTION)
    if answer is not None and session.value("padding_is_5a", answer) == 0:
        yield PacketViolation(answer, "the padding is not all 0x5A")


@session_rule("T09", "request and answer were captured")
def answer_of_another_queue_manager(session: SessionFacts) -> Iterator[PacketViolation]:
    """An answer that accepts has another ServerGuid than was asked for."""
    request, answer = (session.first(side, ESTABLISH_CONNECTION) for side in (CLIENT, SERVER))
    asked, said = session.text("server_guid", request), session.text("server_guid", answer)
    direct = session.session["by_direct_name"]
    if request is None or answer is None or direct is not False or session.value("refused", answer) != 0:
        return
    if asked is not None and said is not None and asked != said:
        yield PacketViolation(answer, f"ServerGuid {said}, asked for {asked}", (request, answer))


@session_rule("T10", "request and answer were captured")
def other_time_outs_answered(session: SessionFacts) -> Iterator[PacketViolation]:
    """ConnectionParameters are answered with other time-outs."""
    request, answer = (session.first(side, CONNECTION_PARAMETERS) for side in (CLIENT, SERVER))
    for name in ("recoverable_ack_timeout_ms", "ack_timeout_ms"):
        asked, said = session.value(name, request), session.value(name, answer)
        if request is not None and answer is not None and asked is not None and said is not None and asked != said:
            yield PacketViolation(answer, f"{name} {said}, asked for {asked}", (request, answer))
            return


@session_rule("T12", "the side was captured completely")
def handshake_out_of_order(session: SessionFacts) -> Iterator[PacketViolation]:
    """A side's first packet is not EstablishConnection, its second not ConnectionParameters, or one comes later."""
    for side in (CLIENT, SERVER):
        rows = session.rows(side) if session.whole[side] else np.zeros(0, np.int64)
        if not len(rows):
            continue
        ordinal_of = dict(zip(rows.tolist(), session.ordinals(side).tolist(), strict=True))
        row_of = {ordinal: row for row, ordinal in ordinal_of.items()}
        kinds = {kind: session.rows(side, kind).tolist() for kind in (ESTABLISH_CONNECTION, CONNECTION_PARAMETERS)}
        for ordinal, kind in enumerate((ESTABLISH_CONNECTION, CONNECTION_PARAMETERS), 1):
            row = row_of.get(ordinal)
            if row is not None and row not in kinds[kind]:
                yield PacketViolation(row, f"packet {ordinal} is not {kind}")
        for kind, found in kinds.items():
            yield from (
                PacketViolation(row, f"{kind} is packet {ordinal_of[row]}") for row in found if ordinal_of[row] > 2
            )


@session_rule("T13", "the refusal was captured")
def client_goes_on_after_refusal(session: SessionFacts) -> Iterator[PacketViolation]:
    """The client sends a packet later than the server's refusal."""
    found = session.facts.found.packets.sent_at
    handshakes = session.rows(SERVER, ESTABLISH_CONNECTION, CONNECTION_PARAMETERS)
    refusals = [int(row) for row in handshakes if session.value("refused", int(row)) == 1 and found[row] != NO_TIME]
    if refusals:
        first = min(refusals, key=lambda row: int(found[row]))
        for row in session.rows(CLIENT).tolist():
            if found[row] > found[first]:
                yield PacketViolation(row, "it was refused before", (first, row))


@session_rule("T14", "the side was captured completely")
def own_counts_wrong(session: SessionFacts) -> Iterator[PacketViolation]:
    """A SessionHeader's own counts are not what its side had sent."""
    packets = session.facts.found.packets
    for side in (CLIENT, SERVER):
        rows = session.rows(side) if session.whole[side] else np.zeros(0, np.int64)
        before = session.before(side)
        sent = before.counted + np.cumsum(packets.counted[rows])
        wrong = packets.user_sequence[rows] != sent % _MODULUS
        unknown = np.cumsum(packets.counted[rows] & (packets.recoverable[rows] == NONE)) > 0
        recoverable = before.recoverable_sent + np.cumsum(packets.counted[rows] & (packets.recoverable[rows] == 1))
        wrong |= ~unknown & (packets.recoverable_sequence[rows] != recoverable % _MODULUS)
        for place in np.flatnonzero(packets.has_header[rows] & wrong).tolist():
            row = int(rows[place])
            said = packets.user_sequence[row], packets.recoverable_sequence[row]
            yield PacketViolation(row, f"says {said[0]} and {said[1]} sent, not {sent[place]} and {recoverable[place]}")


@session_rule("T15", "the other side was captured completely, and the connection is closed")
def more_acknowledged_than_sent(session: SessionFacts) -> Iterator[PacketViolation]:
    """A SessionHeader acknowledges more than the other side sent in all."""
    packets = session.facts.found.packets
    for side in (CLIENT, SERVER):
        if session.connection["closed_at"] is None or not session.whole[1 - side]:
            continue
        total = session.sent(1 - side)
        carriers = session.rows(side)[packets.has_header[session.rows(side)]]
        kept = int(session.facts.found.kept[carriers].sum())
        carriers = carriers[max(kept - 1, 0) :]  # from the last one up to a checkpoint on
        steps = ack_steps(packets.ack[carriers])
        steps = np.where(steps < _HALF, steps, steps - _MODULUS)
        first = session.before(side).last_ack if kept else packets.ack[carriers[0]] if len(carriers) else 0
        acknowledged = first + np.cumsum(steps)
        for place in np.flatnonzero(acknowledged > total).tolist():
            row = int(carriers[place])
            yield PacketViolation(row, f"acknowledges {packets.ack[row]}, {total} were sent")


@session_rule("T16", "two SessionHeaders of the side were captured")
def acknowledgement_falls(session: SessionFacts) -> Iterator[PacketViolation]:
    """A SessionHeader acknowledges less than the one before of its side."""
    packets = session.facts.found.packets
    for side in (CLIENT, SERVER):
        carriers = session.rows(side)[packets.has_header[session.rows(side)]]
        for place in np.flatnonzero(ack_steps(packets.ack[carriers]) >= _HALF).tolist():
            before, row = int(carriers[place - 1]), int(carriers[place])
            yield PacketViolation(row, f"acknowledges {packets.ack[row]} after {packets.ack[before]}", (before, row))


@session_rule("T17", "both sides were captured completely")
def window_exceeded(session: SessionFacts) -> Iterator[PacketViolation]:
    """A side sends a packet although as many as the larger of both windows are unacknowledged."""
    found = session.facts.found
    for side in (CLIENT, SERVER):
        rows = session.rows(side)[found.packets.counted[session.rows(side)]]
        if not all(session.whole) or not len(rows):
            continue
        in_flight = np.array(session.before(side).in_flight, np.int64)
        sent, acked = found.packets.sent_at[rows], np.sort(np.append(in_flight, found.acknowledged_at[rows]))
        waiting = len(in_flight) + np.arange(len(rows)) - np.searchsorted(acked, sent, side="right")
        window = np.maximum(*(_windows_at(session, each, sent) for each in (CLIENT, SERVER)))
        for place in np.flatnonzero((waiting >= window) & (sent != NO_TIME)).tolist():
            yield PacketViolation(int(rows[place]), f"{waiting[place]} unacknowledged, window {window[place]}")


def _windows_at(session: SessionFacts, side: int, at: Ints) -> Ints:
    """Return the latest WindowSize that a side said, at each of some times."""
    found = session.facts.found
    times, values = latest_windows(*said_windows(found, session.place, side, window_sizes(found)))
    return values[np.searchsorted(times, at, side="right")]


def time_out_us(session: SessionFacts) -> int:
    """Return how long a packet may stay unacknowledged with nothing from the other side, microseconds (T18)."""
    timeout = (session.session["ack_timeout_ms"] or _DEFAULT_ACK_TIMEOUT_MS) * 1000
    if session.session["by_direct_name"] is not False:
        timeout *= 2
    return 2 * timeout + _TIMEOUT_SLACK_US


@session_rule("T18", "both sides were captured completely, and packets of the other side were captured")
def time_out_ignored(session: SessionFacts) -> Iterator[PacketViolation]:
    """A packet stays unacknowledged, the other side is silent, and the connection is not closed in time."""
    found, connection = session.facts.found, session.connection
    if found.clocks_differ(session.place):  # the end of the connection is of one of them
        return
    span = time_out_us(session)
    for side in (CLIENT, SERVER):
        others = found.packets.sent_at[session.rows(1 - side)]
        others = np.sort(others[others != NO_TIME])
        if not all(session.whole) or not len(others):
            continue
        rows = session.rows(side)[found.numbers.session[session.rows(side)] != NO_NUMBER]
        sent = found.packets.sent_at[rows]
        until = sent + span
        quiet = np.searchsorted(others, until, side="right") == np.searchsorted(others, sent, side="right")
        acked = found.acknowledged_at[rows]
        unacknowledged = (acked == AFTER_ALL) | (acked > until)
        closed = connection["closed_at"]
        going_on = until <= session.capture_end if closed is None else until < closed
        for row in rows[quiet & unacknowledged & going_on & (sent != NO_TIME)].tolist():
            yield PacketViolation(row, f"unacknowledged for {span // 1_000_000} s, the connection goes on")
