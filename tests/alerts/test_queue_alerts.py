"""Alerts of queues and transfers, from snapshots and reads to rows."""

from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.scenario import LIMITS, alerts_for, summaries
from pipeline.alerts.conditions import CONDITIONS
from queue_states.queue_events import FAR, FAR_NAME, MINUTE, NO_EOD, event, incoming, outgoing, read, snapshot, us

LOCAL = "LOCAL CONNECTION"


def each_minute(begin, end, **values):
    return [snapshot(at * MINUTE, **values) for at in range(begin, end)]


def local(begin, end, count, **more):
    return each_minute(begin, end, state=LOCAL, message_count=count, bytes=100 * count, **more)


@pytest.mark.parametrize("state", ["WAITING", "NEED VALIDATION", "DISCONNECTED", "DISCONNECTING", "LOCKED"])
def test_an_outgoing_queue_that_is_not_connected(state):
    down = each_minute(0, 10, state=state, message_count=3, bytes=300)
    found = alerts_for(down, 9)
    assert summaries(found) == [("queue_disconnected", "warning", 0, None)]
    (row,) = found
    assert row["message"] == f"{state}: 3 messages (300 bytes) waiting"
    assert row["subject"] == "queue srv1\\private$\\orders at srv1"
    assert (row["queue"], row["queue_manager"]) == ("srv1\\private$\\orders", "srv1")
    assert row["last_seen_at"] == us(9 * MINUTE)
    assert row["suggestion"] == CONDITIONS["queue_disconnected"].suggestion
    assert (row["evidence"][0], row["evidence"][-1]) == ("s0", f"s{9 * MINUTE}")
    assert (row["confidence"], row["missing"], row["errors"]) == ("complete", [], [])
    up = each_minute(10, 20, state="CONNECTED", message_count=0)
    assert summaries(alerts_for([*down, *up], 19)) == [("queue_disconnected", "warning", 0, 10)]
    assert summaries(alerts_for([*down, *up], 9)) == [("queue_disconnected", "warning", 0, None)]  # as of then


def test_what_was_not_reported_is_not_called_zero():
    (down,) = alerts_for(each_minute(0, 10, state="WAITING"), 9)
    assert down["message"] == "WAITING: it is not known whether messages wait"
    (sized,) = alerts_for(each_minute(0, 10, state="WAITING", message_count=3), 9)
    assert sized["message"] == "WAITING: 3 messages waiting"
    (stuck,) = alerts_for(each_minute(0, 20, state=LOCAL, message_count=3), 19)
    assert stuck["message"] == "3 messages waiting, nothing reads them"


def test_a_connection_that_comes_back_soon_or_has_nothing_to_do_is_none():
    down = each_minute(0, 4, state="WAITING", message_count=3)
    assert alerts_for([*down, *each_minute(4, 30, state="CONNECTED", message_count=0)], 29) == []
    assert alerts_for(each_minute(0, 60, state="INACTIVE", message_count=0), 59) == []
    empty = each_minute(0, 90, state="DISCONNECTED", message_count=0)
    assert summaries(alerts_for(empty, 89)) == [("queue_disconnected", "info", 0, None)]


def test_it_is_an_error_after_an_hour_and_not_over_while_nobody_looks():
    down = each_minute(0, 10, state="WAITING", message_count=3)
    (row,) = alerts_for(down, 300)
    assert (row["severity"], row["until"], row["missing"]) == ("warning", None, ["no_snapshot"])
    assert row["confidence"] == "partial"
    later = [*down, *each_minute(100, 101, state="WAITING", message_count=3)]
    assert summaries(alerts_for(later, 100)) == [("queue_disconnected", "error", 0, None)]


def test_a_queue_on_hold():
    held = each_minute(0, 40, state="ONHOLD", message_count=2)
    assert summaries(alerts_for(held, 39)) == [("queue_on_hold", "warning", 0, None)]
    assert alerts_for(held, 20) == []
    assert alerts_for(each_minute(0, 40, state="ONHOLD", message_count=0), 39) == []


def test_messages_that_nobody_reads():
    (row,) = alerts_for(local(0, 20, 5), 19)
    assert summaries([row]) == [("queue_stuck", "warning", 0, None)]
    assert row["message"] == "5 messages (500 bytes) waiting, nothing reads them"
    more = [*local(0, 10, 5), *local(10, 20, 9)]
    assert summaries(alerts_for(more, 19)) == [("queue_stuck", "warning", 0, None)]
    assert summaries(alerts_for(local(0, 90, 5), 89)) == [("queue_stuck", "error", 0, None)]


@pytest.mark.parametrize("kind", ["received", "nacked"])
def test_a_queue_that_is_read_is_not_stuck(kind):
    events = local(0, 24, 5)
    assert alerts_for([*events, read(12.5 * MINUTE, kind)], 23) == []
    assert summaries(alerts_for(events, 23)) == [("queue_stuck", "warning", 0, None)]
    read_at_last = [*events, *local(24, 30, 5), read(24.5 * MINUTE, kind)]
    assert summaries(alerts_for(read_at_last, 29)) == [("queue_stuck", "warning", 0, 24)]


