"""The recordings of data/transfers through a whole run, compared cell by cell with what the queue managers said.

The peer that made them has encoders and accounts of its own, and knows nothing of the decoders.
"""

from __future__ import annotations

import pytest

import example_rows
from engines import without_spark
from jobs import run_all
from peer.transfers.scripts import application_id
from pipeline.lake.lake import Lake
from schemas.bronze import QUARANTINE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, PINGS, SESSION_PACKETS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from transfers_peer.reading import CAPTURES, account_lines, of
from udfs.times import us_to_datetime

FOUR_TUPLE = ("client_address", "client_port", "server_address", "server_port")
PACKET_COLUMNS = ("kind", "flags", "packet_size", "length_bytes", "session_header")
COUNTED = ("user_message", "order_ack", "final_ack")
# ``closed_by`` is who closed there, and how here; times there are floats.
NOT_COMPARED = {"session", "record", "opened_at", "closed_at", "closed_by", "recorded", "pinged", *FOUR_TUPLE}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    root = tmp_path_factory.mktemp("recordings") / "lake"
    assert run_all.main(["--lake", str(root), "--captures", *map(str, CAPTURES)]) == 0
    return Lake(without_spark(), str(root))


@pytest.fixture(scope="module")
def packets(lake):
    """Rows of packets, with the numbers that silver gives them, by session and side, in order."""
    numbers = {}
    for table in (MESSAGES, ORDER_ACKS):
        for row in lake.select(table, "packet_key IS NOT NULL").to_pylist():
            numbers[row["packet_key"]] = (row["session_number"], row["recoverable_number"])
    found = {}
    for row in sorted(lake.select(SESSION_PACKETS, "TRUE").to_pylist(), key=lambda row: row["stream_offset"]):
        side = *(row[name] for name in FOUR_TUPLE), row["sent_by"]
        found.setdefault(side, []).append({**row, "numbers": numbers.get(row["packet_key"], (None, None))})
    return found


def name_of(path):
    return path.name.split(".")[0]


def said(path):
    """What was sent and recorded, by session and side, in order; each packet with its session."""
    lines = account_lines(name_of(path))
    sessions = {line["session"]: line for line in of(lines, "session")}
    found = {}
    for line in sorted(of(lines, "packet"), key=lambda line: line["stream_offset"]):
        if line["recorded"]:
            side = *(sessions[line["session"]][name] for name in FOUR_TUPLE), line["sent_by"]
            found.setdefault(side, []).append(line)
    return found


@pytest.mark.parametrize("path", CAPTURES, ids=name_of)
def test_every_packet_is_found_with_its_header_and_number(packets, path):
    for side, lines in said(path).items():
        rows = packets[side]
        assert [row["complete"] for row in rows] == [True] * len(lines)
        began = lines[0]["stream_offset"]
        # One-way express traffic shows no number: its sender writes no SessionHeader ([MS-MQQB] 3.1.6.4).
        has_anchor = any(line["kind"] == "establish_connection" or line.get("session_header") for line in lines)
        for row, line in zip(rows, lines, strict=True):
            assert row["stream_offset"] == line["stream_offset"] - began
            assert {name: row[name] for name in PACKET_COLUMNS} == {name: line.get(name) for name in PACKET_COLUMNS}
            expected = [line.get(name) for name in ("session_number", "recoverable_number")]
            assert list(row["numbers"]) == (expected if has_anchor and line["kind"] in COUNTED else [None, None])


def test_no_other_packet_is_found(packets):
    there = {side for path in CAPTURES for side in said(path)}
    assert {side for side in packets if packets[side]} == there


@pytest.mark.parametrize("path", [path for path in CAPTURES if "mid-stream" not in path.name], ids=name_of)
def test_sessions_are_what_the_queue_managers_say(lake, path):
    rows = {tuple(row[name] for name in FOUR_TUPLE): row for row in lake.select(SESSIONS, "TRUE").to_pylist()}
    for line in of(account_lines(name_of(path)), "session"):
        row = rows[tuple(line[name] for name in FOUR_TUPLE)]
        compared = (line.keys() & row.keys()) - NOT_COMPARED
        assert len(compared) > 30
        told = {name: int(line[name]) if name.endswith("_full_ms") else line[name] for name in compared}
        assert {name: row[name] for name in compared} == told


def test_pings_are_paired(lake):
    names = ("client_address", "client_port", "server_address", "cookie", "client_queue_manager",
             "server_queue_manager", "refused", "workstation")  # fmt: skip
    expected = [line for path in CAPTURES for line in of(account_lines(name_of(path)), "ping")]
    found = lake.select(PINGS, "TRUE").to_pylist()
    assert sorted(tuple(row[name] for name in names) for row in found) == sorted(
        tuple(line[name] for name in names) for line in expected
    )


