"""Several queue managers on one clock, over real sockets, with the account of all that they do."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Coroutine
from typing import Any

from peer.transfers import layouts as p
from peer.transfers.account import Account, SessionEntry
from peer.transfers.clock import Clock
from peer.transfers.queue_manager import QueueManager, Settings
from peer.transfers.session import Session

PORT, PING_PORT = 1801, 3527  # [MS-MQQB] 2.1.1, 2.1.2


class Exchange:
    """The world of a script, an asynchronous context. Sessions that are open at its end are so in the account."""

    def __init__(
        self, *, addresses: str = "127.0.0.", port: int = PORT, ping_port: int = PING_PORT, begin: float | None = None,
        quiet_s: float = 0.002,
    ) -> None:  # fmt: skip
        self.addresses, self.port, self.ping_port = addresses, port, ping_port
        self.clock = Clock(begin, quiet_s)
        self.clock.in_flight = self.in_flight
        self.account = Account(self)
        self.managers: list[QueueManager] = []
        self.wrong_guids: dict[str, uuid.UUID] = {}  # identifiers that others take for those of an address
        self._ends: dict[int, dict[str, Session]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = 0
        self.waiting_pings = 0
        self._failures: list[str] = []

    async def manager(self, name: str, host: int, settings: Settings | None = None) -> QueueManager:
        """Start a queue manager on an address."""
        address = f"{self.addresses}{host}"
        made = QueueManager(self, name, address, uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{address}"), settings)
        self.managers.append(made)
        await made.start()
        return made

    async def __aenter__(self) -> Exchange:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self._failures.append(repr(context.get("exception") or context["message"]))
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.account.closed = True
        for manager in self.managers:
            await manager.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.sleep(0.01)
        if self._failures:
            raise RuntimeError("; ".join(self._failures))

    async def pass_time(self, seconds: float) -> None:
        await self.clock.pass_time(seconds)

    # -- who is where ------------------------------------------------------------------------------------------------

    def owner(self, name: p.FormatName) -> QueueManager | None:
        """Return the queue manager that a queue's name names."""
        for manager in self.managers:
            if name.direct is not None:
                kind, _, rest = name.direct.partition(":")
                host = rest.split("\\")[0].lower()
                if host == (manager.address if kind.upper() == "TCP" else manager.name.lower()):
                    return manager
            elif name.guid == manager.guid or (name.number is None and manager.find_queue(name)):
                return manager
        return None

    def address_of(self, name: p.FormatName) -> str | None:
        """Return the address that a direct name leads to, of a machine that need not run."""
        owner = self.owner(name)
        if owner is not None:
            return owner.address
        if name.direct is not None and name.direct.upper().startswith("TCP:"):
            return name.direct[4:].split("\\")[0]
        return None

    async def stranger(self, source: str, target: str, data: bytes) -> None:
        """Connect as something else than a queue manager, send that, and read until the other side closes."""
        reader, writer = await asyncio.open_connection(target, self.port, local_addr=(source, 0))
        entry = self.account.connected(writer.get_extra_info("sockname")[:2], (target, self.port))
        entry.outcome = "not_binary_protocol"
        writer.write(data)
        await reader.read()
        writer.close()
        await self.clock.settle()

    # -- connections -------------------------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a connection attempt beside the script."""
        self._connecting += 1
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

        def done(_: object) -> None:
            self._connecting -= 1
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self._failures.append(repr(task.exception()))

        task.add_done_callback(done)

    def connected(self, session: Session, client: tuple[str, int], server: tuple[str, int]) -> SessionEntry:
        session.manager.sessions.append(session)
        entry = self.account.connected(client, server)
        self._ends.setdefault(entry.number, {})[session.side] = session
        return entry

    def disconnected(self, session: Session) -> None:
        if session in session.manager.sessions:
            session.manager.sessions.remove(session)
        if session.entry is not None:
            self._ends.get(session.entry.number, {}).pop(session.side, None)

    def in_flight(self) -> bool:
        """Whether bytes, or ends of connections, are on their way."""
        if self._connecting > self.waiting_pings:
            return True
        for ends in self._ends.values():
            if not ends:
                continue
            if len(ends) == 1:
                return True
            one, other = ends.values()
            ways = ((one, other), (other, one))
            if any(sender.written != receiver.read and not receiver.deaf for sender, receiver in ways):
                return True
        return False

    def session(self, sender: QueueManager, receiver: QueueManager) -> Session:
        """Return the newest session between two queue managers, the first one's end."""
        for session in reversed(sender.sessions):
            if session.remote_address == receiver.address:
                return session
        raise LookupError(f"no session between {sender.name} and {receiver.name}")

    async def break_session(self, sender: QueueManager, receiver: QueueManager, *, reset: bool = True) -> None:
        """End the newest session between two queue managers from the first one's end."""
        await self.clock.settle()
        self.session(sender, receiver).close(reset=reset)
        await self.clock.settle()


def free_ports(hosts: tuple[str, ...] = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")) -> tuple[int, int]:
    """Return a TCP and a UDP port that are free on all these addresses."""
    found = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as first:
            first.bind((hosts[0], 0))
            port = first.getsockname()[1]
            for host in hosts[1:]:
                with socket.socket(socket.AF_INET, kind) as other:
                    other.bind((host, port))
        found.append(port)
    return found[0], found[1]