def test_a_reader_on_the_machine_itself_shows_by_what_is_gone():
    assert alerts_for([*local(0, 12, 5), *local(12, 24, 4)], 23) == []
    same_number = [*local(0, 12, 5), *each_minute(12, 24, state=LOCAL, message_count=5, bytes=400)]
    assert alerts_for(same_number, 23) == []
    unseen = [*local(0, 12, 5), *local(40, 50, 4)]  # somebody read while nobody looked
    assert alerts_for(unseen, 49) == []
    assert alerts_for([*local(0, 12, 5), *local(12, 30, 0)], 29) == []


def test_peeks_read_nothing():
    assert summaries(alerts_for([*local(0, 20, 5), read(600, "peeked")], 19)) == [("queue_stuck", "warning", 0, None)]


@pytest.mark.parametrize("queue", ["srv1\\system$;deadletter", "machine=a;deadxact", "srv1\\private$\\app_deadqueue"])
def test_dead_letters_that_grow(queue):
    events = [*local(0, 10, 4, queue=queue), *local(10, 20, 6, queue=queue)]
    (row,) = alerts_for(events, 19)
    assert summaries([row]) == [("dead_letters_growing", "warning", 10, None)]
    assert row["message"].startswith("6 there, 2 dead letters more than at ")
    assert alerts_for(local(0, 60, 4, queue=queue), 59) == []  # those that lay there all the time
    emptied = [*events, *local(20, 30, 0, queue=queue)]
    assert summaries(alerts_for(emptied, 29)) == [("dead_letters_growing", "warning", 10, 20)]
    assert alerts_for(events, 19, replace(LIMITS, dead_letters=3)) == []


def journal(count, at, size=None):
    return snapshot(at * MINUTE, state=LOCAL, message_count=0, journal_count=count, journal_bytes=size or count * 10)


def test_a_journal_that_grows_and_a_quota_that_is_nearly_used_up():
    events = [journal(100 + 50 * at, at) for at in range(40)]
    (row,) = alerts_for(events, 39)
    assert summaries([row]) == [("journal_growing", "warning", 20, None)]
    assert row["subject"] == "journal of srv1\\private$\\orders at srv1"
    assert alerts_for(events, 39, replace(LIMITS, journal_messages=2000)) == []
    quota = replace(LIMITS, journal_messages=10**6, quotas={"srv1\\private$\\orders": (None, 20_000)})
    assert summaries(alerts_for(events, 39, quota)) == [("nearly_full", "error", 34, None)]  # 18 000 of 20 000 bytes
    slow = [journal(100, at, 1000 + at) for at in range(0, 600, 10)]
    soon = replace(LIMITS, journal_quota_bytes=8_000)
    (row,) = alerts_for(slow, 590, soon)
    assert summaries([row]) == [("nearly_full", "warning", 60, None)]  # an hour makes a rate
    assert "at this rate full in 4.5 days" in row["message"]
    assert alerts_for(slow, 590, replace(LIMITS, journal_quota_bytes=80_000)) == []


def test_a_transfer_that_stands_still():
    events = [outgoing(at * MINUTE, 10, 4, ack_at=-60, resends=at) for at in range(4)]
    (row,) = alerts_for(events, 3)
    assert summaries([row]) == [("transfer_stalled", "warning", 0, None)]
    assert row["message"] == (
        "4 messages from number 11 on not acknowledged, nothing moved; sent 3 times, step 1 of the ladder"
    )
    assert (row["queue"], row["queue_manager"]) == ("far\\private$\\q", "relay")
    moved = [*events, outgoing(4 * MINUTE, 14, 0, ack_at=200), outgoing(5 * MINUTE, 14, 0, ack_at=200)]
    assert summaries(alerts_for(moved, 5)) == [("transfer_stalled", "warning", 0, 4)]
    assert alerts_for(events[:2], 1) == []
    grave = [outgoing(at * MINUTE, 10, 4, ack_at=-60, resends=7) for at in range(4)]
    assert [severity for _, severity, *_ in summaries(alerts_for(grave, 3))] == ["error"]  # half an hour between tries


def test_two_sources_of_one_transfer_are_one_alert():
    events = [outgoing(at * MINUTE + (at % 2) / 10, 10, 4, ack_at=-60, source=source, key=f"{source}{at}")
            for at in range(6) for source in ("wire", "collector")]  # fmt: skip
    assert summaries(alerts_for(events, 5)) == [("transfer_stalled", "warning", 0, None)]


def test_messages_that_flow_are_no_stall_and_those_on_their_way_too_long_are_told():
    flowing = [outgoing(at * MINUTE, 10 + at, 4, ack_at=at * MINUTE) for at in range(60)]
    assert alerts_for(flowing, 59) == []
    creeping = [outgoing(at * MINUTE, 0, 1 + at, previous=0) for at in range(60)]
    found = summaries(alerts_for(creeping, 59))
    assert ("messages_unacknowledged", "warning", 0, None) in found


