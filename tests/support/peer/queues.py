"""Queues of the test queue manager: messages, waiting readers, cursors ([MS-MQDMPR], as far as reads show it)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from peer.packets import Message
from peer.truth import Attempt

OK = 0
IO_TIMEOUT = 0xC00E001B
OPERATION_CANCELLED = 0xC00E0008
REMOTE_CANCELED = 0x400E03E9
MESSAGE_NOT_FOUND = 0xC00E0088
TRANSACTION_SEQUENCE = 0xC00E0051
NOT_FOUND = 0xC0000225
QUEUE_DELETED = 0xC00E005A

RECEIVE, PEEK_CURRENT, PEEK_NEXT = 0, 0x8000_0000, 0x8000_0001
LOOKUP_PEEK = (0x4000_0010, 0x4000_0011, 0x4000_0012)
LOOKUP_RECEIVE = (0x4000_0020, 0x4000_0021, 0x4000_0022)
LOOKUPS = LOOKUP_PEEK + LOOKUP_RECEIVE
ACTIONS = (RECEIVE, PEEK_CURRENT, PEEK_NEXT, *LOOKUPS)
INFINITE = 0xFFFF_FFFF


def is_receive(action: int) -> bool:
    """Return whether an action receives; otherwise it peeks (4.1)."""
    return action == RECEIVE or action in LOOKUP_RECEIVE


class ReadFailed(Exception):  # noqa: N818 - an answer, not a mistake
    """The read ends with this HRESULT."""

    def __init__(self, hresult: int) -> None:
        super().__init__(f"0x{hresult:08X}")
        self.hresult = hresult


@dataclass(eq=False)
class StoredMessage:
    """A message in a queue; `state` is available, locked, purge_pending or deleted (4.4)."""

    message: Message
    lookup_id: int
    arrived: int
    state: str = "available"
    transaction: bytes | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Queue order: priority, then arrival."""
        return -self.message.priority, self.lookup_id

    @property
    def here(self) -> bool:
        return self.state in {"available", "locked"}


@dataclass(eq=False)
class QueueCursor:
    """A cursor: the position of its current message, None before the first one."""

    number: int
    at: tuple[int, int] | None = None
    started: bool = False


@dataclass(eq=False)
class WaitingRead:
    """A read that waits for a message."""

    owner: object
    request_id: int
    action: int
    cursor: QueueCursor | None
    future: asyncio.Future[StoredMessage]


@dataclass(eq=False)
class OutgoingTransfer:
    """An outgoing queue's exactly-once transfer as its queue manager reports it ([MS-MQMQ] 2.3.12.13 to .25)."""

    sequence: int
    acknowledged: int = 0  # number of the last message acknowledged by order
    waiting: int = 0  # sent and not acknowledged
    unread: int = 0  # acknowledged by order and not yet as received
    acknowledged_at: int = 0
    resends: int = 0
    resend_at: int = 0
    history: list[tuple[int, int, int, list[str]]] = field(default_factory=list)  # status, time, error, addresses
    hop: str = "IP=10.0.0.7:1801"


