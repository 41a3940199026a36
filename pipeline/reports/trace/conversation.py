"""All messages of a conversation in order of time, and which of them caused which, as the application's headers say.

A message is what was sent once: a copy that goes to an error queue, or to another receiver, is a message of its own
with the same application's id. What caused a message is found by that id among all of the conversation, also where it
was captured later. A chain of causes that returns to where it began is cut at its earliest message.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput
from pipeline.reports.trace.inputs import read_timelines
from pipeline.reports.trace.timeline import MessageTimeline
from pipeline.silver.application_sql import IS_FAILED_SQL
from schemas.messages import MESSAGES
from udfs.rows import RowMapping
from udfs.times import us_to_datetime

_MAX_ROUNDS: Final = 50  # of queries, each one step of causes further: for messages that name no conversation
_MAX_COPIES: Final = 50  # of a message, among which the cause of another one is looked for
_ROWS_SQL: Final = """
SELECT message_key, unix_micros(min(seen_at)) AS first_us, max(message_id) AS message_id,
  max(application_message_id) AS application_id, max(conversation_id) AS conversation_id, max(related_to) AS related_to,
  max(originating_endpoint) AS endpoint, max(coalesce(queue, destination_queue)) AS queue,
  max(failed_queue) AS failed_queue, max(CASE WHEN __FAILED__ THEN 1 ELSE 0 END) AS failed