def test_messages_that_arrived_and_are_not_read():
    events = [outgoing(at * MINUTE, 50 + at, 0, unread=3) for at in range(0, 250, 10)]
    (row,) = alerts_for(events, 240)
    assert summaries([row]) == [("messages_unread", "warning", 0, None)]
    fewer = [outgoing(at * MINUTE, 50, 0, unread=3 - (at >= 120)) for at in range(0, 250, 10)]
    assert alerts_for(fewer, 240) == []


def receiver(at, last, rejected=0, **more):
    return incoming(at * MINUTE, ("a1", 7, last, {"reject_count": rejected}), **more)


def test_a_receiver_that_rejects_what_comes():
    events = [receiver(0, 10), receiver(1, 10, 2), receiver(2, 10, 4), receiver(3, 10, 6), receiver(4, 17, 0)]
    (row,) = alerts_for(events, 4)
    assert summaries([row]) == [("sequence_gap", "warning", 2, 4)]
    assert row["message"].startswith("6 messages rejected since number 10 of sequence ")
    assert alerts_for(events[:2], 1) == []  # one that came twice


def test_ends_that_disagree():
    sender = [outgoing(at * MINUTE + 1, 20, 2, ack_at=5 + at, previous=20) for at in range(3)]
    events = [*sender, receiver(0, 10), receiver(1, 10), receiver(2, 10)]
    found = [row for row in alerts_for(events, 3) if row["condition"] == "ends_disagree"]
    assert summaries(found) == [("ends_disagree", "error", 1, None)]
    assert found[0]["message"].startswith("gap: the sender's oldest message 21 follows 20")
    agree = [*sender, receiver(0, 20), receiver(1, 20), receiver(2, 20)]
    assert [row for row in alerts_for(agree, 3) if row["condition"] == "ends_disagree"] == []


def test_the_order_in_which_it_is_told_makes_no_difference():
    events = [*local(0, 20, 5), *(outgoing(at * MINUTE, 10, 4, ack_at=-60) for at in range(4)), receiver(0, 3, 9)]
    assert alerts_for(events[::-1], 19) == alerts_for(events, 19)


def test_messages_that_were_sent_and_not_acknowledged_wait_too():
    def down(waiting, unacked, **more):
        for at in range(10):
            told = outgoing(at * MINUTE, 10, unacked, **more)["snapshot"]
            yield snapshot(
                at * MINUTE, state="DISCONNECTED", message_count=waiting, eod={name: told[name] for name in NO_EOD},
                queue=FAR, name=FAR_NAME,
            )  # fmt: skip

    def disconnected(events):
        (row,) = (row for row in alerts_for(events, 9) if row["condition"] == "queue_disconnected")
        return row["severity"], row["message"]

    assert disconnected(down(0, 0)) == ("info", "DISCONNECTED: no message waits")
    assert disconnected(down(0, 2)) == ("warning", "DISCONNECTED: 2 messages sent and not acknowledged")
    both = "DISCONNECTED: 3 messages waiting, 1 message sent and not acknowledged"
    assert disconnected(down(3, 1)) == ("warning", both)
    unasked = [*down(0, 2)][:5] + [*down(0, 2, eod_no_ack_count=None)][5:]  # of the last reports nobody asked for it
    assert disconnected(unasked) == ("warning", "DISCONNECTED: 2 messages sent and not acknowledged")


def test_a_queue_that_hands_messages_over_is_connected_whatever_was_reported():
    down = each_minute(0, 20, state="DISCONNECTED", message_count=3)
    assert summaries(alerts_for(down, 19)) == [("queue_disconnected", "warning", 0, None)]
    assert summaries(alerts_for([*down, read(11.5 * MINUTE, "departed")], 19)) == [
        ("queue_disconnected", "warning", 0, None)
    ]  # it was again, within alerts.merge_within
    assert summaries(alerts_for([*down, read(18.5 * MINUTE, "departed")], 18)) == [
        ("queue_disconnected", "warning", 0, 18)
    ]


def test_a_pause_or_resume_counts_until_a_state_is_reported():
    held = each_minute(0, 40, state="ONHOLD", message_count=2)
    resumed = [*held, event("resume", 39.5 * MINUTE, "resumed")]
    assert summaries(alerts_for(resumed, 40)) == [("queue_on_hold", "warning", 0, 39.5)]
    paused = [*each_minute(0, 2, state="CONNECTED", message_count=2), event("pause", 1.5 * MINUTE, "paused")]
    soon = replace(LIMITS, on_hold_after=timedelta(minutes=5))
    counted = each_minute(2, 10, message_count=2)  # nobody asks for the state
    assert summaries(alerts_for([*paused, *counted], 9, soon)) == [("queue_on_hold", "warning", 1.5, None)]


def test_a_read_counts_while_the_state_is_unknown():
    events = [*local(0, 3, 5), *local(40, 43, 5)]
    assert alerts_for(events, 42) == []  # too short between two reports, and unknown between
    long = [*local(0, 20, 5), *local(60, 63, 5)]
    assert summaries(alerts_for(long, 62)) == [("queue_stuck", "error", 0, None)]
    assert summaries(alerts_for([*long, read(50 * MINUTE)], 62)) == [("queue_stuck", "warning", 0, 19)]
