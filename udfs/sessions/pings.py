"""Pings of the binary protocol ([MS-MQQB] 2.2.7): 24 octets of UDP from or to port 3527, and rows of ``bronze.pings``.

A row is an exchange: a request with its answer, or one of them. It holds all that was seen of both, so that rows and
further pings give rows again.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from schemas.sessions import PINGS
from schemas.table import RUN_COLUMNS
from udfs.columns.absent import NO_TIME
from udfs.keys import key
from udfs.rows import RowDict
from udfs.sessions import packet_layouts as layouts
from udfs.tcp.datagrams import UdpDatagram
from udfs.times import datetime_to_us, us_to_datetime

PING_PORT: Final = 3527
MAX_PINGS: Final = 1 << 18  # of one capture, some 3 KB of memory each; further ones are counted
_WITHIN_US: Final = 60_000_000
PINGS_SCHEMA: Final = PINGS.schema(without=RUN_COLUMNS)


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping datagram. ``time_us``: since the epoch, None if not known. Ends as in the table: the client asks.

    ``is_answer``: None where both ports are 3527, so that the pings before decide which of the two ends asks; then
    ``client_address`` is the sender's.
    """

    time_us: int | None
    capture_id: str
    packet_number: int
    client_address: str
    client_port: int
    server_address: str
    is_answer: bool | None
    cookie: int
    queue_manager: str
    refused: bool
    workstation: bool


def read_ping(datagram: UdpDatagram, capture_id: str) -> Ping | None:
    """Return the ping of a datagram; None if it is none."""
    data = datagram.payload
    if len(data) != layouts.PING.itemsize:
        return None
    flags, signature, cookie, queue_manager = np.frombuffer(data, layouts.PING)[0]
    if signature != layouts.PING_SIGNATURE:
        return None
    source, target = (str(ipaddress.ip_address(each)) for each in (datagram.source_address, datagram.target_address))
    from_server, to_server = datagram.source_port == PING_PORT, datagram.target_port == PING_PORT
    is_answer = None if from_server and to_server else from_server
    ends = (target, datagram.target_port, source) if is_answer else (source, datagram.source_port, target)
    return Ping(
        None if datagram.time_ns == NO_TIME else datagram.time_ns // 1000, capture_id, datagram.packet_number, *ends,
        is_answer, int(cookie), str(uuid.UUID(bytes_le=queue_manager.tobytes())),
        bool(flags & layouts.PING_FLAG_RF), bool(flags & layouts.PING_FLAG_RC),
    )  # fmt: skip


def ping_rows(pings: Iterable[Ping]) -> list[RowDict]:
    """Return the exchanges that pings of any captures show: rows of ``PINGS_SCHEMA``, in the order of time.

    The same datagram in two captures within 60 s is one. An answer belongs to the latest request of the same ends and
    cookie that is not answered and at most 60 s old.
    """
    waiting: dict[tuple[str, int, str, int], list[RowDict]] = defaultdict(list)
    rows: list[RowDict] = []
    ordered = sorted(pings, key=_order)
    several = len({ping.capture_id for ping in ordered}) > 1
    for ping in _distinct(ordered) if several else ordered:
        name = ping.client_address, ping.client_port, ping.server_address, ping.cookie
        asked = None
        if ping.is_answer is None:
            turned = ping.server_address, PING_PORT, ping.client_address, ping.cookie
            asked = _latest(waiting[turned], ping)
        elif ping.is_answer:
            asked = _latest(waiting[name], ping)
        if asked is not None:
            _add_answer(asked, ping)
        elif ping.is_answer:
            row = _new_row(ping)
            _add_answer(row, ping)
            rows.append(row)
        else:
            row = _new_row(ping)
            row |= {
                "requested_at": us_to_datetime(ping.time_us), "client_queue_manager": ping.queue_manager,
                "workstation": ping.workstation, "capture_id": ping.capture_id, "packet_number": ping.packet_number,
            }  # fmt: skip
            rows.append(row)
            waiting[name].append(row)
    found: dict[str, RowDict] = {}
    for row in map(_finish, rows):
        found.setdefault(row["ping_key"], row)
    return list(found.values())


