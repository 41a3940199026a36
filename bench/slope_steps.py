"""Steps for the benchmark of slopes (``bench.slopes``): joining remainders, gold, metrics, with ``count`` of something.

Each function of ``STEPS`` makes its input and returns the step that is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from bench.gold import US, build_calls, reads_of
from bench.slope_captures import CAPTURES, requests_alone
from pipeline.alerts.episodes import Observation, episodes_from_observations
from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.calls.decoded_call import DecodedCall
from pipeline.attempts.columns.call_columns import rows_of_calls
from pipeline.attempts.columns.call_evidence import CallEvidence
from pipeline.attempts.operations import find_operations
from pipeline.attempts.receive_attempts import find_attempts
from pipeline.queues.eod_transfers import compute_transfers
from pipeline.queues.history import QueueEvent, compute_histories
from pipeline.queues.management_actions import ManagementAction, StateReport, action_rows
from pipeline.sequences.message_fates import QueueRef, ReadAttempt, Removal, build_message_histories
from udfs.capture.capture_reader import read_capture, read_capture_batches
from udfs.capture.connection_merge import merge_connections
from udfs.files.file_source import FileSource
from udfs.keys import key
from udfs.rows import RowDict

Step = Callable[[], object]
_HANDLE: Final = f"{1:040x}"
_LONG: Final = 10**9 * US
_HOUR_NS: Final = 3_600 * 10**9


def _reading(make: Callable[[int], bytes]) -> Callable[[int], Step]:
    def step(count: int) -> Step:
        data = make(count)
        return lambda: sum(batch.num_rows for _, batch in read_capture_batches(FileSource.from_bytes(data, "slopes")))

    return step


# Joining


def _moved(row: RowDict, number: int, *, later_ns: int = 0, sequence: int = 0, tunnel: int | None = None) -> RowDict:
    """Return a remainder as another capture or tunnel shows it: later, and with other sequence numbers."""
    times = {name: row[name] + later_ns for name in ("first_time_ns", "last_time_ns", "named_at_ns")}
    segments = [
        {
            **segment,
            "time_ns": segment["time_ns"] + later_ns,
            "sequence": (segment["sequence"] + sequence) % (1 << 32),
            "acknowledgement": (segment["acknowledgement"] + sequence) % (1 << 32),
        }
        for segment in row["segments"]
    ]
    name = key(number)
    more = {"capture_id": name, "connection_id": name, "pending_key": name, "tunnel_identifier": tunnel}
    return {**row, **times, **more, "segments": segments, "runs": []}


def _joining(make: Callable[[RowDict, int], RowDict]) -> Callable[[int], Step]:
    def step(count: int) -> Step:
        row = read_capture(requests_alone(3))["pending"].to_pylist()[0]
        rows = [make(row, number) for number in range(count)]
        return lambda: merge_connections(rows)

    return step


# Gold


def _connections(count: int) -> list[RpcConnection]:
    return [RpcConnection("c", "10.0.0.1", 0, 100 * count * US, association_group_id=1)]


def _call(name: str, opnum: int, at: int, protocol: str = "RemoteRead", **columns: Any) -> DecodedCall:
    return DecodedCall(name, protocol, opnum, "c", at, at + 10, **{"hresult": 0, "context_handle": _HANDLE, **columns})


def _attempts(make: Callable[[int], Iterable[DecodedCall]]) -> Callable[[int], Step]:
    def step(count: int) -> Step:
        opened = _call("open", 2, 1, queue="srv\\q")
        found = [opened, *(call for number in range(count) for call in make(number))]
        rows, connections = rows_of_calls(found), _connections(count)
        return lambda: (find_attempts(CallEvidence(rows, connections), {}), find_operations(found, connections))

    return step


def _given_back(number: int) -> Iterable[DecodedCall]:
    at = (number + 1) * 50 * US
    yield _call(f"start {number}", 7, at, action=0, timeout_ms=0, sequence_id=1, request_id=1)
    yield _call(f"end {number}", 9, at + 20, ack=1, request_id=1)


def _cancelled(number: int) -> Iterable[DecodedCall]:
    at = (number + 1) * 50 * US
    yield DecodedCall(
        f"start {number}", "RemoteRead", 7, "c", at, at + 40, context_handle=_HANDLE, action=0, request_id=1
    )
    yield _call(f"cancel {number}", 10, at + 20, request_id=1)


def _sessions(number: int) -> Iterable[DecodedCall]:
    at = (number + 1) * 50 * US
    if not number:
        yield _call("name", 2, 5, "qmcomm", queue="srv\\q", queue_handle=5)
    yield _call(f"session {number}", 2, at, "qm2qm", queue_handle=5, context_handle=f"{number:040x}")
    yield _call(
        f"read {number}",
        0,
        at + 20,
        "qm2qm",
        queue_handle=5,
        request_id=1,
        action=0,
        remote_read_handle=f"{number:040x}",
    )


def _fates(
    make: Callable[[int], ReadAttempt], removals: Callable[[int], Removal] | None = None
) -> Callable[[int], Step]:
    def step(count: int) -> Step:
        reads = [make(number) for number in range(count)]
        removed = [] if removals is None else [removals(number) for number in range(count)]
        return lambda: build_message_histories(reads, removed, lost_after_us=60 * US, poison_after=3)

    return step


def _read(number: int, *, queue: str = "q", lookup_id: int = 1, ended_at: int | None = None) -> ReadAttempt:
    """A read of one message in a transaction."""
    at = number * 100
    return ReadAttempt(
        f"read {number:08}",
        QueueRef(queue),
        lookup_id,
        "message",
        is_receive=True,
        outcome="acked",
        returned_at=at + 10,
        ended_at=at + 20 if ended_at is None else ended_at,
        missing=("transaction_open",),
        abort_count=0,
    )


def _sequences(count: int) -> Step:
    calls, connections = build_calls(count)
    reads = reads_of(rows_of_calls(calls), connections)
    return lambda: build_message_histories(reads, [], lost_after_us=60 * US, poison_after=3)


def _history(count: int) -> Step:
    values = {"state": "LOCAL CONNECTION", "message_count": 5}
    events = [
        event
        for number in range(count)
        for event in (
            QueueEvent(number * US, "snapshot", f"snapshot {number}", "name", "capture", values),
            QueueEvent(number * US + 1, "purge", f"purge {number}", "name"),
            QueueEvent(number * US + 2, "received", f"read {number}", "name"),
        )
    ]
    return lambda: compute_histories(events, _LONG)


def _transfers(count: int) -> Step:
    """Observations of a transfer of which ``count`` messages are in flight."""

    def position(number: int) -> RowDict:
        return {"sequence_id": 7 << 32, "sequence_number": number, "previous_number": number - 1}

    empty = (
        "eod_last_ack",
        "eod_last_non_ack",
        "eod_last_ack_time",
        "eod_resend_interval",
        "eod_resend_time",
        "errors",
    )
    snapshots = [
        {
            **dict.fromkeys(empty),
            "queue_manager": "m",
            "queue": "q",
            "queue_format_name": "name",
            "source": "capture",
            "xact": "YES",
            "location": "REMOTE",
            "snapshot_id": f"{number:08}",
            "observed_at": number * US,
            "eod_no_read_count": 0,
            "eod_first_non_ack": position(number + 1),
            "eod_next_seq": position(number + count),
            "eod_no_ack_count": count,
            "eod_resend_count": 0,
        }
        for number in range(count)
    ]
    return lambda: compute_transfers(snapshots, resend_rise=3, max_gap=_LONG)


def _actions(count: int) -> Step:
    """Actions on one queue that all are answered at one time."""
    same = {
        "action": "PAUSE", "responded_at": count * US, "object_type": "queue", "queue_format_name": "name",
        "machine": "m", "queue": "q", "hresult": 0, "fault_name": None, "auth_level": 6, "bind_seen": True,
        "call_outcome": "ok", "errors": None,
    }  # fmt: skip
    actions = [ManagementAction({**same, "call_key": f"{n}", "requested_at": n * US}) for n in range(count)]
    reports = [StateReport(0, "first", "ONHOLD"), StateReport(count * US + 1, "last", "ONHOLD")]
    return lambda: action_rows(actions, dict.fromkeys(map(str, range(count)), reports), _LONG)


def _episodes(count: int) -> Step:
    seen = [Observation(at, at % 3 != 0, at + 9, "message", evidence=(f"{at}",)) for at in range(count)]
    return lambda: episodes_from_observations(seen, count)


def _metrics(count: int) -> Step:
    from dashboards.sites import site  # noqa: PLC0415 (of the tests)
    from pipeline.dashboards.html_page import render_page  # noqa: PLC0415
    from pipeline.dashboards.prometheus import render_metrics  # noqa: PLC0415

    data = site([f"srv\\private$\\queue {number}" for number in range(count)])
    return lambda: (render_page(data), render_metrics(data))


STEPS: Final[dict[str, tuple[int, Callable[[int], Step]]]] = {
    **{f"reader: {make.__name__}": (2_000, _reading(make)) for make in CAPTURES},
    "joining: taps": (150, _joining(lambda row, number: _moved(row, number, later_ns=number))),
    "joining: replays": (150, _joining(lambda row, number: _moved(row, number, later_ns=number * _HOUR_NS))),
    "joining: tunnels": (
        150, _joining(lambda row, number: _moved(row, number, sequence=number * 70_000_001, tunnel=number)),
    ),
    "joining: files": (
        150, _joining(lambda row, number: _moved(row, number, later_ns=number * 10**9, sequence=number * 300)),
    ),
    "attempts: one message given back": (500, _attempts(_given_back)),
    "attempts: cancelled": (500, _attempts(_cancelled)),
    "attempts: sessions of one number": (500, _attempts(_sessions)),
    "fates: many messages": (2_000, _sequences),
    "fates: one message": (1_000, _fates(_read)),
    "fates: one message held long": (1_000, _fates(lambda number: _read(number, ended_at=_LONG))),
    "fates: one message in many queues": (
        500, _fates(lambda number: _read(number, queue=f"q;s{number}", lookup_id=number + 1)),
    ),
    "fates: one message moved": (
        1_000, _fates(_read, lambda number: Removal(f"move {number}", QueueRef("q"), number * 100 + 50, 1, "other")),
    ),
    "queues: history": (500, _history),
    "queues: transfers": (1_000, _transfers),
    "queues: actions": (1_000, _actions),
    "alerts: episodes": (2_000, _episodes),
    "pages and metrics": (500, _metrics),
}  # fmt: skip
