"""Histories of a queue, as whole rows, from its events."""

import pytest

from pipeline.queues.captured_transfers import NOT_CAPTURED, CapturedTransfers
from pipeline.queues.queue_rows import QueueSettings, history_rows
from queue_states.queue_events import GAP, MANAGER, MINUTE, NAME, QUEUE, US, event, interval, read, snapshot, us

LOCAL = "LOCAL CONNECTION"
OTHER = "DIRECT=TCP:10.0.0.1\\private$\\orders"


def history(*rows, captured=NOT_CAPTURED, without=("interval_key", "reported_at")):
    made = history_rows(rows, QueueSettings(), captured=captured)
    # The same, in whatever order it becomes known.
    assert made == history_rows(reversed(rows), QueueSettings(), captured=captured)
    assert len({row["interval_key"] for row in made}) == len(made)
    return [{name: value for name, value in row.items() if name not in without} for row in made]


def known(begin, end, count, **more):
    values = {"state": LOCAL, "message_count": count, "expected_message_count": count, "paused": False}
    return interval(begin, end, **values | {"source": "collector"} | more)


def unknown(begin, end, **more):
    return interval(begin, end, **{"missing": "no_snapshot"} | more)


def test_a_queue_is_watched_and_read_from_and_what_nobody_saw_is_told_apart():
    assert history(
        snapshot(0, state=LOCAL, message_count=10, bytes=1000, journal_count=2, journal_bytes=50),
        read(10),
        read(20, "nacked"),
        read(30, "peeked"),
        read(50, key="end"),
        snapshot(60, state=LOCAL, message_count=11, bytes=1100, journal_count=2, journal_bytes=50),
    ) == [
        known(0, 60, 10, bytes=1000, journal_count=2, journal_bytes=50, received=2, nacked=1, peeked=1,
              expected_message_count=8, unexplained_change=3, evidence="s0 received10 nacked20 peeked30 end"),
        known(60, 60 + GAP, 11, bytes=1100, journal_count=2, journal_bytes=50, evidence="s60"),
    ]  # fmt: skip


def test_what_is_not_observed_is_unknown_and_not_zero():
    hour = 60 * MINUTE
    assert history(
        snapshot(0, state=LOCAL, message_count=5), read(GAP + 1), snapshot(hour, state=LOCAL, message_count=0)
    ) == [
        known(0, GAP, 5, evidence="s0"),
        unknown(GAP, hour, received=1, evidence=f"received{GAP + 1}"),
        known(hour, hour + GAP, 0, evidence=f"s{hour}"),
    ]


