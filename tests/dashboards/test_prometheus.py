"""Metrics in Prometheus text format, read back by a parser of the format's rules."""

from __future__ import annotations

import re

from dashboards.sites import (
    GUIDS,
    at,
    attempt,
    data,
    hop,
    latency,
    message_transfer,
    nothing_on_tcp_1801,
    quality,
    queue,
    session,
    site,
    transfer,
    transfer_sequence,
)
from hostile import TEXTS
from pipeline.dashboards.dashboard_data import DatasetRows
from pipeline.dashboards.prometheus import render_metrics

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL.pattern}(?:,(?!\}})|(?=\}})))*)\}})? (\S+)")


def read(text):
    """Samples as {name: [(labels, value)]}. Each sample must follow the HELP and TYPE lines of its metric."""
    assert text.endswith("\n")
    found, family, seen = {}, None, set()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in seen, f"{family} twice"
            seen.add(family)
            found[family] = []
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == family
            assert line.split(" ")[3] == "gauge"
            assert not family.endswith(("_total", "_count", "_sum", "_bucket"))
        else:
            matched = SAMPLE.fullmatch(line)
            assert matched, line
            assert matched[1] == family
            labels = {name: unescaped(value) for name, value in LABEL.findall(matched[2] or "")}
            assert labels not in [each for each, _ in found[family]], f"{line} twice"
            found[family].append((labels, float(matched[5])))
    return found


def unescaped(value):
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), value)


def test_known_values_have_samples():
    found = read(render_metrics(site()))
    one = {
        "queue": "srv1\\private$\\orders",
        "queue_manager": "srv1",
        "queue_format_name": "DIRECT=OS:srv1\\private$\\orders",
    }
    assert (one, 1.0) in found["msmq_queue_messages"]
    assert ({**one, "state": "LOCAL CONNECTION"}, 1.0) in found["msmq_queue_state"]
    assert (one, at(600).timestamp()) in found["msmq_queue_last_report_timestamp_seconds"]
    assert (one, 3.0) in found["msmq_transfer_ladder_step"]
    for sources in ("msmq_queue_source", "msmq_transfer_source"):
        assert ({**one, "source": "collector"}, 1.0) in found[sources]
    assert ({}, at(1000).timestamp()) in found["msmq_newest_evidence_timestamp_seconds"]
    assert found["msmq_source_newest_evidence_timestamp_seconds"] == [
        ({"kind": "captures", "source": "/data/ring"}, at(900).timestamp()),
        ({"kind": "snapshots", "source": "srv1"}, at(1000).timestamp()),
    ]
    assert [value for _, value in found["msmq_alerts"]] == [1.0, 1.0]
    assert found["msmq_messages_at_risk"][0][0]["loss_risk"] == "read_twice"
    assert ({"layer": "rpc", "measure": "sealed", "server_address": "10.0.0.1"}, 3.0) in found["msmq_coverage_items"]
    missing = {"layer": "transport", "measure": "bytes_missing", "server_address": "10.0.0.1"}
    assert found["msmq_coverage_bytes"] == [(missing, 1460.0)]


def test_hostile_names_come_back_as_they_were():
    names = (*TEXTS, "")
    found = read(render_metrics(site(names=names)))
    assert {labels["queue"] for labels, _ in found["msmq_queue_messages"]} == set(names)


def test_names_of_a_megabyte_are_cut_and_stay_different():
    text = render_metrics(site([f"{'q' * 1_000_000}{number}" for number in range(10)]))
    assert len(text) < 200_000
    names = {labels["queue"] for labels, _ in read(text)["msmq_queue_messages"]}
    assert len(names) == 10
    assert all(name.startswith("q" * 200 + "... (+999801 characters, ") for name in names)


