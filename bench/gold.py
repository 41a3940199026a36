"""The state machines of gold alone, one core, no Spark: calls to attempts, attempts to what became of their messages.

At 1x and 5x data: what is done for each call must not grow with their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from bench.measure import Measure
from pipeline.attempts.associations import Connection
from pipeline.attempts.calls import Call
from pipeline.attempts.receive_attempts import receive_attempts
from pipeline.sequences.message_fates import Place, Read, ack_sequences

CONNECTIONS = 50
US = 1_000_000


def calls(reads: int) -> tuple[list[Call], list[Connection]]:
    """Each connection opens a queue and reads from it, one after the other: every fourth message is given back once."""
    connections = [
        Connection(f"c{n}", f"10.0.0.{n}", 0, reads * US, association_group_id=n + 1) for n in range(CONNECTIONS)
    ]
    out = [
        Call(f"open {n}", "RemoteRead", 2, f"c{n}", 1, 2, queue=f"srv\\q{n}", context_handle=f"{n:040x}")
        for n in range(CONNECTIONS)
    ]
    for number in range(reads):
        turn, n = divmod(number, CONNECTIONS)
        place, at, given_back = f"c{n}", (number + 1) * US, turn % 5 == 3
        held: dict[str, Any] = {"context_handle": f"{n:040x}", "request_id": turn % 7, "hresult": 0}
        message = turn // 5 * 4 + min(turn % 5, 3) + 1
        asked: dict[str, Any] = {"action": 0, "timeout_ms": 0, "sequence_id": message}
        out.append(Call(f"s{number}", "RemoteRead", 7, place, at, at + 10, **asked, **held))
        out.append(Call(f"e{number}", "RemoteRead", 9, place, at + 20, at + 30, ack=1 if given_back else 2, **held))
    return out, connections


def reads_of(attempts: Iterable[Any]) -> list[Read]:
    """Attempts as the sequences take them."""
    return [
        Read(a.start.call_key, Place(a.queue), a.lookup_id, None, a.is_receive, a.outcome, "10.0.0.1",
             a.start.requested_at, a.start.responded_at, a.ended_at, evidence=tuple(a.evidence))
        for a in attempts
    ]  # fmt: skip


def best(repeat: int, step: Callable[[], object]) -> float:
    """CPU seconds of the best of some runs."""
    took = []
    for _ in range(repeat):
        begin = time.process_time()
        step()
        took.append(time.process_time() - begin)
    return min(took)


def measure(rows: int, repeat: int) -> list[Measure]:
    """CPU seconds for so many reads, and how they grow with five times as many."""
    took: dict[str, list[float]] = {"attempts": [], "sequences": []}
    for count in (rows, 5 * rows):
        theirs, connections = calls(count)
        took["attempts"].append(best(repeat, lambda: receive_attempts(theirs, connections)))  # noqa: B023
        reads = reads_of(receive_attempts(theirs, connections))
        took["sequences"].append(
            best(repeat, lambda: ack_sequences(reads, [], lost_after_us=60 * US, poison_after=3))  # noqa: B023
        )
    out = []
    for name, (one, five) in took.items():
        out.append(Measure(f"gold: {name} of {rows} reads", one, "s"))
        out.append(Measure(f"gold: {name}, time at 5x data", five / one, "x", 8, 6, least=False))
    return out
