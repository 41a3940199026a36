"""The recorded sample, from packets to attempts, against what the test queue manager says really happened.

Without Spark: the reader's tables, the decoder and the settling function are those that Spark calls.
"""

import json
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from attempts.telling import receive_attempts_table, sequences_here
from capture.in_memory import read_captures
from capture.merge.cutting import cut
from pipeline.attempts.attempt_rows import CONNECTION_FIELDS, MESSAGE_FACTS, join_by_key
from pipeline.attempts.calls.decoded_call import CALL_ROLES
from pipeline.attempts.operation_rows import queue_operations_table
from pipeline.silver.decode import decode_calls
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from udfs.capture.capture_reader import read_capture
from udfs.codes import ACTION_NAMES

WHOLE = [
    "01-remoteread-ndr.pcap",
    "02-remoteread-ndr64-multiplexed.pcap",
    "03-qm2qm-dependent-client.pcap",
    "07-faults-cancels-groups.pcap",
    "08-endpoint-mapper.pcap",
    "09-transactions-and-moves.pcapng",
    "10-many-clients.pcap.gz",
    "11-queued-components.pcap",
    "12-lookups.pcap",
    "13-kinds-of-messages.pcapng",
]
CLIENT = [
    "call_key", "protocol", "opnum", "connection_id", "requested_at", "responded_at", "clocks", "queue",
    "context_handle", "queue_handle", "queue_descriptor", "open_context", "hresult", "errors", "outcome",
    "client_address", "client_port", "server_address", "server_port", "queue_format_name", "run_id",
]  # fmt: skip
KNOWN = ["call_key", "outcome", "fault_status", "bind_seen", "cancelled_at", "orphaned_at", "encrypted"]


def _with(table, **columns):
    for name, values in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, values)
    return table


def gold_of(tables):
    """Bring bronze down to gold: (receive_attempts, queue_operations, rpc_calls, silver.messages)."""
    calls = tables["rpc_calls"].combine_chunks()
    nothing = pa.nulls(len(calls), pa.string())
    # The test queue manager answers in little endian, also where it is asked in big endian.
    calls = _with(calls, opened_by=nothing, run_id=nothing, response_byte_order=pa.array(["little"] * len(calls)))
    (batch,) = calls.to_batches()
    silver = {name: pa.Table.from_batches([rows]) for name, rows in decode_calls(batch).items()}
    reads = silver[str(REMOTE_READ_CALLS)]
    clients = _with(silver[str(CLIENT_CALLS)], protocol=silver[str(CLIENT_CALLS)]["interface_name"])
    messages = silver[str(MESSAGES)]
    connections = tables["connections"]
    servers = connections["server_address"].unique().to_pylist()
    newest = pc.max(connections.column("last_packet_at")).cast(pa.int64()).as_py()
    known = calls.append_column("encrypted", calls["sealed"]).select(KNOWN)
    asked = clients.append_column("outcome", pa.array(["ok"] * len(clients), pa.string()))
    brought = _with(messages, message_bytes=messages["body_bytes"], message_errors=messages["errors"])
    facts = join_by_key(_playing(reads, "protocol"), known)
    facts = pa.concat_tables([facts, _playing(asked, "interface_name", CLIENT)], promote_options="default")
    facts = join_by_key(facts, brought.select(["call_key", *MESSAGE_FACTS, "message_errors"]))
    connected = connections.select([*CONNECTION_FIELDS, "server_address"])
    made = receive_attempts_table(facts, connected, ends=dict.fromkeys(servers, newest), aliases={}, cleanup_s=300)
    return made, queue_operations_table(facts, connected, aliases={}), calls, messages


def rows_of(path):
    """Read a capture down to attempts: (rows of gold, rows of rpc_calls by call key, rows of silver.messages)."""
    made, _, calls, messages = gold_of(read_capture(str(path)))
    by_key = {row["call_key"]: row for row in calls.drop_columns(["request_stub", "response_stub"]).to_pylist()}
    return made.to_pylist(), by_key, messages.to_pylist()


def _playing(calls, interface, columns=None):
    """The calls that play a part in attempts."""
    methods = zip(calls[interface].to_pylist(), calls["opnum"].to_pylist(), strict=True)
    ours = calls.filter(pa.array([method in CALL_ROLES for method in methods], pa.bool_()))
    return ours if columns is None else ours.select(columns)


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
            "action_name": ACTION_NAMES[attempt["action"]],
            "is_receive": attempt["is_receive"],
            "outcome": attempt["outcome"],
            "start_hresult": attempt["start_hresult"],
            "end_hresult": attempt["end_hresult"],
            "queue": attempt["queue"],
            "lookup_id": None if qm2qm and call["opnum"] == 0 else attempt["lookup_id"],
        }
    return expected


