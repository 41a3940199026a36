"""Stories of messages as text for a terminal, and as plain values for JSON. Nothing of the wire is printed as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

from pipeline.reports.trace.timeline import Event, Story
from pipeline.text import shown

_LONGEST_LABEL: Final = 250  # characters that a label can have ([MS-MQMQ] 2.3.1); a damaged packet tells longer ones
_CLOCKS: Final = {"capture": "", "sender": " (the sender's clock)", "queue manager": " (its queue manager's clock)"}


def lines(story: Story) -> Iterator[str]:
    """Yield a story, one line per fact and event."""
    yield f"message   {shown(story.message_id or 'not known by its identifier')}"
    for label in story.labels:
        yield f'  label   "{shown(label, _LONGEST_LABEL)}"'
    facts = ", ".join(f"{name} {shown(str(value), _LONGEST_LABEL)}" for name, value in story.facts.items())
    if facts:
        yield f"  says    {facts}"
    for place, number in story.places:
        yield f"  where   {shown(place)}, lookup id {number}"
    for fate in story.fates:
        yield f"  fate    {_fate(fate)}"
    for event in story.events:
        yield _line(event)
    for text in story.not_known:
        yield f"  not known: {shown(text)}"


def plain(story: Story) -> dict[str, Any]:
    """Return a story as values of JSON: times ISO 8601 in UTC, numbers as numbers."""
    found: dict[str, Any] = _plain(asdict(story))
    for event, told in zip(found["events"], story.events, strict=True):
        event["wireshark"] = None if told.packet is None else f"frame.number == {told.packet}"
    return found


def _fate(fate: dict[str, Any]) -> str:
    told = [fate["fate"] or "unknown"]
    told += [f"risk: {fate['loss_risk']}"] if fate["loss_risk"] else []
    told += [f"moved to {fate['moved_to']}"] if fate["moved_to"] else []
    told += [f"received {fate['attempts']} times ({', '.join(fate['outcomes'] or ())}), peeked {fate['peeks']} times"]
    told += [f"by {', '.join(fate['readers'])}"] if fate["readers"] else []
    return shown(f"{', '.join(told)}; {fate['confidence']}")


def _line(event: Event) -> str:
    when = "at no known time" if event.at is None else _time(event.at)
    also = f" [or another of {event.also + 1} messages with this number]" if event.also else ""
    return f"  {when:<27} {event.kind:<9} {shown(event.text)}{_CLOCKS[event.clock]}{also}{_packets(event)}"


def _packets(event: Event) -> str:
    if event.packet is None and event.answer_packet is None:
        return ""
    told = ""
    if event.packet is not None:
        told = f"{_name(event.capture)} {event.packet}"
    if event.answer_packet is not None:
        where = "" if event.answer_capture == event.capture else f"{_name(event.answer_capture)} "
        told += f"{', ' if told else ''}answer {where}{event.answer_packet}"
    return f"  [{told}]"


def _name(path: str | None) -> str:
    return "?" if path is None else shown(PurePath(path).name)


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return int(value) if isinstance(value, Decimal) else value
