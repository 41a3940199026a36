"""The test queue manager: its queues, open handles, and the state that its interfaces share."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from peer import idl
from peer.idl import QueueFormat
from peer.queues import HeldMessage, Queue, QueueCursor, ReadFailed, StoredMessage, is_receive
from peer.rpc import Call
from peer.truth import Attempt, Ledger

MASK_56 = 0x00FF_FFFF_FFFF_FFFF
QUEUE_NOT_FOUND = 0xC00E0003
INVALID_PARAMETER = 0xC00E0006
INVALID_HANDLE = 0xC00E0007
SHARING_VIOLATION = 0xC00E0009
ACCESS_DENIED = 0xC0000022
RECEIVE_ACCESS, PEEK_ACCESS, MOVE_ACCESS = 0x01, 0x20, 0x04


@dataclass(eq=False)
class OpenQueue:
    """One opened queue (OpenQueueDescriptor): a RemoteRead context, or a number for qm2qm (4.2)."""

    queue: Queue
    access: int
    share: int
    number: int = 0
    cursors: dict[int, QueueCursor] = field(default_factory=dict)
    held: dict[int, HeldMessage] = field(default_factory=dict)  # RemoteRead: by dwRequestId
    reading: dict[int, Attempt] = field(default_factory=dict)
    adopted: bool = False  # qm2qm: RemoteQMOpenQueue took it over (D17)
    move: int = 0


@dataclass
class Manager:
    """A queue manager with its queues by lower-case path or direct name."""

    name: str = "srv1"
    guid: UUID = field(default_factory=lambda: UUID("c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"))
    version: tuple[int, int, int] = (6, 1, 7601)
    ports: dict[str, int] = field(default_factory=lambda: {"remoteread": 2103, "qm2qm": 2105, "epm": 135})
    ledger: Ledger = field(default_factory=Ledger)
    queues: dict[str, Queue] = field(default_factory=dict)
    opened: dict[int, OpenQueue] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(0x1C, 4))
    transactions: dict[bytes, list[HeldMessage]] = field(default_factory=dict)
    connected: bool = True
    delay_s: float = 0.0  # how long each management question waits for its answer
    unknown_properties: frozenset[int] = frozenset()  # of queues: an older manager's lack (rule M19)
    ended_transactional: dict[int, Attempt] = field(default_factory=dict)  # by lookup id
    clock: Callable[[], float] = time.time

    def add(self, path: str, *, transactional: bool = False, outgoing: bool = False) -> Queue:
        """Create a queue, named as `private$\\orders`; an outgoing one by its whole direct name."""
        name = path if outgoing else f"{self.name}\\{path}"
        queue = Queue(name, f"DIRECT=OS:{name}", transactional, outgoing, clock=self.clock)
        self.queues[name.lower()] = queue
        return queue

    def find(self, asked: QueueFormat | None) -> Queue | None:
        """Return the queue of a format name: direct by host name or address, private by number, or a subqueue."""
        if asked is None:
            return None
        if asked.kind == idl.PRIVATE:
            locals_ = [queue for queue in self.queues.values() if not queue.outgoing and queue.parent is None]
            number = asked.value["uniquifier"]
            return locals_[number - 1] if asked.value["lineage"] == self.guid and 0 < number <= len(locals_) else None
        if asked.kind not in {idl.DIRECT, idl.SUBQUEUE} or not isinstance(asked.value, str):
            return None
        protocol, _, rest = asked.value.partition(":")
        if protocol.upper() not in {"OS", "TCP"}:
            return None
        if rest.lower() in self.queues:  # also a system queue, such as a dead-letter queue
            return self.queues[rest.lower()]
        path, _, sub = rest.partition(";")
        found = self.queues.get(path.lower())
        if found is None:  # by address or another name of this machine
            found = self.queues.get(f"{self.name}\\{path.partition(chr(92))[2]}".lower())
        if found is not None and sub:
            return self._subqueue(found, sub)
        return found

    def _subqueue(self, parent: Queue, sub: str) -> Queue:
        key = f"{parent.name};{sub}".lower()
        if key not in self.queues:
            self.queues[key] = Queue(f"{parent.name};{sub}", f"{parent.format_name};{sub}", parent.transactional,
                                     parent=parent, subqueue=sub, clock=self.clock)  # fmt: skip
        return self.queues[key]

    def open(self, queue: Queue, access: int, share: int) -> OpenQueue:
        """Return a new descriptor; SHARING_VIOLATION if an exclusive reader is open (R08)."""
        for other in self.opened.values():
            if other.queue is not queue or MOVE_ACCESS in {access, other.access}:
                continue
            exclusive = 1 in {share, other.share}
            if exclusive and RECEIVE_ACCESS in {access, other.access}:
                raise ReadFailed(SHARING_VIOLATION)
        number = next(self.numbers)
        descriptor = OpenQueue(queue, access, share, number)
        self.opened[number] = descriptor
        return descriptor

    def close(self, descriptor: OpenQueue, hresult: int) -> None:
        """End waiting reads, drop cursors, give back messages held through a RemoteRead context (D12)."""
        self.opened.pop(descriptor.number, None)
        descriptor.queue.cancel_all(descriptor, hresult)
        descriptor.cursors.clear()
        held, descriptor.held = list(descriptor.held.values()), {}
        for item in held:
            item.rundown()

    def new_cursor(self, descriptor: OpenQueue) -> int:
        number = next(self.numbers) | 1
        descriptor.cursors[number] = QueueCursor(number)
        return number

    async def start(
        self,
        call: Call,
        descriptor: OpenQueue,
        attempt: Attempt,
        request_id: int,
        cursor: QueueCursor | None,
        lookup_id: int | None,
    ) -> StoredMessage:
        """Perform one Start: read or wait; the attempt is recorded as truth in any case. Raises ReadFailed."""
        queue = descriptor.queue
        descriptor.reading[request_id] = attempt
        try:
            if lookup_id is not None:
                stored = queue.lookup(attempt.action, lookup_id)
            else:
                stored = await queue.read(descriptor, request_id, attempt.action, attempt.timeout_ms, cursor)
        except ReadFailed as failure:
            attempt.start_hresult = failure.hresult
            attempt.settle(failed_outcome(failure.hresult, attempt, lookup=lookup_id is not None))
            raise
        except asyncio.CancelledError:
            gone = not (call.truth.cancelled or call.truth.orphaned)
            attempt.settle("unknown" if gone else "cancelled")
            raise
        finally:
            if descriptor.reading.get(request_id) is attempt:
                del descriptor.reading[request_id]
        attempt.start_hresult = 0
        attempt.lookup_id = stored.lookup_id & MASK_56
        attempt.body_bytes = len(stored.message.body)
        if not is_receive(attempt.action):
            attempt.settle("peeked")
        return stored

    def attempt(self, call: Call, queue: str, protocol: str, action: int, timeout_ms: int, *, receive: bool) -> Attempt:
        item = Attempt(call.truth, protocol, queue, action, receive, timeout_ms)
        self.ledger.attempts.append(item)
        return item


def failed_outcome(hresult: int, attempt: Attempt, *, lookup: bool) -> str:
    """Return the outcome of gold.receive_attempts for a Start without a message."""
    if hresult in {0xC00E0008, 0x400E03E9}:
        return "cancelled"
    if hresult == 0xC00E001B:
        return "empty" if attempt.timeout_ms == 0 else "timed_out"
    if hresult == 0xC00E0088 and lookup:
        return "empty"
    return "failed"


def failed_start(attempt: Attempt, hresult: int) -> int:
    """Record a Start that was refused before any read began."""
    attempt.start_hresult = hresult
    attempt.settle("failed")
    return hresult
