"""Entries: alerts of one cause together, under the one that says most of it."""

from __future__ import annotations

import datetime as dt

import pytest

from pipeline.alerts import entries
from pipeline.alerts.conditions import CONDITIONS
from pipeline.alerts.entries import find_entries
from pipeline.silver.machines import Machines

BEGIN = dt.datetime(2026, 3, 1, 9, 0, tzinfo=dt.UTC)
HOSTS = [
    {"queue_manager_id": None, "host_name": "far", "address": "10.0.0.2"},
    {"queue_manager_id": "guid-a", "host_name": None, "address": "10.0.0.1"},
]
MACHINES = Machines(HOSTS, {"10.0.0.1": "relay"})


def alert(condition, queue=None, sender=None, receiver=None, *, severity="warning", minute=0):
    return {
        "alert_key": f"{condition}/{queue}/{sender}/{receiver}", "condition": condition, "severity": severity,
        "queue": queue, "from_machine": sender, "to_machine": receiver, "since": BEGIN + dt.timedelta(minutes=minute),
        "message": "", "missing": [],
    }  # fmt: skip


def grouped(*alerts):
    """The conditions of each entry, the leading one first; the same in whatever order the alerts are given."""
    found = [[row["condition"] for row in entry.alerts] for entry in find_entries(alerts, MACHINES)]
    for order in (alerts[::-1], sorted(alerts, key=lambda row: row["alert_key"])):
        assert [[row["condition"] for row in entry.alerts] for entry in find_entries(order, MACHINES)] == found
    return found


def test_connections_that_fail_are_the_cause_of_all_that_waits_for_them():
    failing = alert("sessions_refused", None, "10.0.0.1", "10.0.0.2", minute=9)
    waiting = [
        alert("queue_disconnected", "far\\private$\\a", "relay", severity="error"),
        alert("transfer_stalled", "far\\private$\\b", "guid-a"),
        alert("resend_storm", None, "10.0.0.1", "10.0.0.2"),
    ]
    assert grouped(failing, *waiting) == [
        ["sessions_refused", "queue_disconnected", "resend_storm", "transfer_stalled"]
    ]
    (entry,) = find_entries([failing, *waiting], MACHINES)
    assert (entry.severity, entry.since) == ("error", BEGIN)
    assert entry.queues == ["far\\private$\\a", "far\\private$\\b"]


@pytest.mark.parametrize(("sender", "receiver"), [("10.0.0.3", "10.0.0.2"), ("10.0.0.1", "10.0.0.3"), (None, None)])
def test_connections_between_other_machines_are_not(sender, receiver):
    waiting = alert("queue_disconnected", "far\\private$\\a", "relay")
    assert len(grouped(alert("sessions_refused", None, sender, receiver), waiting)) == 2


def test_order_acks_wait_for_connections_of_the_receiver_too():
    back = alert("sessions_refused", None, "10.0.0.2", "10.0.0.1")
    waiting = alert("order_acks_stalled", "far\\private$\\a", "10.0.0.1", "10.0.0.2")
    assert grouped(back, waiting) == [["sessions_refused", "order_acks_stalled"]]
    assert len(grouped(back, alert("queue_disconnected", "far\\private$\\a", "10.0.0.1"))) == 2


def test_a_reader_that_fails_leads_to_a_full_queue_and_to_what_waits_for_it():
    queue = "far\\private$\\a"
    chain = [
        alert("receives_not_ended", queue, "10.0.0.9", "10.0.0.2"), alert("queue_stuck", queue, None, "far"),
        alert("nearly_full", queue, None, "far", severity="error"),
        alert("order_acks_stalled", queue, "10.0.0.1", "10.0.0.2"),
        alert("messages_unread", queue, "relay"), alert("transfers_slow", None, "10.0.0.1", "10.0.0.2"),
    ]  # fmt: skip
    (found,) = grouped(*chain)
    assert found[0] == "receives_not_ended"
    assert len(found) == len(chain)
    assert len(grouped(*chain, alert("queue_stuck", "far\\private$\\other", None, "far"))) == 2


def test_alerts_without_a_common_cause_are_entries_of_their_own():
    alone = [alert(condition) for condition in CONDITIONS]
    assert sorted(each for (each,) in grouped(*alone)) == sorted(CONDITIONS)


def test_no_condition_is_the_cause_of_its_own_cause():
    """Each stands above what it causes: so a chain of causes ends."""
    causes = {}
    for condition, _, conditions in entries._CAUSES:
        causes.setdefault(condition, set()).update(conditions)
    assert causes.keys() <= CONDITIONS.keys()
    assert set().union(*causes.values()) <= CONDITIONS.keys()

    def below(condition, seen=()):
        assert condition not in seen, f"{condition} is a cause of itself: {seen}"
        for each in causes.get(condition, ()):
            below(each, (*seen, condition))

    for condition in causes:
        below(condition)
