"""RPC conversations that know which bronze rows a reader must make of them.

Nothing here parses a PDU. A ``Dialogue`` records what is sent and where each PDU lies in its side's stream.
``ExpectedRows`` derives from the captured segments which packet carried which byte first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pcapgen import frames, rpc
from pcapgen.containers import CaptureFile
from pcapgen.conversation import CLIENT, SERVER, Flow, Linker, Script, Segment, payload_offset
from udfs.rows import RowDict

NAMES = {
    rpc.QM2QM: "qm2qm",
    rpc.REMOTE_READ: "RemoteRead",
    rpc.QMMGMT: "qmmgmt",
    rpc.QMCOMM: "qmcomm",
    rpc.QMCOMM2: "qmcomm2",
    rpc.EPM: "epm",
}


def key(*fields: str | int | bytes | None) -> str:
    """Return the key of fields as defined in tables.md, "Keys"."""
    data = b""
    for each in fields:
        if each is None:
            data += b"\xff\xff\xff\xff"
        else:
            raw = each if isinstance(each, bytes) else str(each).encode()
            data += len(raw).to_bytes(4, "little") + raw
    return hashlib.sha256(data).hexdigest()[:32]


def syntax_name(offered: tuple[str, int]) -> str:
    if offered[0].startswith("6cb71c2c-9812-4540-"):
        return "feature_negotiation"
    return {rpc.NDR: "NDR", rpc.NDR64: "NDR64"}.get(offered, offered[0])


@dataclass
class Half:
    """A request or a response: its stub, and the positions of its PDUs in the side's stream."""

    stub: bytes | None
    extents: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Call:
    """One call and what was sent of it."""

    call_id: int
    context: int
    opnum: int
    order: str = "<"
    obj: str | None = None
    auth: rpc.Auth | None = None
    request: Half | None = None
    response: Half | None = None
    fault: int | None = None
    cancelled: int | None = None  # stream offset of the co_cancel
    orphaned: int | None = None
    changes: RowDict = field(default_factory=dict)  # columns that a scenario makes different


@dataclass
class BindExpectation:
    """A bind or alter_context and its answer."""

    contexts: tuple[rpc.Context, ...]
    extent: tuple[int, int]
    answered: bool
    group: int
    address: str | None
    auth: rpc.Auth | None
    xmit: int = 5840
    recv: int = 5840
    nak: int | None = None
    joined: bool | None = None  # of a bind: it asked for a group that another connection began


