"""Alerts of queue managers: disconnected, and near their quota."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from alerts.scenario import LIMITS, summaries
from pipeline.alerts.episodes import alert_rows
from pipeline.alerts.machine_alerts import machine_alerts

MINUTE = 60_000_000
QUOTA = replace(LIMITS, machine_quotas={"srv1": 1000})


def intervals(*states, manager="srv1", size=None):
    """An interval of five minutes for each state, or for each number of bytes."""
    for place, value in enumerate(states):
        yield {
            "queue_manager": manager, "valid_from": 5 * place * MINUTE, "valid_to": 5 * (place + 1) * MINUTE,
            "state": value if isinstance(value, str) else "CONNECTED", "evidence": [f"s{place}"], "missing": [],
            "bytes_in_all_queues": Decimal(value) if isinstance(value, int) else size,
        }  # fmt: skip


def alerts(*rows, limits=LIMITS, now=1000):
    return alert_rows(machine_alerts(rows, limits, now * MINUTE))


def test_a_queue_manager_that_stays_disconnected_is_an_alert_until_it_is_connected():
    found = alerts(*intervals("CONNECTED", "DISCONNECTED", "DISCONNECTED", "CONNECTED"), now=19)
    assert summaries(found) == [("machine_disconnected", "warning", 5, 15)]
    assert (found[0]["subject"], found[0]["queue"], found[0]["queue_manager"]) == ("queue manager srv1", None, "srv1")
    assert found[0]["evidence"] == ["s1", "s2"]


@pytest.mark.parametrize("states", [("DISCONNECTED", "CONNECTED"), ("UNKNOWN", "UNKNOWN"), ("CONNECTED", "CONNECTED")])
def test_short_disconnections_and_what_is_not_known_are_no_alerts(states):
    assert alerts(*intervals(*states)) == []


def test_a_long_disconnection_is_an_error_and_one_that_nobody_watches_any_more_still_holds():
    found = alerts(*intervals(*["DISCONNECTED"] * 13))
    assert summaries(found) == [("machine_disconnected", "error", 0, None)]
    assert found[0]["missing"] == ["no_snapshot"]


def test_a_queue_manager_that_nears_its_quota_is_an_alert_and_an_error_when_it_is_full():
    found = alerts(*intervals(899, 900, 950, 100), limits=QUOTA, now=19)
    assert summaries(found) == [("machine_nearly_full", "warning", 5, 15)]
    assert found[0]["message"] == "950 of 1000 bytes (95%)"
    assert summaries(alerts(*intervals(900, 1000), limits=QUOTA, now=9)) == [("machine_nearly_full", "error", 0, None)]


def test_a_quota_of_one_queue_manager_goes_before_that_of_all():
    limits = replace(LIMITS, machine_quota_bytes=100, machine_quotas={"srv2": 10_000}, machine_full_share=0.5)
    rows = [*intervals(60, manager="srv1"), *intervals(60, manager="srv2")]
    assert [row["queue_manager"] for row in alerts(*rows, limits=limits, now=4)] == ["srv1"]


def test_without_a_quota_or_a_report_nothing_is_near():
    assert alerts(*intervals(10**12)) == []
    assert alerts(*intervals("UNKNOWN", "CONNECTED"), limits=QUOTA) == []


def test_the_threshold_is_a_setting():
    rows = list(intervals("DISCONNECTED", "DISCONNECTED", "CONNECTED"))
    assert alerts(*rows, limits=replace(LIMITS, machine_disconnected_after=timedelta(minutes=6))) == []