def test_an_interval_says_when_its_values_were_reported():
    rows = history(
        snapshot(0, state=LOCAL, message_count=5), event("purge", 60, "p"), snapshot(90, bytes=7), without=()
    )
    assert [(row["valid_from"] // US, row["message_count"], row["reported_at"] // US) for row in rows[:4]] == [
        (0, 5, 0), (60, 5, 0), (90, 5, 90), (GAP, None, 90),
    ]  # fmt: skip
    (alone,) = history(event("purge", 0, "p"), without=())
    assert alone["reported_at"] is None


def test_an_observation_at_the_very_end_of_another_leaves_no_hole():
    rows = history(snapshot(0, state=LOCAL, message_count=5), snapshot(GAP, state=LOCAL, message_count=6))
    assert rows == [
        known(0, GAP, 5, unexplained_change=1, evidence="s0"),
        known(GAP, 2 * GAP, 6, evidence=f"s{GAP}"),
    ]


def test_a_value_not_asked_for_holds_as_long_as_any():
    assert history(
        snapshot(0, state=LOCAL, message_count=5, bytes=70),
        snapshot(10 * MINUTE, state=LOCAL, bytes=80),
        snapshot(20 * MINUTE, state=LOCAL, bytes=90),
    ) == [
        known(0, 10 * MINUTE, 5, bytes=70, evidence="s0"),
        known(10 * MINUTE, GAP, 5, bytes=80, evidence="s0 s600"),
        known(GAP, 20 * MINUTE, None, bytes=80, missing="no_snapshot", evidence="s600"),
        known(20 * MINUTE, 20 * MINUTE + GAP, None, bytes=90, missing="no_snapshot", evidence="s1200"),
    ]


def test_a_value_that_is_not_available_is_no_zero_and_the_one_before_holds_no_more():
    assert history(
        snapshot(0, state="CONNECTED", message_count=5),
        snapshot(60, state="inactive", not_available=["message_count", "bytes"]),
    ) == [
        known(0, 60, 5, state="CONNECTED", evidence="s0"),
        known(60, 60 + GAP, None, state="INACTIVE", evidence="s60"),
    ]


def test_an_outgoing_queue_is_paused_and_resumed():
    assert history(
        snapshot(0, state="CONNECTED", message_count=5),
        event("pause", 30, "p"),
        snapshot(60, state="ONHOLD", message_count=7),
        event("resume", 90, "r"),
        snapshot(120, state="CONNECTED", message_count=7),
    ) == [
        known(0, 30, 5, state="CONNECTED", evidence="s0"),
        known(30, 60, 5, state="CONNECTED", paused=True, source="operations", unexplained_change=2, evidence="s0 p"),
        known(60, 90, 7, state="ONHOLD", paused=True, evidence="s60"),
        known(90, 120, 7, state="ONHOLD", source="operations", unexplained_change=0, evidence="s60 r"),
        known(120, 120 + GAP, 7, state="CONNECTED", evidence="s120"),
    ]  # fmt: skip


def test_a_pause_alone_is_known_as_long_as_an_observation():
    assert history(event("pause", 0, "p")) == [
        unknown(0, GAP, paused=True, source="operations", evidence="p"),
    ]


def test_a_purge_leaves_nothing_and_what_was_held_then_goes_with_it():
    assert history(
        snapshot(0, state=LOCAL, message_count=20),
        read(5, handed_out_at=4, key="before"),
        event("purge", 10, "purge"),
        read(20, handed_out_at=9, key="held"),
        read(30, handed_out_at=25, key="new"),
        snapshot(60, state=LOCAL, message_count=2),
    ) == [
        known(0, 10, 20, received=1, expected_message_count=19, evidence="s0 before"),
        known(10, 60, 20, received=2, purged=1, expected_message_count=-1, unexplained_change=3, source="operations",
              evidence="s0 purge held new"),
        known(60, 60 + GAP, 2, evidence="s60"),
    ]  # fmt: skip


def test_what_queue_managers_hand_on_arrives_and_departs():
    handed_on = [read(5, "arrived"), read(6, "arrived"), read(7, "departed")]
    handed_on.append(read(8, "doubt", missing=["capture_loss"]))
    captured = CapturedTransfers({MANAGER: [(us(0), us(60))]})
    rows = history(
        snapshot(0, state=LOCAL, message_count=20), *handed_on, snapshot(60, state=LOCAL, message_count=22),
        captured=captured,
    )  # fmt: skip
    assert rows == [
        known(0, 60, 20, arrived=2, departed=1, expected_message_count=21, unexplained_change=1, arrivals_seen=True,
              evidence="s0 arrived5 arrived6 departed7 doubt8", missing="capture_loss"),
        known(60, 60 + GAP, 22, evidence="s60"),
    ]  # fmt: skip


def test_messages_are_moved_to_and_from():
    assert history(
        snapshot(0, state=LOCAL, message_count=20),
        *(event("moved_out", at, f"out{at}") for at in (5, 6, 7)),
        event("moved_in", 8, "in8", missing=["transaction_open"]),
        snapshot(60, state=LOCAL, message_count=18),
    )[0] == known(
        0, 60, 20, moved_out=3, moved_in=1, expected_message_count=18, unexplained_change=0,
        evidence="s0 out5 out6 out7 in8", missing=["transaction_open"], confidence="provisional",
    )  # fmt: skip


def test_what_was_asked_by_two_names_are_two_histories_and_a_purge_is_done_to_both():
    rows = history(
        snapshot(0, "a0", state=LOCAL, message_count=5),
        snapshot(1, "b1", state=LOCAL, message_count=5, name=OTHER),
        event("purge", 10, "purge", name="DIRECT=OS:another"),
    )
    assert [(row["queue_format_name"], row["purged"], row["expected_message_count"]) for row in rows] == [
        (NAME, 0, 5), (NAME, 1, 0), (NAME, 0, 0), (OTHER, 0, 5), (OTHER, 1, 0), (OTHER, 0, 0),
    ]  # fmt: skip


def test_a_purge_of_a_queue_that_nothing_else_is_known_of_has_a_history_of_its_own():
    assert history(event("purge", 0, "purge"), read(5, handed_out_at=3)) == [
        unknown(
            0, GAP, purged=1, received=1, expected_message_count=-1, source="operations", evidence="purge received5"
        ),
    ]


def test_reads_alone_make_no_history():
    assert history(read(5), read(6, "peeked")) == []


def test_what_is_in_doubt_is_said_and_not_counted():
    (row,) = history(
        snapshot(0, state=LOCAL, message_count=5),
        read(5, "doubt", key="unseen", missing=["capture_loss", "no_response"]),
        read(6, missing=["transaction_open"], key="end"),
    )
    assert row == known(
        0, GAP, 5, received=1, expected_message_count=4, evidence="s0 unseen end",
        missing="capture_loss no_response transaction_open",
    )  # fmt: skip


def test_a_snapshot_with_errors_says_so():
    error = {"code": "malformed", "field": "bytes", "offset": 8}
    (row,) = history(snapshot(0, state=LOCAL, message_count=5, errors=[error]))
    assert (row["confidence"], row["missing"], row["errors"]) == ("partial", ["decode_error"], [error])


def test_of_what_is_told_of_one_moment_the_report_counts():
    rows = history(
        snapshot(0, state=LOCAL, message_count=5),
        event("purge", 60, "purge"),
        snapshot(60, "w", source="wire", state=LOCAL, message_count=7),
        snapshot(60, "c", source="collector", state=LOCAL, message_count=6),
    )
    assert [(row["valid_from"], row["message_count"], row["source"], row["unexplained_change"]) for row in rows] == [
        (0, 5, "collector", 2), (60_000_000, 7, "wire", None),
    ]  # fmt: skip


@pytest.mark.parametrize("place", [{"manager": "srv2"}, {"queue": f"{QUEUE};journal"}])
def test_other_queues_have_histories_of_their_own(place):
    rows = history(
        snapshot(0, state=LOCAL, message_count=5), snapshot(9, state=LOCAL, message_count=6, **place), read(5)
    )
    assert [row["received"] for row in rows] == [1, 0]
