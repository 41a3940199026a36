"""What follows from an account: rows of messages and sequences, in the words of the tables of transfers.

Computed from what was sent, by whom and why. Acknowledgements count from the first sending on; those of the message's
own hop come before those of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from peer.transfers import layouts as p
from peer.transfers.clock import SECOND

if TYPE_CHECKING:
    from peer.transfers.account import Account, PacketEntry, SessionEntry

STALL_AFTER_NS = 30 * SECOND
FIRST_WINDOW = 64  # before a side has shown one


def message_kind(message: p.UserMessage) -> str:
    """`message_kind` of silver.messages."""
    if message.message_class == p.REPORT:
        return "report"
    if message.message_class in {p.ACK_REACH_QUEUE, p.ACK_RECEIVE} or message.message_class & p.NEGATIVE:
        return "administration_ack"
    return "application"


def message_lines(account: Account) -> Iterator[dict[str, Any]]:
    """Describe each message to each destination queue on each hop."""
    groups: dict[tuple[str, str, str, str], list[PacketEntry]] = defaultdict(list)
    queues: dict[str, set[str]] = defaultdict(set)
    for packet in account.packets:
        if packet.kind == "user_message":
            name = packet.message.message_id, str(packet.message.destination)
            groups[*name, packet.sender, packet.receiver].append(packet)
            queues[name[0]].add(name[1])
    for (name, *_), sendings in groups.items():
        yield _message_line(account, sendings, copies=len(queues[name]) > 1)


def _message_line(account: Account, sendings: list[PacketEntry], *, copies: bool) -> dict[str, Any]:
    first, end = sendings[0], account.ended_ns
    message, transaction = first.message, first.transaction
    order, final = _order_acks(account, first), _final_acks(account, first, copies=copies)
    answers = _administration_acks(account, first, copies=copies)
    arrival = [each for each in answers if not each.message.message_class & p.RECEIVE_STAGE]
    receive = [each for each in answers if each.message.message_class & p.RECEIVE_STAGE]
    acknowledged = [each.acknowledged_by.number for each in sendings if each.acknowledged_by is not None]
    stored = [each.stored_by.number for each in sendings if each.stored_by is not None]
    expires = None if message.time_to_reach == p.NEVER else (message.sent + message.time_to_reach) * SECOND
    line = {
        "record": "message",
        "message_id": message.message_id,
        "message_kind": message_kind(message),
        "class": message.message_class,
        "source_queue_manager": str(message.source),
        "destination_queue": str(message.destination),
        "destination_queue_manager": None if message.queue_manager == p.NOBODY else str(message.queue_manager),
        "sender_address": first.sender,
        "receiver_address": first.receiver,
        "hop_count": message.hops,
        "delivery": "recoverable" if message.recoverable else "express",
        "transactional": transaction is not None,
        "transaction_sequence_id": transaction[0] if transaction else None,
        "transaction_number": transaction[1] if transaction else None,
        "acknowledgement_requested": message.acknowledge,
        "journaling": message.journaling,
        "body_bytes": len(message.body),
        "sent_at": message.sent * SECOND,
        "expires_at": expires,
        "packet_bytes": len(first.data),
        "sendings": [each.number for each in sendings],
        "sessions": len({each.session.number for each in sendings}),
        "acknowledged_sendings": len(acknowledged),
        "session_acked_by": min(acknowledged, default=None),
        "stored_by": min(stored, default=None),
        "order_acked_by": order[0].number if order else None,
    }
    classes = []
    for name, acks in (("final", final), ("arrival", arrival), ("receive", receive)):
        line[f"{name}_acked_by"] = acks[0].number if acks else None
        line[f"{name}_class"] = acks[0].message.message_class if acks else None
        classes += [each.message.message_class for each in acks[:1]]
    line["reports"] = _reports(account, first)
    line["queued"] = (message.message_id, str(message.destination)) in account.queued
    if any(each & p.NEGATIVE for each in classes):
        outcome = "rejected"
    elif p.ACK_RECEIVE in classes:
        outcome = "received"
    elif order or p.ACK_REACH_QUEUE in classes:
        outcome = "delivered"
    elif acknowledged:
        outcome = "transferred"
    elif expires is not None and expires < end:
        outcome = "expired"
    elif any(each.session.ending(end) is None for each in sendings):
        outcome = "in_flight"
    else:
        outcome = "unacknowledged"
    return line | {"outcome": outcome}


def _same_hop_first(first: PacketEntry, acks: list[PacketEntry]) -> list[PacketEntry]:
    return [each for each in acks if (each.sender, each.receiver) == (first.receiver, first.sender)] or acks


def _order_acks(account: Account, first: PacketEntry) -> list[PacketEntry]:
    """Order acks of a transactional message: of its sequence, to its source, with its number or a later one."""
    message, transaction = first.message, first.transaction
    found = []
    for packet in account.packets[first.number :] if transaction else ():
        if packet.kind == "order_ack":
            ack, body = packet.message, p.OrderBody.decode(packet.message.body)
            to = ack.queue_manager if ack.queue_manager != p.NOBODY else packet.end_guid(receiver=True)
            mine = body.sequence == transaction[0] and body.number >= transaction[1]
            if mine and to in {message.source, None} and message.queue_manager in {ack.source, p.NOBODY}:
                found.append(packet)
    found = _same_hop_first(first, found)
    far = first.end_guid(receiver=True)
    if message.queue_manager != p.NOBODY or far is None or (found and found[0].sender == first.receiver):
        return found
    return [each for each in found if each.message.source == far]


def _final_acks(account: Account, first: PacketEntry, *, copies: bool) -> list[PacketEntry]:
    """Final acks that name a message, and of several copies the sequence of this one."""
    found = []
    for packet in account.packets[first.number :]:
        if packet.kind == "final_ack":
            body = p.OrderBody.decode(packet.message.body)
            named = (body.source, body.message) == (first.message.source, first.message.number)
            if named and (not copies or (first.transaction and body.sequence == first.transaction[0])):
                found.append(packet)
    return _same_hop_first(first, found)


def _administration_acks(account: Account, first: PacketEntry, *, copies: bool) -> list[PacketEntry]:
    return [
        packet
        for packet in account.packets[first.number :]
        if packet.kind == "user_message"
        and message_kind(packet.message) == "administration_ack"
        and packet.message.correlation == first.message.identity
        and (not copies or packet.message.response in {first.message.destination, None})
    ]


def _reports(account: Account, first: PacketEntry) -> list[dict[str, Any]]:
    """Reports on a message, each at its first sighting."""
    found: dict[str, dict[str, Any]] = {}
    for packet in account.packets[first.number :]:
        name = packet.message.message_id if packet.message else ""
        about, hops, next_hop = account.reports.get(name, (None, 0, None))
        if about == first.message.message_id:
            found.setdefault(name, {"packet": packet.number, "hop_count": hops, "next_hop": next_hop})
    return list(found.values())


def sequence_lines(account: Account) -> Iterator[dict[str, Any]]:
    """Describe each sequence of transactional messages on each hop."""
    groups: dict[tuple[str, str, int, str, str], list[PacketEntry]] = defaultdict(list)
    for packet in account.packets:
        if packet.kind == "user_message" and packet.transaction is not None:
            name = str(packet.message.source), str(packet.message.destination), packet.transaction[0]
            groups[*name, packet.sender, packet.receiver].append(packet)
    for (source, destination, identifier, sender, receiver), sendings in groups.items():
        acks = {each.number: each for sending in sendings for each in _order_acks(account, sending)}
        numbers = {each.transaction[1] for each in sendings}
        events = sorted([*sendings, *acks.values()], key=lambda each: each.number)
        stalls, highest = _stalls(events, account.ended_ns)
        waiting = sorted(each for each in numbers if each > highest)
        yield {
            "record": "sequence",
            "source_queue_manager": source,
            "destination_queue": destination,
            "transaction_sequence_id": identifier,
            "sender_address": sender,
            "receiver_address": receiver,
            "messages": len(numbers),
            "sendings": len(sendings),
            "resends": len(sendings) - len(numbers),
            "first_number": min(numbers),
            "last_number": max(numbers),
            "missing": [each for each in range(min(numbers), max(numbers)) if each not in numbers],
            "order_acks": sorted(acks),
            "acknowledged_number": highest or None,
            "waiting": len(waiting),
            "first_waiting_number": waiting[0] if waiting else None,
            "stalls": stalls,
        }


def _stalls(events: list[PacketEntry], end_ns: int) -> tuple[list[dict[str, Any]], int]:
    """Waits of 30 s and more for an order ack, and the highest number that was acknowledged."""
    sent: set[int] = set()
    highest, began, out = 0, None, []

    def wait_ends(at_ns: int, packet: PacketEntry | None) -> None:
        if began is not None and at_ns - began.sent_ns >= STALL_AFTER_NS:
            waiting = [each for each in sent if each > highest]
            ended = None if packet is None else packet.number
            out.append(
                {"began_by": began.number, "ended_by": ended, "first_number": min(waiting), "waiting": len(waiting)}
            )

    for event in events:
        if event.kind == "order_ack":
            number = p.OrderBody.decode(event.message.body).number
            if number > highest:
                wait_ends(event.sent_ns, event)
                highest = number
                began = event if any(each > highest for each in sent) else None
        else:
            sent.add(event.transaction[1])
            if began is None and event.transaction[1] > highest:
                began = event
    wait_ends(end_ns, None)
    return out, highest


def window_full_ms(session: SessionEntry, side: str, end_ns: int) -> float:
    """How long a side's packets without acknowledgement were as many as the smaller window, or more."""
    windows, waiting, full_ns, since = {"client": FIRST_WINDOW, "server": FIRST_WINDOW}, set(), 0, None
    end = session.closed_ns or (session.last_ns if session.ending(end_ns) == "silent" else end_ns)
    for packet in session.packets:
        if packet.header is not None:
            windows[packet.side] = packet.header.window
            waiting = {each for each in waiting if each.acknowledged_by is not packet}
        if packet.kind == "connection_parameters":
            windows[packet.side] = p.ConnectionParameters.decode(packet.data).window
        if packet.side == side and packet.session_number is not None:
            waiting.add(packet)
        full = len(waiting) >= min(windows.values())
        if full and since is None:
            since = packet.sent_ns
        if not full and since is not None:
            full_ns, since = full_ns + packet.sent_ns - since, None
    if since is not None:
        full_ns += end - since
    return full_ns / 1_000_000
