"""Events of message timelines: what happened when, and the call or packet of TCP 1801 that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from udfs.rows import RowMapping

ClockOwner = Literal["capture", "sender", "queue manager"]


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event of a message: what happened, when by whose clock, and the call or packets that show it.

    ``at`` is in UTC, None if unknown. ``capture`` is a path, ``packet`` the number of a packet in it: of the call's
    request, or of its response for events that the response shows, or of the first byte of a packet of TCP 1801
    (``packet_key``). ``response_packet`` is the packet of the response. ``other_candidates`` is the number of other
    messages that the event may belong to instead.
    """

    at: datetime | None
    kind: str
    text: str
    clock: ClockOwner = "capture"
    call_key: str | None = None
    packet_key: str | None = None
    capture: str | None = None
    packet: int | None = None
    response_capture: str | None = None
    response_packet: int | None = None
    connection_id: str | None = None
    server_address: str | None = None
    row_key: str | None = None  # key of the attempt, sighting or finding
    other_candidates: int = 0


@dataclass(frozen=True, slots=True)
class EventBuilder:
    """Makes events from calls and packets of TCP 1801 by key; ``paths`` of captures are by ``capture_id``."""

    calls: Mapping[str, RowMapping]
    packets: Mapping[str, RowMapping]
    paths: Mapping[str, str]

    def request_event(
        self, kind: str, call_key: str | None, at: datetime | None, text: str, row_key: str | None = None,
        other_candidates: int = 0,
    ) -> TimelineEvent:  # fmt: skip
        """Return an event with the packets of a call's request and response."""
        call = self.calls.get(call_key or "", {})
        return TimelineEvent(
            at, kind, text, call_key=call_key,
            capture=self._path(call.get("capture_id") if call.get("request_packet") else None),
            packet=call.get("request_packet"), response_capture=self._path(call.get("response_capture_id")),
            response_packet=call.get("response_packet"), connection_id=call.get("connection_id"),
            server_address=call.get("server_address"), row_key=row_key, other_candidates=other_candidates,
        )  # fmt: skip

    def response_event(self, kind: str, call_key: str, at: datetime | None, text: str, row_key: str) -> TimelineEvent:
        """Return an event with the packet of a call's response as its only packet."""
        call = self.calls.get(call_key, {})
        return TimelineEvent(
            at, kind, text, call_key=call_key, capture=self._path(call.get("response_capture_id")),
            packet=call.get("response_packet"), connection_id=call.get("connection_id"),
            server_address=call.get("server_address"), row_key=row_key,
        )  # fmt: skip

    def packet_event(
        self, kind: str, packet_key: str, at: datetime | None, text: str, row_key: str | None = None
    ) -> TimelineEvent:
        """Return an event with a packet of TCP 1801; its text begins with who sent it to whom."""
        packet = self.packets.get(packet_key, {})
        return TimelineEvent(
            at, kind, f"{packet_route(packet)}, {text}", packet_key=packet_key,
            capture=self._path(packet.get("capture_id")), packet=packet.get("packet_number"),
            connection_id=packet.get("connection_id"), server_address=packet.get("server_address"), row_key=row_key,
        )  # fmt: skip

    def sighting_event(self, kind: str, sighting: RowMapping, text: str) -> TimelineEvent:
        """Return an event with what shows a row of silver.messages: a packet of TCP 1801, or the response of a call."""
        show = self.response_event if sighting["packet_key"] is None else self.packet_event
        key = sighting["call_key"] if sighting["packet_key"] is None else sighting["packet_key"]
        return show(kind, key, sighting["seen_at"], text, sighting["sighting_key"])

    def _path(self, capture_id: str | None) -> str | None:
        return None if capture_id is None else self.paths.get(capture_id, capture_id)


def packet_route(packet: RowMapping) -> str:
    """Return from where to where a packet of TCP 1801 was sent, as text: both addresses with their ports."""
    client, server = (
        f"{packet.get(f'{end}_address', '?')}:{packet.get(f'{end}_port', '?')}" for end in ("client", "server")
    )
    return f"{server} -> {client}" if packet.get("sent_by") == "server" else f"{client} -> {server}"
