"""Message timelines of the sample against the log of its queue manager, and of rows made for single cases."""

import gzip
import json
import struct
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from attempts.telling import sequences_here
from attempts.test_queue_opens import opens_of
from attempts.test_sample import gold_of
from pipeline.reports.trace.formatting import format_timeline, timeline_to_json
from pipeline.reports.trace.timeline import TraceRows, build_timelines
from udfs.capture.capture_reader import read_capture

T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)


def trace_rows_of(path):
    """The rows that the tables hold of one capture, without Spark."""
    tables = read_capture(str(path))
    attempts, operations, calls, messages = gold_of(tables)
    rows = {row["call_key"]: row for row in calls.drop_columns(["request_stub", "response_stub"]).to_pylist()}
    rows = {key: row | dict.fromkeys(("method", "hresult_name", "ack_name")) for key, row in rows.items()}
    return TraceRows(
        messages=messages.to_pylist(),
        attempts=attempts.to_pylist(),
        operations=operations.to_pylist(),
        sequences=sequences_here(attempts, operations),
        calls=rows,
        paths={row["capture_id"]: row["path"] for row in tables["capture_files"].to_pylist()},
    )


def frames(path):
    """The frames of a plain pcap file with Ethernet, from 1: a reader of ten lines, for this test alone."""
    data = path.read_bytes() if path.suffix != ".gz" else gzip.decompress(path.read_bytes())
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at, found = 24, [b""]
    while at < len(data):
        size = struct.unpack_from(order + "I", data, at + 8)[0]
        found.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return found


def rpc_of(frame):
    """(packet type, call id) of the PDU that begins a frame's TCP payload."""
    ip = frame[14:]
    tcp = ip[(ip[0] & 15) * 4 :]
    pdu = tcp[(tcp[12] >> 4) * 4 :]
    assert pdu[:2] == b"\x05\x00"
    return pdu[2], struct.unpack_from("<I" if pdu[4] & 0x10 else ">I", pdu, 12)[0]


@pytest.mark.parametrize("name", ["01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap"])
def test_the_samples_messages_have_the_stories_that_their_queue_manager_knows(project, name):
    path = project / "data" / "sample" / name
    truth = json.loads((project / "tests" / "sample" / "truth" / f"{path.stem}.truth.json").read_text())
    found = trace_rows_of(path)
    keys = {row["message_key"] for row in found.messages}
    timelines = build_timelines(found, keys)
    assert {timeline.message_key for timeline in timelines} == keys
    expected = {}
    for attempt in truth["attempts"]:
        if attempt["start_hresult"] == 0 and attempt["lookup_id"] is not None:
            expected.setdefault((attempt["queue"], attempt["lookup_id"]), []).append(attempt["outcome"])
    seen, all_frames = {}, frames(path)
    for timeline in timelines:
        ended = [event for event in timeline.events if event.kind == "ended"]
        starts = [event for event in timeline.events if event.kind == "start"]
        for place, number in timeline.locations:
            queue = place.replace("10.77.0.1\\", "srv1\\")
            seen.setdefault((queue, number), []).extend(event.text.split()[0] for event in ended)
        assert len(starts) == len(ended) == sum(event.kind == "seen" for event in timeline.events)
        times = [event.at for event in timeline.events if event.at is not None]
        assert times == sorted(times)
        # Each packet that is named begins with the PDU that the line is about.
        for event in timeline.events:
            if event.packet is not None:
                assert event.capture == str(path)
                wanted = (2 if event.kind == "seen" else 0, found.calls[event.call_key]["call_id"])
                assert rpc_of(all_frames[event.packet]) == wanted
            if event.response_packet is not None:
                kind, call_id = rpc_of(all_frames[event.response_packet])
                assert (kind in (2, 3), call_id) == (True, found.calls[event.call_key]["call_id"])
    # A read by qm2qm opnum 0 has no lookup id: its message gets one from its other reads.
    outcomes_by_number = {number: sorted(outcomes) for number, outcomes in seen.items()}
    assert outcomes_by_number == {
        number: sorted(outcomes) for number, outcomes in expected.items() if number in outcomes_by_number
    }
    every = [event.text.split()[0] for timeline in timelines for event in timeline.events if event.kind == "ended"]
    assert sorted(every) == sorted(outcome for outcomes in expected.values() for outcome in outcomes)