def test_what_is_not_known_has_no_sample_and_is_never_zero():
    unknown = {"state": "UNKNOWN", "known_until": None, "reported_at": None}
    rows = [
        queue("reported", 1, message_count=None, bytes=None),
        queue("unknown", 3, **unknown, message_count=None, bytes=None, journal_count=None, journal_bytes=None),
    ]
    found = read(render_metrics(site(queues=data(rows))))
    assert found["msmq_queue_messages"] == []
    assert {labels["queue"] for labels, _ in found["msmq_queue_journal_messages"]} == {"reported"}
    states = {labels["queue"]: labels["state"] for labels, _ in found["msmq_queue_state"]}
    assert states == {"reported": "LOCAL CONNECTION", "unknown": "UNKNOWN"}
    assert {labels["queue"] for labels, _ in found["msmq_queue_last_report_timestamp_seconds"]} == {"reported"}


def test_a_queue_of_unknown_state_keeps_its_last_report_with_its_own_time():
    expired = queue("expired", 2, reported_at=at(100), known_until=at(1000))  # valid until the newest evidence
    found = read(render_metrics(site(queues=data([expired]))))
    values = {name: [value for _, value in samples] for name, samples in found.items() if samples}
    assert values["msmq_queue_messages"] == [2]
    assert values["msmq_queue_last_report_timestamp_seconds"] == [at(100).timestamp()]
    assert values["msmq_queue_unknown_since_timestamp_seconds"] == [at(1000).timestamp()]
    assert [labels["state"] for labels, _ in found["msmq_queue_state"]] == ["UNKNOWN"]


def test_a_transfer_that_two_sources_saw_counts_once_in_sums():
    found = read(render_metrics(site(transfers=data([transfer("q", 1, sources="collector, wire")]))))
    assert [value for _, value in found["msmq_transfer_unacknowledged_messages"]] == [12]
    assert [labels["source"] for labels, _ in found["msmq_transfer_source"]] == ["collector", "wire"]


def test_counts_are_of_all_rows_where_some_are_cut():
    summary = data(
        [{"queue": "a", "server_address": "s", "outcome": "acked", "n": number} for number in (400, 600)]
    ).rows
    truncated = data([attempt("a", 1, server_address="s")], total_rows=1000, summary=summary)
    found = read(render_metrics(site(attempts=truncated)))
    assert found["msmq_receive_attempts"] == [({"queue": "a", "server_address": "s", "outcome": "acked"}, 1000.0)]


def test_messages_on_tcp_1801_are_counted_by_hop_and_outcome():
    rows = [
        message_transfer("q", 1),
        message_transfer("q", 2, sendings=3, resent_bytes=2448),
        message_transfer("other", 3, outcome="rejected"),
        message_transfer("q", 4, sender_queue_manager=None, sender_address="10.0.0.9"),
    ]
    found = read(render_metrics(site(message_transfers=data(rows))))
    unnamed = {**hop(), "sender_queue_manager": "", "sender_address": "10.0.0.9"}
    kind = {"message_kind": "application"}
    assert sorted(found["msmq_message_transfers"], key=str) == sorted(
        [
            ({**hop(), **kind, "outcome": "delivered"}, 2.0),
            ({**hop(), **kind, "outcome": "rejected"}, 1.0),
            ({**unnamed, **kind, "outcome": "delivered"}, 1.0),
        ],
        key=str,
    )
    assert dict(numbers(found["msmq_message_transfer_resends"])) == {"10.0.0.1": 2, "10.0.0.9": 0}
    assert dict(numbers(found["msmq_message_transfer_resent_bytes"])) == {"10.0.0.1": 2448, "10.0.0.9": 0}
    assert dict(numbers(found["msmq_message_transfer_bytes"])) == {"10.0.0.1": 3 * 1224, "10.0.0.9": 1224}


def numbers(samples):
    return [(labels["sender_address"], value) for labels, value in samples]


