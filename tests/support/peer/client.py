"""A DCE/RPC client over TCP with what impacket lacks: NDR64, pipelining, cancel, orphan, groups, byte orders."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import uuid
from dataclasses import dataclass, field
from typing import Any

from peer import pdu as wire
from peer.methods import BY_NAME, Method
from peer.pdu import NDR, NDR64, Auth, Flag, Pdu, PduType, Syntax
from peer.security import NTLM_TYPE, PACKET, SPNEGO_TYPE, Account, NtlmClient, NtlmContext, unwrap_spnego, wrap_spnego


class RpcFault(Exception):  # noqa: N818 - an answer, not a mistake
    """The server answered with a fault."""

    def __init__(self, status: int) -> None:
        super().__init__(f"fault 0x{status:08X}")
        self.status = status


class BindRefused(Exception):  # noqa: N818 - an answer, not a mistake
    """bind_nak, or no accepted context."""


@dataclass
class Pending:
    """An outstanding call and the response fragments received so far."""

    method: Method
    ndr64: bool
    future: asyncio.Future[dict[str, Any]]
    stub: bytearray = field(default_factory=bytearray)


@dataclass
class Client:
    """One connection. `order` is the byte order of what it sends, `fragment` the largest PDU it sends and accepts."""

    host: str
    port: int
    order: str = "<"
    fragment: int = 5840
    group: int = 0
    multiplex: bool = True
    account: Account | None = None
    level: int = 1
    verification: bool = False
    source: tuple[str, int] | None = None
    without: int = 0  # NTLM's flags that are not offered
    spnego: bool = False
    kerberos: Any = None  # the asking side of Kerberos (peer.kerberos.KerberosClient)

    def __post_init__(self) -> None:
        self.contexts: dict[Syntax, tuple[int, Syntax]] = {}
        self.results: list[wire.Result] = []
        self.pending: dict[int, Pending] = {}
        self.max_xmit = self.fragment
        self.call_id = 1
        self.session: NtlmContext | None = None
        self._replies: asyncio.Queue[Pdu] = asyncio.Queue()
        self._next_context = 0
        self._reader_task: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()

    async def connect(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port, local_addr=self.source)
        self._reader_task = asyncio.create_task(self._read())
        return self

    async def __aenter__(self) -> Client:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection in order (FIN)."""
        if self._reader_task:
            self._reader_task.cancel()
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def abort(self) -> None:
        """Reset the connection (RST): linger of zero seconds."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER
        if self._reader_task:
            self._reader_task.cancel()
        self.writer.transport.abort()

    # Binding

    async def bind(self, interface: Syntax, syntaxes: tuple[Syntax, ...] = (NDR,), *, features: int = 0) -> None:
        """bind, or alter_context after the first: one context element per transfer syntax (1.7 point 3)."""
        elements = [*syntaxes, *([wire.features(features)] if features else [])]
        items = []
        for syntax in elements:
            items.append(wire.Context(self._next_context, interface, [syntax]))
            self._next_context += 1
        first = not self.results
        body = wire.Bind(self.fragment, self.fragment, self.group, items).pack(self.order)
        flags = wire.WHOLE | (Flag.CONC_MPX if first and self.multiplex else 0)
        kind = PduType.BIND if first else PduType.ALTER_CONTEXT
        ntlm = NtlmClient(self.account, self.without) if first and self.account else None
        auth = Auth(self.auth_type, self.level, 7, self._wrapped(ntlm.negotiate(), first=True)) if ntlm else None
        if first and self.kerberos:
            auth = Auth(self.auth_type, self.level, 7, self.kerberos.negotiate())
        self.writer.write(Pdu(kind, self.call_id, body, flags, auth, self.order).pack())
        reply = await asyncio.wait_for(self._replies.get(), 10)
        if reply.type == PduType.BIND_NAK:
            self.call_id += 1
            raise BindRefused(f"reason {struct.unpack_from('<H', reply.body)[0]}")
        ack = wire.BindAck.unpack(reply.body, reply.order)
        if first:
            self.group, self.max_xmit = ack.group, min(self.fragment, ack.max_recv)
        self.results += ack.results
        for item, result in zip(items, ack.results, strict=True):
            if result.result == 0:
                self.contexts[interface] = (item.id, result.transfer)
        if ntlm and reply.auth:
            token, self.session = ntlm.authenticate(unwrap_spnego(reply.auth.token))
            auth = Auth(self.auth_type, self.level, 7, self._wrapped(token))
            if self.spnego:  # the server has the last word: an alter_context asks for it
                self.writer.write(Pdu(PduType.ALTER_CONTEXT, self.call_id, body, wire.WHOLE, auth, self.order).pack())
                await asyncio.wait_for(self._replies.get(), 10)
            else:
                self.writer.write(Pdu(PduType.AUTH3, self.call_id, b"\x00" * 4, wire.WHOLE, auth, self.order).pack())
        if first and self.kerberos:
            self.session = self.kerberos.session(reply.auth.token if reply.auth else None)
        await self.writer.drain()
        self.call_id += 1
        if interface not in self.contexts:
            raise BindRefused(f"{interface.uuid}: {[(item.result, item.reason) for item in ack.results]}")

    @property
    def auth_type(self) -> int:
        if self.kerberos:
            return int(self.kerberos.auth_type)
        return SPNEGO_TYPE if self.spnego else NTLM_TYPE

    def _wrapped(self, token: bytes, *, first: bool = False) -> bytes:
        return wrap_spnego(token, first=first) if self.spnego else token

    async def bind_other(self, token: bytes, auth_type: int = 16) -> None:
        """Offer a security provider that the server lacks: it answers with bind_nak."""
        body = wire.Bind(contexts=[wire.Context(0, BY_NAME["R_OpenQueue"].interface, [NDR])]).pack()
        self.writer.write(Pdu(PduType.BIND, self.call_id, body, auth=Auth(auth_type, 6, 1, token)).pack())
        reply = await asyncio.wait_for(self._replies.get(), 10)
        self.call_id += 1
        if reply.type == PduType.BIND_NAK:
            raise BindRefused(f"reason {struct.unpack_from('<H', reply.body)[0]}")

    # Calls

    async def send(self, name: str, object_uuid: Any = None, **args: Any) -> tuple[int, Pending]:
        """Send a request; returns the call id, and the pending call to await."""
        method = BY_NAME[name]
        context, transfer = self.contexts[method.interface]
        stub = method.request(args, ndr64=transfer == NDR64, order=self.order)
        if self.verification:
            stub += b"\x00" * (-len(stub) % 4) + wire.verification_trailer(method.interface, transfer)
        pending = Pending(method, transfer == NDR64, asyncio.get_running_loop().create_future())
        return await self._send(context, method.opnum, stub, object_uuid, pending), pending

    async def send_raw(self, context: int, opnum: int, stub: bytes, method: str = "R_GetServerPort") -> Pending:
        """Send any stub to any opnum on any context."""
        pending = Pending(BY_NAME[method], ndr64=False, future=asyncio.get_running_loop().create_future())
        await self._send(context, opnum, stub, None, pending)
        return pending

    async def _send(self, context: int, opnum: int, stub: bytes, obj: uuid.UUID | None, pending: Pending) -> int:
        protected = self.session is not None and self.level >= PACKET
        fixed = 24 if obj else 8
        room = self.max_xmit - 16 - fixed - (8 + self.session.overhead if protected and self.session else 0)
        room -= room % 16
        async with self._order:  # fragments of one request are not interleaved with another's (1.6)
            call_id = self.call_id
            self.call_id += 1
            self.pending[call_id] = pending
            at = 0
            while True:
                part = stub[at : at + room]
                last = at + len(part) >= len(stub)
                flags = (Flag.FIRST if at == 0 else 0) | (Flag.LAST if last else 0) | (Flag.OBJECT if obj else 0)
                body = wire.request_body(context, opnum, part, len(stub) - at, obj, self.order)
                pdu = Pdu(PduType.REQUEST, call_id, body, flags, None, self.order)
                if protected and self.session:
                    raw = self.session.protect(pdu, fixed, Auth(self.auth_type, self.level, 7))
                else:
                    raw = pdu.pack()
                self.writer.write(raw)
                await self.writer.drain()
                at += len(part)
                if last:
                    return call_id

    async def call(self, name: str, object_uuid: Any = None, **args: Any) -> dict[str, Any]:
        """Send a request and return the response; raises RpcFault."""
        _, pending = await self.send(name, object_uuid, **args)
        return await asyncio.wait_for(pending.future, 60)

    async def cancel(self, call_id: int) -> None:
        """co_cancel for an outstanding call."""
        self.writer.write(Pdu(PduType.CO_CANCEL, call_id, b"", wire.WHOLE, None, self.order).pack())
        await self.writer.drain()

    async def orphan(self, call_id: int) -> None:
        """Send an orphaned PDU: the client no longer waits for this call."""
        self.pending.pop(call_id, None)
        self.writer.write(Pdu(PduType.ORPHANED, call_id, b"", wire.WHOLE, None, self.order).pack())
        await self.writer.drain()

    async def _read(self) -> None:
        try:
            while True:
                head = await self.reader.readexactly(wire.HEADER)
                raw = head + await self.reader.readexactly(wire.frag_length(head) - wire.HEADER)
                self._take(raw, wire.parse(raw))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            for pending in self.pending.values():
                if not pending.future.done():
                    pending.future.set_exception(ConnectionError(str(error)))

    def _take(self, raw: bytes, pdu: Pdu) -> None:
        if pdu.type in {PduType.BIND_ACK, PduType.BIND_NAK, PduType.ALTER_CONTEXT_RESP}:
            self._replies.put_nowait(pdu)
            return
        pending = self.pending.get(pdu.call_id)
        if pending is None:
            return
        if pdu.type == PduType.FAULT:
            del self.pending[pdu.call_id]
            pending.future.set_exception(RpcFault(struct.unpack_from("<I", pdu.body, 8)[0]))
            return
        body = self.session.unprotect(raw, pdu, 8) if self.session and pdu.auth else pdu.body
        pending.stub += body[8:]
        if pdu.flags & Flag.LAST:
            del self.pending[pdu.call_id]
            if not pending.future.done():
                pending.future.set_result(pending.method.parse_response(bytes(pending.stub), ndr64=pending.ndr64))


__all__ = ["NDR", "NDR64", "BindRefused", "Client", "RpcFault"]
