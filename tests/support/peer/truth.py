"""Ground truth: what the server saw, recorded beside each capture.

A ledger is opened when the recorder starts and closed when it stops. It describes that window only: a connection from
before has no bind, and a call outstanding at the start has no request.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1


@dataclass
class WireHalf:
    """A request or a response on the wire: the stub in the clear and, if sealed, as captured."""

    plain: bytes = b""
    wire: bytes = b""
    fragments: int = 0
    complete: bool = False

    def describe(self) -> dict[str, Any] | None:
        if not self.complete:
            return None
        out: dict[str, Any] = {"size": len(self.plain), "sha256": hashlib.sha256(self.plain).hexdigest()}
        if len(self.plain) <= 64:
            out["hex"] = self.plain.hex()
        if self.wire != self.plain:
            out["sealed_sha256"] = hashlib.sha256(self.wire).hexdigest()
            out["sealed_size"] = len(self.wire)  # a sealed verification trailer cannot be taken off
        return out


@dataclass
class CallTruth:
    """One call of one connection."""

    connection: int
    call_id: int
    context_id: int
    opnum: int
    interface: str | None
    interface_uuid: str | None
    method: str | None
    syntax: str | None
    byte_order: str = "little"
    object_uuid: str | None = None
    auth_type: int | None = None
    auth_level: int | None = None
    sealed: bool = False
    bind_seen: bool = True
    request: WireHalf = field(default_factory=WireHalf)
    response: WireHalf = field(default_factory=WireHalf)
    fault: int | None = None
    cancelled: bool = False
    orphaned: bool = False
    before: bool = False  # the request was over when the recorder started
    decided: bool = True

    def outcome(self) -> str:
        """Return the `outcome` of bronze.rpc_calls (tables.md), derived from what was really sent."""
        if self.before:
            return "no_request"
        if self.fault is None and not self.response.complete:
            return "no_response"
        if self.fault is not None:
            return "fault"
        if self.sealed:
            return "encrypted"
        return "ok" if self.bind_seen else "unbound"

    def describe(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "connection": self.connection,
            "call_id": self.call_id,
            "context_id": self.context_id,
            "interface": self.interface,
            "interface_uuid": self.interface_uuid,
            "opnum": self.opnum,
            "method": self.method,
            "syntax": self.syntax,
            "byte_order": self.byte_order,
            "auth_type": self.auth_type,
            "auth_level": self.auth_level,
            "sealed": self.sealed,
            "bind_seen": self.bind_seen,
            "outcome": self.outcome(),
            "fault_status": self.fault,
            "request_fragments": 0 if self.before else self.request.fragments,
            "response_fragments": self.response.fragments,
            "request": None if self.before else self.request.describe(),
            "response": self.response.describe(),
        }
        for name in ("object_uuid", "cancelled", "orphaned"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        return out


@dataclass
class Attempt:
    """One Start (receive or peek) and its outcome: gold.receive_attempts by the server's own knowledge."""

    call: CallTruth
    protocol: str
    queue: str
    action: int
    is_receive: bool
    timeout_ms: int
    transactional: bool = False
    outcome: str | None = None
    start_hresult: int | None = None
    end_hresult: int | None = None
    end_call: CallTruth | None = None
    lookup_id: int | None = None
    body_bytes: int | None = None
    refused: bool = False  # an End was refused
    before: bool = False

    def settle(self, outcome: str) -> None:
        """Set the outcome; the first one stands, except that a rejection overrides an acknowledgement."""
        if self.outcome is None or outcome == "rejected":
            self.outcome = outcome

    def gone(self) -> None:
        """Record that connection, association or handle ended while the message was held."""
        self.settle("failed" if self.refused else "rundown")

    def describe(self, calls: dict[int, int]) -> dict[str, Any]:
        return {
            "call": calls[id(self.call)],
            "protocol": self.protocol,
            "queue": self.queue,
            "action": self.action,
            "is_receive": self.is_receive,
            "timeout_ms": self.timeout_ms,
            "transactional": self.transactional,
            "outcome": self.outcome or "in_flight",
            "start_hresult": self.start_hresult,
            "end_hresult": self.end_hresult,
            "end_call": calls.get(id(self.end_call)) if self.end_call else None,
            "lookup_id": self.lookup_id,
            "body_bytes": self.body_bytes,
        }


@dataclass
class ConnectionTruth:
    """One TCP connection to a port of the server."""

    client: tuple[str, int]
    server: tuple[str, int]
    group: int | None = None
    before: bool = False  # open when the recorder started
    used: bool = True
    order: int = 0

    def describe(self) -> dict[str, Any]:
        return {
            "client": f"{self.client[0]}:{self.client[1]}",
            "server": f"{self.server[0]}:{self.server[1]}",
            "association_group": self.group,
            "from_start": not self.before,
        }


@dataclass
class Ledger:
    """All that one server saw, in order."""

    connections: list[ConnectionTruth] = field(default_factory=list)
    calls: list[CallTruth] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    binds: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)  # what senders say, in scenarios about messages

    def connect(self, client: tuple[str, int], server: tuple[str, int]) -> tuple[int, ConnectionTruth]:
        item = ConnectionTruth(client[:2], server[:2])
        self.connections.append(item)
        return len(self.connections) - 1, item

    def mark(self) -> None:
        """Start of the recording: forget finished calls, mark open ones as begun before."""
        for connection in self.connections:
            connection.before = True
        self.binds.clear()
        self.calls = [call for call in self.calls if call.fault is None and not call.response.complete]
        for call in self.calls:
            call.before, call.bind_seen = True, False
        held = {None, "in_flight"}
        self.attempts = [attempt for attempt in self.attempts if attempt.outcome in held]
        for attempt in self.attempts:
            attempt.before = True

    def describe(self, name: str, about: str) -> dict[str, Any]:
        """Return the truth file: connections with packets, binds and calls in order of their first octet."""
        used = sorted({call.connection for call in self.calls} | {bind["connection"] for bind in self.binds})
        places = {old: new for new, old in enumerate(used)}
        calls = []
        for call in self.calls:
            item = call.describe()
            item["connection"] = places[call.connection]
            calls.append(item)
        order = {id(call): index for index, call in enumerate(self.calls)}
        attempts = [item.describe(order) for item in self.attempts if id(item.call) in order]
        outcomes: dict[str, int] = {}
        for item in attempts:
            outcomes[item["outcome"]] = outcomes.get(item["outcome"], 0) + 1
        return {
            "version": VERSION,
            "capture": name,
            "about": about,
            "connections": [self.connections[index].describe() for index in used],
            "binds": [{**bind, "connection": places[bind["connection"]]} for bind in self.binds],
            "calls": calls,
            "attempts": attempts,
            "attempts_by_outcome": dict(sorted(outcomes.items())),
            **({"messages": self.messages} if self.messages else {}),
        }

    def write(self, path: Path, name: str, about: str) -> None:
        """Write one line per item, readable in a diff."""
        truth = self.describe(name, about)
        parts = []
        for key, value in truth.items():
            if isinstance(value, list) and value:
                rows = ",\n  ".join(json.dumps(item) for item in value)
                parts.append(f' "{key}": [\n  {rows}\n ]')
            else:
                parts.append(f' "{key}": {json.dumps(value)}')
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