def test_latencies_are_quantiles_in_seconds_also_of_aggregates():
    rows = data([latency(n, "session ack", 10.0 * n) for n in range(1, 101)])
    aggregates = data([latency(0, "session ack", 10.0, n=96), latency(0, "session ack", 1000.0, n=4)]).rows
    cut = data([latency(1, "session ack", 1.0)], total_rows=100, summary=aggregates)
    for given, expected in (
        (rows, {"0.5": 0.5, "0.95": 0.95, "0.99": 0.99}),
        (cut, {"0.5": 0.01, "0.95": 0.01, "0.99": 1.0}),
    ):
        found = read(render_metrics(site(transfer_latencies=given)))["msmq_message_transfer_latency_seconds"]
        assert {labels["quantile"]: value for labels, value in found} == expected
        assert {labels["stage"] for labels, _ in found} == {"session ack"}


def test_sequences_have_no_identifiers_as_labels_and_sum_by_queue_and_hop():
    rows = [
        transfer_sequence("q", 1),
        transfer_sequence("q", 2, stalled_since=at(1)),
        transfer_sequence("q", 3, condition="acknowledged", waiting=0, stall_count=0, stalled_since=None),
    ]
    found = read(render_metrics(site(transfer_sequences=data(rows))))
    labels = {"queue": "q", **hop()}
    assert found["msmq_transfer_sequence_waiting_messages"] == [(labels, 4.0)]
    assert found["msmq_transfer_sequence_stalls"] == [(labels, 2.0)]
    assert found["msmq_transfer_sequence_resends"] == [(labels, 6.0)]
    assert found["msmq_transfer_sequence_stalled_since_timestamp_seconds"] == [(labels, at(1).timestamp())]
    assert {labels["condition"]: value for labels, value in found["msmq_transfer_sequences"]} == {
        "stalled": 2, "acknowledged": 1,
    }  # fmt: skip


def test_sessions_are_counted_by_both_ends_outcome_and_end():
    silent = session(4, session_outcome="not_established", not_established="no_answer", session_end="not_open")
    rows = [session(1), session(2), session(3, session_outcome="refused", session_end="refused"), silent]
    found = read(render_metrics(site(sessions=data(rows))))
    names = ("session_outcome", "not_established", "session_end")
    counts = {tuple(labels.get(name, "") for name in names): value for labels, value in found["msmq_sessions"]}
    assert counts == {
        ("open", "", "closed"): 2, ("refused", "", "refused"): 1, ("not_established", "no_answer", "not_open"): 1,
    }  # fmt: skip
    ((labels, full_s),) = found["msmq_session_window_full_seconds"]
    assert labels["initiator_queue_manager"] == GUIDS[0]
    assert full_s == 6


def test_where_tcp_1801_was_not_captured_nothing_has_a_sample():
    found = read(render_metrics(site(**nothing_on_tcp_1801())))
    names = ("msmq_message_transfer", "msmq_transfer_sequence", "msmq_session")
    families = {name for name in found if name.startswith(names)}
    assert len(families) == 12
    assert all(found[name] == [] for name in families)


def test_each_expectation_has_its_state():
    failed = quality("keys_unique", 2, success=False, unexpected=3, severity="warning")
    found = read(render_metrics(site(quality=data([quality("has_a_connection", 1), failed]))))
    names = {"table": "bronze.rpc_calls", "suite": "rpc_calls"}
    assert found["msmq_quality_expectation_met"] == [
        ({**names, "expectation": "has_a_connection", "severity": "error"}, 1),
        ({**names, "expectation": "keys_unique", "severity": "warning"}, 0),
    ]
    assert [value for _, value in found["msmq_quality_unexpected_rows"]] == [0, 3]


def test_a_lake_without_tables_gives_families_without_samples():
    bare = site()
    nothing = site(**{name: DatasetRows(None, note="not computed") for name in bare.datasets})
    found = read(render_metrics(nothing))
    assert {name for name, samples in found.items() if samples} == {
        "msmq_newest_evidence_timestamp_seconds", "msmq_published_timestamp_seconds",
        "msmq_source_newest_evidence_timestamp_seconds",
    }  # fmt: skip
