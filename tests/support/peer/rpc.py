"""An asynchronous DCE/RPC server over TCP: connections, fragments, contexts, security, calls (fact sheet section 1)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from peer import pdu as wire
from peer.methods import METHODS, NAMES, Method
from peer.ndr import NULL_HANDLE, StubError
from peer.pdu import NDR, NDR64, Auth, Flag, Pdu, PduType, Syntax
from peer.security import NTLM_TYPE, PACKET, PRIVACY, SPNEGO_TYPE, Account, AuthError, NtlmContext, NtlmServer
from peer.truth import CallTruth, Ledger

BAD_STUB, CONTEXT_MISMATCH, CANCELLED = 0x000006F7, 0x1C00001A, 0x1C00000D
OPNUM_RANGE, UNKNOWN_INTERFACE, UNSPECIFIED, ACCESS_DENIED = 0x1C010002, 0x1C010003, 0x1C000012, 5
MAX_REQUEST = 4 << 20  # [C706] leaves it open, Windows refuses larger stubs (1.6)


class Fault(Exception):  # noqa: N818 - an answer, not a mistake
    """Answer the call with this fault status."""

    def __init__(self, status: int, *, executed: bool = True) -> None:
        super().__init__(f"0x{status:08X}")
        self.status = status
        self.executed = executed


@dataclass(eq=False)
class Handle:
    """A context handle: the object it refers to, and its rundown function."""

    interface: uuid.UUID
    target: Any
    rundown: Callable[[], None]
    raw: bytes = field(default_factory=lambda: struct.pack("<I", 0) + os.urandom(16))


@dataclass(eq=False)
class Association:
    """An association group: its context handles live as long as one of its connections (1.6, 4.5)."""

    ident: int
    connections: set[Connection] = field(default_factory=set)
    handles: dict[bytes, Handle] = field(default_factory=dict)

    def open(self, interface: Syntax, target: Any, rundown: Callable[[], None]) -> Handle:
        handle = Handle(interface.uuid, target, rundown)
        self.handles[handle.raw] = handle
        return handle

    def close(self, handle: Handle) -> bytes:
        """Forget the handle; returns the NULL handle for the response."""
        self.handles.pop(handle.raw, None)
        return NULL_HANDLE

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            handles, self.handles = self.handles, {}
            for handle in handles.values():
                handle.rundown()


@dataclass(eq=False)
class Call:
    """One call: its fragments, its response and its truth."""

    connection: Connection
    pdu: Pdu
    context_id: int
    opnum: int
    truth: CallTruth
    stub: bytearray = field(default_factory=bytearray)
    sealed_stub: bytearray = field(default_factory=bytearray)
    method: Method | None = None
    task: asyncio.Task[None] | None = None
    cancels: int = 0

    def handle(self, raw: bytes, interface: Syntax, kind: type | None = None) -> Handle:
        """Return the open handle for these octets on this association, else raise the runtime's fault (1.8)."""
        handle = self.connection.association.handles.get(raw) if self.connection.association else None
        if handle is None or handle.interface != interface.uuid or (kind and not isinstance(handle.target, kind)):
            raise Fault(CONTEXT_MISMATCH, executed=False)
        return handle

    @property
    def association(self) -> Association:
        assert self.connection.association is not None
        return self.connection.association


