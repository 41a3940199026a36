"""Alerts of calls, messages, findings and coverage."""

from dataclasses import replace
from datetime import timedelta

import pytest

from findings.test_operation import FIRST, clocks, host
from memory_lake import MemoryLake
from pipeline.alerts.call_alerts import (
    ATTEMPT_COLUMNS,
    FAILED_COUNT_COLUMNS,
    FAILURE_COUNT_COLUMNS,
    NACK_COUNT_COLUMNS,
    REJECTED_COUNT_COLUMNS,
    capture_loss_alerts,
    failed_message_alerts,
    failing_call_alerts,
    finding_alerts,
    missing_snapshot_alerts,
    negative_acknowledgement_alerts,
    receive_alerts,
    rejected_container_alerts,
)
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import alert_rows
from pipeline.alerts.sources import ALERT_SOURCES, TimeWindow
from pipeline.arrow_rows import times_to_us
from pipeline.findings.duplicate_machines import duplicate_machine_findings
from reports.questions.in_memory_lake import rows
from schemas.transfers import MESSAGE_TRANSFERS

LIMITS = Thresholds()
MINUTE = 60_000_000
HOUR = 60 * MINUTE
NAMES = {"10.0.0.1": "srv1"}
ORDERS = "srv1\\private$\\orders"


def summaries(alerts):
    def at(time):
        return None if time is None else time / MINUTE

    found = sorted(alert_rows(alerts), key=lambda row: row["since"])
    return [(row["condition"], row["severity"], at(row["since"]), at(row["until"])) for row in found]


def counted(columns, at, count, *place):
    """Return a row of counts for the minute that begins at a time."""
    return dict(zip(columns, (*place, at * MINUTE, at * MINUTE + 30_000_000, count, [f"c{at}"]), strict=True))


def failed(at, count=1, *, result=0xC00E0025, opnum=7, is_fault=False):
    return counted(FAILURE_COUNT_COLUMNS, at, count, "10.0.0.1", "RemoteRead", opnum, result, is_fault)


def test_calls_that_fail():
    rows = [failed(0, 3), failed(30, 2), failed(200, 4)]
    (row,) = alert_rows(failing_call_alerts(rows, LIMITS, 300 * MINUTE, NAMES))
    assert summaries(failing_call_alerts(rows, LIMITS, 300 * MINUTE, NAMES)) == [("calls_failing", "warning", 0, 90.5)]
    assert row["subject"] == "RemoteRead R_StartReceive at 10.0.0.1: MQ_ERROR_ACCESS_DENIED"
    assert row["message"] == "RemoteRead R_StartReceive returns MQ_ERROR_ACCESS_DENIED: 5 calls"
    assert (row["queue_manager"], row["evidence"]) == ("srv1", ["c0", "c30"])
    assert summaries(failing_call_alerts(rows, LIMITS, 60 * MINUTE, NAMES)) == [("calls_failing", "warning", 0, None)]
    assert summaries(failing_call_alerts(rows, LIMITS, 20 * MINUTE, NAMES)) == []
    assert len(summaries(failing_call_alerts(rows, replace(LIMITS, failed_calls=4), 300 * MINUTE, NAMES))) == 2


def test_a_fault_says_so_and_other_results_are_other_alerts():
    fault = [failed(0, 5, result=0x1C010002, opnum=15, is_fault=True), failed(0, 4)]
    (row,) = alert_rows(failing_call_alerts(fault, LIMITS, HOUR, {}))
    assert row["message"] == "RemoteRead R_EndTransactionalReceive faults with nca_s_op_rng_error: 5 calls"
    (row,) = alert_rows(failing_call_alerts([failed(0, 9, opnum=99)], LIMITS, HOUR, {}))
    assert row["subject"].startswith("RemoteRead opnum 99 at 10.0.0.1")


@pytest.mark.parametrize("result", [0xC00E001B, 0xC00E0088, 0xC00E0008, 0xC0000225, 0xC00E0004])
def test_a_poll_in_vain_is_no_failure(result):
    assert summaries(failing_call_alerts([failed(0, 500, result=result)], LIMITS, HOUR, {})) == []


def nack(at, count=1, sender="a1", queue=ORDERS, inferred=None, *, final=False):
    return counted(NACK_COUNT_COLUMNS, at, count, "MQMSG_CLASS_NACK_BAD_DST_Q", sender, queue, inferred, final)