def sequence_of(line):
    """What identifies a sequence and hop in an account, whose queues are format names, and in the table."""
    return (
        line["source_queue_manager"],
        int(line["transaction_sequence_id"]),
        line["sender_address"],
        line["receiver_address"],
    )


@pytest.mark.parametrize("path", [path for path in CAPTURES if "mid-stream" not in path.name], ids=name_of)
def test_sequences_are_what_the_queue_managers_say(lake, path):
    lines = account_lines(name_of(path))
    addresses = {each["address"] for each in lines[0]["queue_managers"]}
    found = {sequence_of(row): row for row in lake.select(TRANSFER_SEQUENCES, "TRUE").to_pylist()}
    found = {name: row for name, row in found.items() if name[2] in addresses}
    said = {sequence_of(line): line for line in of(lines, "sequence")}
    assert found.keys() == said.keys()
    sent = {line["packet"]: line["sent_at"] / 1e9 for line in of(lines, "packet")}
    for name, line in said.items():
        row = found[name]
        same = (
            "messages", "sendings", "resends", "first_number", "last_number", "acknowledged_number", "waiting",
            "first_waiting_number",
        )  # fmt: skip
        assert {each: row[each] for each in same} == {each: line[each] for each in same}
        assert row["order_acks"] == len(line["order_acks"])
        gaps = [number for gap in row["gaps"] or () for number in range(gap["first"], gap["last"] + 1)]
        assert gaps == line["missing"]
        stalls = row["stalls"] or []
        assert [(each["first_number"], each["waiting"]) for each in stalls] == [
            (each["first_number"], each["waiting"]) for each in line["stalls"]
        ]
        for stall, expected in zip(stalls, line["stalls"], strict=True):
            assert abs(stall["began_at"].timestamp() - sent[expected["began_by"]]) < 0.005
            assert (stall["ended_at"] is None) == (expected["ended_by"] is None)
        assert row["missing"] == (["capture_ends"] if line["waiting"] else [])


def test_how_recorded_sequences_began_and_what_became_of_them(lake):
    table = lake.select(TRANSFER_SEQUENCES, "TRUE")
    example_rows.check({TRANSFER_SEQUENCES: table, MESSAGE_TRANSFERS: lake.select(MESSAGE_TRANSFERS, "TRUE")})
    rows = sorted(table.to_pylist(), key=lambda row: row["first_sent_at"])
    found = {}
    for row in rows:
        found.setdefault(row["sender_address"], []).append((row["began"], row["condition"], row["refusals"]))
    first, emptied = ("first", "acknowledged", 0), ("emptied", "acknowledged", 0)
    assert found == {
        "10.77.103.1": [first, emptied, first, first, first, ("emptied", "acknowledged", 2)],
        "10.77.104.1": [first],
        "10.77.105.1": [("first", "acknowledged", 1), *[("emptied", "acknowledged", 1)] * 3],
        "10.77.106.1": [first, first],
        "10.77.106.4": [first, first],
        "10.77.107.1": [first, first],
        "10.77.108.1": [first, ("emptied", "acknowledged", 15), ("first", "refused", 3)],
        "10.77.110.1": [first],
        "10.77.111.1": [first],
        "10.77.111.2": [first, emptied],
        "10.77.111.3": [first, first],
    }


def queue_of(name):
    """The normal form of a format name."""
    kind, _, rest = name.partition("=")
    if kind == "PRIVATE":
        return rest.lower()
    return rest.partition(":")[2].lower() if kind == "DIRECT" else name.lower()


MESSAGE_COLUMNS = (
    "message_kind", "class", "source_queue_manager", "destination_queue_manager", "hop_count", "delivery",
    "transactional", "transaction_number", "acknowledgement_requested", "journaling", "body_bytes", "packet_bytes",
    "sessions", "acknowledged_sendings", "final_class", "arrival_class", "receive_class", "outcome",
)  # fmt: skip
EVENTS = ("session_acked", "stored", "order_acked", "final_acked", "arrival_acked", "receive_acked")


def message_of(line, queue):
    return line["message_id"], queue, line["sender_address"], line["receiver_address"]


