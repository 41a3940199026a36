"""Finds the messages that are asked for, and reads the sighting of one that shows most of it."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import Table, quoted
from udfs.rows import RowMapping

MAX_LISTED: Final = 40

_KEY: Final = "coalesce(message_key, sighting_key)"
_PLACE: Final = "coalesce(queue, inferred_queue, destination_queue)"
_LISTED_SQL: Final = f"""
SELECT {_KEY} AS key, min(seen_at) AS first_seen, max(label) AS label, max(application_message_id) AS application_id,
  max({_PLACE}) AS queue, count(*) AS sightings, count(*) OVER () AS found
FROM {{rows}} WHERE {{where}} GROUP BY {_KEY} ORDER BY first_seen NULLS LAST, key LIMIT {MAX_LISTED}
"""
_BEST_SQL: Final = f"""
SELECT {", ".join(map(quoted, MESSAGES.names))} FROM {{rows}} WHERE ({{where}}) AND {_KEY} = {{key}}
ORDER BY body_complete DESC NULLS LAST, body_bytes_seen DESC NULLS LAST, seen_at NULLS LAST, sighting_key LIMIT 1
"""
# What shows a sighting: a packet of TCP 1801, or the response of a call.
_SHOWN_BY: Final = (
    ("packet_key", SESSION_PACKETS, "capture_id", "packet_number"),
    ("call_key", RPC_CALLS, "response_capture_id", "response_packet"),
)


class MessageRequest(NamedTuple):
    """Which messages are meant, by the one field that is given.

    ``key`` is a message_key, sighting_key or message_id of silver.messages, ``label`` a part of a label, whatever the
    case, ``application_id`` the application's own id.
    """

    key: str | None = None
    label: str | None = None
    application_id: str | None = None

    def condition(self) -> tuple[str, str]:
        """Return the condition on rows of silver.messages, in SQL, and the value of ``{asked}`` in it."""
        if self.key is not None:
            return "message_key = {asked} OR sighting_key = {asked} OR lower(message_id) = lower({asked})", self.key
        if self.label is not None:
            return "contains(lower(label), lower({asked}))", self.label
        return "lower(application_message_id) = lower({asked})", self.application_id or ""


class ListedMessage(NamedTuple):
    """A message of a list. ``key`` is its message_key; the sighting_key where its header was not captured whole."""

    first_seen: datetime | None
    label: str | None
    application_id: str | None
    queue: str | None
    sightings: int
    key: str


class Sighting(NamedTuple):
    """A row of silver.messages with all its columns, the capture and the packet in it that show it, where known."""

    row: RowMapping
    capture: str | None
    packet: int | None


def find_messages(lake: Lake, request: MessageRequest) -> tuple[list[ListedMessage], int]:
    """Return the messages that are meant, the earliest ``MAX_LISTED`` ones by time, and the number of all."""
    where, asked = request.condition()
    found = lake.query(_LISTED_SQL.replace("{where}", where), rows=MESSAGES, asked=asked).to_pylist()
    listed = [ListedMessage(*(row[name] for name in ListedMessage._fields)) for row in found]
    return listed, found[0]["found"] if found else 0


def read_sighting(lake: Lake, request: MessageRequest, key: str) -> Sighting:
    """Return that sighting of a listed message of which the most of the body was captured, of equal ones the first."""
    where, asked = request.condition()
    (row,) = lake.query(_BEST_SQL.replace("{where}", where), rows=MESSAGES, asked=asked, key=key).to_pylist()
    for column, table, capture, packet in _SHOWN_BY:
        if row[column] is not None:
            return Sighting(row, *_place(lake, row[column], column, table, capture, packet))
    return Sighting(row, None, None)


def _place(lake: Lake, key: str, column: str, table: Table, capture: str, packet: str) -> tuple[str | None, int | None]:
    sql = f"""SELECT files.path, rows.{packet} AS packet FROM {{rows}} AS rows
  LEFT JOIN {{files}} AS files ON files.capture_id = rows.{capture} WHERE rows.{column} = {{key}} LIMIT 1"""
    found = lake.query(sql, rows=table, files=CAPTURE_FILES, key=key).to_pylist()
    return (found[0]["path"], found[0]["packet"]) if found else (None, None)
