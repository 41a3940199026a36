"""Benchmark of the conformance rules: CPU seconds per million calls, from Arrow tables to the rows of gold.findings.

The calls are on connections of 400 calls, half of RemoteRead and half of qm2qm: a queue is opened, messages are
received and acknowledged, the queue is closed. No call breaks a rule, so every rule is evaluated completely. Run from
the project's folder: ``python -m bench.findings [calls]``.
"""

import sys
import time

import pyarrow as pa

from bench.measure import Measure, format_report
from pipeline.findings import evaluate

ROWS = 100_000
CALLS_PER_CONNECTION = 400
BEGIN_US = 1_700_000_000_000_000
_HANDLE = "{:040x}"
_TIMES = pa.timestamp("us", tz="UTC")


def _call(number, connection, interface, opnum, at, **columns):
    return {
        "call_key": f"{number:032x}", "connection_id": f"{connection:032x}", "call_id": number, "context_id": 0,
        "interface_name": interface, "opnum": opnum, "transfer_syntax": "NDR", "byte_order": "little", "auth_level": 6,
        "bind_seen": True, "sealed": False, "request_at": at, "response_at": at + 1000, "outcome": "ok",
        "client_address": f"10.0.{connection // 250 % 250}.{connection % 250}", "server_address": "10.1.0.1",
        "server_port": 2103, "hresult": 0, **columns,
    }  # fmt: skip


def _message_columns(number, at):
    columns = {"arrived_at": at, "sent_at": at - 1_000_000, "packet_bytes": 500, "body_bytes": 100}
    more = {"sequence_id": number + 1, "source_queue_manager": "q", "time_to_reach_queue_s": 60, "is_srmp": False}
    return columns | more


def _remote_read_calls(connection, number, at):
    handle = {"context_handle": _HANDLE.format(connection)}
    modes = {"queue_format_type": 3, "queue_format_name": "DIRECT=OS:srv\\private$\\q", "queue": "srv\\private$\\q",
             "access": 1, "share_mode": 0, "version_major": 6, "version_minor": 1, "workgroup": True}  # fmt: skip
    yield _call(number, connection, "RemoteRead", 2, at, **handle, **modes)
    for place in range(1, CALLS_PER_CONNECTION - 1, 2):
        read = {"request_id": place, "action": 0, "timeout_ms": 1000, "lookup_id": 0, "cursor_handle": 0,
                "max_body_bytes": 4096, "section_types": [0], "section_bytes": [500],
                "section_allocated_bytes": [500]}  # fmt: skip
        when = at + place * 10_000
        came = _message_columns(number + place, when)
        yield _call(number + place, connection, "RemoteRead", 7, when, **handle, **read, **came)
        ended = {"request_id": place, "ack": 2}
        yield _call(number + place + 1, connection, "RemoteRead", 9, when + 5000, **handle, **ended)
    yield _call(
        number + CALLS_PER_CONNECTION - 1, connection, "RemoteRead", 3, at + CALLS_PER_CONNECTION * 10_000, **handle
    )


def _qm2qm_calls(connection, number, at):
    handle, queue = {"context_handle": _HANDLE.format(connection)}, connection + 1
    numbers = dict.fromkeys(("queue_handle", "queue_descriptor", "open_context"), queue)
    client = "0d4b0d05-4f2a-4d1f-9a3f-2f3d1f0a0b0c"
    yield _call(number, connection, "qm2qm", 2, at, **handle, **numbers, mqs=1, client_id=client)
    for place in range(1, CALLS_PER_CONNECTION - 1, 2):
        read = {"queue_handle": queue, "queue_descriptor": queue, "request_id": place, "action": 0, "timeout_ms": 1000,
                "cursor_handle": 0, "remote_read_handle": _HANDLE.format(number + place)}  # fmt: skip
        when = at + place * 10_000
        came = _message_columns(number + place, when)
        yield _call(number + place, connection, "qm2qm", 9, when, **read, **came)
        ended = {"remote_read_handle": read["remote_read_handle"], "ack": 2}
        yield _call(number + place + 1, connection, "qm2qm", 1, when + 5000, **ended)
    yield _call(number + CALLS_PER_CONNECTION - 1, connection, "qm2qm", 3, at + CALLS_PER_CONNECTION * 10_000, **handle)


def build_evaluation_input(rows):
    """Build the input of the rules for about ``rows`` calls."""
    calls, connections = [], []
    for connection in range(rows // CALLS_PER_CONNECTION):
        made = (_remote_read_calls, _qm2qm_calls)[connection % 2]
        at = BEGIN_US + connection * 100_000
        calls += made(connection, connection * CALLS_PER_CONNECTION, at)
        last = at + (CALLS_PER_CONNECTION + 10) * 10_000
        connections.append(
            {"connection_id": f"{connection:032x}", "client_address": calls[-1]["client_address"],
             "server_address": "10.1.0.1", "first_packet_at": at - 1000, "last_packet_at": last, "closed_at": last,
             "closed_by": "fin", "association_group_id": None, "syn_seen": True, "missing_bytes": 0}
        )  # fmt: skip
    names = (
        evaluate.CALL_COLUMNS,
        evaluate.REMOTE_READ_COLUMNS,
        evaluate.EVALUATED_CLIENT_CALL_COLUMNS,
        evaluate.EVALUATED_MESSAGE_COLUMNS,
    )
    extra = dict.fromkeys(name for part in names for name in part if name != "errors")
    table = pa.Table.from_pylist([dict.fromkeys(extra) | call for call in calls])
    table = _cast_times(table).append_column("errors", pa.nulls(len(table)))
    empty = pa.table({name: pa.array([], pa.string()) for name in evaluate.BIND_COLUMNS})
    opened = table.filter(evaluate.is_open_or_close_call(table))
    return evaluate.EvaluationInput(table, opened, _cast_times(pa.Table.from_pylist(connections)), empty)


def _cast_times(table):
    for place, name in enumerate(table.column_names):
        if name.endswith("_at") and pa.types.is_integer(table[name].type):
            table = table.set_column(place, name, table[name].cast(_TIMES))
    return table


def measure(rows: int = ROWS, repeat: int = 3) -> list[Measure]:
    """Measure CPU seconds for a million calls; the best of ``repeat`` runs."""
    given = build_evaluation_input(rows)
    took = []
    for _ in range(repeat):
        begin = time.process_time()
        found = evaluate.evaluate_calls(given)
        took.append(time.process_time() - begin)
    million = 1e6 / given.calls.num_rows
    return [
        Measure("findings: judging a million calls", min(took) * million, "s"),
        Measure("findings: calls a second and core", given.calls.num_rows / min(took), "/s"),
        Measure("findings: made", found.num_rows, ""),
    ]


if __name__ == "__main__":
    print(format_report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