FROM {rows} WHERE message_key IN (SELECT message_key FROM {rows} WHERE __WHERE__) GROUP BY message_key
ORDER BY first_us NULLS LAST, message_key
""".replace("__FAILED__", IS_FAILED_SQL)
_OF_CONVERSATION: Final = "lower(conversation_id) = lower({asked})"
_OF_ID: Final = "lower(application_message_id) = lower({asked})"
_RELATED: Final = """conversation_id IN {conversations} OR (conversation_id IS NULL
  AND (application_message_id IN {ids} OR message_id IN {ids} OR related_to IN {ids}))"""
_IDS: Final = ("application_id", "message_id")


class MessageCause(NamedTuple):
    """What caused a message: its place in the conversation, None without one; and how many causes there are in a row.

    ``not_captured``: the id of a cause that no message of the conversation has. ``is_cut``: the message caused, through
    others, what it says caused it.
    """

    place: int | None
    depth: int
    not_captured: str | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """A message of a conversation; ``number`` is its place in order of time, from 1."""

    number: int
    first_seen: datetime | None
    cause: MessageCause
    failed: bool
    timeline: MessageTimeline

    @property
    def caused_by(self) -> int | None:
        """The number of the message that caused this one."""
        return None if self.cause.place is None else self.cause.place + 1


class Conversation(NamedTuple):
    """The earliest messages of a conversation, its ids, how many messages it has, and how many of these failed."""

    ids: list[str]
    messages: list[ConversationMessage]
    found: int
    failed: int


def trace_conversation(
    lake: Lake, *, conversation: str | None = None, application_id: str | None = None, most: int | None = None
) -> Conversation:
    """Return the conversation with an id, or of the message with an application's id, whatever the case.

    At most ``most`` messages, the earliest ones; what caused them is found among all. Where a message names no
    conversation, its causes and what it caused are followed.
    """
    rows = _read_rows(lake, conversation, application_id)
    shown = rows[:most]
    timelines = {each.message_key: each for each in read_timelines(lake, [row["message_key"] for row in shown])}
    messages = [
        ConversationMessage(number, _time(row["first_us"]), cause, bool(row["failed"]), timelines[row["message_key"]])
        for number, (row, cause) in enumerate(zip(shown, find_causes(rows), strict=False), 1)
    ]
    ids = sorted({row["conversation_id"] for row in rows} - {None})
    return Conversation(ids, messages, len(rows), sum(row["failed"] for row in rows))


def _read_rows(lake: Lake, conversation: str | None, application_id: str | None) -> Sequence[RowMapping]:
    """Return a row for each message, in order of time."""
    asked, start = (application_id, _OF_ID) if conversation is None else (conversation, _OF_CONVERSATION)
    rows = _ask(lake, start, asked=asked or "")
    known: tuple[set[str], set[str]] = (set(), set())
    for _ in range(_MAX_ROUNDS):
        conversations = {row["conversation_id"] for row in rows} - {None}
        ids = {row[name] for row in rows for name in (*_IDS, "related_to")} - {None}
        if (conversations, ids) == known:
            break
        known = conversations, ids
        rows = _ask(lake, f"{start} OR {_RELATED}", asked=asked or "", conversations=conversations, ids=ids)
    return rows


def _time(at_us: int | None) -> datetime | None:
    return None if at_us is None else us_to_datetime(at_us)


def _ask(lake: Lake, where: str, **of: QueryInput) -> Sequence[RowMapping]:
    found: list[RowMapping] = lake.query(_ROWS_SQL.replace("__WHERE__", where), rows=MESSAGES, **of).to_pylist()
    return found


def find_causes(rows: Sequence[RowMapping]) -> list[MessageCause]:
    """Return what caused each message of a conversation; rows are in order of time."""
    places = defaultdict[str, list[int]](list)
    for place, row in enumerate(rows):
        for text in _ids(row):
            places[text].append(place)
    rows = [{**row, "related_to": row["related_to"] or _related_by_copies(row, rows, places)} for row in rows]
    causes = [_cause(rows, place, places) for place in range(len(rows))]
    cut = _cut_cycles(causes)
    depths = _depths(causes)
    return [
        MessageCause(cause, depths[place], _not_captured(rows[place], places), place in cut)
        for place, cause in enumerate(causes)
    ]


def _cause(rows: Sequence[RowMapping], place: int, places: Mapping[str, list[int]]) -> int | None:
    """Return the place of what caused a message: of one that failed, a copy before it; else what it is related to.

    Of several copies it is one before the message, if possible one to the queue where it failed, or to its sender.
    """
    row = rows[place]
    copies = places.get((row["application_id"] or "").lower(), [])
    before = bisect_left(copies, place)
    if row["failed"] and before:
        candidates, queue = copies[max(before - _MAX_COPIES, 0) : before], _last_name(row["failed_queue"])
    else:
        related = (row["related_to"] or "").lower()
        if related in _ids(row):  # to itself
            return None
        others = places.get(related, [])
        before = bisect_left(others, place)
        candidates, queue = others[max(before - _MAX_COPIES, 0) : before + 1], _last_name(row["endpoint"])

    def rank(each: int) -> tuple[bool, bool, bool, int]:
        is_there = queue is not None and _last_name(rows[each]["queue"]) == queue
        return each < place, is_there, not rows[each]["failed"], each

    return max(candidates, key=rank, default=None)


def _ids(row: RowMapping) -> set[str]:
    return {row[name].lower() for name in _IDS if row[name]}


def _related_by_copies(row: RowMapping, rows: Sequence[RowMapping], places: Mapping[str, list[int]]) -> str | None:
    """Return what copies of a message are related to: its own headers may be cut in front of that."""
    copies = places.get((row["application_id"] or "").lower(), [])[:_MAX_COPIES]
    return next((rows[each]["related_to"] for each in copies if rows[each]["related_to"]), None)


def _not_captured(row: RowMapping, places: Mapping[str, list[int]]) -> str | None:
    related: str | None = row["related_to"]
    return related if related and related.lower() not in places else None


def _last_name(address: str | None) -> str | None:
    """Return the name of the queue in an address of any kind: a path, ``queue@machine``, a URI, a name."""
    return None if address is None else re.split(r"[\\/]", re.split(r"[@?;]", address)[0])[-1].lower()


def _cut_cycles(causes: list[int | None]) -> set[int]:
    """Make the earliest message of each circle of causes one without a cause; return these."""
    cut, done = set[int](), set[int]()
    for start in range(len(causes)):
        path = dict[int, None]()
        place: int | None = start
        while place is not None and place not in done and place not in path:
            path[place] = None
            place = causes[place]
        if place in path:
            first = min([*path][[*path].index(place) :])
            causes[first] = None
            cut.add(first)
        done.update(path)
    return cut


def _depths(causes: Sequence[int | None]) -> dict[int, int]:
    depths = dict[int, int]()
    for start in range(len(causes)):
        chain, place = list[int](), start
        while place not in depths:
            chain.append(place)
            if (cause := causes[place]) is None:
                depths[place] = 0
            else:
                place = cause
        for each in reversed(chain):
            if (cause := causes[each]) is not None:
                depths[each] = depths[cause] + 1
    return depths