def test_negative_acknowledgements():
    rows = [nack(0), nack(20, 3), nack(5, sender="a2")]
    found = alert_rows(negative_acknowledgement_alerts(rows, LIMITS, 200 * MINUTE, {}))
    assert sorted((row["since"] / MINUTE, row["until"] / MINUTE) for row in found) == [(0, 80.5), (5, 65.5)]
    assert {row["queue"] for row in found} == {ORDERS}
    (row,) = alert_rows(negative_acknowledgement_alerts([nack(0, queue=None, inferred=ORDERS)], LIMITS, HOUR, {}))
    assert (row["confidence"], row["missing"], row["queue"]) == ("inferred", ["queue_unknown"], None)
    few = replace(LIMITS, negative_acknowledgements=5)
    assert alert_rows(negative_acknowledgement_alerts(rows, few, HOUR, {})) == []


def test_final_acknowledgements_are_in_no_queue():
    rows = [nack(0), nack(3, 2, queue=None, final=True), nack(4, queue=None, final=True)]
    alerts = alert_rows(negative_acknowledgement_alerts(rows, LIMITS, HOUR, {}))
    (final,) = (row for row in alerts if row["queue"] is None)
    assert final["message"] == "3 final acknowledgements of class MQMSG_CLASS_NACK_BAD_DST_Q"
    assert final["subject"] == "MQMSG_CLASS_NACK_BAD_DST_Q from queue manager a1 of transactional messages"
    assert (final["missing"], final["since"], len(alerts)) == ([], 3 * MINUTE, 2)


def test_negative_acknowledgements_are_of_the_canonical_queue():
    other = "10.0.0.1\\private$\\orders"
    rows = [nack(0), nack(20, queue=other)]
    (row,) = alert_rows(negative_acknowledgement_alerts(rows, LIMITS, 30 * MINUTE, {other: ORDERS, ORDERS: ORDERS}))
    assert (row["queue"], row["since"]) == (ORDERS, 0)


def test_rejected_containers_are_lost_calls():
    rule = "[MC-COMQC] 2.2.6: Flags are not 0x00001000"
    rows = [counted(REJECTED_COUNT_COLUMNS, at, 2, rule, "a1", ORDERS, None) for at in (0, 30, 200)]
    found = sorted(alert_rows(rejected_container_alerts(rows, LIMITS, 220 * MINUTE, {})), key=lambda row: row["since"])
    assert [(row["severity"], row["since"] / MINUTE, row["queue"]) for row in found] == [
        ("error", 0, ORDERS), ("error", 200, ORDERS),
    ]  # fmt: skip
    assert found[0]["message"] == f"4 messages with lost calls ({rule}) in {ORDERS}"
    assert alert_rows(rejected_container_alerts(rows, replace(LIMITS, rejected_containers=5), 220 * MINUTE, {})) == []


def test_messages_that_an_endpoint_cannot_process():
    timeout, other = "Billing: System.TimeoutException", "10.0.0.1\\private$\\orders"
    rows = [
        counted(FAILED_COUNT_COLUMNS, 0, 2, timeout, "b2", other, None),
        counted(FAILED_COUNT_COLUMNS, 59, 1, timeout, "b2", ORDERS, None),
        counted(FAILED_COUNT_COLUMNS, 200, 1, timeout, "b2", ORDERS, None),
        counted(FAILED_COUNT_COLUMNS, 59, 1, "Billing: System.FormatException", "b2", None, ORDERS),
    ]
    same = {other: ORDERS, ORDERS: ORDERS}
    found = sorted(alert_rows(failed_message_alerts(rows, LIMITS, 230 * MINUTE, same)), key=lambda row: row["since"])
    assert [(row["since"] / MINUTE, row["until"] and row["until"] / MINUTE, row["queue"]) for row in found] == [
        (0, 119.5, ORDERS), (59, 119.5, None), (200, None, ORDERS),
    ]  # fmt: skip
    assert found[0]["message"] == f"3 messages not processed ({timeout}) in {ORDERS}"
    assert found[0]["subject"] == f"{timeout} from queue manager b2 in {ORDERS}"
    assert {(row["severity"], row["from_machine"], row["cause"]) for row in found} == {("warning", "b2", None)}
    long = replace(LIMITS, error_after=timedelta(minutes=59))
    severities = {row["since"]: row["severity"] for row in alert_rows(failed_message_alerts(rows, long, HOUR, same))}
    assert severities == {0: "error", 59 * MINUTE: "warning"}
    few = replace(LIMITS, failed_messages=4)
    assert alert_rows(failed_message_alerts(rows, few, 230 * MINUTE, same)) == []


