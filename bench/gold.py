"""Benchmark of receive attempts and message fates on one core, without Spark: calls to attempts, attempts to sequences.

With once and five times the data: the work per call must not grow with the number of calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench.measure import Measure
from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.calls.decoded_call import DecodedCall
from pipeline.attempts.columns.call_columns import rows_of_calls
from pipeline.attempts.columns.call_evidence import CallEvidence
from pipeline.attempts.receive_attempts import ATTEMPT_OUTCOMES, find_attempts
from pipeline.sequences.message_fates import QueueRef, ReadAttempt, build_message_histories

CONNECTIONS = 50
US = 1_000_000


def build_calls(reads: int) -> tuple[list[DecodedCall], list[RpcConnection]]:
    """Build calls of connections that open a queue and receive messages; every fourth message is returned once."""
    connections = [
        RpcConnection(f"c{n}", f"10.0.0.{n}", 0, reads * US, association_group_id=n + 1) for n in range(CONNECTIONS)
    ]
    out = [
        DecodedCall(f"open {n}", "RemoteRead", 2, f"c{n}", 1, 2, queue=f"srv\\q{n}", context_handle=f"{n:040x}")
        for n in range(CONNECTIONS)
    ]
    for number in range(reads):
        turn, n = divmod(number, CONNECTIONS)
        place, at, given_back = f"c{n}", (number + 1) * US, turn % 5 == 3
        held: dict[str, Any] = {"context_handle": f"{n:040x}", "request_id": turn % 7, "hresult": 0}
        message = turn // 5 * 4 + min(turn % 5, 3) + 1
        asked: dict[str, Any] = {"action": 0, "timeout_ms": 0, "sequence_id": message}
        out.append(DecodedCall(f"s{number}", "RemoteRead", 7, place, at, at + 10, **asked, **held))
        out.append(
            DecodedCall(f"e{number}", "RemoteRead", 9, place, at + 20, at + 30, ack=1 if given_back else 2, **held)
        )
    return out, connections


def reads_of(rows: pa.Table, connections: list[RpcConnection]) -> list[ReadAttempt]:
    """Return the attempts of calls (``rows_of_calls``) as the input of the message fates."""
    evidence = CallEvidence(rows, connections)
    made = find_attempts(evidence, {})
    queues, lookup_ids = evidence.calls.field("queue").to_pylist(), evidence.calls.identifiers("sequence_id").tolist()
    keys, begins = evidence.calls.key.to_pylist(), made.evidence.begins.tolist()
    used = [keys[call] for call in made.evidence.calls.tolist()]
    starts = evidence.calls.objects(made.started)
    columns = (column.tolist() for column in (made.started, made.named, made.outcome, made.ended_at))
    return [
        ReadAttempt(call.call_key, QueueRef(queues[named]), lookup_ids[place], None, call.action == 0,
             ATTEMPT_OUTCOMES[outcome], "10.0.0.1", call.requested_at, call.responded_at, ended_at,
             evidence=tuple(used[begins[n]:begins[n + 1]]))
        for n, (call, place, named, outcome, ended_at) in enumerate(zip(starts, *columns, strict=True))
    ]  # fmt: skip


def best_cpu_seconds(repeat: int, step: Callable[[], object]) -> float:
    """Run a step ``repeat`` times; return the CPU seconds of the fastest run."""
    took = []
    for _ in range(repeat):
        begin = time.process_time()
        step()
        took.append(time.process_time() - begin)
    return min(took)


def measure(rows: int, repeat: int) -> list[Measure]:
    """Measure CPU seconds for ``rows`` reads, and the ratio for five times as many."""
    took: dict[str, list[float]] = {"attempts": [], "sequences": []}
    for count in (rows, 5 * rows):
        theirs, connections = build_calls(count)
        rows = rows_of_calls(theirs)
        took["attempts"].append(best_cpu_seconds(repeat, lambda: find_attempts(CallEvidence(rows, connections), {})))  # noqa: B023
        reads = reads_of(rows, connections)
        took["sequences"].append(
            best_cpu_seconds(repeat, lambda: build_message_histories(reads, [], lost_after_us=60 * US, poison_after=3))  # noqa: B023
        )
    out = []
    for name, (one, five) in took.items():
        out.append(Measure(f"gold: {name} of {rows} reads", one, "s"))
        out.append(Measure(f"gold: {name}, time at 5x data", five / one, "x", 8, 6, higher_is_better=False))
    return out
