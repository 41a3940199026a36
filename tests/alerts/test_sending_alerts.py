"""Alerts of sequences that wait or are refused, of resend storms, and of slow messages."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter

import pyarrow as pa
import pytest

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import alert_rows
from pipeline.alerts.sending_alerts import (
    ALERT_SEQUENCE_COLUMNS,
    SENDING_COUNT_COLUMNS,
    SERIES,
    SLOW_COUNT_COLUMNS,
    resend_alerts,
    sequence_alerts,
    slow_transfer_alerts,
)
from pipeline.alerts.sources import sequences_in_trouble_sql
from pipeline.lake.queries.duckdb_sql import DuckDbSql

LIMITS = Thresholds()
MINUTE = 60_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = {"10.0.0.1": "shop"}
HOP = ("10.0.0.1", "10.0.0.2")
_ID = "transaction_sequence_id"


def moment(minutes):
    return None if minutes is None else EPOCH + timedelta(minutes=minutes)


def stall(began, ended, *, waiting=2):
    return {"began_at": moment(began), "ended_at": moment(ended), "first_number": 3, "waiting": waiting, "sendings": 4}


def sequence(first, last, *stalls, number=7, condition="stalled", **more):
    lasted = [each["ended_at"] - each["began_at"] for each in stalls if each["ended_at"]]
    row = dict.fromkeys(ALERT_SEQUENCE_COLUMNS) | {
        "source_queue_manager": "a1", "destination_queue": "guid\\00000009", "sender_address": HOP[0],
        "receiver_address": HOP[1], "hop_key": "hop", "first_sender": HOP[0], "first_receiver": HOP[1],
        "transaction_sequence_id": number,
        "first_sent_at": first * MINUTE,
        "last_packet_at": last * MINUTE, "waiting": 2, "first_waiting_number": 3, "stalls": list(stalls) or None,
        "longest_stall_s": max(lasted, default=timedelta(0)).total_seconds() or None, "condition": condition,
        "evidence": [f"p{number}"], "missing": [],
    }  # fmt: skip
    return row | more


def in_trouble(rows, now):
    """Rows of sequences that stalled or are refused, each with when another one of its series followed it."""
    known = sorted((row for row in rows if row["first_sent_at"] <= now), key=itemgetter("first_sent_at"))
    for place, row in enumerate(known):
        same = [each for each in known[place + 1 :] if all(each[name] == row[name] for name in SERIES)]
        later = (each["first_sent_at"] for each in same if each[_ID] != row[_ID])
        if row["stalls"] is not None or row["condition"] == "refused":
            yield row | {"followed_at": next(later, None)}


def alerts(*rows, now=300, limits=LIMITS):
    queues = {"guid\\00000009": "hq\\private$\\orders"}
    return alert_rows(sequence_alerts(in_trouble(rows, now * MINUTE), limits, now * MINUTE, NAMES, queues))


@pytest.mark.parametrize("seed", range(20))
def test_sequences_in_trouble_are_found_with_what_follows_them(seed):
    chance, now = random.Random(seed), 30
    rows = [
        {
            **dict(zip(SERIES, (chance.choice("ab"), "queue", chance.choice(["hop", None])), strict=True)),
            "sequence_key": f"{number:03}", _ID: chance.choice([7, 8, 9, None]), "first_sent_at": chance.randrange(40),
            "stalls": chance.choice([None, [1]]), "condition": chance.choice(["refused", "complete"]),
        }
        for number in range(chance.randrange(1, 40))
    ]  # fmt: skip
    rows.sort(key=itemgetter("sequence_key"))
    found = DuckDbSql().answer(
        f"SELECT * FROM {sequences_in_trouble_sql('{rows}', str(now))}", {"rows": pa.Table.from_pylist(rows)}
    )
    known = {row["sequence_key"]: row["followed_at"] for row in found.to_pylist()}
    assert known == {row["sequence_key"]: row["followed_at"] for row in in_trouble(rows, now)}


def periods(found):
    def at(time):
        return None if time is None else time / MINUTE

    return sorted((row["condition"], row["severity"], at(row["since"]), at(row["until"])) for row in found)


def test_stalls_begin_and_end():
    found = alerts(sequence(0, 100, stall(1, 5), stall(20, 90), condition="acknowledged"))
    assert periods(found) == [("order_acks_stalled", "error", 20, 90), ("order_acks_stalled", "warning", 1, 5)]
    row = next(row for row in found if row["severity"] == "warning")
    assert row["subject"] == "messages of a1 to hq\\private$\\orders from 10.0.0.1 to 10.0.0.2"
    assert row["message"] == (
        "2 messages from number 3 of sequence 7 on wait for an order acknowledgement, for 240 s; sent 4 times since"
    )
    assert (row["queue"], row["queue_manager"], row["evidence"]) == ("hq\\private$\\orders", "shop", ["p7"])


def test_stalls_that_follow_one_another_closely_are_one_alert():
    assert periods(alerts(sequence(0, 100, stall(1, 5), stall(7, 12)))) == [("order_acks_stalled", "warning", 1, 12)]


def test_a_stall_that_goes_on_is_open_and_was_seen_until_the_capture_ended():
    (row,) = alerts(sequence(0, 3, stall(10, None), longest_stall_s=1800.0))
    assert (row["since"], row["until"], row["last_seen_at"]) == (10 * MINUTE, None, 40 * MINUTE)
    found = alerts(sequence(0, 12, stall(1, 9), stall(30, None)))
    row = max(found, key=lambda row: row["since"])
    assert (row["until"], row["last_seen_at"]) == (None, 30.5 * MINUTE)  # the longest one is the other


def test_a_stall_ends_where_the_sender_begins_another_sequence():
    rows = [
        sequence(0, 30, stall(1, None), longest_stall_s=6000.0),
        sequence(50, 60, number=8, condition="acknowledged"),
    ]
    assert periods(alerts(*rows)) == [("order_acks_stalled", "warning", 1, 50)]
    assert periods(alerts(*rows, now=40)) == [("order_acks_stalled", "warning", 1, None)]
    from_its_other_address = rows[1] | {"sender_address": "10.0.0.9"}
    assert alerts(rows[0], from_its_other_address) == alerts(*rows)
    goes_on = rows[0] | {"sender_address": "10.0.0.9", "stalls": None, "first_sent_at": 50 * MINUTE}
    assert periods(alerts(rows[0], goes_on)) == periods(alerts(rows[0]))  # the same one, from another address
    elsewhere = rows[1] | {"receiver_address": "10.0.0.3", "hop_key": "another"}
    assert periods(alerts(rows[0], elsewhere)) == [("order_acks_stalled", "error", 1, None)]


def test_a_refused_sequence_is_an_error_until_another_one_begins():
    refused = sequence(0, 30, condition="refused", acknowledged_number=2, acknowledged_at=4 * MINUTE)
    (row,) = alerts(refused)
    assert periods([row]) == [("sequence_refused", "error", 4, None)]
    assert row["message"] == (
        "number 3 of sequence 7 is sent again and again, the receiver acknowledges number 2: 2 messages waiting"
    )
    assert row["last_seen_at"] == 30 * MINUTE
    assert periods(alerts(refused, sequence(60, 61, number=8, condition="waiting"))) == [
        ("sequence_refused", "error", 4, 60)
    ]
    (row,) = alerts(refused, sequence(20, 21, number=8, condition="waiting"))
    assert (row["last_seen_at"], row["until"]) == (20 * MINUTE, 20 * MINUTE)  # what came later is of no interest
    assert alerts(refused, limits=replace(LIMITS, refused_messages=3)) == []
    (never,) = alerts(sequence(0, 30, condition="refused"))
    assert (never["since"], "acknowledges nothing" in never["message"]) == (0, True)


@pytest.mark.parametrize("condition", ["acknowledged", "unknown", "waiting"])
def test_without_a_stall_there_is_no_alert(condition):
    assert alerts(sequence(0, 30, condition=condition)) == []


def counted(minute, sendings, resends, hop=HOP, clock=None):
    times = (minute * MINUTE + 1, minute * MINUTE + 2) if resends else (None, None)
    evidence = [f"r{minute}"] if resends else [None, None]
    return dict(zip(SENDING_COUNT_COLUMNS, (*hop, clock, minute, sendings, resends, *times, evidence), strict=True))


def storms(*rows, now=300, limits=LIMITS):
    return alert_rows(resend_alerts(rows, limits, now * MINUTE, NAMES))


def test_a_storm_is_a_number_and_a_share_of_resends():
    (row,) = storms(counted(0, 100, 0), counted(5, 40, 10), counted(9, 50, 10), counted(30, 50, 10))
    assert row["message"] == "20 of 190 sendings within 10 min were resends (11%)"
    assert (row["since"], row["until"]) == (5 * MINUTE + 1, 19 * MINUTE + 2)
    assert (row["subject"], row["queue_manager"]) == ("messages from 10.0.0.1 to 10.0.0.2", "shop")
    assert row["evidence"] == ["r5", "r9"]
    assert storms(counted(5, 40, 10), counted(9, 50, 9)) == []  # too few
    assert storms(counted(5, 400, 20), counted(9, 50, 10)) == []  # too small a share
    assert storms(counted(5, 40, 10), counted(15, 50, 10)) == []  # too far apart
    assert storms(counted(5, 40, 10), counted(9, 50, 10, ("10.0.0.1", "10.0.0.3"))) == []  # other machines
    assert storms(counted(9, 50, 20), now=10)[0]["until"] is None


def test_a_storm_is_of_one_clock():
    """What two clocks show within ten minutes may have been hours apart."""
    assert storms(counted(5, 40, 10, clock="a 0"), counted(9, 50, 10)) == []
    assert storms(counted(5, 40, 10, clock="a 0"), counted(9, 50, 10, clock="a 1")) == []
    (row,) = storms(counted(5, 40, 20, clock="a 0"), counted(6, 40, 10, clock="b 0"), counted(9, 50, 20))
    assert (row["since"] // MINUTE, row["last_seen_at"] // MINUTE) == (5, 9)
    assert row["message"] == "20 of 40 sendings within 10 min were resends (50%)"


def test_settings_of_storms():
    rows = counted(5, 40, 3), counted(25, 40, 3)
    assert len(storms(*rows, limits=replace(LIMITS, resends=3, resend_share=0.05))) == 2
    hour = replace(LIMITS, resends=6, resend_share=0.05, resend_window=timedelta(hours=1))
    assert [row["message"] for row in storms(*rows, limits=hour)] == [
        "6 of 80 sendings within 60 min were resends (8%)"
    ]


@pytest.mark.parametrize("seed", range(20))
def test_storms_are_those_of_a_plain_count(seed):
    """A minute with resends belongs to a storm when some ten minutes that end with resends are bad and have it."""
    draw = random.Random(seed)
    counts = {}
    for minute in draw.sample(range(120), 40):
        sendings = draw.randint(1, 60)
        counts[minute] = (sendings, draw.choice((0, 0, draw.randint(0, sendings))))
    expected = set()
    for end, (_, last) in counts.items():
        inside = {minute: each for minute, each in counts.items() if end - 10 < minute <= end}
        resends = sum(again for _, again in inside.values())
        if last and resends >= 20 and resends >= 0.1 * sum(sent for sent, _ in inside.values()):
            expected |= {minute for minute, (_, again) in inside.items() if again}
    found = storms(*(counted(minute, *each) for minute, each in counts.items()))
    covered = {
        minute for minute in counts if counts[minute][1]
        and any(row["since"] <= minute * MINUTE + 1 <= row["last_seen_at"] for row in found)
    }  # fmt: skip
    assert covered >= expected
    assert {row["since"] // MINUTE for row in found} | {row["last_seen_at"] // MINUTE for row in found} <= expected
    assert bool(found) == bool(expected)


def test_slow_messages():
    rows = [
        dict(zip(SLOW_COUNT_COLUMNS, (*HOP, at * MINUTE, at * MINUTE, count, [f"p{at}"]), strict=True))
        for at, count in ((0, 2), (30, 1), (200, 1))
    ]
    found = alert_rows(slow_transfer_alerts(rows, LIMITS, 300 * MINUTE, NAMES))
    assert periods(found) == [("transfers_slow", "warning", 0, 90), ("transfers_slow", "warning", 200, 260)]
    messages = {row["message"] for row in found}
    assert messages == {
        "3 messages acknowledged 60 s or more after the first sending",
        "1 message acknowledged 60 s or more after the first sending",
    }


def test_a_stall_during_which_connections_failed_says_so():
    failed = {
        "failed_since": 3 * MINUTE, "failed_until": 4 * MINUTE, "failed_client": HOP[0], "failed_cause": "no_answer",
    }  # fmt: skip
    (row,) = alerts(sequence(0, 100, stall(1, 5), condition="acknowledged", **failed))
    assert row["message"].endswith(
        "; the session worked, and then 10.0.0.1 could not connect to 10.0.0.2: no answer (network or host)"
    )
    assert "firewalls" in row["suggestion"]
    assert "quota" not in row["suggestion"]
    (row,) = alerts(sequence(0, 100, stall(1, 5), condition="acknowledged", **failed | {"failed_client": HOP[1]}))
    assert "10.0.0.2 could not connect to 10.0.0.1" in row["message"]
    (row,) = alerts(sequence(0, 100, stall(10, 20), condition="acknowledged", **failed))  # before the stall
    assert "quota" in row["suggestion"]
    (row,) = alerts(sequence(0, 100, stall(1, 2), condition="acknowledged", **failed))  # behind it
    assert "quota" in row["suggestion"]