@dataclass(eq=False)
class Queue:
    """A queue and its messages in queue order."""

    name: str
    format_name: str
    transactional: bool = False
    outgoing: bool = False
    paused: bool = False
    journal: list[StoredMessage] = field(default_factory=list)
    messages: list[StoredMessage] = field(default_factory=list)
    waiting: list[WaitingRead] = field(default_factory=list)
    parent: Queue | None = None
    subqueue: str = ""
    refuses: int = 0  # HRESULT of every question about its properties
    state: str | None = None  # as reported, where it is not what follows from the rest
    transfer: OutgoingTransfer | None = None
    reported_name: str | None = None  # FORMATNAME, where it is not the name it is opened by
    clock: Callable[[], float] = time.time
    moments: itertools.count[int] = field(default_factory=lambda: itertools.count(0x0001_0000_0000_0005))

    def put(self, message: Message, *, lookup_id: int | None = None) -> StoredMessage:
        """Add a message; a waiting reader may get it at once."""
        number = lookup_id if lookup_id is not None else next((self.parent or self).moments)
        stored = StoredMessage(message, number, int(self.clock()))
        self.messages.append(stored)
        self.messages.sort(key=lambda item: item.place)
        self.serve()
        return stored

    def serve(self) -> None:
        """Give available messages to waiting readers, first come first served."""
        for reading in list(self.waiting):
            if not reading.future.done():
                found = self._find(reading.action, reading.cursor)
                if found is not None:
                    reading.future.set_result(self._taken(found, reading.action))

    def _find(self, action: int, cursor: QueueCursor | None) -> StoredMessage | None:
        free = [item for item in self.messages if item.state == "available"]
        if cursor is None:
            return free[0] if free else None
        if action == PEEK_NEXT and cursor.started:
            free = [item for item in free if cursor.at is None or item.place > cursor.at]
        elif cursor.at is not None:
            free = [item for item in free if item.place >= cursor.at]
        if not free:
            return None
        cursor.at, cursor.started = free[0].place, True
        return free[0]

    @staticmethod
    def _taken(stored: StoredMessage, action: int) -> StoredMessage:
        if is_receive(action):
            stored.state = "locked"
        return stored

    async def read(
        self, owner: object, request_id: int, action: int, timeout_ms: int, cursor: QueueCursor | None
    ) -> StoredMessage:
        """Return a message for a receive or peek; waits up to the time-out, raises ReadFailed if there is none."""
        found = self._find(action, cursor)
        if found is not None:
            return self._taken(found, action)
        if timeout_ms == 0:
            raise ReadFailed(IO_TIMEOUT)
        reading = WaitingRead(owner, request_id, action, cursor, asyncio.get_running_loop().create_future())
        self.waiting.append(reading)
        try:
            limit = None if timeout_ms == INFINITE else timeout_ms / 1000
            return await asyncio.wait_for(reading.future, limit)
        except TimeoutError:
            raise ReadFailed(IO_TIMEOUT) from None
        except asyncio.CancelledError:
            if reading.future.done() and not reading.future.cancelled() and not reading.future.exception():
                self.give_back(reading.future.result())
            raise
        finally:
            self.waiting.remove(reading)

    def lookup(self, action: int, lookup_id: int) -> StoredMessage:
        """Return a message by lookup id, or its neighbour in queue order (4.1)."""
        step = (action & 0xF) % 3
        there = [item for item in self.messages if item.here]
        index = next((n for n, item in enumerate(there) if item.lookup_id == lookup_id), None)
        if step == 1 and lookup_id == 0:
            index = -1
        elif step == 2 and lookup_id == 0xFFFF_FFFF_FFFF_FFFF:
            index = len(there)
        if index is None:
            raise ReadFailed(MESSAGE_NOT_FOUND)
        index += (0, 1, -1)[step]
        if not 0 <= index < len(there):
            raise ReadFailed(MESSAGE_NOT_FOUND)
        found = there[index]
        if is_receive(action) and found.state != "available":
            raise ReadFailed(MESSAGE_NOT_FOUND)
        return self._taken(found, action)

    def cancel(self, owner: object, request_id: int, hresult: int) -> bool:
        """End the waiting receive of this owner and id; a waiting peek cannot be cancelled (D5)."""
        for reading in self.waiting:
            if reading.owner is owner and reading.request_id == request_id and is_receive(reading.action):
                if not reading.future.done():
                    reading.future.set_exception(ReadFailed(hresult))
                return True
        return False

    def cancel_all(self, owner: object, hresult: int) -> None:
        """End all reads that wait on a closed handle."""
        for reading in self.waiting:
            if reading.owner is owner and not reading.future.done():
                reading.future.set_exception(ReadFailed(hresult))

    def take_away(self, stored: StoredMessage) -> None:
        """Remove an acknowledged message from the queue to the journal."""
        stored.state = "deleted"
        if stored in self.messages:
            self.messages.remove(stored)
            self.journal.append(stored)

    def give_back(self, stored: StoredMessage) -> None:
        """Make a message available again after a NACK, unless the queue was purged meanwhile."""
        if stored.state == "purge_pending":
            self.messages.remove(stored)
            stored.state = "deleted"
        elif stored.state == "locked":
            stored.state = "available"
            self.serve()

    def purge(self) -> None:
        """Delete all available messages, and locked ones once they are ended (4.4)."""
        for item in list(self.messages):
            if item.state == "available":
                item.state = "deleted"
                self.messages.remove(item)
            elif item.state == "locked":
                item.state = "purge_pending"

    def remove(self, stored: StoredMessage) -> None:
        """Remove a message while a reader holds it, as an administrator can."""
        stored.state = "deleted"
        if stored in self.messages:
            self.messages.remove(stored)


@dataclass(eq=False)
class HeldMessage:
    """A message that a read holds until its End (PendingRequestEntry, RemoteReadEntry)."""

    queue: Queue
    stored: StoredMessage
    attempt: Attempt

    def end(self, *, acknowledge: bool) -> int:
        """End the read with ACK or NACK; returns the HRESULT."""
        stored = self.stored
        if stored.state == "deleted":
            return MESSAGE_NOT_FOUND
        if stored.state == "available":
            return TRANSACTION_SEQUENCE
        if acknowledge:
            self.queue.take_away(stored)
        else:
            self.queue.give_back(stored)
        return OK

    def rundown(self) -> None:
        """Process the loss of the reader: an implied NACK."""
        self.attempt.gone()
        self.queue.give_back(self.stored)
