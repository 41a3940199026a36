"""msmq.lua shows what the tables have: calls, packets and messages of the recordings, row by row, column by column.

The connections of the recordings are whole in one file each. Where tables and dissector differ, ``DIFFERENT`` of
``wireshark/compared.py`` says why.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from engines import without_spark
from jobs import run_all
from pcapgen.containers import pcap
from pcapgen.exchanges import read_frames
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, PINGS, SENDINGS, SESSION_PACKETS
from udfs.messages.header_layouts import MESSAGE_HEADER_NAMES
from udfs.messages.report_messages import REPORT_TYPE
from wireshark.compared import CALL_TABLES, MSMQ, call_value, compare, ends, halves_of, shown_value, turned
from wireshark.shown import Tree, trees

pytestmark = pytest.mark.tool("tshark")

# Calls of which nothing is shown, by recording: the bind was captured before the recorder started.
UNBOUND = {"06-mid-stream.pcap": 13}


class Capture(NamedTuple):
    """A recording, how many frames come before it in the file that tshark reads, and what tshark shows of it."""

    path: Path
    first: int
    trees: list[Tree]


@pytest.fixture(scope="module")
def lake(tmp_path_factory, project):
    root, data = tmp_path_factory.mktemp("wireshark") / "lake", project / "data"
    folders = [data / "sample", data / "transfers", data / "estate" / "wire"]
    assert run_all.main(["--lake", str(root), "--set", "store.bodies=true", "--captures", *map(str, folders)]) == 0
    return Lake(without_spark(), str(root))


@pytest.fixture(scope="module")
def captures(lake, tmp_path_factory):
    """The recordings by capture id. tshark reads all of them in one file: to start it takes most of its time."""
    found, records = {}, []
    for row in lake.select(CAPTURE_FILES, "TRUE").to_pylist():
        found[row["capture_id"]] = Capture(Path(row["path"]), len(records), [])
        records += read_frames(Path(row["path"]))
    joined = tmp_path_factory.mktemp("joined") / "all.pcap"
    joined.write_bytes(pcap(records).data)
    by_frame = sorted(found.values(), key=lambda capture: capture.first)
    for tree in trees(joined):
        place = bisect_left(by_frame, tree.frame, key=lambda capture: capture.first) - 1
        by_frame[place].trees.append(tree)
    return found


def rows_of(lake, table):
    return lake.select(table, "TRUE").to_pylist()


def calls_by_capture(lake):
    found = defaultdict(dict)
    for row in rows_of(lake, RPC_CALLS):
        if row["interface_name"] in MSMQ:
            key = *ends(row), row["call_id"]
            assert key not in found[row["capture_id"]]
            found[row["capture_id"]][key] = row
    return found


def test_the_same_requests_and_answers_are_shown(lake, captures):
    unbound = Counter()
    for capture_id, calls in calls_by_capture(lake).items():
        capture = captures[capture_id]
        halves = halves_of(capture.trees)
        for key, call in calls.items():
            seen = {side for side in ("request", "response") if call[f"{side}_fragments"]}
            if not call["bind_seen"]:
                assert key not in halves
                unbound[capture.path.name] += 1
                continue
            shown = halves.pop(key)
            assert shown.keys() == seen
            for side, tree in shown.items():
                assert tree.one("interface_name") == call["interface_name"]
                other = shown.get("response" if side == "request" else "request")
                link = tree.one("response_packet" if side == "request" else "request_packet")
                assert link == (None if other is None else str(other.frame))
            if "response" in shown:
                assert shown["response"].one("outcome") == call["outcome"]
        assert halves == {}
    assert unbound == UNBOUND


def test_parameters_and_results_are_those_of_the_tables(lake, captures):
    calls, opened = {row["call_key"]: row for row in rows_of(lake, RPC_CALLS)}, {}
    halves = {capture_id: halves_of(capture.trees) for capture_id, capture in captures.items()}
    differences, compared = [], Counter()
    tables_of_calls = [(table, row) for table in CALL_TABLES for row in rows_of(lake, table)]
    for _, row in tables_of_calls:
        if row.get("queue") and row.get("context_handle"):
            opened[row["context_handle"]] = row["queue"]
    for table, row in tables_of_calls:
        call = calls[row["call_key"]]
        if not call["bind_seen"]:
            continue
        shown = halves[call["capture_id"]][*ends(call), call["call_id"]]

        def value_of(column, shown=shown, row=row, table=table):
            value = call_value(shown, column)
            # The dissector also names the queue of a call that only has its handle: that of the call that opened it.
            if column.name == "queue" and row["queue"] is None and value is not None and table is REMOTE_READ_CALLS:
                assert value == opened.get(row["context_handle"], value)
                return None
            return value

        differences += compare(table, row, row["method"], value_of)
        compared[table.name] += 1
    assert differences == []
    assert compared["remote_read_calls"] > 400
    assert compared["client_calls"] > 30
    assert compared["management_calls"] > 100


def test_messages_in_answers_are_those_of_the_table(lake, captures):
    calls = {row["call_key"]: row for row in rows_of(lake, RPC_CALLS)}
    halves = {capture_id: halves_of(capture.trees) for capture_id, capture in captures.items()}
    waiting = {
        (capture_id, key): found["response"]
        for capture_id, each in halves.items()
        for key, found in each.items()
        if "response" in found and found["response"].one("message_id") is not None
    }
    differences = []
    rows = [row for row in rows_of(lake, MESSAGES) if row["call_key"] is not None]
    for row in rows:
        call = calls[row["call_key"]]
        if call["bind_seen"]:
            tree = waiting.pop((call["capture_id"], (*ends(call), call["call_id"])))
            differences += message_differences(row, tree)
            assert tree.one("sender_address") == row["sender_address"]
    assert differences == []
    assert waiting == {}
    assert len(rows) > 150


def message_differences(row, tree):
    """Columns of a message, octets of its headers, and what a report says, where tshark shows something else."""
    yield from compare(MESSAGES, row, None, lambda column: shown_value(tree, column))
    shown = {name: tree.headers[name] for name in MESSAGE_HEADER_NAMES if name in tree.headers}
    if shown != dict(row["header_sizes"]):
        yield "header_sizes", shown, row["header_sizes"]
    for name, wanted in (row["report"] or dict.fromkeys(REPORT_TYPE.names)).items():
        if tree.one(f"report.{name}") != (None if wanted is None else str(wanted)):
            yield "report", name, tree.one(f"report.{name}"), wanted


def packets_shown(lake, captures):
    """Yield each row of packets with the tree that shows it: both are the same one in the stream of their sender."""
    sides = defaultdict(list)
    for row in rows_of(lake, SESSION_PACKETS):
        sender = ends(row) if row["sent_by"] == "client" else turned(ends(row))
        sides[row["capture_id"], sender].append(row)
    shown = defaultdict(list)
    for capture_id, capture in captures.items():
        for tree in capture.trees:
            if tree.one("kind") is not None:
                shown[capture_id, tree.ends].append(tree)
    assert shown.keys() == sides.keys()
    for side, rows in sides.items():
        rows.sort(key=lambda row: row["stream_offset"])
        assert len(rows) == len(shown[side]), side
        yield from zip(rows, shown[side], strict=True)


def test_packets_of_the_binary_protocol_are_those_of_the_tables(lake, captures):
    said = {
        table.name: {row["packet_key"]: row for row in rows_of(lake, table)}
        for table in (MESSAGES, ORDER_ACKS, SENDINGS)
    }
    pairs = list(packets_shown(lake, captures))
    frames = {row["packet_key"]: tree.frame for row, tree in pairs}
    differences, compared = [], Counter()
    for row, tree in pairs:
        key = row["packet_key"]

        def value_of(column, tree=tree):
            return shown_value(tree, column)

        differences += compare(SESSION_PACKETS, row, None, value_of)
        header = row["session_header"]
        names = [name for name in tree.values if name.startswith("msmq.session_header.") and "reserved" not in name]
        shown = {name.rpartition(".")[2]: int(tree.values[name][0], 0) for name in names} or None
        differences += [] if shown == header else [("session_header", shown, header)]
        if key in said["messages"]:
            compared["messages"] += 1
            differences += message_differences(said["messages"][key], tree)
        if key in said["order_acks"]:
            compared["order_acks"] += 1
            differences += compare(ORDER_ACKS, said["order_acks"][key], None, value_of)
        if key in said["sendings"]:
            sending = said["sendings"][key]
            for name in ("session_acked_by", "stored_by"):
                wanted = frames.get(sending[name])
                shown = tree.one(name)
                if shown != (None if wanted is None else str(wanted)):
                    differences.append((name, key, tree.frame, shown, wanted))
            compared["sendings"] += 1
    assert differences == []
    assert compared["messages"] > 200
    assert compared["order_acks"] > 30
    assert compared["sendings"] > 200


def test_pings_are_those_of_the_table(lake, captures):
    wanted = Counter()
    for row in rows_of(lake, PINGS):
        for side, queue_manager in (("packet_number", "client"), ("response_packet", "server")):
            if row[side] is not None:
                wanted[row["capture_id"], row[side], row["cookie"], row[f"{queue_manager}_queue_manager"]] += 1
    shown = Counter(
        (capture_id, tree.frame - capture.first, int(tree.one("ping.cookie"), 0), tree.one("ping.qm_guid"))
        for capture_id, capture in captures.items()
        for tree in capture.trees
        if tree.one("ping.cookie") is not None
    )
    assert shown == wanted
    assert len(shown) == 4
