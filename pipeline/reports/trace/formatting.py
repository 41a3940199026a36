"""Prints message timelines as console text, and converts them to JSON values. Text from the wire is escaped."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import PurePath
from typing import Any, Final

from pipeline.reports.trace.events import TimelineEvent
from pipeline.reports.trace.timeline import MessageTimeline
from pipeline.reports.trace.verdict import VERDICT_WORDS
from pipeline.silver.machines import UNNAMED, Machines
from pipeline.text import escape_unprintable, format_count, format_table
from udfs.times import FIRST_DATETIME

_MAX_LABEL_CHARS: Final = 250  # limit of a label ([MS-MQMQ] 2.3.1); damaged packets can show longer ones
_MAX_LINE_CHARS: Final = 2_000  # of a line that names several queues
_OPTION_HEADING: Final = "trace with"
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


def format_timeline(timeline: MessageTimeline, machines: Machines = UNNAMED) -> Iterator[str]:
    """Yield a timeline as console lines: the verdict, then one for each property, hop, fate, event and gap.

    Hops, and fates, that differ only in their queues are one line. ``machines`` have the names in place of addresses.
    """
    yield f"message   {escape_unprintable(timeline.message_id or 'identifier unknown')}"
    yield f"  verdict {escape_unprintable(machines.in_text(timeline.verdict.text), _MAX_LINE_CHARS)}"
    for label in timeline.labels:
        yield f'  label   "{escape_unprintable(label, _MAX_LABEL_CHARS)}"'
    if timeline.sender:
        yield f"  sender  {_format_sender(timeline.sender, machines)}"
    for line, fields in (("header", timeline.header_fields), ("app", timeline.application)):
        if facts := ", ".join(f"{name} {_format_value(value)}" for name, value in fields.items()):
            yield f"  {line:<7} {facts}"
    for location, number in timeline.locations:
        yield f"  queue   {escape_unprintable(location)}, lookup id {number}"
    yield from (f"  hop     {hop}" for hop in hop_texts(timeline, machines))
    for fate in _over_queues(timeline.fates, partial(_format_fate, machines), "queue", "inferred_queue"):
        yield f"  fate    {fate}"
    for event in timeline.events:
        yield _format_event(event, machines)
    for text in timeline.not_known:
        yield f"  not known: {escape_unprintable(machines.in_text(text))}"


def format_list(timelines: Sequence[MessageTimeline], machines: Machines = UNNAMED) -> list[str]:
    """Return a table of messages by time: label, sender, queues, verdict, and the option that traces each."""
    ordered = sorted(timelines, key=lambda each: (_first_seen(each) or FIRST_DATETIME, each.message_id or ""))
    rows = [_list_row(timeline, machines) for timeline in ordered]
    lines = format_table(("first seen", "label", "from", "queue", "verdict"), rows)
    width = max(map(len, lines))
    options = [_OPTION_HEADING, "-" * len(_OPTION_HEADING), *map(trace_option, ordered)]
    return [f"{line:<{width}}  {option}" for line, option in zip(lines, options, strict=True)]


def _first_seen(timeline: MessageTimeline) -> datetime | None:
    return min((event.at for event in timeline.events if event.at and event.clock == "capture"), default=None)


def queues_of(timeline: MessageTimeline) -> list[str]:
    """Return the queues that a message was sent to, or was in."""
    return sorted(
        {place for place, _ in timeline.locations}
        | {hop["destination_queue"] or "?" for hop in timeline.hops}
        | {fate["queue"] for fate in timeline.fates if fate["queue"] is not None}
    )


def _list_row(timeline: MessageTimeline, machines: Machines) -> tuple[object, ...]:
    sender = timeline.sender.get("sender_address") or timeline.sender.get("source_queue_manager")
    queues = queues_of(timeline)
    more = f" and {len(queues) - 1} more" if len(queues) > 1 else ""
    verdict = VERDICT_WORDS[timeline.verdict.code]
    if not timeline.verdict.complete:
        verdict += ", as far as captured"
    shown = None if sender is None else machines.text(sender)
    return _first_seen(timeline), ", ".join(timeline.labels), shown, f"{''.join(queues[:1])}{more}", verdict


def trace_option(timeline: MessageTimeline) -> str:
    """Return the options of ``msmq trace_message`` that trace a message alone."""
    if timeline.message_id is not None:
        return f"--id {shlex.quote(timeline.message_id)}"
    return " ".join(f"--queue {shlex.quote(queue)} --lookup-id {number}" for queue, number in timeline.locations[:1])


def timeline_to_json(timeline: MessageTimeline, machines: Machines = UNNAMED) -> dict[str, Any]:
    """Return a timeline as JSON values: times as ISO 8601 in UTC; each event with a Wireshark display filter.

    ``machines`` among them has the names of the addresses and GUIDs in it.
    """
    values: dict[str, Any] = _to_json_value(asdict(timeline))
    verdict = values.pop("verdict")
    values |= {"verdict": verdict["text"], "verdict_code": verdict["code"], "verdict_complete": verdict["complete"]}
    for event in values["events"]:
        event["wireshark"] = None if event["packet"] is None else f"frame.number == {event['packet']}"
    return values | {"machines": machines.shown_in(json.dumps(values))}


def _format_value(value: object) -> str:
    return escape_unprintable(str(value), _MAX_LABEL_CHARS)


def _format_sender(sender: dict[str, Any], machines: Machines) -> str:
    identity = sender.get("sender_id", "of unknown identity")
    parts = [f"{identity} ({sender['sender_name']})" if "sender_name" in sender else identity]
    for name, words in _SENDER_WORDS.items():
        parts += [f"{words} {machines.text(str(sender[name]))}"] if name in sender else []
    if (size := sender.get("sender_certificate_bytes")) is not None:
        parts.append(f"certificate of {size} bytes" if size else "no certificate")
    parts += [("" if sender[name] else "not ") + name for name in ("signed", "authenticated") if name in sender]
    return escape_unprintable(", ".join(parts))


def _over_queues(
    rows: Iterable[dict[str, Any]], line: Callable[[dict[str, Any], str], str], *columns: str
) -> Iterator[str]:
    """Yield the lines of rows: one for those that differ only in their queue, the first value of ``columns``."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault(line(row, ""), []).append(row)
    for group in alike.values():
        queues = dict.fromkeys(next((row[name] for name in columns if row[name]), "an unknown queue") for row in group)
        yield line(group[0], ", ".join(queues))


