"""Recorded RemoteRead and qm2qm conversations, seen by taps whose clocks differ: gold is as of one perfect tap."""

import random
from functools import cache

import pytest

from attempts.test_sample import gold_of
from capture.in_memory import read_captures
from capture.merge.comparing import equal
from capture.merge.tap_captures import TapCaptures, recorded
from findings.facts import decoded, facts
from pcapgen import containers as c
from pcapgen.record import SAMPLE
from pipeline.findings.evaluate import evaluate_calls
from udfs.capture.capture_reader import read_capture

CONVERSATIONS = ("01-remoteread-ndr", "03-qm2qm-dependent-client", "07-faults-cancels-groups")
MOST_UNKNOWN = 4  # connections of 100 conversations, with some 430 connections
# What became of an attempt, and what is known of it.
OUTCOME = (
    "client_address", "client_port", "protocol", "action_name", "outcome", "queue", "lookup_id", "start_hresult",
    "end_hresult", "ack_refused", "ack_unanswered", "gaps", "confidence", "missing",
)  # fmt: skip


@cache
def conversation(name):
    """The records of a sample, the indexes of those with data, and gold as of a tap that saw everything."""
    records, data, from_client = recorded((SAMPLE / f"{name}.pcap").read_bytes())
    perfect = read_capture(c.pcap(records).data)
    return records, data, from_client, outcomes(perfect), finding_counts(perfect), byte_counts(perfect)


def outcomes(tables):
    attempts, *_ = gold_of(tables)
    return sorted(repr([row[name] for name in OUTCOME]) for row in attempts.to_pylist())


def finding_counts(tables):
    found = evaluate_calls(facts(decoded(tables)))
    rows = found.select(["rule_id", "severity", "subject"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def byte_counts(tables):
    """Return the byte counts of each connection by its client's port: those of both directions first."""
    names = ("client_bytes", "server_bytes", "missing_bytes", "retransmitted_bytes", "conflicting_bytes")
    return {row["client_port"]: [row[name] for name in names] for row in tables["connections"].to_pylist()}


def check(seed):
    chance = random.Random(seed)
    name = CONVERSATIONS[seed % len(CONVERSATIONS)]
    records, data, from_client, attempts, findings, bytes_of = conversation(name)
    taps = TapCaptures(records, data, chance, snap_lengths=(200, 600), from_client=from_client)
    found = read_captures(taps.runs)
    equal(read_captures([taps.all_files]), found)
    calls = found["rpc_calls"].to_pylist()
    assert len({row["call_key"] for row in calls}) == len(calls)
    for row in gold_of(found)[0].to_pylist():
        assert row["wait_ms"] is None or row["wait_ms"] >= 0
        assert row["hold_ms"] is None or row["hold_ms"] >= 0 or row["outcome"] == "cancelled"  # before its response
    wrong = {
        port
        for port, counts in byte_counts(found).items()  # every byte is counted once
        if any(count > perfect for count, perfect in zip(counts[:2], bytes_of[port][:2], strict=True))
        or (not taps.never_seen and counts != bytes_of[port])
    }
    # Files of two taps with little in common, whose clocks are further apart than they last, are taken for one after
    # the other.
    assert not wrong & {row["client_port"] for row in calls if row["clocks"] is not None}
    if not taps.never_seen:
        assert outcomes(found) == attempts
        assert finding_counts(found) == findings
    return len(wrong)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 7))])
def test_gold_is_as_of_one_perfect_tap(part):
    assert sum(map(check, range(15 * part, 15 * part + 15))) <= 1


def test_what_only_the_handshake_shows():
    """Of a short connection one tap has little but SYN and bind; its clock is further ahead than its captures last."""
    assert check(1994) == 0


def test_a_queue_that_another_connection_opened():
    """The clocks of taps are related within a connection: that the other one was closed before is not certain."""
    assert check(2377) == 0


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_gold_of_many_conversations_is_as_of_one_perfect_tap(part):
    assert sum(map(check, range(1000 + 100 * part, 1100 + 100 * part))) <= MOST_UNKNOWN


def test_a_duration_is_of_one_clock():
    """From the middle on, one tap saw what the clients sent, the other one what the server sent."""
    records, *_ = recorded((SAMPLE / "01-remoteread-ndr.pcap").read_bytes())
    half, server_port = len(records) // 2, records[0].frame[36:38]
    from_server = {index for index, record in enumerate(records) if record.frame[34:36] == server_port}
    one = [record for index, record in enumerate(records) if index < half or index not in from_server]
    two = [
        c.Record(record.time_ns + 200_000_000, record.frame)
        for index, record in enumerate(records)
        if index < half or index in from_server
    ]
    found = read_captures([[c.pcap(one).data, c.pcap(two).data]])
    calls = {row["call_key"]: row for row in found["rpc_calls"].to_pylist()}
    attempts = {
        next(key for key in row["evidence"] if calls[key]["request_at"] == row["started_at"]): row
        for row in gold_of(found)[0].to_pylist()
    }
    times = {key: row["clocks"] for key, row in calls.items() if row["response_at"] is not None}
    of_two = {key for key, clocks in times.items() if clocks["request_tap"] != clocks["response_tap"]}
    assert of_two & attempts.keys()
    assert attempts.keys() - of_two
    for key, row in attempts.items():
        assert (row["wait_ms"] is None) == (key in of_two or row["returned_at"] is None)
    assert outcomes(found) == outcomes(read_capture(c.pcap(records).data))
