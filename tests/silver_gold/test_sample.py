"""The recorded sample, from packets to attempts, against what the test queue manager says really happened.

Without Spark: the reader's tables, the decoder and the settling function are those that Spark calls.
"""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.gold import _CONNECTION, _FACTS, _THROUGH, _settler
from schemas.gold import RECEIVE_ATTEMPTS
from udfs.capture.reader import read_capture
from udfs.codes import ACTION
from udfs.stubs.calls import METHODS, decode_calls

WHOLE = [
    "01-remoteread-ndr.pcap",
    "02-remoteread-ndr64-multiplexed.pcap",
    "03-qm2qm-dependent-client.pcap",
    "07-faults-cancels-groups.pcap",
    "08-endpoint-mapper.pcap",
    "09-transactions-and-moves.pcapng",
    "10-many-clients.pcap.gz",
]
RENAMED = {"protocol": "interface_name", "requested_at": "request_at", "responded_at": "response_at"}


def _with(table, **columns):
    for name, values in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, values)
    return table


def attempts_of(path):
    """Read a capture down to attempts: (rows of gold, rows of rpc_calls by call key, rows of silver)."""
    tables = read_capture(str(path))
    calls = tables["rpc_calls"].combine_chunks()
    nothing = pa.nulls(len(calls), pa.string())
    # The test queue manager answers in little endian, also where it is asked in big endian.
    calls = _with(calls, opened_by=nothing, run_id=nothing, response_byte_order=pa.array(["little"] * len(calls)))
    (batch,) = calls.to_batches()
    decoded = decode_calls(batch)
    columns = {"closed": batch.column("sealed")}
    for name in (*_FACTS, *_THROUGH):
        if name not in columns:
            columns[name] = decoded[name] if name in decoded else batch.column(RENAMED.get(name, name))
    facts = pa.table(columns)
    protocols, opnums = columns["protocol"].to_pylist(), columns["opnum"].to_pylist()
    ours = pa.array([name in METHODS and opnum is not None for name, opnum in zip(protocols, opnums, strict=True)])
    connections = tables["connections"]
    newest = pa.repeat(pc.max(connections.column("last_packet_at")), len(facts))
    facts = facts.append_column("capture_ends_at", newest)
    settled = _settler(RECEIVE_ATTEMPTS.struct(), cleanup_us=300_000_000)(
        facts.filter(ours), connections.select([*_CONNECTION])
    )
    by_key = {row["call_key"]: row for row in calls.drop_columns(["request_stub", "response_stub"]).to_pylist()}
    return settled.to_pylist(), by_key


def _place(row):
    return f"{row['client_address']}:{row['client_port']}", row["call_id"]


def _found(rows, calls):
    """Return attempts by (client, call id of the Start), in the words of the truth."""
    names = ("protocol", "action_name", "is_receive", "outcome", "start_hresult", "end_hresult")
    found = {}
    for row in rows:
        start = next(calls[key] for key in row["evidence"] if calls[key]["request_at"] == row["started_at"])
        # The queue manager knows its own name; that the address is an alias of it, the capture does not show here.
        queue = row["queue"] and row["queue"].replace("10.77.0.1\\", "srv1\\")
        lookup_id = None if row["lookup_id"] is None else int(row["lookup_id"])
        found[_place(start)] = {name: row[name] for name in names} | {"queue": queue, "lookup_id": lookup_id}
    return found


def _expected(truth):
    expected = {}
    for attempt in truth["attempts"]:
        call = truth["calls"][attempt["call"]]
        client = truth["connections"][call["connection"]]["client"]
        qm2qm = attempt["protocol"] == "qm2qm"
        expected[client, call["call_id"]] = {
            "protocol": attempt["protocol"],
            "action_name": ACTION[attempt["action"]],
            "is_receive": attempt["is_receive"],
            "outcome": attempt["outcome"],
            "start_hresult": attempt["start_hresult"],
            "end_hresult": attempt["end_hresult"],
            "queue": None if qm2qm else attempt["queue"],  # named on the client's qmcomm connection
            "lookup_id": None if qm2qm and call["opnum"] == 0 else attempt["lookup_id"],
        }
    return expected


@pytest.mark.parametrize("name", WHOLE)
def test_attempts_are_what_the_queue_manager_saw(project, name):
    path = project / "data" / "sample" / name
    truth = json.loads((project / "tests" / "sample" / "truth" / f"{name.split('.')[0]}.truth.json").read_text())
    assert _found(*attempts_of(path)) == _expected(truth)