def attempt(returned, ended=None, outcome="in_flight", client="10.0.0.9", **more):
    row = dict.fromkeys(ATTEMPT_COLUMNS) | {
        "queue": ORDERS, "server_address": "10.0.0.1", "client_address": client, "returned_at": returned * MINUTE,
        "ended_at": None if ended is None else ended * MINUTE, "outcome": outcome, "lookup_id": "7",
        "evidence": [f"{returned}-{client}"], "missing": [],
    }  # fmt: skip
    return row | more


def alerts_of_receives(rows, now, end=None):
    return list(receive_alerts(rows, LIMITS, now * MINUTE, NAMES, {} if end is None else {"10.0.0.1": end * MINUTE}))


def test_receives_that_are_never_ended():
    held = [attempt(10)]
    assert summaries(alerts_of_receives(held, 12)) == []
    assert summaries(alerts_of_receives(held, 15)) == [("receives_not_ended", "warning", 10, None)]
    assert summaries(alerts_of_receives(held, 1000, end=12)) == []  # the capture ended: nothing is known of later
    (row,) = alert_rows(alerts_of_receives(held, 1000, end=40))
    assert row["last_seen_at"] == 40 * MINUTE
    assert row["message"] == "1 message got and not ended in time; the last one held for 1800 s when it was last seen"
    assert (row["queue"], row["queue_manager"]) == (ORDERS, "srv1")
    assert row["subject"] == f"reader 10.0.0.9 of {ORDERS} at 10.0.0.1"


def test_time_that_a_clock_left_out_is_not_held():
    skipped = {"10.0.0.1": [(11 * MINUTE, 71 * MINUTE)]}
    for end, expected in ((73, []), (90, [("receives_not_ended", "warning", 10, None)])):
        ends = {"10.0.0.1": end * MINUTE}
        found = list(receive_alerts([attempt(10)], LIMITS, 100 * MINUTE, NAMES, ends, skipped))
        assert summaries(found) == expected
    assert alert_rows(found)[0]["message"].endswith("the last one held for 1200 s when it was last seen")


def test_a_receive_that_was_ended_late_keeps_its_alert():
    assert summaries(alerts_of_receives([attempt(10, 30, "acked")], 60)) == [("receives_not_ended", "warning", 10, 30)]
    assert summaries(alerts_of_receives([attempt(10, 30, "acked")], 20)) == [
        ("receives_not_ended", "warning", 10, None)
    ]
    assert summaries(alerts_of_receives([attempt(10, 14, "acked"), attempt(11, 12, "nacked")], 60)) == []


def test_readers_that_are_gone_and_messages_that_expired():
    rows = [
        attempt(10, 11, "rundown"),
        attempt(13, 14, "rundown"),
        attempt(30, None, "expired"),
        attempt(12, client="b"),
    ]
    assert summaries(alerts_of_receives(rows, 60)) == [
        ("receives_not_ended", "warning", 10, 14),
        ("receives_not_ended", "warning", 12, None),
        ("receives_not_ended", "warning", 30, 35),
    ]
    assert summaries(alerts_of_receives(rows[::-1], 60)) == summaries(alerts_of_receives(rows, 60))


def test_ends_that_are_refused():
    refused = attempt(10, 11, "failed", end_hresult=0xC00E0088)
    (row,) = alert_rows(alerts_of_receives([refused, attempt(12, 13, "acked", ack_refused=True)], 20))
    assert (row["condition"], row["severity"]) == ("ends_refused", "error")
    assert row["message"] == "2 ends of a receive refused: MQ_ERROR_MESSAGE_NOT_FOUND"
    assert (row["since"], row["until"]) == (11 * MINUTE, None)
    empty = attempt(10, None, "failed", lookup_id=None, end_hresult=None)  # the Start failed: nothing was handed out
    assert summaries(alerts_of_receives([empty], 20)) == []


def finding(rule, subject, actual, at):
    return {"rule_id": rule, "subject": subject, "actual": actual, "observed_at": at * MINUTE, "evidence": [str(at)]}


def test_clocks_that_differ_as_rule_o02_says_it():
    (subject, actual), *_ = clocks(sent_at=95_000_000, arrived_at=0)
    rows = [finding("O02", subject, actual, 5), finding("O02", subject, actual.replace("95", "97"), 9)]
    (row,) = alert_rows(finding_alerts(rows, LIMITS, 10 * MINUTE))
    assert (row["condition"], row["severity"], row["until"]) == ("clocks_differ", "warning", None)
    assert "by at least 97 s" in row["message"]
    assert summaries(finding_alerts(rows, LIMITS, 3 * 24 * HOUR)) == [("clocks_differ", "warning", 5, 9 + 24 * 60)]
    assert summaries(finding_alerts(rows, replace(LIMITS, max_clock_difference=timedelta(seconds=98)), HOUR)) == []


