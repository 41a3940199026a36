"""Timelines of messages on TCP 1801, compared with what the queue managers of the recordings said."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime

import pytest

from engines import without_spark
from jobs import run_all, trace_message
from pipeline.lake.lake import Lake
from pipeline.reports.trace.formatting import format_timeline
from pipeline.reports.trace.inputs import TraceRequest, trace_messages
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from transfers_peer.reading import CAPTURES, account_lines, of

RECORDINGS = ("04-administration-acks", "05-resends", "06-two-hops")
FOUR_TUPLE = ("client_address", "client_port", "server_address", "server_port")
FIRST_ACKS = {
    "session_acked_by": "session ack", "stored_by": "stored", "order_acked_by": "order ack",
    "final_acked_by": "final ack", "arrival_acked_by": "reply", "receive_acked_by": "reply",
}  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    root = tmp_path_factory.mktemp("transfers") / "lake"
    captures = [str(path) for path in CAPTURES if path.name.split(".")[0] in RECORDINGS]
    assert run_all.main(["--lake", str(root), "--captures", *captures]) == 0
    return Lake(without_spark(), str(root))


def traced(lake, **asked):
    return trace_messages(lake, TraceRequest(**asked, max_messages=1000)).timelines


def by_message(lines):
    """Lines of an account on messages, which are one for each hop and queue, by identifier."""
    found = {}
    for line in of(lines, "message"):
        found.setdefault(line["message_id"], []).append(line)
    return found


def keys_of_packets(lake, lines):
    """``packet_key`` of each packet of an account, by its number there: the packet at the same place of its side."""
    sessions = {line["session"]: tuple(line[name] for name in FOUR_TUPLE) for line in of(lines, "session")}
    rows = {}
    for row in lake.select(SESSION_PACKETS, "TRUE").to_pylist():
        rows[*(row[name] for name in FOUR_TUPLE), row["sent_by"], row["stream_offset"]] = row["packet_key"]
    sent = [line for line in of(lines, "packet") if line["recorded"]]
    return {line["packet"]: rows[*sessions[line["session"]], line["sent_by"], line["stream_offset"]] for line in sent}


@pytest.mark.parametrize("name", RECORDINGS)
def test_timelines_have_all_sendings_acknowledgements_and_reports(lake, name):
    lines = account_lines(name)
    key_of = keys_of_packets(lake, lines)
    timelines = {each.message_id: each for each in traced(lake)}
    for message_id, hops in by_message(lines).items():
        seen = [event for event in timelines[message_id].events if event.packet_key]
        shown = {}
        for event in seen:
            assert event.capture.rpartition("/")[2].startswith(name)
            assert event.packet is not None
            shown.setdefault(event.kind, []).append(event.packet_key)
        assert sorted(shown["sending"]) == sorted(key_of[packet] for hop in hops for packet in hop["sendings"])
        assert sum(" on this hop" in event.text for event in seen) == sum(len(hop["sendings"]) - 1 for hop in hops)
        for column, kind in FIRST_ACKS.items():
            assert {key_of[hop[column]] for hop in hops if hop[column] is not None} <= set(shown.get(kind, ()))
        reports = {key_of[report["packet"]] for hop in hops for report in hop["reports"]}
        assert sorted(shown.get("report", ())) == sorted(reports)
        assert {(hop["sender_address"], hop["receiver_address"], hop["outcome"]) for hop in hops} == {
            (hop["sender_address"], hop["receiver_address"], hop["outcome"]) for hop in timelines[message_id].hops
        }


def test_each_event_names_the_packet_that_shows_it(lake):
    kinds = {row["packet_key"]: row["kind"] for row in lake.select(SESSION_PACKETS, "TRUE").to_pylist()}
    expected = {
        "sending": {"user_message"}, "reply": {"user_message"}, "report": {"user_message"},
        "order ack": {"order_ack"}, "final ack": {"final_ack"},
        "session ack": {"session_ack", "user_message", "order_ack", "final_ack"},
    }  # fmt: skip
    found = {}
    for timeline in traced(lake):
        for event in timeline.events:
            if event.packet_key is not None:
                found.setdefault(event.kind, set()).add(kinds[event.packet_key])
    assert expected.keys() <= found.keys()
    assert {kind: found[kind] - shown for kind, shown in expected.items()} == {kind: set() for kind in expected}


def test_a_message_is_found_by_label_packet_and_queue(lake):
    row = lake.select(MESSAGES, "label = {label}", label="transactional, received once").to_pylist()[0]
    (timeline,) = traced(lake, label=row["label"])
    for event in timeline.events:
        if event.kind in ("sending", "session ack", "order ack"):
            found = traced(lake, packet_key=event.packet_key)
            assert row["message_key"] in {each.message_key for each in found}
    assert [each.message_key for each in traced(lake, packet_key=row["packet_key"])] == [row["message_key"]]
    of_queue = {each.message_key for each in traced(lake, queue=row["destination_queue"])}
    assert row["message_key"] in of_queue
    sent_to_it = lake.select(MESSAGES, "destination_queue = {queue}", queue=row["destination_queue"]).to_pylist()
    assert of_queue == {each["message_key"] for each in sent_to_it}
    assert traced(lake, packet_key="no such packet") == []


def test_a_message_that_was_sent_again_is_printed_with_its_packets(lake, capsys):
    row = lake.select(MESSAGES, "label = {label}", label="transactional, received once").to_pylist()[0]
    (timeline,) = traced(lake, packet_key=row["packet_key"])
    text = list(format_timeline(timeline))
    (hop,) = [line for line in text if line.startswith("  hop ")]
    assert hop.endswith(": delivered, sent 2 times in 2 sessions; complete")
    assert sum("sending 2 on this hop  [05-resends.pcap " in line for line in text) == 1
    assert trace_message.main(["--lake", lake.root, "--packet", row["packet_key"], "--json"]) == 0
    story = json.loads(capsys.readouterr().out.splitlines()[0])
    for event in story["events"]:
        assert event["wireshark"] == (f"frame.number == {event['packet']}" if event["packet_key"] else None)


def test_a_message_that_its_queue_refuses_for_ever_is_not_shown_as_transferred_alone(lake):
    """Planted: the next machine has a transactional message, whose sequence is refused from its number on."""
    row = lake.select(MESSAGE_TRANSFERS, "transaction_number IS NOT NULL").to_pylist()[0]

    def hops():
        (timeline,) = traced(lake, message_id=row["message_id"])
        shown = {hop["transfer_key"]: hop["refused"] for hop in timeline.hops}
        return shown[row["transfer_key"]], "\n".join(format_timeline(timeline))

    text = "transferred, refused: the queue does not accept its number"
    refused, before = hops()
    assert (refused, text in before) == (False, False)
    of_message, of_sequence = (f"{name} = '{row[name]}'" for name in ("transfer_key", "sequence_key"))
    lake.update(MESSAGE_TRANSFERS, {"outcome": "'transferred'"}, of_message, provenance={})
    planted = {"condition": "'refused'", "first_waiting_number": str(row["transaction_number"])}
    lake.update(TRANSFER_SEQUENCES, planted, of_sequence, provenance={})
    refused, after = hops()
    assert (refused, text in after) == (True, True)


def printed(capsys, *arguments):
    """The exit code of the job, the lines of its output, its summary, and its messages."""
    code = trace_message.main(list(map(str, arguments)))
    streams = capsys.readouterr()
    *lines, summary = streams.out.splitlines() or [""]
    return code, lines, json.loads(summary or "{}"), streams.err.splitlines()


def test_several_messages_are_a_list_of_commands_that_trace_them(lake, capsys):
    hours = ("--from", "2026-11-21T11:00:10", "--to", "2026-11-21T11:00:20")
    asked = ("--lake", lake.root, "--sender", "10.77.105.1", *hours)
    code, (heading, _, *lines), summary, _ = printed(capsys, *asked, "--most", 1)
    assert (code, summary["messages"], summary["found"], summary["more"]) == (0, 1, 4, True)
    assert heading.startswith("message ")
    code, (heading, _, *lines), summary, errors = printed(capsys, *asked)
    *rows, _, last = lines
    assert heading.split() == ["first", "seen", "label", "from", "queue", "verdict", "trace", "with"]
    assert (code, summary["messages"], summary["found"], summary["more"], errors) == (0, 4, 4, False, [])
    assert last == "4 messages; --all prints all timelines"
    assert [row[:19] for row in rows] == sorted(row[:19] for row in rows)
    (row,) = [row for row in rows if "  express, received once  " in row]
    assert "  at the next machine, as far as captured  " in row
    option, message_id = shlex.split(row[row.index("--id") :])
    code, story, summary, _ = printed(capsys, "--lake", lake.root, option, message_id)
    assert (code, summary["found"]) == (0, 1)
    assert story[1].startswith("  verdict as far as captured: at 10.77.105.2 since 2026-11-21 11:00:")
    _, stories, _, _ = printed(capsys, *asked, "--all")
    assert sum(line.startswith("message ") for line in stories) == 4
    _, stories, _, _ = printed(capsys, *asked, "--json")
    assert {json.loads(each)["verdict_code"] for each in stories} >= {"transferred", "expired"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--label", "transactional, recieved once"), "(--label); similar are transactional, received once"),
        (("--sender", "10.77.105.99"), "10.77.105.99 (--sender); similar are 10.77.105."),
        (("--id", "no such message"), "no such message was captured"),
        (("--from", "2031-01-01"), "no such message was captured"),
    ],
)
def test_what_was_not_captured_is_exit_code_5(lake, capsys, asked, said):
    code, lines, summary, errors = printed(capsys, "--lake", lake.root, *asked)
    assert (code, lines, summary["exit_code"], summary["found"]) == (5, [], 5, 0)
    assert said in errors[-1]


@pytest.mark.parametrize(
    "asked",
    [
        (), ("--lookup-id", 1), ("--label", ""), ("--all", "--most", 2, "--label", "x"),
        ("--from", "2026-02-01", "--to", "2026-01-01"),
    ],
)  # fmt: skip
def test_options_that_contradict_are_wrong_usage(lake, capsys, asked):
    code, lines, summary, errors = printed(capsys, "--lake", lake.root, *asked)
    assert (code, lines, summary, len(errors)) == (2, [], {}, 1)


@pytest.mark.spark
def test_spark_finds_the_same_messages(spark, lake):
    requests = (
        {"label": "RECEIVED once", "sender": "10.77.105.1"}, {"queue": "0000000A", "max_messages": 2},
        {"since": datetime(2026, 11, 21, 11, 0, 10, tzinfo=UTC), "until": datetime(2026, 11, 21, 11, 0, 20, tzinfo=UTC),
         "max_messages": None},
        {"label": "recieved once"},
    )  # fmt: skip
    for asked in requests:
        assert trace_messages(Lake(spark, lake.root), TraceRequest(**asked)) == trace_messages(
            lake, TraceRequest(**asked)
        )
