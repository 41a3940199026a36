"""Alerts of planted conversations of TCP 1801, from their packets on: each fault has its alert, and nothing else."""

from dataclasses import replace

import pytest

from engines import without_spark
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.update import current_alerts
from pipeline.lake.lake import Lake
from pipeline.transfers import update as sessions_update
from pipeline.transfers.messages import update_messages
from pipeline.transfers.sequences import update_sequences
from pipeline.transfers.session_rows import SessionSettings
from transfers.conversations import (
    CLIENT,
    INITIATOR,
    SEQUENCE,
    START,
    Conversation,
    acknowledgement,
    bronze,
    establish,
    message,
    parameters,
    refused_for_ever,
    session_ack,
    transactional,
)

LIMITS = Thresholds()
HOP = "messages from 10.0.0.1 to 10.0.0.2"


@pytest.fixture
def alerts(tmp_path):
    """Returns the alerts of conversations: condition, subject, and seconds since and until from the beginning on."""

    def find(*conversations, limits=LIMITS, ends_at=4000):
        lake = Lake(without_spark(), str(tmp_path / "lake"))
        for table, rows in bronze(conversations, ends_at).items():
            lake.replace_changed(table, rows, rows.slice(0, 0), dates=set(rows["event_date"].to_pylist()))
        sessions_update.update(lake, "run", SessionSettings())
        update_messages.update(lake, "run")
        update_sequences.update(lake, "run")
        found = current_alerts(lake, limits).to_pylist()
        assert all(row["evidence"] and row["suggestion"] and row["message"] for row in found)
        return sorted((row["condition"], row["subject"], seconds(row["since"]), seconds(row["until"])) for row in found)

    return find


def seconds(at):
    return None if at is None else round((at - START).total_seconds(), 3)


def sent(numbers, at, *, acked_at=None, name="one", port=40_000, closed=None, client=CLIENT):
    """A session in which express messages are sent, a tenth of a second apart, and acknowledged together."""
    talk = Conversation(name, port, client=client).handshake()
    for place, number in enumerate(numbers):
        talk.say("client", "user_message", message(number), at + place / 10)
    if acked_at is not None:
        talk.say("server", "session_ack", session_ack(ack=len(numbers)), acked_at)
    talk.closed = closed
    return talk


def test_traffic_without_a_fault_has_no_alert(alerts):
    talk = Conversation().handshake()
    for number in range(1, 30):
        at = number * 100
        talk.say("client", "user_message", transactional(number), at)
        talk.say("server", "session_ack", session_ack(ack=number, r=number, flags=1), at + 10)
        talk.say("server", "order_ack", acknowledgement(SEQUENCE, number), at + 10)
    talk.closed = (3000, "fin")
    assert alerts(talk) == []


def test_sessions_refused_and_not_answered(alerts):
    refused = Conversation("refused")
    refused.say("client", "establish_connection", establish(), 1)
    refused.say("server", "establish_connection", establish(refuse=1), 1.1)
    refused.closed = (2, "fin")
    unanswered = Conversation("unanswered", 40_001)
    unanswered.say("client", "establish_connection", establish(), 60)
    unanswered.closed = (120, "rst")
    assert alerts(refused, unanswered) == [("sessions_refused", "sessions from 10.0.0.1 to 10.0.0.2", 1, 3660)]


def test_a_capture_of_one_direction_is_no_refusal(alerts):
    talk = Conversation()
    talk.say("client", "establish_connection", establish(), 60)
    talk.skip("server", 572)
    talk.closed = (120, "fin")
    assert alerts(talk) == []


@pytest.mark.parametrize(("acked_at", "expected"), [(13.9, []), (14, [("window_full", 0, 15)])])
def test_a_window_that_is_full(alerts, acked_at, expected):
    talk = Conversation()
    for side in ("client", "server"):
        talk.say(side, "establish_connection", establish(), 0)
        talk.say(side, "connection_parameters", parameters(window=2), 0)
    for number in (1, 2, 3):
        talk.say("client", "user_message", message(number), number + 2)
    talk.say("server", "session_ack", session_ack(ack=3), acked_at)
    talk.closed = (15, "fin")
    subject = "session from 10.0.0.1 to 10.0.0.2"
    assert alerts(talk) == [(condition, subject, *times) for condition, *times in expected]


