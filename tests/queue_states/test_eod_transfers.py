"""Transfers of exactly-once delivery, from what an outgoing queue reports over time."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from pipeline.queues import eod_transfers
from pipeline.queues.queue_rows import QueueSettings, eod_transfer_rows, snapshot_observations
from queue_states.queue_events import FAR, FAR_NAME, GAP, outgoing, sequence, snapshot, us

CONDITION_COLUMNS = ("observed_at", "condition", "stalled_since", "sequence_reset")


def transfers(*rows, earlier=(), shuffled=True, **options):
    made = eod_transfer_rows(snapshot_observations(rows), QueueSettings(**options), earlier)
    if shuffled:
        assert made == eod_transfer_rows(snapshot_observations(reversed(rows)), QueueSettings(**options), earlier)
    return made


def conditions(*rows, **options):
    """Return (seconds, condition) of each observation, with the beginning of a stall."""
    out = []
    for row in transfers(*rows, **options):
        at, condition, since, reset = (row[name] for name in CONDITION_COLUMNS)
        assert reset == (condition == "reset")
        out.append((at // 1_000_000, condition, *([since // 1_000_000] if since is not None else [])))
    return out


def test_a_queue_that_flows_as_a_whole_row():
    assert transfers(outgoing(0, 5, 2, ack_at=-1), outgoing(10, 25, 4, ack_at=9, unread=3, resends=1))[1] == {
        "snapshot_id": "s10", "queue_manager": "relay", "queue": FAR, "queue_format_name": FAR_NAME,
        "source": "collector", "observed_at": us(10), "sequence_id": 7 << 32 | 1, "last_acked_number": 25,
        "first_unacked_number": 26, "last_unacked_number": 29, "next_number": 30, "first_unacked_previous_number": 25,
        "unacked_count": 4, "unread_count": 3, "last_ack_at": us(9), "resend_count": 1, "resend_interval_s": None,
        "next_resend_at": None, "ladder_step": 1, "ladder_interval_s": 30.0, "acked_per_s": 2.0, "sent_per_s": 2.2,
        "in_flight_s": 0.0, "stalled_since": None, "sequence_reset": False, "condition": "resending",
        "evidence": ["s0", "s10"], "confidence": "complete", "missing": [], "errors": [],
    }  # fmt: skip


def test_a_healthy_queue_is_never_anything_else():
    """Sent and acknowledged, emptied (a new Ordinal), sent again: no stall, no reset, no resending."""
    assert conditions(
        outgoing(0, 0, 0), outgoing(10, 0, 3), outgoing(20, 3, 3, ack_at=15), outgoing(30, 6, 2, ack_at=29),
        outgoing(40, 8, 0, ack_at=31), outgoing(50, 0, 0, ordinal=2, ack_at=31),
        outgoing(60, 0, 1, ordinal=2, ack_at=31), outgoing(70, 1, 0, ordinal=2, ack_at=61),
        outgoing(80, 1, 0, ordinal=2, ack_at=61),
    ) == [
        (0, "idle"), (10, "slow"), (20, "flowing"), (30, "flowing"), (40, "idle"), (50, "flowing"), (60, "slow"),
        (70, "idle"), (80, "idle"),
    ]  # fmt: skip


def test_a_stall_begins_with_the_first_observation_that_showed_its_number():
    rows = [outgoing(0, 5, 2, ack_at=0), outgoing(10, 9, 2, ack_at=9),
            *(outgoing(at, 9, at // 10, ack_at=9) for at in (20, 30, 40)), outgoing(50, 11, 3, ack_at=45)]  # fmt: skip
    assert conditions(*rows) == [
        (0, "flowing"), (10, "flowing"), (20, "stalled", 10), (30, "stalled", 10), (40, "stalled", 10), (50, "flowing"),
    ]  # fmt: skip


def test_the_same_number_acknowledged_again_is_no_stall():
    assert conditions(outgoing(0, 5, 2, ack_at=0), outgoing(10, 5, 2, ack_at=9)) == [(0, "flowing"), (10, "flowing")]


def test_the_same_question_seen_on_the_wire_is_no_stall():
    seen = ((0, 5), (10, 9), (20, 14))
    rows = [outgoing(at, acked, 2, key=f"w{at}", source="wire") for at, acked in seen]
    rows += [outgoing(at + 0.0005, acked, 2, key=f"c{at}") for at, acked in seen]
    assert [row["condition"] for row in transfers(*rows)] == ["flowing"] * 6


@pytest.mark.parametrize(
    ("then", "found"),
    [
        ({"stamp": 8, "acked": 0, "waiting": 2}, "reset"),  # installed or restored
        ({"stamp": 6, "acked": 50, "waiting": 2}, "reset"),
        ({"ordinal": 1, "acked": 40, "waiting": 2}, "reset"),  # the id went back
        ({"ordinal": 2, "acked": 19, "waiting": 2}, "reset"),  # a number did
        ({"ordinal": 3, "acked": 0, "waiting": 1}, "flowing"),  # it had emptied
        ({"ordinal": 2, "acked": 21, "waiting": 2}, "flowing"),
    ],
)
def test_a_sequence_is_reset_when_it_is_another_one_or_goes_back(then, found):
    begin = outgoing(0, 20, 2, ordinal=2, ack_at=0)
    assert conditions(begin, outgoing(10, then.pop("acked"), then.pop("waiting"), ack_at=9, **{"ordinal": 2} | then))[
        1
    ] == (
        10,
        found,
    )


def test_expired_messages_leave_a_gap_that_is_no_reset():
    """Nothing waited and 10 was the next number; now 10 waits, and the last one acknowledged in order is 7."""
    gap = outgoing(10, 9, 1, ack_at=5, eod_last_ack=sequence(7))
    assert conditions(outgoing(0, 9, 0, ack_at=5), gap) == [(0, "idle"), (10, "slow")]


def test_resends_climb_the_ladder():
    counts = [0, 1, 2, 3, 4, 6, 7, 9, 10, 50]
    rows = transfers(*(outgoing(at, 5, 1, ack_at=at, resends=count) for at, count in enumerate(counts)))
    assert [row["ladder_step"] for row in rows] == [None, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [row["ladder_interval_s"] for row in rows] == [None, 30, 30, 30, 300, 300, 1800, 1800, 21600, 21600]
    assert {row["condition"] for row in rows[1:]} == {"resending"}
    other = transfers(outgoing(0, 5, 1, resends=3), resend_ladder=tuple(timedelta(seconds=each) for each in (1, 2, 2)))
    assert (other[0]["ladder_step"], other[0]["ladder_interval_s"]) == (2, 2)


def test_a_rise_below_the_setting_is_no_resending():
    rows = [
        outgoing(0, 5, 1, ack_at=0, resends=1),
        outgoing(9, 5, 1, ack_at=8, resends=2),
        outgoing(18, 5, 1, ack_at=17, resends=5),
    ]
    assert conditions(*rows, resend_rise=3) == [(0, "flowing"), (9, "flowing"), (18, "resending")]


def test_in_flight_counts_from_when_the_oldest_was_given_out_not_from_when_it_became_the_oldest():
    rows = [outgoing(0, 0, 3), outgoing(10, 0, 9), outgoing(20, 1, 8, ack_at=15), outgoing(30, 5, 9, ack_at=25)]
    assert [row["in_flight_s"] for row in transfers(*rows)] == [0.0, 10.0, 20.0, 20.0]


def test_rates_are_null_where_the_sequence_changed_or_no_time_passed():
    rows = transfers(outgoing(0, 5, 2), outgoing(0, 6, 2, key="twice"), outgoing(4, 0, 2, ordinal=2))
    assert [(row["acked_per_s"], row["sent_per_s"]) for row in rows] == [(None, None)] * 3


def test_what_lies_beyond_the_gap_is_compared_and_said_to_be_so():
    rows = transfers(outgoing(0, 5, 2, ack_at=0), outgoing(GAP + 1, 5, 2, ack_at=0))
    assert [(row["condition"], row["missing"], row["confidence"]) for row in rows] == [
        ("flowing", [], "complete"), ("stalled", ["no_snapshot"], "partial"),
    ]  # fmt: skip


def test_what_was_not_told_is_unknown_and_not_idle():
    (row,) = transfers(snapshot(0, state="INACTIVE", eod={"location": "REMOTE", "xact": "YES"}))
    assert row["condition"] is None
    assert {row[name] for name in ("sequence_id", "unacked_count", "next_number", "in_flight_s", "ladder_step")} == {
        None
    }


def test_only_what_sends_has_rows():
    assert transfers(
        snapshot(0, state="CONNECTED", message_count=1, eod={"location": "REMOTE", "xact": "NO"}),
        snapshot(1, state="LOCAL CONNECTION", message_count=1, eod={"location": "LOCAL", "xact": "YES"}),
        snapshot(2, eod={"eod_source_info": []}),
    ) == []  # fmt: skip
    assert len(transfers(snapshot(0, eod={"eod_no_ack_count": 0}))) == 1


STEPS = st.lists(
    st.tuples(
        st.integers(1, 5), st.sampled_from(["ack", "send", "resend", "empty", "restore", "back", "nothing", "unseen"]),
        st.integers(1, 4),
    ),
    max_size=20,
)  # fmt: skip


def simulate(steps):
    """Return observations of a queue that performs the steps between them, and the expected event of each."""
    at, acked, waiting, ordinal, stamp, resends, ack_at = 0, 0, 0, 1, 7, 0, None
    rows, planted = [outgoing(0, 0, 0)], [None]
    for pause, what, count in steps:
        at, event = at + pause, None
        if what == "ack" and waiting:
            taken = min(count, waiting)
            acked, waiting, ack_at = acked + taken, waiting - taken, at
        elif what == "send":
            waiting += count
        elif what == "resend" and waiting:
            resends += count
        elif what == "empty" and not waiting and acked:
            acked, ordinal = 0, ordinal + 1
        elif what == "restore":
            acked, waiting, stamp, ordinal, event = 0, count, stamp + 1, 1, "reset"
        elif what == "back" and acked > count:
            acked, event = acked - count, "reset"
        if what != "unseen":
            rows.append(outgoing(at, acked, waiting, ordinal=ordinal, stamp=stamp, resends=resends, ack_at=ack_at))
            planted.append(event)
        elif event:
            planted[-1] = event
    return rows, planted


@given(STEPS)
@settings(max_examples=examples(300), deadline=None)
def test_what_was_planted_is_found_and_nothing_else(steps):
    rows, planted = simulate(steps)
    made = transfers(*rows)
    for place, (row, event) in enumerate(zip(made, planted, strict=True)):
        now, then = rows[place]["snapshot"], rows[place - 1]["snapshot"] if place else None
        assert row["sequence_reset"] == (event == "reset")
        waits = now["eod_no_ack_count"] > 0
        still = then is not None and waits and then["eod_no_ack_count"] > 0 and event is None and all(
            now[name] == then[name] for name in ("eod_last_ack_time", "eod_last_ack", "eod_first_non_ack"))  # fmt: skip
        rose = then is not None and now["eod_resend_count"] > then["eod_resend_count"]
        grew = then is not None and now["eod_no_ack_count"] > then["eod_no_ack_count"]
        moved = then is not None and now["eod_next_seq"] != then["eod_next_seq"]
        expected = (
            "reset" if event else "stalled" if still else "resending" if rose else "slow" if grew
            else "flowing" if waits or moved else "idle"
        )  # fmt: skip
        assert row["condition"] == expected


@given(STEPS)
@settings(max_examples=examples(200), deadline=None)
def test_in_flight_and_stalls_are_as_the_definition_says(steps):
    made = transfers(*simulate(steps)[0])
    for place, row in enumerate(made):
        first, begin = row["first_unacked_number"], place
        if first is None:
            assert row["in_flight_s"] is None
            continue
        # back to a reset at most: what was numbered before it were other messages
        while begin and not made[begin]["sequence_reset"] and made[begin - 1]["sequence_id"] == row["sequence_id"]:
            begin -= 1
        showed = [each for each in made[begin : place + 1] if each["next_number"] > first]
        assert row["in_flight_s"] == (row["observed_at"] - showed[0]["observed_at"]) / 1e6
        if row["stalled_since"] is not None:
            (since,) = (n for n, each in enumerate(made) if each["observed_at"] == row["stalled_since"])
            assert {each["stalled_since"] for each in made[since + 1 : place + 1]} == {row["stalled_since"]}
            assert len({eod_transfers.acknowledged_number(each) for each in made[since : place + 1]}) == 1


@given(STEPS, st.integers(0, 20))
@settings(max_examples=examples(200), deadline=None)
def test_rows_go_on_from_those_of_before(steps, place):
    rows, _ = simulate(steps)
    whole = transfers(*rows)
    place = min(place, len(rows))
    assert transfers(*rows[place:], earlier=whole[:place]) == whole[place:]
    if place:
        needed = [
            row for row in whole[:place] if row["observed_at"] >= eod_transfers.number_sent_since(whole[place - 1])
        ]
        assert transfers(*rows[place:], earlier=needed) == whole[place:]
