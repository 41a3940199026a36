"""What waits for one next hop, and the sequences of transactional messages ([MS-MQQB] 3.1.1.3.1, 3.1.1.5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peer.transfers import layouts as p
from peer.transfers import session as s
from peer.transfers.clock import SECOND, Timer

if TYPE_CHECKING:
    from peer.transfers.queue_manager import QueueManager


@dataclass(eq=False)
class Position:
    """A message that waits to be sent, or for its acknowledgements (OutgoingMessagePosition, 3.1.1.3.1.2)."""

    message: p.UserMessage
    sequence: Sequence | None = None  # of a transactional message of this queue manager
    awaiting: bool = False
    session_acked: bool = False
    stored: bool = False
    order_acked: bool = False
    transmitted: bool = False

    @property
    def transactional(self) -> bool:
        return self.message.transaction is not None

    def settled(self) -> bool:
        """Whether it needs to be kept no longer (3.1.5.5.2, .3, 3.1.5.6); to a router all is recoverable or express."""
        if self.sequence is not None:
            return self.session_acked and self.order_acked
        return self.stored if self.message.recoverable else self.session_acked


@dataclass(eq=False)
class Sequence:
    """Outgoing transactional messages to one queue, in order (OutgoingTransferSequence, 3.1.1.3.1.1)."""

    neighbour: Neighbour
    identifier: int
    next_number: int = 1
    acknowledged: int = 0
    unacked: list[Position] = field(default_factory=list)
    resends: int = 0  # index in the table of resend intervals
    timer: Timer | None = None

    def append(self, position: Position) -> None:
        """Give a message its number when it is sent first (3.1.7.1.3)."""
        transaction = position.message.transaction
        assert transaction is not None
        transaction.sequence, transaction.number = self.identifier, self.next_number
        transaction.previous = self.next_number - 1
        self.next_number += 1
        self.unacked.append(position)

    def bridge(self, position: Position) -> None:
        """Set the previous number of a message that is sent again: that of the message ahead of it (3.1.7.1.3)."""
        transaction = position.message.transaction
        assert transaction is not None
        waiting = [each for each in self.neighbour.table if each.sequence is self]
        at = waiting.index(position)
        ahead = waiting[at - 1].message.transaction if at else None
        none_ahead = self.acknowledged if self.neighbour.manager.settings.bridges_from_acknowledged else 0
        transaction.previous = ahead.number if ahead else none_ahead

    def acknowledge(self, number: int) -> None:
        """Take an order ack (3.1.5.6)."""
        if number > self.acknowledged:
            self.acknowledged, self.resends = number, 0
        for position in list(self.unacked):
            transaction = position.message.transaction
            if transaction is not None and transaction.number <= number:
                position.order_acked = True
                self.unacked.remove(position)
        if self.timer is not None:
            self.timer.stop()
        if self.unacked:
            self.restart_timer()

    def remove(self, position: Position) -> None:
        """Forget a message that has expired or was refused."""
        if position in self.unacked:
            self.unacked.remove(position)

    def restart_timer(self) -> None:
        """Transactional Ack Wait Timer (3.1.6.5): all that is not acknowledged is sent again."""
        intervals = self.neighbour.manager.settings.resend_s

        def event() -> None:
            self.resends += 1
            for position in self.unacked:
                position.awaiting = position.session_acked = False
            if self.unacked:
                self.neighbour.dispatch()

        if self.timer is not None:
            self.timer.stop()
        wait = intervals[min(self.resends, len(intervals) - 1)]
        self.timer = self.neighbour.manager.clock.after(wait, event)


@dataclass(eq=False)
class Neighbour:
    """A next hop: its address, whether sessions to it are by direct name, and what waits for it."""

    manager: QueueManager
    address: str
    direct: bool
    guid: p.uuid.UUID = p.NOBODY
    table: list[Position] = field(default_factory=list)  # OutgoingMessageTable
    session: s.Session | None = None
    pinged: bool = False
    connecting: bool = False
    retry: Timer | None = None

    def add(self, position: Position) -> None:
        self.table.append(position)
        self.dispatch()

    def dispatch(self) -> None:
        """Send what the window takes; opens a session if there is none (3.1.7.1)."""
        todo = [each for each in self.table if not each.awaiting and not each.session_acked]
        if not todo or self.manager.settings.paused:
            return
        if self.session is None:
            if not self.connecting and (self.retry is None or not self.retry.running):
                self.connecting = True
                self.manager.exchange.start(self.manager.connect(self))
            return
        if self.session.state != s.OPEN:
            return
        for position in todo:
            if self.session.full:
                return
            if self.expired(position):
                self.manager.fail(position, p.NACK_REACH_TIMEOUT)
                continue
            self._send(position)

    def expired(self, position: Position) -> bool:
        """3.1.7.1.2."""
        message = position.message
        return (
            message.time_to_reach != p.NEVER
            and self.manager.clock.now() // SECOND - message.sent > message.time_to_reach
        )

    def _send(self, position: Position) -> None:
        assert self.session is not None
        sequence = position.sequence
        if position.transactional and sequence is None and position.message.source == self.manager.guid:
            sequence = position.sequence = self.manager.sequence_for(self, position.message.destination)
        if sequence is not None:
            if position.transmitted:
                sequence.bridge(position)
            else:
                sequence.append(position)
            if sequence.timer is None or not sequence.timer.running:
                sequence.restart_timer()
        position.awaiting = position.transmitted = True
        self.session.send(position)
        self.manager.sent(position, self.session)

    def settle_acknowledged(self) -> None:
        """Forget messages that have all their acknowledgements."""
        self.table = [each for each in self.table if not each.settled()]

    def session_closed(self, session: s.Session) -> None:
        """Begin anew with the next session: all that was not acknowledged is sent again (3.1.3.2)."""
        if self.session is not session:
            return
        self.session = None
        for position in self.table:
            position.awaiting = position.session_acked = False
        self.try_again()

    def try_again(self) -> None:
        """Session Retry Connect Timer (3.1.6.1)."""
        if self.retry is not None:
            self.retry.stop()
        self.retry = self.manager.clock.after(self.manager.settings.retry_s, self.dispatch) if self.table else None