def message(key="m", label="hello", number=7, **more):
    facts = dict.fromkeys(
        ("sent_at", "arrived_at", "sender_address", "destination_queue", "inferred_queue", "class_name", "priority",
         "delivery", "transactional", "correlation_id", "admin_queue", "response_queue", "time_to_reach_queue_s",
         "packet_key", "hop_count", "time_to_be_received_s", "abort_count", "move_count", "subqueue", "is_comqc",
         "comqc_rejected", "body_sha256")
    )  # fmt: skip
    return facts | {
        "message_key": key, "sighting_key": f"s-{key}", "call_key": "start", "seen_at": T0, "queue": "h\\q",
        "lookup_id": number, "source_queue_manager": "11111111-2222-3333-4444-555555555555",
        "message_id": "11111111-2222-3333-4444-555555555555\\1", "label": label, "body_bytes": 5,
        "body_bytes_seen": 5, "body_complete": True, "errors": [],
    } | more  # fmt: skip


def attempt(name, key, number, outcome="acked", minute=0, **more):
    at = T0.replace(minute=minute)
    return {
        "attempt_key": name, "message_key": key, "lookup_id": number, "queue": "h\\q", "server_address": "10.0.0.1",
        "context_handle": "aa", "queue_handle": None, "is_receive": True, "client_address": "10.0.0.2",
        "client_port": 5000, "started_at": at, "returned_at": at, "ended_at": at.replace(second=5),
        "outcome": outcome, "connection_id": "c", "evidence": [], "missing": [],
    } | more  # fmt: skip


def fate(key, name, **more):
    """A row of gold.ack_sequences."""
    return {
        "message_key": key, "queue": "h\\q", "inferred_queue": None, "server_address": None, "handle": None,
        "lookup_id": 7, "attempts": 1, "peeks": 0, "outcomes": ["acked"], "readers": ["10.0.0.2"], "settled_at": T0,
        "fate": name, "redelivered": False, "loss_risk": None, "moved_to": None, "removed_at": None, "attempt_keys": [],
        "confidence": "complete", "missing": [],
    } | more  # fmt: skip


def purge(minute):
    at = T0.replace(minute=minute)
    return {"operation": "purge", "call_key": f"purge{minute}", "requested_at": at, "responded_at": at,
            "outcome": "done", "queue": "h\\q", "target_queue": None, "lookup_id": None, "missing": [],
            "server_address": "10.0.0.1", "context_handle": "aa", "queue_handle": None}  # fmt: skip


def test_a_purge_is_told_from_when_the_message_is_there_until_it_is_taken():
    given = TraceRows(messages=[message()], attempts=[attempt("a", "m", 7, minute=10)],
                    operations=[purge(5), purge(10), purge(20)])  # fmt: skip
    (timeline,) = build_timelines(given, ["m"])
    assert [event.call_key for event in timeline.events if event.kind == "purge"] == ["purge10"]
    held = TraceRows(messages=[message()], attempts=[attempt("a", "m", 7, "nacked", minute=10)], operations=[purge(20)])
    (timeline,) = build_timelines(held, ["m"])
    assert [event.call_key for event in timeline.events if event.kind == "purge"] == ["purge20"]


def test_a_number_that_several_messages_had_is_told_with_each_and_says_so():
    reads = [attempt("a", "m", 7), attempt("b", "n", 7, minute=1), attempt("c", None, 7, minute=2)]
    timelines = build_timelines(TraceRows(messages=[message("m"), message("n")], attempts=reads), ["m", "n"])
    for timeline in timelines:
        doubtful = [event for event in timeline.events if event.row_key == "c"]
        assert [event.other_candidates for event in doubtful] == [1]
        assert any("or another of 2 messages" in line for line in format_timeline(timeline))


def test_a_message_without_a_header_is_told_by_its_number():
    reads = [attempt("c", None, 9, missing=["damaged"])]
    (timeline,) = build_timelines(TraceRows(attempts=reads), [], [(("h\\q", None, None), 9)])
    assert timeline.message_key is None
    assert timeline.locations == [("h\\q", 9)]
    assert [event.kind for event in timeline.events] == ["ended"]
    assert any(text.startswith("damaged: ") for text in timeline.not_known)