@dataclass
class Dialogue:
    """A connection: the script of sends, and the calls and binds in it."""

    flow: Flow = field(default_factory=Flow)
    script: Script = field(default_factory=Script)
    calls: list[Call] = field(default_factory=list)
    binds: list[BindExpectation] = field(default_factory=list)
    pdus: list[tuple[int, int, int]] = field(default_factory=list)  # side, begin, end
    next_id: int = 1
    auth: rpc.Auth | None = None
    order: str = "<"

    def raw(self, side: int, data: bytes) -> tuple[int, int]:
        """Send one PDU, or any bytes."""
        begin, end = self.script.send(side, data)
        self.pdus.append((side, begin, end))
        return begin, end

    def bind(
        self,
        *contexts: rpc.Context,
        answer: bool = True,
        alter: bool = False,
        nak: int | None = None,
        auth: rpc.Auth | None = None,
        group: int = 0x1234,
        asked_group: int = 0,
        address: bytes = b"2103\0",
        flags: int = 3,
    ) -> None:
        """Send a bind with presentation contexts, and its answer."""
        contexts = contexts or (rpc.Context(0, rpc.REMOTE_READ),)
        kind, reply = (rpc.ALTER, rpc.ALTER_RESP) if alter else (rpc.BIND, rpc.BIND_ACK)
        call_id = self.next_id
        data = rpc.bind(contexts, call_id, kind=kind, group=asked_group, order=self.order, auth=auth, flags=flags)
        extent = self.raw(CLIENT, data)
        if nak is not None:
            self.raw(SERVER, rpc.bind_nak(call_id, nak, self.order))
        elif answer:
            response = rpc.bind_ack(
                contexts, call_id, kind=reply, group=group, order=self.order, auth=auth, address=address
            )
            self.raw(SERVER, response)
        said = address.rstrip(b"\0").decode() or None
        self.binds.append(
            BindExpectation(
                contexts, extent, answer and nak is None, group if answer and nak is None else asked_group,
                said if answer and nak is None else None, auth, nak=nak,
                joined=None if alter else asked_group != 0,
            )
        )  # fmt: skip

    def start(
        self,
        opnum: int,
        stub: bytes,
        *,
        context: int = 0,
        cuts: tuple[int, ...] = (),
        obj: str | None = None,
        verification: bool = False,
        flags: int = 0,
        auth: rpc.Auth | None = None,
    ) -> Call:
        """Send a request; the response is sent later."""
        self.next_id += 1
        auth = auth or self.auth
        call = Call(self.next_id, context, opnum, order=self.order, obj=obj, auth=auth, request=Half(stub))
        wire = rpc.verification_trailer(stub) if verification else stub
        for data in rpc.fragments(
            rpc.REQUEST, call.call_id, wire, context=context, opnum=opnum, cuts=cuts, order=self.order,
            auth=auth, obj=obj, flags=flags,
        ):  # fmt: skip
            assert call.request is not None
            call.request.extents.append(self.raw(CLIENT, data))
        self.calls.append(call)
        return call

    def answer(self, call: Call, stub: bytes, *, cuts: tuple[int, ...] = ()) -> None:
        """Send the whole response of a call."""
        for data in self.response_pdus(call, stub, cuts=cuts):
            self.piece(call, data)

    def response_pdus(self, call: Call, stub: bytes, *, cuts: tuple[int, ...] = ()) -> list[bytes]:
        """Return the PDUs of a response, to be sent with ``piece``."""
        call.response = Half(stub)
        return rpc.fragments(
            rpc.RESPONSE, call.call_id, stub, context=call.context, cuts=cuts, order=self.order, auth=call.auth
        )

    def piece(self, call: Call, data: bytes) -> None:
        assert call.response is not None
        call.response.extents.append(self.raw(SERVER, data))

    def fail(self, call: Call, status: int, *, flags: int = 3) -> None:
        """Answer a call with a fault."""
        call.response = Half(None)
        call.fault = status
        self.piece(
            call,
            rpc.fault(call.call_id, status, context=call.context, order=self.order, flags=flags, auth=call.auth),
        )

    def call(self, opnum: int, request: bytes, response: bytes, **options: Any) -> Call:
        """Send a request and its response."""
        answer_cuts = options.pop("answer_cuts", ())
        call = self.start(opnum, request, **options)
        self.answer(call, response, cuts=answer_cuts)
        return call

    def cancel(self, call: Call) -> None:
        call.cancelled = self.raw(CLIENT, rpc.pdu(rpc.CO_CANCEL, call.call_id, order=self.order))[0]

    def orphan(self, call: Call) -> None:
        call.orphaned = self.raw(CLIENT, rpc.pdu(rpc.ORPHANED, call.call_id, order=self.order))[0]


def make_stub(opnum: int, size: int) -> bytes:
    """Return a stub of ``size`` bytes with distinguishable content."""
    return bytes((opnum * 31 + at * 7 + (at >> 8)) & 0xFF for at in range(size))


@dataclass(frozen=True)
class FirstCopy:
    """The record that captured a stream byte first."""

    record: int  # from 0
    time_ns: int
    file_offset: int