Handler = Callable[[Call, dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass
class Service:
    """The offer of a server: handlers by interface and opnum, and the transfer syntaxes of each interface."""

    handlers: dict[tuple[Syntax, int], Handler]
    syntaxes: dict[Syntax, tuple[Syntax, ...]]
    accounts: list[Account]
    ledger: Ledger = field(default_factory=Ledger)
    max_fragment: int = 5840
    prefer_ndr64: bool = True
    kerberos: Any = None  # makes an acceptor of Kerberos' tokens
    groups: dict[int, Association] = field(default_factory=dict)
    group_ids: itertools.count[int] = field(default_factory=lambda: itertools.count(0x1234))
    open_connections: set[Connection] = field(default_factory=set)

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one TCP connection to its end (the callback of asyncio.start_server)."""
        connection = Connection(self, reader, writer)
        self.open_connections.add(connection)
        try:
            await connection.run()
        finally:
            self.open_connections.discard(connection)

    def join(self, ident: int, connection: Connection) -> Association:
        group = self.groups.get(ident)
        if group is None or not group.connections:
            group = Association(next(self.group_ids))
            self.groups[group.ident] = group
        group.connections.add(connection)
        return group


class Connection:
    """One TCP connection: reads PDUs, runs calls, writes responses."""

    def __init__(self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.service = service
        self.reader = reader
        self.writer = writer
        self.client = writer.get_extra_info("peername")
        self.server = writer.get_extra_info("sockname")
        self.index, self.truth = service.ledger.connect(self.client, self.server)
        self.contexts: dict[int, tuple[Syntax, Syntax]] = {}
        self.refused: dict[int, Syntax] = {}  # the interfaces of contexts asked for in vain
        self.association: Association | None = None
        self.max_xmit = service.max_fragment
        self.multiplexed = False
        self.auth: Auth | None = None
        self.acceptor: Any = None
        self.session: NtlmContext | None = None
        self.principal: str | None = None
        self.receiving: Call | None = None
        self.calls: dict[int, Call] = {}
        self.turn = asyncio.Lock()  # without CONC_MPX one call at a time

    async def run(self) -> None:
        try:
            while True:
                head = await self.reader.readexactly(wire.HEADER)
                raw = head + await self.reader.readexactly(wire.frag_length(head) - wire.HEADER)
                await self.take(raw, wire.parse(raw))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, wire.ProtocolError, AuthError):
            pass
        finally:
            await self.end()

    async def end(self) -> None:
        """Process the end of the connection: stop waiting calls; the last one of a group runs its handles down."""
        await asyncio.sleep(0)  # a call whose task has not begun yet begins, and knows what it was asked
        pending = [call.task for call in self.calls.values() if call.task and not call.task.done()]
        for task in pending:
            task.cancel("connection")
        await asyncio.gather(*pending, return_exceptions=True)
        if self.association is not None:
            self.association.leave(self)
        self.writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self.writer.wait_closed()

    async def take(self, raw: bytes, pdu: Pdu) -> None:
        match pdu.type:
            case PduType.BIND | PduType.ALTER_CONTEXT:
                await self.bind(pdu)
            case PduType.AUTH3:
                self.authenticate(pdu)
            case PduType.REQUEST:
                await self.request(raw, pdu)
            case PduType.CO_CANCEL | PduType.ORPHANED:
                self.stop(pdu)
            case other:
                raise wire.ProtocolError(f"PDU type {other} from a client")

    # -- binding, section 1.7

    async def bind(self, pdu: Pdu) -> None:
        asked = wire.Bind.unpack(pdu.body, pdu.order)
        first = pdu.type == PduType.BIND
        if pdu.auth and not self.acceptor_of(pdu.auth):
            self.note_bind(pdu, asked, None)
            self.writer.write(Pdu(PduType.BIND_NAK, pdu.call_id, wire.bind_nak_body(8)).pack())
            await self.writer.drain()
            return
        if first:
            self.max_xmit = min(self.service.max_fragment, asked.max_recv)
            self.multiplexed = bool(pdu.flags & Flag.CONC_MPX)
            self.association = self.service.join(asked.group, self)
            self.truth.group = self.association.ident
        results = self.negotiate(asked.contexts)
        token = None
        if pdu.auth:
            self.auth = pdu.auth
            token = self.acceptor.take(pdu.auth.token)
            self.session, self.principal = self.acceptor.session, self.acceptor.principal
        assert self.association is not None
        address = str(self.server[1]) if first else ""
        max_recv = min(self.service.max_fragment, asked.max_xmit)
        ack = wire.BindAck(self.max_xmit, max_recv, self.association.ident, address, results)
        flags = wire.WHOLE | (pdu.flags & Flag.CONC_MPX if first else 0)
        auth = Auth(pdu.auth.type, pdu.auth.level, pdu.auth.context_id, token) if pdu.auth and token else None
        kind = PduType.BIND_ACK if first else PduType.ALTER_CONTEXT_RESP
        self.note_bind(pdu, asked, results)
        self.writer.write(Pdu(kind, pdu.call_id, ack.pack(), flags, auth).pack())
        await self.writer.drain()

    def negotiate(self, contexts: list[wire.Context]) -> list[wire.Result]:
        """Accept at most one real syntax per interface: NDR64 if both sides offer it (1.7 point 3)."""
        offers: dict[Syntax, set[Syntax]] = {}
        for item in contexts:
            offers.setdefault(item.abstract, set()).update(item.transfers)
        results = []
        for item in contexts:
            bits = next((bits for bits in map(wire.feature_bits, item.transfers) if bits is not None), None)
            served = self.service.syntaxes.get(item.abstract)
            if bits is not None:
                results.append(wire.Result(3, bits & 3))
            elif served is None:
                results.append(wire.Result(2, 1))
            else:
                usable = [syntax for syntax in served if syntax in offers[item.abstract]]
                best = NDR64 if self.service.prefer_ndr64 and NDR64 in usable else next(iter(usable), None)
                if best in item.transfers and best is not None:
                    self.contexts[item.id] = (item.abstract, best)
                    results.append(wire.Result(0, 0, best))
                else:
                    results.append(wire.Result(2, 2))
            if results[-1].result == 2:
                self.refused[item.id] = item.abstract
        return results

    def note_bind(self, pdu: Pdu, asked: wire.Bind, results: list[wire.Result] | None) -> None:
        for index, item in enumerate(asked.contexts):
            result = results[index] if results else None
            self.service.ledger.binds.append(
                {
                    "connection": self.index,
                    "call_id": pdu.call_id,
                    "pdu": PduType(pdu.type).name.lower(),
                    "context_id": item.id,
                    "interface_uuid": str(item.abstract.uuid),
                    "offered": [str(transfer.uuid) for transfer in item.transfers],
                    "result": {0: "accepted", 3: "negotiated"}.get(result.result if result else 2, "rejected"),
                    "reason": result.reason if result else 8,
                    "nak": result is None,
                    "auth_type": pdu.auth.type if pdu.auth else None,
                    "auth_level": pdu.auth.level if pdu.auth else None,
                }
            )

    def authenticate(self, pdu: Pdu) -> None:
        """Process auth3, the third leg: a refused logon gives a fault on the first request, as with Windows."""
        if self.acceptor is None or pdu.auth is None:
            raise wire.ProtocolError("auth3 without a challenge")
        self.acceptor.take(pdu.auth.token)
        self.session, self.principal = self.acceptor.session, self.acceptor.principal

    def acceptor_of(self, auth: Auth) -> bool:
        """Create the acceptor of tokens of an authentication type; returns False if there is none."""
        if self.acceptor is None:
            ntlm = auth.type == NTLM_TYPE or (auth.type == SPNEGO_TYPE and b"NTLMSSP\x00" in auth.token)
            if ntlm:
                self.acceptor = NtlmServer(self.service.accounts)
            elif self.service.kerberos is not None:
                self.acceptor = self.service.kerberos()
        return self.acceptor is not None

    # -- requests, section 1.6

    async def request(self, raw: bytes, pdu: Pdu) -> None:
        fixed = 24 if pdu.flags & Flag.OBJECT else 8
        _, context, opnum = struct.unpack_from(pdu.order + "IHH", pdu.body, 0)
        body = pdu.body
        sealed = body[fixed : len(body) - (pdu.auth.pad if pdu.auth else 0)]
        if pdu.auth and self.session:
            body = self.session.unprotect(raw, pdu, fixed)
        if pdu.flags & Flag.FIRST:
            self.receiving = self.begin(pdu, context, opnum)
        call = self.receiving
        if call is None or call.pdu.call_id != pdu.call_id:
            raise wire.ProtocolError("a fragment of no request")
        call.stub += body[fixed:]
        call.sealed_stub += sealed
        call.truth.request.fragments += 1
        if len(call.stub) > MAX_REQUEST:
            raise wire.ProtocolError("request too large")
        if pdu.flags & Flag.LAST:
            self.receiving = None
            self.calls[pdu.call_id] = call
            call.task = asyncio.create_task(self.serve(call))

    def begin(self, pdu: Pdu, context: int, opnum: int) -> Call:
        abstract, transfer = self.contexts.get(context, (None, None))
        obj = None
        if pdu.flags & Flag.OBJECT:
            part = pdu.body[8:24]
            obj = uuid.UUID(bytes_le=part) if pdu.order == "<" else uuid.UUID(bytes=part)
        level = self.auth.level if self.auth else None
        abstract = abstract or self.refused.get(context)
        method = METHODS.get((abstract, opnum)) if abstract else None
        truth = CallTruth(
            self.index,
            pdu.call_id,
            context,
            opnum,
            NAMES.get(abstract.uuid, "other") if abstract else None,
            str(abstract.uuid) if abstract else None,
            method.name if method else None,
            {NDR: "NDR", NDR64: "NDR64"}[transfer] if transfer else None,
            "little" if pdu.order == "<" else "big",
            str(obj) if obj else None,
            self.auth.type if self.auth else None,
            level,
            sealed=level == PRIVACY,
            bind_seen=not self.truth.before,
        )
        self.service.ledger.calls.append(truth)
        return Call(self, pdu, context, opnum, truth, method=method)

    async def serve(self, call: Call) -> None:
        """Run one call to its response, or without one if it was orphaned or the connection ended."""
        half = call.truth.request
        half.plain = wire.strip_verification(bytes(call.stub))
        cut = len(call.stub) - len(half.plain)
        half.wire = bytes(call.sealed_stub) if call.truth.sealed else half.plain
        half.complete = True
        try:
            async with contextlib.AsyncExitStack() as stack:
                if not self.multiplexed:
                    await stack.enter_async_context(self.turn)
                stub = await self.execute(call, half.plain if cut else bytes(call.stub))
            self.calls.pop(call.pdu.call_id, None)  # from here on it cannot be cancelled
        except Fault as fault:
            await self.fault(call, fault.status, executed=fault.executed)
        except StubError:
            await self.fault(call, BAD_STUB, executed=False)
        except asyncio.CancelledError as stop:
            if "cancel" not in stop.args:
                return
            await self.fault(call, CANCELLED)
        except Exception:
            await self.fault(call, UNSPECIFIED)
            raise  # a mistake of the test peer: shown by the event loop
        else:
            await self.respond(call, stub)
        finally:
            if self.calls.get(call.pdu.call_id) is call:
                del self.calls[call.pdu.call_id]

    async def execute(self, call: Call, stub: bytes) -> bytes:
        abstract, transfer = self.contexts.get(call.context_id, (None, None))
        if abstract is None or transfer is None:
            raise Fault(UNKNOWN_INTERFACE, executed=False)
        if self.auth is not None and self.session is None:
            raise Fault(ACCESS_DENIED, executed=False)
        handler = self.service.handlers.get((abstract, call.opnum))
        if call.method is None or handler is None:
            raise Fault(OPNUM_RANGE, executed=False)
        ndr64 = transfer == NDR64
        args = call.method.parse_request(stub, ndr64=ndr64, order=call.pdu.order)
        values = await handler(call, args)
        return call.method.response(values, ndr64=ndr64)

    def stop(self, pdu: Pdu) -> None:
        """Stop a call: co_cancel asks for a prompt end, orphaned needs no response at all (1.6)."""
        call = self.calls.get(pdu.call_id)
        if call is None or call.task is None:
            return
        call.cancels += 1
        if pdu.type == PduType.CO_CANCEL:
            call.truth.cancelled = True
            reason = "cancel"
        else:
            call.truth.orphaned = True
            reason = "orphan"
        # Soon, not now: a task that has not begun yet would end without an answer.
        asyncio.get_running_loop().call_soon(call.task.cancel, reason)

    # Answers

    @property
    def protected(self) -> bool:
        return self.session is not None and self.auth is not None and self.auth.level >= PACKET

    async def respond(self, call: Call, stub: bytes) -> None:
        """Send the stub in fragments of at most the client's size; other responses may come in between."""
        if call.truth.orphaned:
            return
        room = self.max_xmit - 24 - (8 + self.session.overhead if self.protected and self.session else 0)
        room -= room % 16
        half = call.truth.response
        sent = bytearray()
        at = 0
        while True:
            part = stub[at : at + room]
            last = at + len(part) >= len(stub)
            flags = (Flag.FIRST if at == 0 else 0) | (Flag.LAST if last else 0)
            body = wire.response_body(call.context_id, part, len(stub) - at, call.cancels)
            pdu = Pdu(PduType.RESPONSE, call.pdu.call_id, body, flags)
            half.fragments += 1
            if self.protected and self.session and self.auth:
                raw = self.session.protect(pdu, 8, Auth(self.auth.type, self.auth.level, self.auth.context_id))
                sent += raw[24 : 24 + len(part)]
            else:
                raw = pdu.pack()
                sent += part
            if last:
                half.plain, half.wire, half.complete = stub, bytes(sent), True
            self.writer.write(raw)
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()
            if last:
                return
            at += len(part)
            await asyncio.sleep(0)  # a chance for another call's fragments

    async def fault(self, call: Call, status: int, *, executed: bool = True) -> None:
        if call.truth.orphaned:
            return
        flags = wire.WHOLE | (0 if executed else Flag.DID_NOT_EXECUTE)
        call.truth.fault = status
        call.truth.response.fragments = 1
        body = wire.fault_body(call.context_id, status, call.cancels)
        self.writer.write(Pdu(PduType.FAULT, call.pdu.call_id, body, flags).pack())
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()