def test_clocks_that_differ_as_messages_on_their_way_show_it():
    day = 24 * 60

    def sent(name, at, said, manager="a1"):
        return {"transfer_key": name, "message_key": name, "source_queue_manager": manager, "first_sent_at": at,
                "sent_at": said, "evidence": [name], "event_date": at // day}  # fmt: skip

    transfers = rows(
        MESSAGE_TRANSFERS, sent("in time", 1, 1), sent("ahead", 5, 7), sent("more", 9, 69.99), sent("waited", 10, 2),
        sent("next day", day + 5, day + 6), sent("less than 5 s", 3, 3.05, "b2"), sent("unknown", 3, None, "c3"),
        sent("years", 4, 4 - 3 * 365 * day, "d4"), sent("a month", 8, 8 - 31 * day, "d4"),
        sent("long ago", 4, 4 - 40 * day, "e5"), sent("in time", 8, 7, "e5"),
    )  # fmt: skip
    query, *_ = source = ALERT_SOURCES["clocks"]
    now = (day + 30) * MINUTE
    bound = query(LIMITS, TimeWindow(None, now))
    found = MemoryLake({MESSAGE_TRANSFERS: transfers}).query(bound.sql, **bound.inputs).to_pylist()
    ahead, late = sorted(alert_rows(source.find_alerts(found, LIMITS, now, None)), key=lambda row: row["subject"])
    assert {row["condition"] for row in (ahead, late)} == {"clocks_differ"}
    assert (ahead["subject"], ahead["severity"]) == ("clocks of queue manager a1 and the capture", "warning")
    assert ahead["message"] == "queue manager a1 is ahead of the capture by at least 3659 s"
    assert (ahead["since"], ahead["until"], ahead["evidence"]) == (5 * MINUTE, None, ["more", "next day"])
    assert late["message"] == (
        "no message of queue manager d4 was captured within 31 days of when it says that it was sent: this clock is "
        "behind, or they waited"
    )
    assert (late["since"], late["until"], late["evidence"]) == (4 * MINUTE, 8 * MINUTE + 24 * HOUR, ["a month"])


def test_two_machines_with_one_identifier():
    rows = duplicate_machine_findings([host(FIRST, "shop1"), host(FIRST, "shop2", minute=5)])
    rows = rows.set_column(
        rows.column_names.index("observed_at"), "observed_at", times_to_us(rows["observed_at"])
    ).to_pylist()
    at = rows[0]["observed_at"]
    (row,) = alert_rows(finding_alerts(rows, LIMITS, at + HOUR))
    assert (row["condition"], row["severity"]) == ("duplicate_queue_manager", "error")
    assert (row["since"], row["until"]) == (at, None)
    assert row["message"] == f"queue manager {FIRST}: machines shop1, shop2"
    assert alert_rows(finding_alerts(rows, LIMITS, at - HOUR)) == []


def hour(at, there, missing, server="10.0.0.1"):
    return {"server_address": server, "hour": at * HOUR, "bytes": there, "bytes_missing": missing}


def test_captures_that_lack_bytes():
    rows = [hour(0, 1000, 50), hour(1, 1000, 9), hour(2, 0, 9), hour(3, 990, 10), hour(8, 990, 10, "10.0.0.2")]
    found = alert_rows(capture_loss_alerts(rows, LIMITS, 9 * HOUR, NAMES))
    assert sorted((row["subject"], row["since"] / HOUR, row["until"]) for row in found) == [
        ("server 10.0.0.1", 0, 5 * HOUR), ("server 10.0.0.2", 8, None),
    ]  # fmt: skip
    assert {row["queue_manager"] for row in found} == {"srv1", "10.0.0.2"}
    assert "captures lack 10 of 1000 bytes (1.0%)" in min(found, key=lambda row: row["since"])["message"]


def test_queue_managers_that_do_not_answer():
    def asked(at, missing):
        return {"queue_manager": "srv1", "hour": at * HOUR, "expected": 10, "missing": missing, "error": "timeout"}

    (row,) = alert_rows(missing_snapshot_alerts([asked(0, 4), asked(1, 5), asked(2, 10)], 9 * HOUR))
    assert (row["since"], row["until"]) == (HOUR, 4 * HOUR)
    assert row["message"].endswith("10 of 10 snapshots not answered (timeout)")
    assert (row["confidence"], row["missing"]) == ("partial", ["no_snapshot"])
