"""Timelines of messages on TCP 1801, compared with what the queue managers of the recordings said."""

from __future__ import annotations

import json

import pytest

from jobs import run_all, trace_message
from pipeline.lake.arrow_rows import us_to_datetime
from pipeline.lake.lake import Lake
from pipeline.lake.spark.sessions import LazySession
from pipeline.reports.trace.formatting import format_timeline
from pipeline.reports.trace.inputs import TraceRequest, trace_messages
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from transfers_peer.reading import CAPTURES, account_lines, of

RECORDINGS = ("04-administration-acks", "05-resends", "06-two-hops")
FIRST_ACKS = (
    "session_acked_by",
    "stored_by",
    "order_acked_by",
    "final_acked_by",
    "arrival_acked_by",
    "receive_acked_by",
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    root = tmp_path_factory.mktemp("transfers") / "lake"
    captures = [str(path) for path in CAPTURES if path.name.split(".")[0] in RECORDINGS]
    assert run_all.main(["--lake", str(root), "--captures", *captures]) == 0
    return Lake(LazySession(lambda: pytest.fail("Spark is not needed")), str(root))


def traced(lake, **asked):
    return trace_messages(lake, TraceRequest(**asked, max_messages=1000)).timelines


def by_message(lines):
    """Lines of an account on messages, which are one for each hop and queue, by identifier."""
    found = {}
    for line in of(lines, "message"):
        found.setdefault(line["message_id"], []).append(line)
    return found


@pytest.mark.parametrize("name", RECORDINGS)
def test_timelines_have_all_sendings_acknowledgements_and_reports(lake, name):
    lines = account_lines(name)
    sent_at = {line["packet"]: us_to_datetime(line["sent_at"] // 1000) for line in of(lines, "packet")}
    timelines = {each.message_id: each for each in traced(lake)}
    for message_id, hops in by_message(lines).items():
        timeline, seen = timelines[message_id], [event for event in timelines[message_id].events if event.packet_key]

        def times(*kinds, seen=seen):
            return sorted(event.at for event in seen if event.kind in kinds)

        sendings = sorted(sent_at[packet] for hop in hops for packet in hop["sendings"])
        assert times("sending") == sendings
        assert all(event.capture is not None and event.packet is not None for event in seen)
        again = sum(len(hop["sendings"]) - 1 for hop in hops)
        assert sum(" on this hop" in event.text for event in seen) == again
        for hop in hops:
            named = {sent_at[hop[each]] for each in FIRST_ACKS if hop[each] is not None}
            assert named <= set(times("session ack", "stored", "order ack", "final ack", "reply"))
        assert times("report") == sorted({sent_at[report["packet"]] for hop in hops for report in hop["reports"]})
        assert {(hop["sender_address"], hop["receiver_address"], hop["outcome"]) for hop in timeline.hops} == {
            (hop["sender_address"], hop["receiver_address"], hop["outcome"]) for hop in hops
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
    assert {kind: found[kind] - shown for kind, shown in expected.items()} == dict.fromkeys(expected, set())


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
