"""The reader against the ground truth written while each sample was recorded (data/sample)."""

import hashlib
import json
from pathlib import Path

import pytest

from udfs.capture.capture_reader import read_capture

SAMPLES = Path(__file__).parents[2] / "data" / "sample"
TRUTHS = sorted((Path(__file__).parent / "truth").glob("*.truth.json"))
MSMQ = {"RemoteRead", "qm2qm", "qmcomm", "qmcomm2", "qmmgmt", "epm"}


def test_every_capture_has_its_truth_and_every_truth_its_capture():
    captures = {path.name for path in SAMPLES.iterdir() if ".pcap" in path.name}
    named = {json.loads(path.read_text())["capture"] for path in TRUTHS}
    assert captures == named
    assert len(captures) == 13


@pytest.fixture(scope="module", params=TRUTHS, ids=lambda path: path.name.removesuffix(".truth.json"))
def sample(request):
    truth = json.loads(request.param.read_text())
    return truth, read_capture(SAMPLES / truth["capture"], path=truth["capture"])


def _endpoint(row, side):
    return f"{row[side + '_address']}:{row[side + '_port']}"


def _connection(row):
    return _endpoint(row, "client"), _endpoint(row, "server")


def _half(stub):
    return None if stub is None else (len(stub), hashlib.sha256(stub).hexdigest())


def _expected_half(call, name):
    half = call[name]
    if half is None or (name == "response" and call["fault_status"] is not None):
        return None
    # What was sealed is kept as captured.
    sealed = call["sealed"] and half["size"]
    return (half["sealed_size"], half["sealed_sha256"]) if sealed else (half["size"], half["sha256"])


def _expected(truth):
    """Return the expected calls per connection, in order; calls of non-MSMQ interfaces have no rows."""
    calls = {}
    for call in truth["calls"]:
        if call["interface"] not in MSMQ:
            continue
        connection = truth["connections"][call["connection"]]
        row = {
            "call_id": call["call_id"],
            "context_id": call["context_id"],
            "opnum": call["opnum"],
            "interface": call["interface"],
            "transfer_syntax": call["syntax"] if call["bind_seen"] else None,
            "object_uuid": call.get("object_uuid"),
            "byte_order": call["byte_order"],
            "auth": (call["auth_type"], call["auth_level"]),
            "bind_seen": call["bind_seen"],
            "sealed": call["sealed"],
            "outcome": call["outcome"],
            "fault_status": call["fault_status"],
            "fragments": (call["request_fragments"], call["response_fragments"]),
            "request": _expected_half(call, "request"),
            "response": _expected_half(call, "response"),
            "stopped": (call.get("cancelled", False), call.get("orphaned", False)),
        }
        if call["syntax"] is None:  # a context that was refused: nothing is spoken there
            row |= {"interface": None, "transfer_syntax": None, "bind_seen": True}
        if call["outcome"] == "no_request":
            row["interface"] = row["opnum"] = row["byte_order"] = "any"
        calls.setdefault((connection["client"], connection["server"]), []).append(row)
    return calls


def _actual(rows, expected):
    calls = {}
    for row in sorted(rows, key=lambda row: (row["request_at"] or row["response_at"], row["byte_offset"])):
        calls.setdefault(_connection(row), []).append(
            {
                "call_id": row["call_id"],
                "context_id": row["context_id"],
                "opnum": row["opnum"],
                "interface": row["interface_name"],
                "transfer_syntax": row["transfer_syntax"] if row["bind_seen"] else None,
                "object_uuid": row["object_uuid"],
                "byte_order": row["byte_order"],
                "auth": (row["auth_type"], row["auth_level"]),
                "bind_seen": row["bind_seen"],
                "sealed": row["sealed"],
                "outcome": row["outcome"],
                "fault_status": row["fault_status"],
                "fragments": (row["request_fragments"], row["response_fragments"]),
                "request": _half(row["request_stub"]),
                "response": _half(row["response_stub"]),
                "stopped": (row["cancelled_at"] is not None, row["orphaned_at"] is not None),
            }
        )
    for connection, rows_of in calls.items():
        for row, due in zip(rows_of, expected.get(connection, []), strict=False):
            row.update({key: "any" for key, value in due.items() if value == "any"})
    return calls


def _by_sight(calls):
    """Split off calls without a captured request: they are ordered by their response."""
    return {
        connection: (
            [row for row in rows if row["outcome"] != "no_request"],
            [row for row in rows if row["outcome"] == "no_request"],
        )
        for connection, rows in calls.items()
    }


def test_calls_are_those_that_were_made(sample):
    truth, tables = sample
    expected = _by_sight(_expected(truth))
    rows = tables["rpc_calls"].to_pylist()
    seen = [row for row in rows if row["outcome"] != "no_request"]
    late = [row for row in rows if row["outcome"] == "no_request"]
    actual = {}
    for part, index in ((seen, 0), (late, 1)):
        due = {connection: halves[index] for connection, halves in expected.items()}
        for connection, got in _actual(part, due).items():
            actual.setdefault(connection, ([], []))[index].extend(got)
    assert actual == expected


def test_binds_are_those_that_were_made(sample):
    truth, tables = sample
    expected = sorted(
        (
            truth["connections"][bind["connection"]]["client"],
            bind["context_id"],
            bind["interface_uuid"],
            bind["result"],
            bind["reason"],
            bind["auth_type"] or 0,
            bind["auth_level"] or 0,
        )
        for bind in truth["binds"]
    )
    actual = sorted(
        (
            _endpoint(row, "client"),
            row["context_id"],
            row["interface_uuid"],
            row["result"],
            row["reason"] or 0,
            row["auth_type"] or 0,
            row["auth_level"] or 0,
        )
        for row in tables["rpc_binds"].to_pylist()
    )
    assert actual == expected


def test_nothing_is_left_over(sample):
    truth, tables = sample
    assert [row["reason"] for row in tables["quarantine"].to_pylist()] == []
    ledger = tables["capture_files"].to_pylist()
    assert [(row["status"], row["packets_damaged"], row["packets_truncated"]) for row in ledger] == [("complete", 0, 0)]
    connections = {_connection(row) for row in tables["connections"].to_pylist()}
    assert connections == {(item["client"], item["server"]) for item in truth["connections"]}
