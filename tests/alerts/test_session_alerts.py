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
    }  # fmt: skip
    return row | more


def alerts(*rows, now=300, limits=LIMITS):
    return alert_rows(session_alerts(rows, limits, now * MINUTE, NAMES))


def periods(found):
    def at(time):
        return None if time is None else time / MINUTE

    return sorted((row["condition"], at(row["since"]), at(row["until"])) for row in found)


def test_refused_and_unanswered_sessions_of_two_machines_are_one_alert():
    found = alerts(session(0, "refused"), session(10, "unanswered"), session(11, "refused"), session(5, "open"))
    assert periods(found) == [("sessions_refused", 0, 71)]
    (row,) = found
    assert row["message"] == "2 sessions refused, 1 session not answered"
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
        session(0, "not_established"),
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
