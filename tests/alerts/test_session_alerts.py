"""Alerts of sessions that were refused, not answered, or that waited for acknowledgements."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import alert_rows
from pipeline.alerts.session_alerts import SESSION_COLUMNS, session_alerts

LIMITS = Thresholds()
MINUTE = 60_000_000
NAMES = {"10.0.0.2": "hq"}


def session(at, outcome, **more):
    row = dict.fromkeys(SESSION_COLUMNS) | {
        "connection_id": f"c{at}", "client_address": "10.0.0.1", "server_address": "10.0.0.2", "outcome": outcome,
        "first_packet_at": at * MINUTE, "establish_requested_at": at * MINUTE, "last_packet_at": (at + 1) * MINUTE,
        "closed_at": (at + 1) * MINUTE, "ended": "closed", "client_window_full_ms": 0, "server_window_full_ms": 0,
        "server_port": 1801,
    }  # fmt: skip
    return row | more


def alerts(*rows, now=300, limits=LIMITS):
    return alert_rows(session_alerts(rows, limits, now * MINUTE, NAMES))


def periods(found):
    def at(time):
        return None if time is None else time / MINUTE

    return sorted((row["condition"], at(row["since"]), at(row["until"])) for row in found)


def test_refused_and_unanswered_sessions_of_two_machines_are_one_alert():
    later = {"opened_before": 5 * MINUTE}
    refused = (session(0, "refused"), session(10, "unanswered", **later), session(11, "refused", **later))
    found = alerts(*refused, session(5, "open"))
    assert periods(found) == [("sessions_refused", 0, 71)]
    (row,) = found
    assert row["message"] == "from 10.0.0.1 to 10.0.0.2: 2 sessions refused, 1 session not answered"
    assert row["subject"] == "sessions from 10.0.0.1 to 10.0.0.2"
    assert (row["queue_manager"], row["severity"], row["evidence"]) == ("hq", "warning", ["c0", "c10", "c11"])
    assert periods(alerts(session(0, "refused"), session(100, "refused"))) == [
        ("sessions_refused", 0, 60), ("sessions_refused", 100, 160),
    ]  # fmt: skip


def test_it_takes_as_many_as_the_setting_says():
    three = [session(at, "refused") for at in range(3)]
    limits = replace(LIMITS, refused_sessions=3)
    assert len(alerts(*three, limits=limits)) == 1
    assert alerts(*three[:2], limits=limits) == []


@pytest.mark.parametrize(
    "session_row",
    [
        session(0, "unanswered", ended=None, closed_at=None),  # it may yet be answered
        session(0, "unanswered", missing_bytes=36),  # among them may be the answer
        session(0, "not_established"),  # it was, and nothing was sent
        session(0, "not_established", not_established="too_early"),
        session(0, "not_binary_protocol"),
        session(0, "unknown"),
        session(0, "open", client_window_full_ms=9_999),
        session(400, "refused"),  # later than now
    ],
)
def test_what_is_no_alert(session_row):
    assert alerts(session_row) == []


def test_a_silent_session_was_not_answered():
    assert periods(alerts(session(0, "unanswered", ended="unopened", closed_at=None))) == [("sessions_refused", 0, 60)]


def test_a_full_window_is_of_the_side_that_could_not_send():
    (row,) = alerts(session(0, "open", server_window_full_ms=12_345))
    assert (row["subject"], row["queue_manager"]) == ("session from 10.0.0.2 to 10.0.0.1", "hq")
    assert row["message"] == "the window was full of unacknowledged packets for 12.3 s of the session"
    assert periods([row]) == [("window_full", 0, 1)]
    shorter = replace(LIMITS, window_full_after=timedelta(seconds=5))
    assert len(alerts(session(0, "open", client_window_full_ms=5_000), limits=shorter)) == 1


def test_a_full_window_was_not_seen_behind_the_end_of_its_session():
    (row,) = alerts(session(0, "open", server_window_full_ms=12_345, last_packet_at=2 * MINUTE))
    assert (row["last_seen_at"], row["until"]) == (MINUTE, MINUTE)


def test_a_full_window_holds_while_the_session_is_open():
    still = {"closed_at": None, "ended": None, "client_window_full_ms": 20_000}
    (row,) = alerts(session(0, "open", **still))
    assert (row["until"], row["last_seen_at"]) == (None, MINUTE)
    assert periods(alerts(session(0, "open", **still | {"ended": "silent"}))) == [("window_full", 0, 1)]


def failed(at, cause="no_answer", **more):
    """A connection that was not established; one of RPC has no row of silver.sessions."""
    none = dict.fromkeys(("establish_requested_at", "outcome", "ended", "closed_at"))
    lasts = {"last_packet_at": int((at + 0.15) * MINUTE), "connection_id": f"c{at}{more}"}
    return session(at, None) | none | lasts | {"not_established": cause} | more


@pytest.mark.parametrize(
    ("cause", "text", "confidence"),
    [
        ("no_answer", "no answer (network or host)", "complete"),
        ("reset", "reset (service not running, or a firewall that rejects)", "complete"),
        ("answer_not_captured", "no answer, or a reset that this capture cannot see", "partial"),
    ],
)
def test_a_failed_connection_is_a_warning_that_names_both_machines_and_the_cause(cause, text, confidence):
    (row,) = alerts(failed(0, cause), now=1)
    assert row["message"] == f"from 10.0.0.1 to 10.0.0.2: 1 connection to TCP 1801 failed: {text}"
    assert (row["severity"], row["subject"]) == ("warning", "sessions from 10.0.0.1 to 10.0.0.2")
    assert (row["confidence"], row["until"], row["last_seen_at"]) == (confidence, None, 0.15 * MINUTE)
    assert row["missing"] == (["answer_not_captured"] if confidence == "partial" else [])


def severity(*rows, **more):
    (row,) = alerts(*rows, **more)
    return row["severity"]


def test_it_is_an_error_once_three_attempts_failed_for_long_and_none_opened_between():
    assert severity(failed(0), failed(2), failed(4.84)) == "warning"
    assert severity(failed(0), failed(2), failed(4.86)) == "error"
    assert severity(failed(0), failed(10)) == "warning"
    opened = {"opened_before": 3 * MINUTE}
    assert severity(failed(0), failed(2), failed(5, **opened)) == "warning"
    assert severity(failed(0), failed(2), failed(5, **opened), failed(7, **opened), failed(10, **opened)) == "error"
    assert severity(failed(0), failed(2), failed(6, server_port=135)) == "warning"  # of different ports
    longer = replace(LIMITS, refused_for=timedelta(minutes=20))
    assert severity(failed(0), failed(5), failed(10), limits=longer) == "warning"
    assert severity(failed(0, "reset"), failed(3), session(6, "refused")) == "error"


def test_connections_of_all_ports_are_told_together():
    (row,) = alerts(failed(0, server_port=135), failed(1, server_port=2103), failed(2, "reset"))
    assert row["message"] == (
        "from 10.0.0.1 to 10.0.0.2: 2 connections to TCP 135, 2103 failed: no answer (network or host), "
        "1 connection to TCP 1801 failed: reset (service not running, or a firewall that rejects)"
    )


def test_a_connection_that_worked_before_is_told():
    (row,) = alerts(failed(60, worked_until=50 * MINUTE))
    assert row["message"].endswith("(network or host); a connection between them worked until 1970-01-01 00:50:00")
    (row,) = alerts(failed(120, worked_until=50 * MINUTE))  # too long ago
    assert "worked" not in row["message"]


def scan(count, **more):
    return [failed(n / 10, server_address=f"10.0.1.{n}", **more) for n in range(count)]


def test_a_client_that_failed_at_very_many_servers_is_one_alert():
    (row,) = alerts(*scan(21))
    assert (row["subject"], row["severity"], row["queue_manager"]) == ("sessions from 10.0.0.1", "info", "10.0.0.1")
    assert row["message"] == (
        "10.0.0.1 failed to connect to 21 servers and opened nothing (a scan, or its own network): "
        "21 connections to TCP 1801 failed: no answer (network or host)"
    )
    assert len(alerts(*scan(20))) == 20
    assert len(alerts(*scan(4), limits=replace(LIMITS, scan_targets=3))) == 1
    slow = [failed(n * 4, server_address=f"10.0.1.{n}") for n in range(21)]  # not within an hour
    assert len(alerts(*slow)) == 21


def test_a_client_that_opened_a_connection_is_no_scan():
    assert len(alerts(*scan(21, client_opened_after=30 * MINUTE))) == 21
    assert len(alerts(*scan(21, client_opened_before=-30 * MINUTE))) == 21
    assert len(alerts(*scan(21, client_opened_before=-70 * MINUTE, client_opened_after=200 * MINUTE))) == 1