def pings_of_rows(rows: Iterable[RowDict], without: Collection[str] = ()) -> Iterator[Ping]:
    """Yield the pings that rows were made of, except those of the captures ``without``."""
    for row in rows:
        ends = row["client_address"], row["client_port"], row["server_address"]
        asked_workstation = bool(row["workstation"])
        if row["capture_id"] is not None and row["capture_id"] not in without:
            is_answer = None if row["client_port"] == PING_PORT else False
            yield Ping(
                datetime_to_us(row["requested_at"]), row["capture_id"], row["packet_number"], *ends, is_answer,
                row["cookie"], row["client_queue_manager"], refused=False, workstation=asked_workstation,
            )  # fmt: skip
        if row["response_capture_id"] is not None and row["response_capture_id"] not in without:
            answer = Ping(
                datetime_to_us(row["responded_at"]), row["response_capture_id"], row["response_packet"], *ends,
                is_answer=True, cookie=row["cookie"], queue_manager=row["server_queue_manager"],
                refused=bool(row["refused"]), workstation=asked_workstation,
            )  # fmt: skip
            if row["client_port"] == PING_PORT:
                answer = replace(answer, client_address=ends[2], server_address=ends[0], is_answer=None)
            yield answer


def pings_batch(rows: Iterable[RowDict]) -> pa.RecordBatch:
    """Convert rows of ``ping_rows`` to a record batch."""
    return pa.RecordBatch.from_pylist(list(rows), PINGS_SCHEMA)


def _order(ping: Ping) -> tuple[bool, int, bool, str, int]:
    """Order by time; at equal times requests come first."""
    return ping.time_us is None, ping.time_us or 0, bool(ping.is_answer), ping.capture_id, ping.packet_number


def _distinct(pings: Iterable[Ping]) -> Iterator[Ping]:
    """Yield pings in their order, without copies that other captures have of them."""
    seen: dict[tuple[object, ...], list[tuple[Ping, set[str]]]] = defaultdict(list)
    for ping in pings:
        known = seen[
            ping.client_address, ping.client_port, ping.server_address, ping.is_answer, ping.cookie,
            ping.queue_manager, ping.refused,
        ]  # fmt: skip
        for first, captures in known:
            if ping.capture_id not in captures and _is_within(first.time_us, ping.time_us):
                captures.add(ping.capture_id)
                break
        else:
            known.append((ping, {ping.capture_id}))
            del known[:-64]  # what may still have a copy
            yield ping


def _latest(rows: list[RowDict], answer: Ping) -> RowDict | None:
    """Take the latest waiting request that an answer may belong to."""
    if rows and answer.time_us is not None and _is_within(datetime_to_us(rows[-1]["requested_at"]), answer.time_us):
        return rows.pop()
    return None


def _is_within(first: int | None, second: int | None) -> bool:
    return first is not None and second is not None and 0 <= second - first <= _WITHIN_US


def _new_row(ping: Ping) -> RowDict:
    return dict.fromkeys(PINGS_SCHEMA.names) | {
        "client_address": ping.client_address,
        "client_port": ping.client_port,
        "server_address": ping.server_address,
        "cookie": ping.cookie,
    }


def _add_answer(row: RowDict, ping: Ping) -> None:
    row |= {
        "responded_at": us_to_datetime(ping.time_us), "server_queue_manager": ping.queue_manager,
        "refused": ping.refused, "response_capture_id": ping.capture_id, "response_packet": ping.packet_number,
    }  # fmt: skip
    if row["workstation"] is None:
        row["workstation"] = ping.workstation


def _finish(row: RowDict) -> RowDict:
    asked, answered = row["requested_at"], row["responded_at"]
    first = asked if row["capture_id"] is not None else answered
    known = asked is not None and answered is not None
    return {
        **row,
        "round_trip_ms": (answered - asked) / dt.timedelta(milliseconds=1) if known else None,
        "event_date": next((time.date() for time in (asked, answered) if time is not None), None),
        "ping_key": key(
            row["client_address"], row["client_port"], row["server_address"], row["cookie"], datetime_to_us(first)
        ),
    }  # fmt: skip