def _format_fate(machines: Machines, fate: dict[str, Any], queues: str) -> str:
    parts = [f"{fate['fate'] or 'unknown'} in {queues}"]
    parts += [f"risk: {fate['loss_risk']}"] if fate["loss_risk"] else []
    parts += [f"moved to {fate['moved_to']}"] if fate["moved_to"] else []
    parts += [f"received {format_count(fate['attempts'], 'time')} ({', '.join(fate['outcomes'] or ())})"]
    parts += [f"peeked {format_count(fate['peeks'], 'time')}"]
    parts += [f"by {', '.join(map(machines.text, fate['readers']))}"] if fate["readers"] else []
    return escape_unprintable(f"{', '.join(parts)}; {fate['confidence']}", _MAX_LINE_CHARS)


def hop_texts(timeline: MessageTimeline, machines: Machines = UNNAMED) -> Iterator[str]:
    """Yield what became of a message on each hop; those that differ only in their queues are one text."""
    return _over_queues(timeline.hops, partial(_format_hop, machines), "destination_queue")


def _format_hop(machines: Machines, hop: dict[str, Any], queues: str) -> str:
    ends = f"{hop['sender_address']} -> {hop['receiver_address']}"
    parts = [f"{machines.in_text(ends)} to {queues}: {hop['outcome']}"]
    parts += [f"also {machines.in_text(addresses)}" for addresses in hop["other_addresses"]]
    parts += ["refused: the queue does not accept its number in the sequence"] if hop["refused"] else []
    parts += [f"{name.partition('_')[0]} {hop[name]}" for name in _ACK_CLASSES if hop[name]]
    parts += (
        [f"sent {hop['sendings']} times in {format_count(hop['sessions'], 'session')}"] if hop["sendings"] > 1 else []
    )
    parts += [f"acknowledged {hop['acknowledged_sendings']} times"] if (hop["acknowledged_sendings"] or 0) > 1 else []
    return escape_unprintable(f"{', '.join(parts)}; {hop['confidence']}", _MAX_LINE_CHARS)


def _format_event(event: TimelineEvent, machines: Machines) -> str:
    when = "time unknown" if event.at is None else event.at.strftime("%Y-%m-%d %H:%M:%S.%f")
    text = f"{escape_unprintable(machines.in_text(event.text))}{_CLOCK_SUFFIXES[event.clock]}"
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