class ExpectedRows:
    """The rows expected of one dialogue in one capture file; ``indexes``: the record of each segment."""

    def __init__(
        self,
        dialogue: Dialogue,
        parts: Sequence[Segment],
        file: CaptureFile,
        *,
        link: Linker = frames.ethernet,
        indexes: Sequence[int] | None = None,
    ) -> None:
        self.dialogue, self.parts, self.file = dialogue, list(parts), file
        indexes = indexes or range(len(parts))
        self.capture_id = key(file.data[: file.first_record_end])
        self.times = [part.time_ns // 1000 for part in parts]
        self.connection_id = key(*dialogue.flow.four_tuple, min(self.times))
        self.seen: tuple[dict[int, FirstCopy], dict[int, FirstCopy]] = ({}, {})
        self.retransmitted = self.conflicting = 0
        kept: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for part, index in zip(parts, indexes, strict=True):
            frame_at = file.frame_offsets[index]
            begin = frame_at + payload_offset(link, part, dialogue.flow)
            room = len(file.records[index].frame) - (begin - frame_at)
            for at, value in enumerate(part.payload[: max(room, 0)]):
                place = part.offset + at
                if place in self.seen[part.side]:
                    self.retransmitted += 1
                    self.conflicting += kept[part.side][place] != value
                    continue
                self.seen[part.side][place] = FirstCopy(index, part.time_ns, begin + at)
                kept[part.side][place] = value

    def calls(self) -> list[RowDict]:
        """Return the ``rpc_calls`` rows, one per call."""
        return [self.call(call) for call in self.dialogue.calls]

    def _bound(self, call: Call) -> tuple[rpc.Context | None, BindExpectation | None]:
        found: tuple[rpc.Context | None, BindExpectation | None] = (None, None)
        for bound in self.dialogue.binds:
            for context in bound.contexts:
                if context.number == call.context and context.result == 0 and bound.answered and bound.nak is None:
                    found = (context, bound)
        return found

    def _bind_seen(self, call: Call) -> bool:
        return any(context.number == call.context for bound in self.dialogue.binds for context in bound.contexts)

    def call(self, call: Call) -> RowDict:
        """Return one ``rpc_calls`` row, assuming complete halves; ``call.changes`` overrides columns."""
        flow = self.dialogue.flow
        context, bound = self._bound(call)
        auth = call.auth
        if auth is None and bound is not None and bound.auth is not None and bound.auth.level == 2:
            auth = bound.auth
        row: RowDict = {
            "connection_id": self.connection_id,
            "client_address": flow.client,
            "client_port": flow.client_port,
            "server_address": flow.server,
            "server_port": flow.server_port,
            "call_id": call.call_id,
            "context_id": call.context,
            "interface_uuid": context.interface if context else None,
            "interface_name": NAMES.get(context.interface) if context else None,
            "transfer_syntax": syntax_name(context.accepted) if context else None,
            "opnum": call.opnum if call.request else None,
            "object_uuid": call.obj,
            "byte_order": "little" if call.order == "<" else "big",
            "auth_type": auth.kind if auth else None,
            "auth_level": auth.level if auth else None,
            "bind_seen": self._bind_seen(call),
            "sealed": auth is not None and auth.level == 6,
            "cancelled_at": self._time(CLIENT, call.cancelled),
            "orphaned_at": self._time(CLIENT, call.orphaned),
            "fault_status": call.fault,
            "observations": 1,
            "opened_by": None,
            "closed_reason": None,
            "verified_by": None,
        }
        for name, side, half in (("request", CLIENT, call.request), ("response", SERVER, call.response)):
            row[f"{name}_at"] = self._time(side, half.extents[0][0]) if half else None
            row[f"{name}_done_at"] = self._latest_time(side, half.extents) if half else None
            row[f"{name}_fragments"] = len(half.extents) if half else 0
            row[f"{name}_stub"] = half.stub if half else None
            row[f"{name}_packet"] = self.seen[side][half.extents[0][0]].record + 1 if half else None
        first, side = (call.request, CLIENT) if call.request else (call.response, SERVER)
        assert first is not None
        begin = first.extents[0][0]
        row["capture_id"] = self.capture_id
        row["response_capture_id"] = self.capture_id if call.response else None
        row["byte_offset"] = self.seen[side][begin].file_offset
        at = row["request_at"] if call.request else row["response_at"]
        seq = (flow.isn[side] + 1 + begin) & 0xFFFFFFFF
        row["call_key"] = key(*flow.four_tuple, call.call_id, seq, at)
        row["outcome"] = self._outcome(call, bind_seen=row["bind_seen"])
        row["closed_reason"] = "no_handshake" if row["outcome"] == "encrypted" else None
        row.update(call.changes)
        return row

    @staticmethod
    def _outcome(call: Call, *, bind_seen: bool) -> str:
        if call.request is None:
            return "no_request"
        if call.response is None:
            return "no_response"
        if call.fault is not None:
            return "fault"
        if call.auth is not None and call.auth.level == 6:
            return "encrypted"
        return "ok" if bind_seen else "unbound"

    def _latest_time(self, side: int, extents: list[tuple[int, int]]) -> int | None:
        """Return the latest time of the first copies of some bytes, in microseconds since 1970."""
        return max(self.seen[side][place].time_ns for begin, end in extents for place in range(begin, end)) // 1000

    def _time(self, side: int, place: int | None) -> int | None:
        """Return the time of the first copy of a byte, in microseconds since 1970."""
        return None if place is None else self.seen[side][place].time_ns // 1000

    def connection(self, **changes: Any) -> RowDict:
        """Return the ``connections`` row; FIN, RST and handshake follow from the segments."""
        flow = self.dialogue.flow
        fins = [
            min(
                (part.time_ns // 1000 for part in self.parts if part.side == side and part.flags & frames.FIN),
                default=None,
            )
            for side in (CLIENT, SERVER)
        ]
        rst = min((part.time_ns // 1000 for part in self.parts if part.flags & frames.RST), default=None)
        syn = next((part for part in self.parts if part.flags & frames.SYN and part.side == CLIENT), None)
        third = next(
            (part for part in self.parts if part.side == CLIENT and part.flags & frames.ACK and part.ack_offset == 0),
            None,
        )
        answered = any(part.flags & frames.SYN and part.side == SERVER for part in self.parts)
        closed_by, closed_at = (None, None)
        if None not in fins:
            closed_by, closed_at = "fin", max(fin for fin in fins if fin is not None)
        elif rst is not None:
            closed_by, closed_at = "rst", rst
        row: RowDict = {
            "connection_id": self.connection_id,
            "client_address": flow.client,
            "client_port": flow.client_port,
            "server_address": flow.server,
            "server_port": flow.server_port,
            "kind": "rpc",
            "syn_seen": syn is not None,
            "first_packet_at": min(self.times),
            "last_packet_at": max(self.times),
            "closed_at": closed_at,
            "closed_by": closed_by,
            "client_bytes": len(self.seen[CLIENT]),
            "server_bytes": len(self.seen[SERVER]),
            "retransmitted_bytes": self.retransmitted,
            "conflicting_bytes": self.conflicting,
            "missing_bytes": 0,
            "round_trip_ms": (third.time_ns - syn.time_ns) / 1e6 if syn and third and answered else None,
            "association_group_id": self.dialogue.binds[-1].group if self.dialogue.binds else None,
            "association_joined": next((each.joined for each in self.dialogue.binds if each.joined is not None), None),
            "calls": len(self.dialogue.calls),
            "not_established": None,
        }
        row.update(changes)
        return row

    def binds(self) -> list[RowDict]:
        """Return the ``rpc_binds`` rows without their keys, one per proposed context."""
        flow = self.dialogue.flow
        rows = []
        for bound in self.dialogue.binds:
            for context in bound.contexts:
                shown = context.accepted if context.result == 0 and bound.answered else context.offered[0]
                result = {0: "accepted", 2: "rejected", 1: "rejected", 3: "negotiated"}[context.result]
                reason: int | None = context.reason
                if bound.nak is not None:
                    result, reason = "rejected", bound.nak
                elif not bound.answered:
                    result, reason = "unknown", None
                first = self.seen[CLIENT][bound.extent[0]]
                rows.append(
                    {
                        "connection_id": self.connection_id,
                        "client_address": flow.client,
                        "client_port": flow.client_port,
                        "server_address": flow.server,
                        "server_port": flow.server_port,
                        "context_id": context.number,
                        "interface_uuid": context.interface,
                        "interface_name": NAMES.get(context.interface),
                        "interface_version": f"{context.version}.0",
                        "transfer_syntaxes_offered": [syntax_name(each) for each in context.offered],
                        "transfer_syntax": syntax_name(shown),
                        "result": result,
                        "reason": reason,
                        "auth_type": bound.auth.kind if bound.auth else None,
                        "auth_level": bound.auth.level if bound.auth else None,
                        **dict.fromkeys(("auth_principal", "auth_workstation", "auth_service")),  # no real tokens
                        "max_xmit_frag": bound.xmit,
                        "max_recv_frag": bound.recv,
                        "association_group_id": bound.group,
                        "secondary_address": bound.address,
                        "bound_at": first.time_ns // 1000,
                        "capture_id": self.capture_id,
                        "packet_number": first.record + 1,
                    }
                )
        return rows


def make_flow(**changes: Any) -> Flow:
    """Return the default four-tuple with some fields changed."""
    return replace(Flow(), **changes)
