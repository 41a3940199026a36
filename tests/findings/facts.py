"""Captures as input of an evaluation: the reader's tables, decoded. No Spark session is needed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.findings import evaluate
from pipeline.findings.columns.joined_calls import join_by_call_key
from pipeline.silver.decode import decode_calls
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from udfs.capture.capture_reader import read_capture

HEAD, TAIL = evaluate.STUB_HEAD_BYTES, evaluate.STUB_TAIL_BYTES


def read(path):
    """The tables of a capture: those of bronze, and those of silver that its calls make."""
    return decoded(read_capture(str(path)))


def decoded(tables):
    """Tables of bronze, and those of silver that their calls make."""
    tables = dict(tables)
    calls = tables["rpc_calls"].combine_chunks()
    nothing = pa.nulls(len(calls), pa.string())
    # The test queue manager answers in little endian, also where it is asked in big endian.
    more = {"opened_by": nothing, "run_id": nothing, "response_byte_order": pa.array(["little"] * len(calls))}
    for name, values in more.items():
        if name not in calls.column_names:
            calls = calls.append_column(name, values)
    tables["rpc_calls"] = calls
    batch = calls.to_batches()[0] if len(calls) else pa.RecordBatch.from_pylist([], calls.schema)
    return tables | {name: pa.Table.from_batches([rows]) for name, rows in decode_calls(batch).items()}


def _cut(stubs, part):
    return pa.array([None if stub is None else part(stub) for stub in stubs.to_pylist()], pa.binary())


def _renamed(table, name, to):
    return table.rename_columns([to if each == name else each for each in table.column_names])


def facts(tables):
    """The input of an evaluation, of these tables."""
    calls = tables["rpc_calls"]
    requests, responses = calls["request_stub"], calls["response_stub"]
    kept = calls.select(list(evaluate.CALL_COLUMNS))
    for name, values in {
        "request_bytes": pc.binary_length(requests).cast(pa.int64()),
        "request_head": _cut(requests, lambda stub: stub[:HEAD]),
        "request_tail": _cut(requests, lambda stub: stub[-TAIL:]),
        "response_head": _cut(responses, lambda stub: stub[:HEAD]),
        "request_stub": requests,
        "response_stub": responses,
    }.items():
        kept = kept.append_column(name, values)
    whole = join_by_call_key(
        kept,
        [
            tables[str(REMOTE_READ_CALLS)].select(list(evaluate.REMOTE_READ_COLUMNS)),
            tables[str(CLIENT_CALLS)].select(list(evaluate.EVALUATED_CLIENT_CALL_COLUMNS)),
            _renamed(
                tables[str(MANAGEMENT_CALLS)].select(list(evaluate.MANAGEMENT_CALL_COLUMNS)), "action", "action_text"
            ),
            _renamed(
                tables[str(MESSAGES)].select(list(evaluate.EVALUATED_MESSAGE_COLUMNS)), "errors", "message_errors"
            ),
        ],
    )
    opened = whole.filter(evaluate.is_open_or_close_call(whole))
    connections = tables["connections"].select(list(evaluate.EVALUATED_CONNECTION_COLUMNS))
    return evaluate.EvaluationInput(whole, opened, connections, tables["rpc_binds"].select(list(evaluate.BIND_COLUMNS)))


def plain(table):
    """Findings by their keys, without the run that made them."""
    return {row["finding_key"]: {name: row[name] for name in row if name != "run_id"} for row in table.to_pylist()}
