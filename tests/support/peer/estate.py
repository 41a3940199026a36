"""A simulated estate for the collector: test queue managers whose queues change by a script.

`python -m peer.estate` (`make estate`) runs it until a signal comes. Each step changes each queue once. The state
after n steps is deterministic, so that collected snapshots can be compared with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from peer.manager import Manager
from peer.queues import OutgoingTransfer, Queue
from peer.security import Account
from peer.server import ACCOUNT, QueueManagerServer, messages, serve_until_stopped, stop_event

NOT_ACTIVE = 0xC00E0004
STARTED = 0x6740_0000  # TimeStamp of the sequences ([MS-MQDMPR] 3.1.1.2), a day in 2024
CONNECTED, CONNECT_FAILED = 2, 0x8000_0004
HOST_UNREACHABLE = 0x2751  # WSAEHOSTUNREACH
SHARED_ID = UUID("5ba1e0aa-0000-4000-8000-00000000c10e")  # a machine was cloned with its queue manager's identifier
T = TypeVar("T")
Move = Callable[[Queue, int], None]


def _put(queue: Queue, count: int, first: int) -> None:
    for message in messages(count, sizes=(100, 800), start=first):
        queue.put(message)


def growing(queue: Queue, step: int) -> None:
    """Three more messages with each step: nobody reads."""
    _put(queue, 3, 1 + 3 * step)


def draining(queue: Queue, step: int) -> None:
    """Four messages fewer with each step, until none are left."""
    for stored in list(queue.messages)[:4]:
        queue.take_away(stored)
    queue.journal.clear()


def filling(queue: Queue, step: int) -> None:
    """Two messages with each step, read at once: they stay in the journal."""
    _put(queue, 2, 1 + 2 * step)
    for stored in list(queue.messages):
        queue.take_away(stored)


def flowing(queue: Queue, step: int) -> None:
    """Five messages with each step, two of them in flight."""
    transfer = _transfer(queue)
    transfer.acknowledged += 5
    transfer.waiting, transfer.acknowledged_at = 2, STARTED + 60 * step


def stalled(queue: Queue, step: int) -> None:
    """Connected, but nothing is acknowledged from the third step on, while more is sent."""
    transfer = _transfer(queue)
    if step < 3:
        flowing(queue, step)
    else:
        transfer.waiting += 2


def resending(queue: Queue, step: int) -> None:
    """The remote side is down: the same messages are sent again and again, at growing intervals."""
    transfer = _transfer(queue)
    queue.state = "WAITING"
    transfer.acknowledged, transfer.waiting = 40, 7
    transfer.resends = step
    transfer.resend_at = STARTED + 30 * (step + 1)
    moment = STARTED + 30 * step
    transfer.history = [*transfer.history, (CONNECT_FAILED, moment, HOST_UNREACHABLE, ["10.0.0.7"])][-8:]


def resetting(queue: Queue, step: int) -> None:
    """After five steps the sequence restarts with another identifier: nothing is known of the messages in flight."""
    transfer = _transfer(queue)
    if step and step % 5 == 0:
        transfer.sequence += 1 << 32
        transfer.acknowledged = 0
    flowing(queue, step)


def paused(queue: Queue, step: int) -> None:
    """On hold from the third to the sixth step; messages wait."""
    queue.paused = 3 <= step < 6
    transfer = _transfer(queue)
    if queue.paused:
        transfer.waiting += 1
    else:
        transfer.acknowledged += transfer.waiting
        transfer.waiting = 0


def idle(queue: Queue, step: int) -> None:
    """No change."""


def _transfer(queue: Queue) -> OutgoingTransfer:
    if queue.transfer is None:
        queue.transfer = OutgoingTransfer(STARTED << 32 | 1)
        queue.transfer.history = [(CONNECTED, STARTED, 0, ["10.0.0.7"])]
    return queue.transfer


@dataclass
class Machine:
    """A queue manager of the estate: its queues and their scripts."""

    manager: Manager
    moves: list[tuple[Queue, Move]] = field(default_factory=list)

    def queue(self, path: str, move: Move, *, outgoing: bool = False, transactional: bool = False) -> Queue:
        queue = self.manager.add(path, transactional=transactional or outgoing, outgoing=outgoing)
        self.moves.append((queue, move))
        return queue

    def step(self, number: int) -> None:
        for queue, move in self.moves:
            move(queue, number)


def _machine(name: str, guid: UUID) -> Machine:
    return Machine(Manager(name, guid, ports={"remoteread": 0, "qm2qm": 0, "epm": 0}))


def machines() -> list[Machine]:
    """Return the machines: `orders1` for local queues, `relay1` for outgoing ones, and two clones."""
    orders = _machine("orders1", UUID(int=0x0DE75))
    orders.queue("private$\\growing", growing)
    drained = orders.queue("private$\\draining", draining)
    _put(drained, 60, 1)
    orders.queue("private$\\journal", filling)
    orders.queue("private$\\inactive", idle).refuses = NOT_ACTIVE
    orders.queue("private$\\ledger", idle, transactional=True)
    relay = _machine("relay1", UUID(int=0x4E1A7))
    for name, move in (("flowing", flowing), ("stalled", stalled), ("resending", resending), ("reset", resetting),
                       ("paused", paused)):  # fmt: skip
        relay.queue(f"far\\private$\\{name}", move, outgoing=True)
    clones = []
    for name in ("shop1", "shop2"):
        clone = _machine(name, SHARED_ID)
        queue = clone.queue("private$\\till", growing)
        queue.reported_name = f"PRIVATE={SHARED_ID}\\00000001"
        clones.append(clone)
    return [orders, relay, *clones]


class Estate:
    """The machines with their servers, each on its own address."""

    def __init__(self, made: list[Machine] | None = None, *, hosts: list[str] | None = None) -> None:
        self.machines = machines() if made is None else made
        self.hosts = hosts or ["127.0.0.1"] * len(self.machines)
        self.servers = [
            QueueManagerServer(machine.manager, host) for machine, host in zip(self.machines, self.hosts, strict=True)
        ]
        self.steps = 0

    async def start(self) -> None:
        for server in self.servers:
            await server.start()

    async def stop(self) -> None:
        for server in self.servers:
            await server.stop()

    def accounts(self, accounts: list[Account]) -> None:
        for server in self.servers:
            server.service.accounts = accounts

    def step(self) -> None:
        """Change each queue once."""
        for machine in self.machines:
            machine.step(self.steps)
        self.steps += 1

    def settings(self, *, mapped: bool = False) -> str:
        """Return the collector's settings for this estate (YAML); ``mapped``: the endpoint mapper gives the ports."""
        lines = ["collector:", "  machines:"]
        for machine, host in zip(self.machines, self.hosts, strict=True):
            port = "" if mapped else f", port: {machine.manager.ports['remoteread']}"
            lines.append(f"    - {{name: {machine.manager.name}, address: {host}{port}}}")
        return "\n".join(lines) + "\n"