@pytest.mark.parametrize("path", [path for path in CAPTURES if "mid-stream" not in path.name], ids=name_of)
def test_messages_are_what_the_queue_managers_say(lake, packets, path):
    lines = account_lines(name_of(path))
    packet_of = {}
    for side, sent in said(path).items():
        packet_of |= {line["packet"]: row for line, row in zip(sent, packets[side], strict=True)}
    addresses = {each["address"] for each in lines[0]["queue_managers"]}
    found = lake.select(MESSAGE_TRANSFERS, "TRUE").to_pylist()
    found = {message_of(row, row["destination_queue"]): row for row in found if row["sender_address"] in addresses}
    told = {message_of(line, queue_of(line["destination_queue"])): line for line in of(lines, "message")}
    assert found.keys() == told.keys()
    for name, line in told.items():
        row = found[name]
        assert {each: row[each] for each in MESSAGE_COLUMNS} == {each: line[each] for each in MESSAGE_COLUMNS}
        assert row["sendings"] == len(line["sendings"])
        assert row["first_sent_at"] == packet_of[line["sendings"][0]]["sent_at"]
        assert row["last_sent_at"] == packet_of[line["sendings"][-1]]["sent_at"]
        for each in EVENTS:
            by = line[f"{each}_by"]
            assert row[f"{each}_at"] == (None if by is None else packet_of[by]["sent_at"])
        reports = [
            (packet_of[each["packet"]]["sent_at"], each["hop_count"], each["next_hop"]) for each in line["reports"]
        ]
        assert [(each["at"], each["hop_count"], each["next_hop"]) for each in row["reports"] or ()] == reports
        named = {*line["sendings"], *(line[f"{each}_by"] for each in EVENTS), *(r["packet"] for r in line["reports"])}
        assert row["evidence"] == sorted(packet_of[each]["packet_key"] for each in named - {None})
        assert row["missing"] == (["capture_ends"] if line["outcome"] == "in_flight" else [])
        for each in ("sent_at", "expires_at"):
            assert row[each] == (None if line[each] is None else us_to_datetime(line[each] // 1000))


def test_messages_of_a_session_that_began_before_the_capture(lake):
    (path,) = (path for path in CAPTURES if "mid-stream" in path.name)
    lines = account_lines(name_of(path))
    addresses = {each["address"] for each in lines[0]["queue_managers"]}
    found = [row for row in lake.select(MESSAGE_TRANSFERS, "TRUE").to_pylist() if row["sender_address"] in addresses]
    assert found
    told = {message_of(line, queue_of(line["destination_queue"])): line for line in of(lines, "message")}
    for row in found:
        line = told[message_of(row, row["destination_queue"])]
        assert row["outcome"] in {line["outcome"], "unknown", "transferred"}
        assert "capture_begins" in row["missing"]


def test_the_headers_of_a_conversation_are_what_its_applications_wrote(lake):
    """Five messages over three queues, each caused by the one before; the last is the fourth, in ``error``."""
    rows = lake.select(MESSAGES, "framework = 'NServiceBus'").to_pylist()
    rows.sort(key=lambda row: row["seen_at"])
    ids = {
        application_id(f"{each}"): each.partition(".")[2]
        for each in ("Sales.PlaceOrder", "Sales.OrderPlaced", "Billing.OrderBilled", "Billing.SendInvoice")
    }
    assert [
        (ids[row["application_message_id"]], ids.get(row["related_to"]), row["originating_endpoint"], row["intent"],
         row["destination_queue"])
        for row in rows
    ] == [
        ("PlaceOrder", None, "Website", "Send", r"hq\private$\sales"),
        ("OrderPlaced", "PlaceOrder", "Sales", "Publish", r"bank\private$\billing"),
        ("OrderBilled", "OrderPlaced", "Billing", "Publish", r"hq\private$\sales"),
        ("SendInvoice", "OrderBilled", "Sales", "Send", r"bank\private$\billing"),
        ("SendInvoice", "OrderBilled", "Sales", "Send", r"shop\private$\error"),
    ]  # fmt: skip
    assert {row["conversation_id"] for row in rows} == {application_id("conversation")}
    assert {row["body_root"] for row in rows} == {*ids.values()}
    columns = ("message_id", "application_message_id", "conversation_id", "sent_types")
    transfers = lake.select(MESSAGE_TRANSFERS, "conversation_id IS NOT NULL").to_pylist()
    assert sorted(tuple(row[name] for name in columns) for row in transfers) == sorted(
        tuple(row[name] for name in columns) for row in rows
    )
    failure = ("failed_queue", "processing_endpoint", "exception_type", "delayed_retries", "exception_message")
    assert [tuple(row[name] for name in failure) for row in rows] == [
        *[(None,) * 5] * 4, ("billing@bank", "Billing", "System.TimeoutException", 3, None)
    ]  # fmt: skip
    assert [(row["application_errors"], row["errors"]) for row in rows] == [(None, [])] * 5


def test_nothing_is_found_but_what_the_scripts_mean(lake):
    """A receiver restored from a backup acknowledges lower numbers; one timer sends again all that waits."""
    found = [(row["rule_id"], row["server_address"]) for row in lake.select(FINDINGS, "TRUE").to_pylist()]
    assert sorted({rule for rule, _ in found}) == ["T21", "T29"]
    (strange,) = lake.select(QUARANTINE, "TRUE").to_pylist()
    assert strange["reason"] == "not_binary_protocol"
