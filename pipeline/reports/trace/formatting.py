"""Prints message timelines as console text, and converts them to JSON values. Text from the wire is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

from pipeline.reports.trace.events import TimelineEvent
from pipeline.reports.trace.timeline import MessageTimeline
from pipeline.text import escape_unprintable, format_count

_MAX_LABEL_CHARS: Final = 250  # limit of a label ([MS-MQMQ] 2.3.1); damaged packets can show longer ones
_CLOCK_SUFFIXES: Final = {
    "capture": "",
    "sender": " (the sender's clock)",
    "queue manager": " (its queue manager's clock)",
}
_ACK_CLASSES: Final = ("final_class_name", "arrival_class_name", "receive_class_name")
_SENDER_WORDS: Final = {
    "source_queue_manager": "queue manager",
    "sender_address": "at",
    "connector_type": "through a connector of type",
}


def format_timeline(timeline: MessageTimeline) -> Iterator[str]:
    """Yield a timeline as console lines, one for each property, hop, fate, event and gap."""
    yield f"message   {escape_unprintable(timeline.message_id or 'identifier unknown')}"
    for label in timeline.labels:
        yield f'  label   "{escape_unprintable(label, _MAX_LABEL_CHARS)}"'
    if timeline.sender:
        yield f"  sender  {_format_sender(timeline.sender)}"
    facts = ", ".join(
        f"{name} {escape_unprintable(str(value), _MAX_LABEL_CHARS)}" for name, value in timeline.header_fields.items()
    )
    if facts:
        yield f"  header  {facts}"
    for location, number in timeline.locations:
        yield f"  queue   {escape_unprintable(location)}, lookup id {number}"
    for hop in timeline.hops:
        yield f"  hop     {_format_hop(hop)}"
    for fate in timeline.fates:
        yield f"  fate    {_format_fate(fate)}"
    for event in timeline.events:
        yield _format_event(event)
    for text in timeline.not_known:
        yield f"  not known: {escape_unprintable(text)}"


def timeline_to_json(timeline: MessageTimeline) -> dict[str, Any]:
    """Return a timeline as JSON values: times as ISO 8601 in UTC; each event with a Wireshark display filter."""
    values: dict[str, Any] = _to_json_value(asdict(timeline))
    for event in values["events"]:
        event["wireshark"] = None if event["packet"] is None else f"frame.number == {event['packet']}"
    return values


def _format_sender(sender: dict[str, Any]) -> str:
    identity = sender.get("sender_id", "of unknown identity")
    parts = [f"{identity} ({sender['sender_name']})" if "sender_name" in sender else identity]
    for name, words in _SENDER_WORDS.items():
        parts += [f"{words} {sender[name]}"] if name in sender else []
    if (size := sender.get("sender_certificate_bytes")) is not None:
        parts.append(f"certificate of {size} bytes" if size else "no certificate")
    parts += [("" if sender[name] else "not ") + name for name in ("signed", "authenticated") if name in sender]
    return escape_unprintable(", ".join(parts))


def _format_fate(fate: dict[str, Any]) -> str:
    parts = [fate["fate"] or "unknown"]
    parts += [f"risk: {fate['loss_risk']}"] if fate["loss_risk"] else []
    parts += [f"moved to {fate['moved_to']}"] if fate["moved_to"] else []
    parts += [f"received {fate['attempts']} times ({', '.join(fate['outcomes'] or ())}), peeked {fate['peeks']} times"]
    parts += [f"by {', '.join(fate['readers'])}"] if fate["readers"] else []
    return escape_unprintable(f"{', '.join(parts)}; {fate['confidence']}")


def _format_hop(hop: dict[str, Any]) -> str:
    parts = [
        f"{hop['sender_address']} -> {hop['receiver_address']} to {hop['destination_queue'] or '?'}: {hop['outcome']}"
    ]
    parts += [f"also {addresses}" for addresses in hop["other_addresses"]]
    parts += ["refused: the queue does not accept its number in the sequence"] if hop["refused"] else []
    parts += [f"{name.partition('_')[0]} {hop[name]}" for name in _ACK_CLASSES if hop[name]]
    parts += (
        [f"sent {hop['sendings']} times in {format_count(hop['sessions'], 'session')}"] if hop["sendings"] > 1 else []
    )
    parts += [f"acknowledged {hop['acknowledged_sendings']} times"] if (hop["acknowledged_sendings"] or 0) > 1 else []
    return escape_unprintable(f"{', '.join(parts)}; {hop['confidence']}")


def _format_event(event: TimelineEvent) -> str:
    when = "time unknown" if event.at is None else event.at.strftime("%Y-%m-%d %H:%M:%S.%f")
    text = f"{escape_unprintable(event.text)}{_CLOCK_SUFFIXES[event.clock]}"
    if event.other_candidates:
        text += f" [or another of {event.other_candidates + 1} messages with this lookup id]"
    return f"  {when:<27} {event.kind:<11} {text}{_format_packets(event)}"


def _format_packets(event: TimelineEvent) -> str:
    parts = []
    if event.packet is not None:
        parts.append(f"{_file_name(event.capture)} {event.packet}")
    if event.response_packet is not None:
        other_file = "" if event.response_capture == event.capture else f"{_file_name(event.response_capture)} "
        parts.append(f"response {other_file}{event.response_packet}")
    return f"  [{', '.join(parts)}]" if parts else ""


def _file_name(path: str | None) -> str:
    return "?" if path is None else escape_unprintable(PurePath(path).name)


def _to_json_value(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {name: _to_json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(each) for each in value]
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return int(value) if isinstance(value, Decimal) else value