class EstateThread:
    """Runs an object with ``start`` and ``stop`` on an event loop in its own thread, for blocking clients."""

    def __init__(self, *served: Any) -> None:
        self.served = served
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="peer-estate", daemon=True)

    def __enter__(self) -> EstateThread:
        self._thread.start()
        for each in self.served:
            self._wait(each.start())
        return self

    def __exit__(self, *_: object) -> None:
        for each in reversed(self.served):
            with contextlib.suppress(TimeoutError):
                self._wait(each.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def do(self, work: Callable[[], T]) -> T:
        """Run a function on the event loop."""

        async def run() -> T:
            return work()

        return self._wait(run())

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)


def main(argv: list[str] | None = None) -> int:
    """Serve and step until a signal comes."""
    parser = argparse.ArgumentParser(
        prog="python -m peer.estate", description="Test queue managers whose queues move, for the collector."
    )
    parser.add_argument("--host", nargs="+", default=["127.0.0.1"], help="addresses, one or one for each (%(default)s)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds from step to step (%(default)s)")
    parser.add_argument("--conf", type=Path, help="write the collector's settings for it to this file")
    parser.add_argument(
        "--real-ports", action="store_true", help="listen on 135, 2103 and 2105: needs an address for each machine"
    )
    options = parser.parse_args(argv)
    made = machines()
    hosts = options.host * len(made) if len(options.host) == 1 else options.host
    if len(hosts) != len(made):
        parser.error(f"there are {len(made)} machines: give one address, or so many")
    if options.real_ports:
        for machine in made:
            machine.manager.ports.update(remoteread=2103, qm2qm=2105, epm=135)
    estate = Estate(made, hosts=hosts)

    async def serve() -> None:
        await estate.start()
        estate.step()
        settings = estate.settings(mapped=options.real_ports)
        if options.conf is not None:
            options.conf.write_text(settings, encoding="utf-8")
        print(settings + f"# user {ACCOUNT.domain}\\{ACCOUNT.user}, or nobody", flush=True)
        stop = stop_event()
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), options.every)
            except TimeoutError:
                estate.step()
        await estate.stop()

    return serve_until_stopped("peer.estate", serve())


if __name__ == "__main__":
    sys.exit(main())
