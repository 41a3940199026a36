"""Finds the purges and moves among one server's calls. Plain rows; no Spark.

R_PurgeQueue and RemoteQMPurgeQueue empty the queue behind their handle ([MS-MQRR] 3.1.4.6, [MS-MQQP] 3.1.4.7).
R_MoveMessage takes a message from the queue of its handle to that of an R_OpenQueueForMove, which it names by the
number that this returned ([MS-MQRR] 3.1.4.10, D7); the number is looked up within its association, whose client was
given it. Purges through rpc_ACPurgeQueue are those of applications at their own queue manager; what it purges
elsewhere comes over one of the other two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.calls.decoded_call import CALL_ROLES, LOOKUP_ID_ACTION_FLAG, DecodedCall
from pipeline.attempts.evidence import CallConclusion, ServerCalls, confidence_level


@dataclass(slots=True)
class QueueOperation(CallConclusion):
    """A purge or a move: the queue it was done to, and for a move where the message went."""

    queue: str | None = None
    opens: list[DecodedCall] = field(default_factory=list)
    target: str | None = None

    @property
    def kind(self) -> str:
        """What was done: purge or move."""
        return CALL_ROLES[self.call.protocol, self.call.opnum]

    @property
    def outcome(self) -> str:
        """done, failed, or unknown: the answer was not captured, or cannot be read."""
        return "done" if self.call.is_accepted else "failed" if self.call.is_refused else "unknown"

    @property
    def lookup_id(self) -> int | None:
        """The moved message's identifier, 56 bits."""
        return None if self.kind == "purge" or not self.call.lookup_id else self.call.lookup_id & LOOKUP_ID_ACTION_FLAG

    @property
    def confidence(self) -> str:
        """How certain the operation is, by what is missing."""
        return confidence_level(self.missing, guessed=False)


def find_operations(calls: Iterable[DecodedCall], connections: Iterable[RpcConnection]) -> list[QueueOperation]:
    """Return one operation per purge or move of one server, in order of (time, call key)."""
    server = ServerCalls(calls, connections)
    done = (call for call in server.calls if CALL_ROLES[call.protocol, call.opnum] in ("purge", "move"))
    found = [*map(QueueOperation, done)]
    for operation, queue in zip(found, server.find_queues(found), strict=True):
        operation.queue = queue
        operation.opens = [*operation.used_calls]
        if operation.kind == "move":
            _find_target(server, operation)
    server.add_gaps(found)
    return found


def _find_target(server: ServerCalls, move: QueueOperation) -> None:
    """Set where the message of a move went; the outcome of its transaction decides whether it did."""
    opened = server.handles.find_move_target(move.call)
    if opened is not None:
        move.target = opened.queue
        move.used_calls.append(opened)
    if move.target is None:
        move.missing |= {"queue_unknown"} if opened is not None else {"no_open", "queue_unknown"}
    if move.outcome == "done" and move.call.transaction_id is not None:
        move.missing.add("transaction_open")
