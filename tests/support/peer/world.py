"""The environment of a scenario: a server, its addresses, and control of the recorder."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from impacket.dcerpc.v5 import rpcrt, transport

from peer.client import Client
from peer.manager import Manager
from peer.methods import BY_NAME
from peer.packets import Message
from peer.pdu import Syntax
from peer.security import Account
from peer.server import ServerThread


@dataclass
class World:
    """A running server and the possible client addresses."""

    server: ServerThread
    host: str = "127.0.0.1"
    sources: tuple[str, ...] = ()
    on_record: Callable[[], None] = lambda: None
    on_stop: Callable[[], None] = lambda: None
    notes: dict[str, Any] = field(default_factory=dict)

    def client(self, port: str = "remoteread", *, source: int | None = None, **options: Any) -> Client:
        """Return a client for one of the server's ports, from the n-th address."""
        local = (self.sources[source], 0) if source is not None and source < len(self.sources) else None
        return Client(self.host, self.server.ports[port], source=local, **options)

    async def do(self, work: Callable[[Manager], Any]) -> Any:
        """Run an event of the queue manager itself, such as an arriving message."""
        return await asyncio.to_thread(self.server.do, work)

    async def put(self, queue: str, *messages: Message) -> None:
        """Add messages to a queue of this machine."""

        def work(manager: Manager) -> None:
            for message in messages:
                manager.queues[f"{manager.name}\\{queue}".lower()].put(message)

        await self.do(work)

    async def send(self, queue: str, message: Message, **told: Any) -> None:
        """Add a message to a queue of this machine, and to the truth what its sender says of it."""
        said = {
            "queue": f"{self.server.manager.name}\\{queue}".lower(),
            "number": message.number,
            "label": message.label,
            "class": message.message_class,
            "body_bytes": len(message.body),
            "body_sha256": hashlib.sha256(message.body).hexdigest(),
            "signed": bool(message.signature),
            "encrypted": bool(message.session_key),
            "is_srmp": message.envelope is not None,
            **told,
        }
        await self.do(lambda manager: manager.ledger.messages.append(said))
        await self.put(queue, message)

    async def record(self) -> None:
        """Start the recorder now, instead of before the first connection."""
        await asyncio.to_thread(self.on_record)

    async def stop_recording(self) -> None:
        """Stop the recorder now, whatever is still in progress."""
        await asyncio.to_thread(self.on_stop)


class Impacket:
    """A blocking impacket client: the same stubs through impacket's own PDUs and NTLM."""

    def __init__(self, host: str, port: int, account: Account | None = None, level: int = 1) -> None:
        self._transport = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:{host}[{port}]")
        self._transport.set_connect_timeout(10)
        if account:
            self._transport.set_credentials(account.user, account.password, account.domain)
        self._rpc = self._transport.get_dce_rpc()
        if account:
            self._rpc.set_auth_type(rpcrt.RPC_C_AUTHN_WINNT)
            self._rpc.set_auth_level(level)

    def connect(self, interface: Syntax) -> Impacket:
        self._rpc.connect()
        self._rpc.bind(interface.uuid.bytes_le + interface.version.to_bytes(4, "little"))
        return self

    def fragment(self, size: int) -> None:
        """Send request fragments of at most this many octets of stub."""
        self._rpc.set_max_fragment_size(size)

    def call(self, name: str, **args: Any) -> dict[str, Any]:
        method = BY_NAME[name]
        self._rpc.call(method.opnum, method.request(args, ndr64=False))
        return method.parse_response(self._rpc.recv(), ndr64=False)

    def close(self) -> None:
        self._rpc.disconnect()
