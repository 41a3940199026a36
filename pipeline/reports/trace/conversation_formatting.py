"""Prints a conversation as console text, and converts it to JSON values. Text from the wire is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pipeline.reports.trace.conversation import Conversation, ConversationMessage
from pipeline.reports.trace.formatting import hop_texts, queues_of, timeline_to_json, trace_option
from pipeline.silver.machines import UNNAMED, Machines
from pipeline.text import escape_unprintable, format_count

_MAX_LEVELS: Final = 20  # of indentation
_MAX_LINE_CHARS: Final = 2_000
_TIME: Final = "%Y-%m-%d %H:%M:%S.%f"
_TIME_WIDTH: Final = 27


def format_conversation(conversation: Conversation, machines: Machines = UNNAMED) -> Iterator[str]:
    """Yield a conversation as console lines: of each message when and what it is, and what became of it."""
    ids = ", ".join(map(escape_unprintable, conversation.ids)) or "without an id"
    failed = f", {conversation.failed} failed" if conversation.failed else ""
    yield f"conversation {ids}: {format_count(conversation.found, 'message')}{failed}"
    width = len(str(len(conversation.messages)))
    for message in conversation.messages:
        at = message.first_seen
        when = "time unknown" if at is None else at.strftime(_TIME)
        indent = "  " * min(message.cause.depth, _MAX_LEVELS)
        yield f"  {message.number:>{width}}  {when:<{_TIME_WIDTH}} {indent}{_title(message)}"
        for line in _details(message, machines):
            yield f"  {'':>{width}}  {'':<{_TIME_WIDTH}} {indent}  {escape_unprintable(line, _MAX_LINE_CHARS)}"


def conversation_to_json(message: ConversationMessage, machines: Machines = UNNAMED) -> dict[str, Any]:
    """Return a message of a conversation as JSON values: its timeline, and ``conversation``, where it is in it."""
    cause = message.cause
    return timeline_to_json(message.timeline, machines) | {
        "conversation": {
            "number": message.number,
            "depth": cause.depth,
            "caused_by": message.caused_by,
            "cause_not_captured": cause.not_captured,
            "cause_cut": cause.is_cut,
        }
    }


def _title(message: ConversationMessage) -> str:
    """Return what a message is, and what caused it, as text."""
    said, timeline = message.timeline.application, message.timeline
    types = [each.partition(",")[0] for each in said.get("sent_types") or ()]
    title = ", ".join([*types, *(f'"{label}"' for label in timeline.labels if not types)]) or said.get("body_root")
    parts = [escape_unprintable(title or "message")]
    parts += [f"({escape_unprintable(said['intent'])})"] if "intent" in said else []
    if message.caused_by is not None:
        parts.append(f"caused by {message.caused_by}")
    elif message.cause.is_cut:
        parts.append("caused by one that it caused: cut here")
    elif message.cause.not_captured is not None:
        parts.append(f"caused by {escape_unprintable(message.cause.not_captured)}, which was not captured")
    return " ".join(parts)


def _details(message: ConversationMessage, machines: Machines) -> Iterator[str]:
    """Yield who sent a message where, what became of it, and why it failed."""
    timeline = message.timeline
    said = timeline.application
    sender = timeline.sender.get("sender_address") or timeline.sender.get("source_queue_manager")
    names = [said.get("originating_endpoint"), sender and f"at {machines.text(sender)}"]
    queues = queues_of(timeline) or [timeline.header_fields.get("destination_queue", "?")]
    yield f"from {' '.join(filter(None, names)) or '?'} to {', '.join(queues)}"
    yield machines.in_text(timeline.verdict.text)
    yield from (f"hop {text}" for text in hop_texts(timeline, machines))
    if message.failed:
        retries = [f"{said[name]} {name.partition('_')[0]}" for name in ("immediate_retries", "delayed_retries")
                   if name in said]  # fmt: skip
        after = f", after {' and '.join(retries)} retries" if retries else ""
        where = f" in {said['failed_queue']}" if "failed_queue" in said else ""
        yield f"failed{where}: {said.get('exception_type') or 'of an exception that its headers do not name'}{after}"
    if option := trace_option(timeline):
        yield f"trace with {option}"