def test_acknowledgements_findings_com_calls_and_what_was_not_seen_are_told():
    hour = T0
    report = message("r", call_key="report", class_name="MQMSG_CLASS_ACK_RECEIVE", queue="h\\admin",
                     correlation_id=message()["message_id"])  # fmt: skip
    call = {"sighting_key": "s-m", "interface_id": "i", "opnum": 3, "is_dispatch": False, "call_index": 0,
            "target_clsid": "c", "dispatch_id": None, "method": "Place"}  # fmt: skip
    finding = {"finding_key": "f", "call_key": "start", "packet_key": None, "evidence": ["start"],
               "severity": "error", "rule_id": "R1",
               "source": "MS-MQRR 3.1", "message": "wrong", "observed_at": T0}  # fmt: skip
    other = finding | {"finding_key": "g", "call_key": "elsewhere", "evidence": []}
    seen = {"call_key": "start", "interface_name": "RemoteRead", "opnum": 7, "request_packet": 1, "response_packet": 2,
            "capture_id": "cap", "response_capture_id": "cap", "server_address": "10.0.0.1", "request_at": T0,
            "response_at": T0, "client_address": "10.0.0.2", "client_port": 5000, "method": "R_StartReceive",
            "outcome": "ok", "hresult_name": "MQ_OK", "connection_id": "c"}  # fmt: skip
    lost = [
        {"hour": hour, "server_address": "10.0.0.1", "layer": "transport", "measure": "bytes_missing", "value": 12},
        {"hour": hour, "server_address": "10.9.9.9", "layer": "transport", "measure": "bytes_missing", "value": 99},
        {
            "hour": hour.replace(hour=3),
            "server_address": None,
            "layer": "capture",
            "measure": "packets_dropped",
            "value": 5,
        },
        {"hour": hour, "server_address": "10.0.0.1", "layer": "transport", "measure": "bytes", "value": 12},
    ]
    given = TraceRows(messages=[message()], replies=[report], attempts=[attempt("a", "m", 7, evidence=["start"])],
                    comqc=[call], findings=[finding, other], calls={"start": seen}, paths={"cap": "/x/one.pcap"},
                    coverage=lost)  # fmt: skip
    (timeline,) = build_timelines(given, ["m"])
    kinds = [event.kind for event in timeline.events]
    assert sorted(kinds) == sorted(["start", "seen", "COM+ call", "reply", "finding", "ended"])
    assert [text for text in timeline.not_known if "12" in text or "99" in text] == [
        "in these hours at 10.0.0.1: 12 payload bytes in no capture (transport)"
    ]
    assert any("class c: Place (interface i, opnum 3)" in line for line in format_timeline(timeline))
    assert any("[one.pcap 1, response 2]" in line for line in format_timeline(timeline))
    as_json = json.loads(json.dumps(timeline_to_json(timeline)))
    assert [event["wireshark"] for event in as_json["events"] if event["kind"] == "seen"] == ["frame.number == 2"]


def test_the_sender_is_who_the_packet_says():
    """Its name is that of the caller with its SID, if a COM+ call was recorded in the message."""
    manager = message()["source_queue_manager"]
    said = {"sender_id": "S-1-5-21-7", "sender_certificate_bytes": 900, "signed": True, "authenticated": False,
            "sender_address": "10.0.0.9"}  # fmt: skip
    call = {"sighting_key": "s-m", "interface_id": "i", "opnum": 3, "is_dispatch": False, "call_index": 0,
            "target_clsid": "c", "method": None, "caller_sid": "S-1-5-21-7",
            "caller_name": "CORP\\anna"}  # fmt: skip
    other = call | {"caller_sid": "S-1-5-21-8", "caller_name": "CORP\\carl"}
    rows = TraceRows(messages=[message(**said), message("n")], comqc=[other, call])
    full, unknown = build_timelines(rows, ["m", "n"])
    identity = f"S-1-5-21-7 (CORP\\anna), queue manager {manager}, at 10.0.0.9"
    assert f"  sender  {identity}, certificate of 900 bytes, signed, not authenticated" in format_timeline(full)
    assert f"  sender  of unknown identity, queue manager {manager}" in format_timeline(unknown)


def test_hostile_labels_are_printed_harmlessly():
    label = "\x1b[2J\u202egnp.exe\n  2026-01-01 forged line"
    (timeline,) = build_timelines(TraceRows(messages=[message(label=label, queue="h\\\x1bq")], attempts=[]), ["m"])
    text = "\n".join(format_timeline(timeline))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<U+202E>gnp.exe<U+000A>" in text
    assert json.loads(json.dumps(timeline_to_json(timeline)))["labels"] == [label]
    assert json.dumps(timeline_to_json(timeline)).isascii()


