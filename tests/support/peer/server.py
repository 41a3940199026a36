"""The test queue manager as a process, or as a thread of a test: `python -m peer.server --help`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from peer.manager import Manager
from peer.methods import EPM, QM2QM, QMCOMM, QMMGMT, REMOTEREAD, RPC_MGMT
from peer.mgmt import Management
from peer.packets import Message, sid
from peer.pdu import NDR, NDR64
from peer.qm2qm import Qm2Qm
from peer.remoteread import RemoteRead
from peer.rpc import Service
from peer.security import Account

T = TypeVar("T")
ACCOUNT = Account("reader", "Passw0rd!", "TESTDOM")


def service(manager: Manager, accounts: list[Account] | None = None) -> Service:
    """Return the service of a manager; qmmgmt and the endpoint mapper support NDR only (P08)."""
    handlers = {**RemoteRead(manager).handlers(), **Qm2Qm(manager).handlers(), **Management(manager).handlers()}
    both, plain = (NDR, NDR64), (NDR,)
    syntaxes = {REMOTEREAD: both, QM2QM: both, QMCOMM: both, QMMGMT: plain, EPM: plain, RPC_MGMT: plain}
    return Service(handlers, syntaxes, accounts or [ACCOUNT], manager.ledger)


class QueueManagerServer:
    """A manager with its listening ports."""

    def __init__(self, manager: Manager | None = None, host: str = "127.0.0.1") -> None:
        self.manager = manager or standard_manager()
        self.service = service(self.manager)
        self.host = host
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen; a port 0 is replaced with the assigned one."""
        for name, port in self.manager.ports.items():
            server = await asyncio.start_server(self.service.client, self.host, port)
            self._servers.append(server)
            self.manager.ports[name] = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the ports and every connection."""
        for server in self._servers:
            server.close()
        for connection in list(self.service.open_connections):
            connection.writer.close()
        for server in self._servers:
            await server.wait_closed()


class ServerThread:
    """Runs the server on an event loop in its own thread, so that blocking clients can be tested and recorded."""

    def __init__(
        self, manager: Manager | None = None, host: str = "127.0.0.1", enter: Callable[[], None] | None = None
    ) -> None:
        self.server = QueueManagerServer(manager, host)
        self._enter = enter
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="peer-server", daemon=True)

    @property
    def manager(self) -> Manager:
        return self.server.manager

    @property
    def ports(self) -> dict[str, int]:
        return self.manager.ports

    def _run(self) -> None:
        if self._enter is not None:
            self._enter()
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def __enter__(self) -> ServerThread:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def do(self, work: Callable[[Manager], T]) -> T:
        """Run a function with the manager on the server's loop."""

        async def run() -> T:
            return work(self.manager)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)


def messages(count: int, *, sizes: tuple[int, ...], start: int = 1, transactional: bool = False) -> Iterator[Message]:
    """Return messages of the given sizes in turn, some with a label, an extension, a SID or another priority."""
    for index in range(count):
        number = start + index
        size = sizes[index % len(sizes)]
        text = f'{{"order": {number}, "lines": ['.encode()
        body = (text + b'{"sku": "A-%06d", "n": 1}, ' % number * (size // 27 + 1))[:size]
        yield Message(
            body,
            label=f"order {number}" if index % 3 else "",
            extension=b"x" * 10 if index % 4 == 1 else b"",
            priority=3 + (index % 5 == 4),
            recoverable=index % 2 == 0,
            admin="OS:cli1\\private$\\acks" if index % 4 == 2 else None,
            response="OS:cli1\\private$\\answers" if index % 4 == 3 else None,
            number=number,
            sent=1_700_000_000 + number,
            time_to_reach=0xFFFF_FFFF if index % 2 else 3600,
            acknowledge=0x0E if index % 4 == 2 else 0,
            application=number * 10,
            transaction=number if transactional else None,
            sender=sid(21, 1, 2, 3, 1104) if index % 3 == 2 else None,
            certificate=b"0" * 301 if index % 6 == 5 else b"",
        )


def standard_manager(ports: dict[str, int] | None = None, clock: Callable[[], float] = time.time) -> Manager:
    """Return a manager with the queues of the scenarios and of `python -m peer.server`."""
    manager = Manager(ports=ports or {"remoteread": 0, "qm2qm": 0, "epm": 0}, clock=clock)
    orders = manager.add("private$\\orders")
    large = manager.add("private$\\large")
    ledger = manager.add("private$\\ledger", transactional=True)
    manager.add("private$\\empty")
    out = manager.add("far\\private$\\inbox", transactional=True, outgoing=True)
    for message in messages(12, sizes=(100, 800, 3000)):
        orders.put(message)
    for message in messages(3, sizes=(300_000, 70_000, 9_000), start=100):
        large.put(message)
    for message in messages(4, sizes=(500,), start=200, transactional=True):
        ledger.put(message)
    for message in messages(2, sizes=(64,), start=300, transactional=True):
        out.put(message)
    return manager


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(
        prog="python -m peer.server", description="A test queue manager: RemoteRead, qm2qm, qmcomm, qmmgmt, epm."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--epm-port", type=int, default=1135, help="endpoint mapper, 135 on a real one (%(default)s)")
    parser.add_argument("--port", type=int, default=2103, help="RemoteRead, qmcomm, qmmgmt (%(default)s)")
    parser.add_argument("--qm2qm-port", type=int, default=2105, help="qm2qm (%(default)s)")
    parser.add_argument("--password", default=ACCOUNT.password, help="password of TESTDOM\\reader (%(default)s)")
    options = parser.parse_args(argv)
    manager = standard_manager({"remoteread": options.port, "qm2qm": options.qm2qm_port, "epm": options.epm_port})
    server = QueueManagerServer(manager, options.host)
    server.service.accounts = [Account(ACCOUNT.user, options.password, ACCOUNT.domain)]

    async def serve() -> None:
        await server.start()
        for name, port in manager.ports.items():
            print(f"{name}: {options.host}:{port}", flush=True)
        print("queues: " + ", ".join(queue.name for queue in manager.queues.values()), flush=True)
        await stop_event().wait()
        await server.stop()

    return serve_until_stopped("peer.server", serve())


def stop_event() -> asyncio.Event:
    """Return an event that is set when the process gets a stop signal."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def serve_until_stopped(program: str, serve: Coroutine[Any, Any, None]) -> int:
    """Serve until the stop signal; returns the exit code, 2 with one line if a port or address is not available."""
    try:
        asyncio.run(serve)
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