@pytest.mark.parametrize("name", WHOLE)
def test_attempts_are_what_the_queue_manager_saw(project, name):
    path = project / "data" / "sample" / name
    truth = json.loads((project / "tests" / "sample" / "truth" / f"{name.split('.')[0]}.truth.json").read_text())
    rows, calls, messages = rows_of(path)
    assert _found(rows, calls) == _expected(truth)
    # What was opened in sight has a name, and every message that came shows where it was sent.
    assert {row["inferred_queue"] for row in rows} == {None}
    assert len(messages) == sum(row["message_key"] is not None for row in rows) > 0


def _numbered(rows):
    return sorted((row for row in rows if row[1] is not None), key=str)


@pytest.mark.parametrize("name", WHOLE)
def test_messages_are_what_the_queue_manager_saw(project, name):
    """Of each message: how often it was received and peeked, with what outcomes, by whom; none was read twice."""
    truth = json.loads((project / "tests" / "sample" / "truth" / f"{name.split('.')[0]}.truth.json").read_text())
    reads = defaultdict(list)
    for attempt in truth["attempts"]:
        if attempt["lookup_id"] is not None and attempt["start_hresult"] == 0:
            reads[attempt["queue"], attempt["lookup_id"]].append((attempt, truth["calls"][attempt["call"]]))
    expected = []
    for (queue, lookup_id), theirs in reads.items():
        receives = [(attempt["outcome"], call) for attempt, call in theirs if attempt["is_receive"]]
        clients = {truth["connections"][call["connection"]]["client"].rpartition(":")[0] for _, call in receives}
        told = any(attempt["protocol"] != "qm2qm" or call["opnum"] for attempt, call in theirs)
        outcomes = sorted(outcome for outcome, _ in receives)
        if receives:
            expected.append((queue, lookup_id if told else None, outcomes, clients, len(theirs) - len(receives)))
    attempts, operations, _, _ = gold_of(read_capture(str(project / "data" / "sample" / name)))
    found = []
    for row in sequences_here(attempts, operations):
        queue = row["queue"].replace("10.77.0.1\\", "srv1\\")
        lookup_id = None if row["lookup_id"] is None else int(row["lookup_id"])
        found.append((queue, lookup_id, sorted(row["outcomes"]), set(row["readers"]), row["peeks"]))
        assert row["loss_risk"] != "read_twice"
    assert _numbered(found) == _numbered(expected)
    # The queue manager of the sample numbers its messages anew now and then: by their keys some are one.
    assert sorted(outcome for row in found for outcome in row[2]) == sorted(out for row in expected for out in row[2])


def test_queues_that_were_opened_before_the_capture_began_are_guessed_and_marked(project):
    rows, _, messages = rows_of(project / "data" / "sample" / "06-mid-stream.pcap")
    destinations = {row["sighting_key"]: row["destination_queue"] for row in messages}
    guessed = [row for row in rows if row["inferred_queue"] is not None]
    assert {row["protocol"] for row in guessed} == {"RemoteRead", "qm2qm"}
    for row in guessed:
        assert (row["queue"], row["confidence"]) == (None, "inferred")
        assert row["inferred_queue"] == destinations[row["attempt_key"]]
        assert {"capture_begins", "no_open", "queue_unknown"} <= set(row["missing"])


CUT = ("01-remoteread-ndr.pcap", "02-remoteread-ndr64-multiplexed.pcap", "03-qm2qm-dependent-client.pcap")


@pytest.mark.parametrize("name", CUT)
def test_a_read_is_in_flight_where_the_capture_ends_inside_its_answer(project, name):
    data = (project / "data" / "sample" / name).read_bytes()
    starts = [method for method, role in CALL_ROLES.items() if role == "start"]
    longer = [
        row
        for row in read_capture(data)["rpc_calls"].to_pylist()
        if (row["interface_name"], row["opnum"]) in starts and row["response_done_at"] != row["response_at"]
    ]
    assert longer
    for row in longer:  # each ends behind the first packet of an answer that has more
        made, _, _, _ = gold_of(read_captures([[cut(data, [row["response_packet"]])[0]]]))
        (attempt,) = (each for each in made.to_pylist() if each["started_at"] == row["request_at"])
        assert (attempt["outcome"], attempt["missing"]) == ("in_flight", ["capture_ends", "damaged"])