def test_arrow_is_what_the_rows_come_from():
    """Lookup identifiers come as decimals."""
    number = pa.array([7], pa.decimal128(20, 0)).to_pylist()[0]
    (timeline,) = build_timelines(TraceRows(messages=[message()], attempts=[attempt("a", "m", number)]), ["m"])
    assert timeline.locations == [("h\\q", 7)]


def test_the_open_that_a_message_was_read_through_says_how_and_until_when(project):
    path = project / "data" / "sample" / "01-remoteread-ndr.pcap"
    found, (opens, _) = trace_rows_of(path), opens_of(path)
    by_key = {row["call_key"]: row for row in opens}
    (holder,) = (row for row in opens if row["blocks"])
    keys = {row["message_key"] for row in found.messages}

    def open_texts():
        timelines = build_timelines(replace(found, opens=by_key), keys)
        events = [event for timeline in timelines for event in timeline.events if event.kind == "open"]
        return {event.call_key: event.text for event in events}

    closed_at = holder["closed_at"].strftime("%H:%M:%S.%f")
    assert open_texts()[holder["call_key"]].endswith(f", receive MQ_DENY_NONE; closed at {closed_at}")
    known = {"principal": "CORP\\svc", "workstation": "APP1", "ended_by": "connection_ended"}
    by_key[holder["call_key"]] = holder | known
    assert open_texts()[holder["call_key"]].endswith(
        f", by CORP\\svc at APP1, receive MQ_DENY_NONE; connection ended at {closed_at}"
    )


def test_what_differs_only_in_its_queue_is_one_line():
    """Sent to three queues at once, arrived in two of them, and given back alike in these."""
    names = ("h\\a", "h\\b", "h\\c")
    sightings = [
        message(
            sighting_key=name, destination_queue=name, queue=name, sent_at=T0, arrived_at=T0 if name != "h\\c" else None
        )
        for name in names
    ]
    fates = [fate("m", "returned", queue=name, lookup_id=None, outcomes=["nacked"]) for name in names]
    fates.append(fates[0] | {"queue": "h\\d", "fate": "unknown"})
    (timeline,) = build_timelines(TraceRows(messages=sightings, sequences=fates), ["m"])
    lines = [line.strip() for line in format_timeline(timeline)]
    sender = message()["source_queue_manager"]
    assert [line for line in lines if "  sent  " in line or "  arrived  " in line] == [
        f"2026-01-01 12:00:00.000000  sent        by {sender} to h\\a, h\\b, h\\c (the sender's clock)",
        "2026-01-01 12:00:00.000000  arrived     in h\\a, h\\b (its queue manager's clock)",
    ]
    assert [line for line in lines if line.startswith("fate")] == [
        "fate    returned in h\\a, h\\b, h\\c, received 1 time (nacked), peeked 0 times, by 10.0.0.2; complete",
        "fate    unknown in h\\d, received 1 time (nacked), peeked 0 times, by 10.0.0.2; complete",
    ]


def test_the_verdict_rests_on_no_row_of_another_message_with_its_number():
    """Two messages had the number; one was read, and of the other only the number of a reader's is known."""
    reads = [attempt("a", "m", 7), attempt("b", "n", 7, minute=1), attempt("c", None, 7, "nacked", minute=2)]
    fates = [
        fate("m", "consumed", attempt_keys=["a"], settled_at=reads[0]["ended_at"]),
        fate(None, "returned", attempt_keys=["c"], settled_at=reads[2]["ended_at"]),
    ]
    rows = TraceRows(messages=[message("m"), message("n")], attempts=reads, sequences=fates)
    read, other = build_timelines(rows, ["m", "n"])
    assert [each["fate"] for each in read.fates] == ["consumed", "returned"]
    assert [each["fate"] for each in other.fates] == ["returned"]  # and not that of the message that was read
    assert (read.verdict.code, read.verdict.complete) == ("received", True)
    assert (other.verdict.code, other.verdict.complete) == ("unknown", False)
    assert next(iter(format_timeline(read))) == f"message   {read.message_id}"
    assert [*format_timeline(read)][1] == f"  verdict {read.verdict.text}"
    values = timeline_to_json(read)
    assert (values["verdict"], values["verdict_code"], values["verdict_complete"]) == (
        read.verdict.text,
        "received",
        True,
    )