def test_an_order_ack_that_does_not_come(alerts):
    talk = Conversation().handshake()
    for at in (10, 41, 71):
        talk.say("client", "user_message", transactional(1), at)
    talk.say("server", "session_ack", session_ack(ack=3), 72)
    talk.say("server", "order_ack", acknowledgement(SEQUENCE, 1), 100)
    talk.closed = (110, "fin")
    ((condition, subject, since, until),) = alerts(talk, limits=replace(LIMITS, slow_after=LIMITS.error_after))
    assert (condition, since, until) == ("order_acks_stalled", 10, 100)
    assert subject.endswith(" from 10.0.0.1 to 10.0.0.2")


def test_a_number_that_is_refused_for_ever(alerts):
    found = alerts(refused_for_ever())
    assert [(condition, since, until) for condition, _, since, until in found] == [
        ("order_acks_stalled", 10, None), ("sequence_refused", 10, None),
    ]  # fmt: skip


@pytest.mark.parametrize("client", [CLIENT, "10.0.0.9"])
@pytest.mark.parametrize(("count", "is_storm"), [(20, True), (19, False)])
def test_a_resend_storm(alerts, count, is_storm, client):
    """A session breaks before its acknowledgement; the next one, also from another address, sends all again."""
    first = sent(range(1, count + 1), 10, closed=(20, "rst"))
    again = sent(range(1, count + 1), 30, acked_at=40, name="two", port=40_001, closed=(50, "fin"), client=client)
    storm = ("resend_storm", HOP, 30, round(30 + (count - 1) / 10 + 600, 3))
    assert alerts(first, again) == [storm] * is_storm


def test_few_resends_among_many_sendings_are_no_storm(alerts):
    first = sent(range(1, 26), 10, closed=(20, "rst"))
    again = sent([*range(1, 26), *range(100, 400)], 30, acked_at=90, name="two", port=40_001, closed=(100, "fin"))
    assert not [row for row in alerts(first, again) if row[0] == "resend_storm"]


@pytest.mark.parametrize(("acked_at", "is_slow"), [(69.9, False), (70, True)])
def test_a_slow_message(alerts, acked_at, is_slow):
    slow = ("transfers_slow", HOP, 70, 3670)
    assert alerts(sent([1], 10, acked_at=acked_at, closed=(80, "fin"))) == [slow] * is_slow


def test_a_message_that_is_slow_from_two_addresses_is_one(alerts):
    first = sent([1], 10, acked_at=80, closed=(90, "fin"))
    again = sent([1], 12, acked_at=85, name="two", port=40_001, closed=(90, "fin"), client="10.0.0.9")
    assert alerts(first, again) == [("transfers_slow", HOP, 80, 3680)]


def test_negative_acknowledgements_of_both_kinds(alerts):
    talk = Conversation().handshake()
    talk.say("client", "user_message", transactional(1), 1)
    talk.say("server", "final_ack", acknowledgement(SEQUENCE, 1, kind=0x8002, of=(INITIATOR, 1)), 2)
    talk.say("server", "user_message", message(9, kind=0x8000), 3)
    talk.say("server", "order_ack", acknowledgement(SEQUENCE, 1), 3)
    talk.say("client", "session_ack", session_ack(ack=3), 4)
    talk.say("server", "session_ack", session_ack(ack=1), 4)
    talk.closed = (5, "fin")
    found = alerts(talk)
    assert [(condition, since) for condition, _, since, _ in found] == [
        ("negative_acknowledgements", at) for at in (3, 2)
    ]
    assert ["of transactional messages" in subject for _, subject, *_ in found] == [False, True]
