"""What one table of a lake says and another one contradicts is not answered: planted contradictions, in memory."""

import datetime as dt
from dataclasses import replace

import pyarrow.compute as pc
import pytest

from alerts.scenario import LIMITS, alerts_of, summaries
from alerts.test_update import Below
from engines import shared_sql
from pipeline.alerts.update import current_alerts
from pipeline.dashboards.transfer_datasets import TRANSFER_DATASETS
from pipeline.reports.views.catalog import LakeViews
from queue_states.queue_events import FAR, MINUTE, event, read, snapshot, us
from queue_states.queue_events import outgoing as outgoing_transfer
from reports.questions.in_memory_lake import NOW, InMemoryLake, history_tables, rows
from schemas import catalog
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
QUEUE, LOCAL = "srv1\\private$\\orders", "LOCAL CONNECTION"
RECEIVED = 0x4000


def shot(at, count=None, *, state=LOCAL, **more):
    """A report of a queue, 100 bytes a message; times in minutes."""
    size = None if count is None else 100 * count
    return snapshot(at * MINUTE, state=state, message_count=count, bytes=size, **more)


def ask(tables, name, *columns):
    """Columns of a view's rows over a lake of these tables; times in minutes."""
    found = LakeViews(InMemoryLake(None, tables)).answer(name).to_pylist()
    return [tuple(plain(row[column]) for column in columns) for row in found]


def plain(value):
    if isinstance(value, dt.datetime):
        return round((value - EPOCH).total_seconds() / 60, 3)
    return round(value, 3) if isinstance(value, float) else value


def alerts(tables, source, limits=LIMITS):
    """Conditions of a source's alerts over a lake of these tables, and when they began and ended, in minutes."""
    found = summaries(alerts_of(tables, [source], NOW, limits))
    return [(condition, since, until) for condition, _, since, until in found]


def transfer(name, **more):
    return {"transfer_key": name, "message_key": name, "message_id": f"a1\\{name}", "destination_queue": QUEUE,
            "class": 0, "acknowledgement_requested": 0, "journaling": 0} | more  # fmt: skip


def test_a_queue_that_drains_is_not_stuck():
    """Planted: each report has fewer messages than the one before, also the last one."""
    drains = history_tables([shot(at, 100 - at) for at in range(0, 100, 10)])
    assert ask(drains, "stuck_queues", "since") == []
    then_not = history_tables([shot(at, 50 - min(at, 40)) for at in range(0, 70, 10)])
    assert ask(then_not, "stuck_queues", "since", "until", "minutes", "message_count") == [(40, 60, 20, 10)]


def test_a_queue_that_was_read_where_its_count_was_unknown_is_not_stuck():
    """Planted: a receive between two reports that are too far apart; messages that arrive keep the number."""
    reports = [*(shot(at, 5) for at in (0, 10)), *(shot(at, 5) for at in (100, 110))]
    columns = ("since", "until", "minutes", "still")
    assert ask(history_tables(reports), "stuck_queues", *columns) == [(0, 110, 110, None)]
    read_between = history_tables([*reports, read(50 * MINUTE)])
    assert ask(read_between, "stuck_queues", *columns) == [(100, 110, 10, None), (0, 10, 10, False)]


@pytest.mark.parametrize("ack", [("receive_class", "receive_acked_at"), ("final_class", "final_acked_at")])
def test_a_queue_whose_messages_are_acknowledged_as_received_is_not_stuck(ack):
    """Planted: TCP 1801 shows that an application received a message; as many arrive as are read."""
    history = history_tables([shot(at, 5) for at in range(0, NOW + 1, 10)])
    column, time = ack

    def with_ack(code, at=115):
        return history | {MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, transfer("m", **{column: code, time: at}))}

    columns = ("since", "until", "still")
    assert ask(with_ack(RECEIVED), "stuck_queues", *columns) == [(120, NOW, True), (0, 110, False)]
    assert alerts(with_ack(RECEIVED), "waits") == [("queue_stuck", 0, 110), ("queue_stuck", 120, None)]
    assert ask(with_ack(0xC002), "stuck_queues", *columns) == [(0, NOW, True)]  # its time was over: nobody read it
    assert alerts(with_ack(0xC002), "waits") == [("queue_stuck", 0, None)]
    assert alerts(with_ack(RECEIVED, NOW + 1), "waits") == [("queue_stuck", 0, None)]  # as of now it did not come


@pytest.mark.parametrize(
    ("before", "after", "more", "found"),
    [
        ((0, 10), (100, 110), [], [(0, None)]),  # each part is short
        ((0, 10), (100, 100), [], []),  # what nobody saw does not make a short wait long enough
        ((0, 10), (100, 130), [], [(0, None)]),
        ((0, 20), (100, 110), [], [(0, None)]),
        ((0, 20), (100, 130), [read(50 * MINUTE)], [(0, 20), (100, None)]),
        ((0, 20), (100, 130), [shot(110, 4)], [(0, 20), (110, None)]),
        ((0, 20), (30, 40), [shot(50, 0)], [(0, 40)]),
        ((0, 10), (10, 10), [shot(20, 0)], []),
    ],
)
def test_the_alert_of_stuck_queues_says_what_the_view_says(before, after, more, found):
    """Planted: 5 messages in a queue that was reported in two periods, and what was read."""
    times = sorted({*range(before[0], before[1] + 1, 10), *range(after[0], after[1] + 1, 10)})
    shots = [shot(at, 5) for at in times if us(at * MINUTE) not in {row["at"] for row in more}]
    tables = history_tables([*shots, *more])
    shown = ask(tables, "stuck_queues", "since", "until", "still", "observed_minutes")
    of_view = sorted((since, until if still is False else None) for since, until, still, seen in shown if seen >= 15)
    assert sorted((since, until) for _, since, until in alerts(tables, "waits")) == of_view
    assert of_view == found


def test_what_is_not_asked_for_ends_no_wait():
    """Planted: reports of the state alone, between those of the number; then fewer messages."""
    reports = [shot(at, None if 30 <= at <= 70 else 5) for at in range(0, 110, 10)]
    columns = ("since", "until", "still")
    assert ask(history_tables(reports), "stuck_queues", *columns) == [(0, 100, None)]
    assert alerts(history_tables(reports), "waits") == [("queue_stuck", 0, None)]
    fewer = history_tables([*reports[:8], shot(80, 4)])
    assert ask(fewer, "stuck_queues", "since", "still") == [(0, False)]
    assert alerts(fewer, "waits") == [("queue_stuck", 0, 30)]


@pytest.mark.parametrize("queue", ["srv1\\system$;deadletter", "srv1\\private$\\app_deadqueue", f"{QUEUE};journal"])
def test_a_queue_that_is_not_for_readers_is_not_stuck(queue):
    lies = history_tables([shot(at, 5, queue=queue) for at in range(0, NOW + 1, 10)])
    assert ask(lies, "stuck_queues", "since") == []
    assert alerts(lies, "waits") == []


def test_no_period_ends_because_a_report_expires():
    (row,) = ask(history_tables([shot(at, 5) for at in (0, 10)]), "stuck_queues", "since", "until", "still")
    assert row == (0, 10, None)  # and not minute 25


def outgoing(at, state, **more):
    return shot(at, 3, state=state, **more)


DOWN = ("state", "since", "until", "still")


def test_a_queue_that_handed_a_message_over_was_connected():
    """Planted: a message departs (TCP 1801) while the last report says that there is no connection."""
    reports = [outgoing(at, "WAITING") for at in range(0, NOW + 1, 10)]
    assert ask(history_tables(reports), "outgoing_not_connected", *DOWN) == [("WAITING", 0, NOW, True)]
    left = history_tables([*reports, read(105 * MINUTE, "departed")])
    assert ask(left, "outgoing_not_connected", *DOWN) == [("WAITING", 110, NOW, True), ("WAITING", 0, 100, False)]
    at_last = history_tables([*reports, read((NOW + 5) * MINUTE, "departed")])
    assert ask(at_last, "outgoing_not_connected", *DOWN) == [("WAITING", 0, NOW, False)]


def test_a_pause_or_resume_counts_until_a_state_is_reported():
    """Planted: administrators resume a queue that was reported to be on hold, and pause one that was connected."""
    held = [outgoing(at, "ONHOLD") for at in range(0, 60, 10)]
    resumed = event("resume", 42 * MINUTE, "resume")
    columns = ("state", "since", "until", "still")
    assert ask(history_tables([*held[:5], resumed]), "outgoing_not_connected", *columns) == [("ONHOLD", 0, 42, False)]
    up = [outgoing(at, "CONNECTED") for at in (230, NOW - 2)]
    paused = event("pause", (NOW - 1) * MINUTE, "pause")
    found = ask(history_tables([*up, paused]), "outgoing_not_connected", *columns)
    assert found == [("ONHOLD", NOW - 1, NOW - 1, True)]


def test_a_state_that_nobody_reported_again_is_not_over_and_does_not_last():
    (row,) = ask(history_tables([outgoing(at, "WAITING") for at in (0, 10)]), "outgoing_not_connected", *DOWN)
    assert row == ("WAITING", 0, 10, None)
    (row,) = ask(
        history_tables([*(outgoing(at, "WAITING") for at in (0, 10)), outgoing(12, "CONNECTED")]),
        "outgoing_not_connected", *DOWN,
    )  # fmt: skip
    assert row == ("WAITING", 0, 12, False)


def test_time_in_state_goes_on_until_now():
    """Planted: a queue whose last report expired hours before the newest packet."""
    columns = ("state", "seconds", "share", "first_at", "last_at")
    found = ask(history_tables([outgoing(at, "WAITING") for at in (0, 10)]), "time_in_state", *columns)
    assert found == [
        ("UNKNOWN", (NOW - 25) * 60, round((NOW - 25) / NOW, 3), 25, NOW), ("WAITING", 25 * 60, 0.104, 0, 25),
    ]  # fmt: skip
    (row,) = ask(history_tables([outgoing(NOW - 5, "WAITING")]), "time_in_state", *columns)
    assert row == ("WAITING", 300, 1, NOW - 5, NOW)
    reads_only = history_tables([read(50 * MINUTE)])
    assert ask(reads_only, "time_in_state", *columns) == []


def attempt(name, returned, outcome="in_flight", **more):
    """A receive that returned the message of its name."""
    row = {"attempt_key": name, "queue": QUEUE, "is_receive": True, "returned_at": returned, "outcome": outcome,
           "server_address": "10.0.0.1", "client_address": "10.0.0.9"}  # fmt: skip
    return row | {"message_key": name, "evidence": [name]} | more


def test_a_receive_whose_end_only_its_consequences_show_did_end():
    """Planted: acknowledged as received, queue reported empty, handed out again; and the same too early or too late."""
    attempts = [
        attempt("acknowledged", 100), attempt("acknowledged before", 100), attempt("held", 100),
        attempt("acknowledged in time", 100, "rundown", ended_at=110),
        attempt("acknowledged by another", 100, "rundown", ended_at=110),
        attempt("emptied", 50, queue="emptied"), attempt("came later", 70, queue="emptied"),
        attempt("first", 100, message_key="again"), attempt("second", 120, message_key="again"),
        attempt("refused", 100, "failed"),
    ]  # fmt: skip
    received = {"acknowledged": 101, "acknowledged before": 99, "acknowledged in time": 105,
                "acknowledged by another": 115, "refused": 105}  # fmt: skip
    acks = [transfer(name, receive_class=RECEIVED, receive_acked_at=at) for name, at in received.items()]
    tables = history_tables([shot(60, 0, queue="emptied")]) | {
        RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *attempts), MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *acks),
        ACK_SEQUENCES: rows(
            ACK_SEQUENCES, {"message_key": "again", "fate": "held", "attempt_keys": ["first", "second"]}
        ),
    }  # fmt: skip
    assert sorted(ask(tables, "receives_not_ended", "attempt_key", "how")) == [
        ("acknowledged before", "never"), ("acknowledged by another", "reader_gone"), ("came later", "never"),
        ("first", "given_back"), ("held", "never"), ("refused", "refused"), ("second", "never"),
    ]  # fmt: skip
    found = current_alerts(Below(None, tables), LIMITS).to_pylist()
    raised = {key for row in found if row["condition"] == "receives_not_ended" for key in row["evidence"]}
    assert raised == {
        "acknowledged before", "acknowledged by another", "came later", "held", "second", "refused",
    }  # fmt: skip


def test_an_acknowledgement_that_cannot_come_is_not_missing():
    """Planted: final acknowledgements that say that a message was rejected, and messages that are in their queue."""
    asks = {"acknowledgement_requested": 3}
    arrived = asks | {"arrival_acked_at": 12, "arrival_class": 2}
    tables = {
        MESSAGE_TRANSFERS: rows(
            MESSAGE_TRANSFERS, transfer("rejected", final_class=0x8000, **asks), transfer("silent", **asks),
            transfer("too late", final_class=0xC002, **arrived), transfer("received", final_class=RECEIVED, **arrived),
            *(transfer(name, **arrived) for name in ("given back", "held", "purged", "read", "read again", "unread")),
        ),
        ACK_SEQUENCES: rows(
            ACK_SEQUENCES, *(
                {"message_key": name, "fate": fate}
                for name, fate in (
                    ("given back", "returned"), ("held", "held"), ("purged", "purged"), ("read", "consumed"),
                    ("read again", "returned"), ("read again", "consumed"), ("silent", "held"),
                )
            ),
        ),
    }  # fmt: skip
    assert sorted(ask(tables, "acknowledgements_missing", "message_key", "lacks")) == [
        ("read", "receive"), ("read again", "receive"), ("received", "receive"), ("silent", "arrival"),
        ("unread", "receive"),
    ]  # fmt: skip


def dead_letter(name, seen, queue, **more):
    """A dead letter that was peeked or read in its queue."""
    row = {"message_key": name, "sighting_key": f"{name} {seen}", "call_key": f"{name} {seen}", "seen_at": seen,
           "queue": queue, "class": 0x8000, "class_name": "NACK", "destination_queue": QUEUE}  # fmt: skip
    return row | more


def test_a_dead_letter_that_is_gone_is_none():
    """Planted: received or purged from its dead-letter queue, which was reported empty, or seen elsewhere later."""
    dead, app = "srv1\\system$;deadxact", "srv1\\private$\\app"
    tables = history_tables([shot(60, 0, queue="emptied_deadqueue"), shot(5, 0, queue=dead)]) | {
        MESSAGES: rows(
            MESSAGES, dead_letter("there", 10, dead), dead_letter("received", 10, dead), dead_letter("held", 10, dead),
            dead_letter("emptied", 50, "emptied_deadqueue"), dead_letter("later", 70, "emptied_deadqueue"),
            dead_letter("purged", 50, "purged_deadqueue"), dead_letter("moved", 40, f"{app}_deadqueue"),
            dead_letter("moved", 50, app),
        ),
        QUEUE_OPERATIONS: rows(
            QUEUE_OPERATIONS,
            {"operation": "purge", "outcome": "done", "queue": "purged_deadqueue", "responded_at": 55},
            {"operation": "purge", "outcome": "failed", "queue": dead, "responded_at": 55},
        ),
        ACK_SEQUENCES: rows(
            ACK_SEQUENCES, {"message_key": "received", "queue": dead, "fate": "consumed"},
            {"message_key": "held", "queue": dead, "fate": "held"},
            {"message_key": "there", "queue": QUEUE, "fate": "consumed"},
        ),
    }  # fmt: skip
    assert ask(tables, "dead_letters", "queue", "messages") == [(dead, 2), ("emptied_deadqueue", 1)]
    assert sorted(ask(tables, "dead_letter_messages", "queue", "first_seen_at")) == [
        ("emptied_deadqueue", 70), (dead, 10), (dead, 10),
    ]  # fmt: skip


def test_a_dead_letter_on_tcp_1801_is_in_a_queue_that_may_be_empty():
    """Planted: the dead-letter queue of its sender was reported empty after it died; and another one, or before."""
    died = {"source_queue_manager": "guid", "transactional": True, "final_class": 0x8000, "final_class_name": "NACK",
            "dead_letter_class": 0x8000, "journaling": 1}  # fmt: skip
    sent = [transfer(str(at), final_acked_at=at, **died) for at in (40, 70)]
    sent += [transfer("express", final_acked_at=40, **died | {"transactional": False})]
    sent += [transfer("own", final_acked_at=40, **died), transfer("other", final_acked_at=40, **died)]
    presumed = {"source_queue_manager": "guid", "outcome": "expired", "journaling": 1, "expires_at": 90}
    sent += [transfer("gone", **presumed), transfer("was read", **presumed)]
    headers = [dead_letter(name, 1, None, dead_letter_queue=f"{name}_queue") for name in ("own", "other")]
    headers += [dead_letter("was read", 100, QUEUE, class_name="NORMAL")]

    def found(empty, hosts=()):
        tables = history_tables([shot(60, 0, queue=queue) for queue in empty]) | {
            MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *sent), MESSAGES: rows(MESSAGES, *headers),
            HOSTS: rows(HOSTS, *hosts),
        }  # fmt: skip
        return sorted(ask(tables, "dead_letters", "reason", "messages"))

    host = {"queue_manager_id": "guid", "host_name": "shop", "address": "10.0.0.1"}
    assert found(["shop\\system$;deadxact"]) == [("NACK", 5), ("expired", 1)]  # nothing says whose it is
    assert found(["shop\\system$;deadxact"], [host]) == [("NACK", 4), ("expired", 1)]
    for name in ("10.0.0.1\\system$", "machine=guid"):
        assert found([f"{name};deadxact"], [host]) == [("NACK", 4), ("expired", 1)]
    assert found(["shop\\system$;deadletter"], [host]) == [("NACK", 4), ("expired", 1)]
    assert found(["own_queue"], [host]) == [("NACK", 4), ("expired", 1)]


def test_a_dead_letter_is_no_negative_acknowledgement():
    """Planted: read from dead-letter queues of all kinds, by guess or another name too; and one from its own queue."""
    own, other_name, admin = "srv1\\private$\\dead", "10.0.0.1\\private$\\dead", "srv1\\private$\\admin"
    dead = [
        dead_letter("system", 10, "srv1\\system$;deadxact"), dead_letter("component", 10, "app_deadqueue"),
        dead_letter("guess", 10, None, inferred_queue="srv1\\system$;deadletter"),
        dead_letter("own", 10, other_name, dead_letter_queue=own),
        dead_letter("ack", 10, admin, dead_letter_queue=own, source_queue_manager="b2"),
    ]  # fmt: skip
    aliases = [{"queue": name, "canonical_queue": own, "evidence": "call"} for name in (own, other_name)]
    tables = {MESSAGES: rows(MESSAGES, *dead), QUEUE_ALIASES: rows(QUEUE_ALIASES, *aliases)}
    assert ask(tables, "negative_acknowledgements", "admin_queue", "messages") == [(admin, 1)]
    (alert,) = alerts_of(tables, ["negative_acknowledgements"], NOW)
    assert (alert["condition"], alert["queue"]) == ("negative_acknowledgements", admin)


def test_two_copies_that_were_both_received_are_read_twice():
    """Planted: one message under two lookup identifiers in its queue; each copy was received once."""
    copies = [
        {"message_key": name, "queue": queue, "lookup_id": number, "fate": fate, "sequence_key": f"{name} {number}",
         "redelivered": False, "attempts": 1}
        for name, number, queue, fate in (
            ("both", 1, QUEUE, "consumed"), ("both", 2, QUEUE, "consumed"), ("one", 3, QUEUE, "consumed"),
            ("one", 4, QUEUE, "returned"), ("two queues", 5, QUEUE, "consumed"), ("two queues", 6, "q", "consumed"),
            ("again", 7, QUEUE, "consumed"), ("again", None, QUEUE, "consumed"),
        )
    ]  # fmt: skip
    sent = [transfer(name, acknowledged_sendings=2) for name in ("both", "one", "two queues", "again", "unread")]
    tables = {ACK_SEQUENCES: rows(ACK_SEQUENCES, *copies), MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *sent)}
    assert sorted(ask(tables, "delivered_twice", "message_key", "read_twice")) == [
        ("again", False), ("both", True), ("one", False), ("two queues", False), ("unread", None),
    ]  # fmt: skip
    assert ask(tables, "read_twice", "message_key", "read_twice", "lookup_id", "delivered_twice") == [
        ("both", True, 1, True), ("both", True, 2, True),
    ]  # fmt: skip


def sequence(number, first, last, waiting, **more):
    """A sequence on a hop; its last packet was captured at minute 50."""
    row = {"sequence_key": f"s{number}", "source_queue_manager": "a1", "destination_queue": QUEUE,
           "sender_address": "10.0.0.1", "receiver_address": "10.0.0.2", "transaction_sequence_id": number,
           "first_number": first, "last_number": last, "last_packet_at": 50, "waiting": waiting,
           "first_waiting_number": last - waiting + 1 if waiting else None, "condition": "waiting"}  # fmt: skip
    return row | more


def reported(at, number, **more):
    """A report of the outgoing queue of a sequence."""
    return {"snapshot_id": f"{number} {at}", "queue_manager": f"of {number}", "queue": QUEUE, "source": "collector",
            "observed_at": at, "sequence_id": number, "unacked_count": 0} | more  # fmt: skip


NEVER = ("source", "sequence_id", "from_number", "to_number", "messages")


def test_numbers_that_a_later_report_calls_acknowledged_are():
    """Planted: the capture ends while 3 of 9 wait; the sender's queue reports later, or before."""
    waits = [sequence(number, 1, 9, 3) for number in (1, 2, 3, 4)]
    reports = [
        reported(60, 1, next_number=10),
        reported(60, 2, first_unacked_number=9, last_unacked_number=9, unacked_count=1),
        reported(40, 3, next_number=10), reported(60, 4, unacked_count=None, last_acked_number=6),
    ]  # fmt: skip
    tables = {TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, *waits), EOD_TRANSFERS: rows(EOD_TRANSFERS, *reports)}
    assert sorted(ask(tables, "never_acknowledged", *NEVER)) == [
        ("collector", 2, 9, 9, 1), ("transfers", 2, 9, 9, 1), ("transfers", 3, 7, 9, 3), ("transfers", 4, 7, 9, 3),
    ]  # fmt: skip


def test_numbers_that_an_order_ack_was_captured_of_after_the_report_are_acknowledged():
    """Planted: reports of numbers that wait, of sequences of which only the end was captured."""
    waits = {"first_unacked_number": 5, "last_unacked_number": 9, "unacked_count": 5}
    captured = [
        sequence(number, 8, 12, 0, condition="acknowledged", acknowledged_number=through, acknowledged_at=at)
        for number, through, at in ((1, 12, 50), (2, 7, 50), (3, 12, 30))
    ]
    tables = {
        TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, *captured),
        EOD_TRANSFERS: rows(EOD_TRANSFERS, *(reported(40, number, **waits) for number in (1, 2, 3))),
    }
    assert sorted(ask(tables, "never_acknowledged", *NEVER)) == [("collector", 2, 8, 9, 2), ("collector", 3, 5, 9, 5)]


def test_numbers_whose_messages_arrived_are_not_without_any_acknowledgement():
    """Planted: an administration or final acknowledgement of a number behind the last order acknowledgement."""
    waits = [
        sequence(1, 1, 9, 3),
        sequence(2, 1, 9, 3),
        sequence(3, 1, 9, 3, condition="refused"),
        sequence(4, 1, 9, 3),
    ]
    sent = [
        transfer(f"{number} {at}", sequence_key=f"s{number}", transaction_number=at, outcome=outcome)
        for number, at, outcome in ((1, 9, "received"), (2, 8, "delivered"), (3, 9, "delivered"), (4, 9, "transferred"))
    ]
    tables = {TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, *waits), MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *sent)}
    assert sorted(ask(tables, "never_acknowledged", *NEVER)) == [
        ("transfers", 2, 9, 9, 1), ("transfers", 3, 7, 9, 3), ("transfers", 4, 7, 9, 3),
    ]  # fmt: skip


def test_numbers_are_given_up_where_a_sequence_follows_from_another_address():
    """Planted: the sequence behind was sent from another address; of the same hop, of another one, or not known."""
    waits = sequence(1, 1, 9, 3, hop_key="h")
    behind = sequence(2, 1, 1, 0, condition="acknowledged", previous_sequence_id=1, began="abandoned", first_sent_at=60)

    def found(hop, address):
        later = behind | {"hop_key": hop, "sender_address": address}
        tables = {TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, waits, later)}
        return ask(tables, "never_acknowledged", "sequence_id", "what", "reset_seen_at")

    given_up, pending = [(1, "given_up", 60)], [(1, "pending", None)]
    assert (found("h", "10.9.9.9"), found("other", "10.9.9.9")) == (given_up, pending)
    assert found("other", waits["sender_address"]) == given_up


def accepted(at, number, last, **more):
    """A receiver's report of a sequence: it has accepted its numbers up to ``last``."""
    row = {"source_key": f"{number} {at}", "queue": QUEUE, "sender_queue_manager": "a1", "sender_queue": QUEUE,
           "sequence_id": number, "observed_at": at, "last_number": last, "reject_count": 0}  # fmt: skip
    return row | more


def on_the_site(tables, name):
    """Rows of a dataset of the site over a lake of these tables, in which nothing is later than now."""
    (dataset,) = [each for each in TRANSFER_DATASETS if each.name == name]
    needed = [catalog.table(each) for each in dataset.tables]
    every = {table.name: tables.get(table, rows(table)) for table in needed}
    every["eod_transfers"] = every["eod_transfers"].filter(
        pc.field("observed_at") <= EPOCH + NOW * dt.timedelta(minutes=1)
    )
    return shared_sql().answer(dataset.rows_sql, every).to_pylist()


ACCEPTED = ("source", "sequence_id", "from_number", "to_number", "accepted_number", "accepted_reported_at")


def test_numbers_that_the_receiver_reports_to_have_accepted_were_delivered():
    """Planted: 7 to 9 of captured sequences wait; the receiver has them, a part of them, none, or had others."""
    behind = "number_behind: the sender goes on with 7, the receiver has had 12"
    reports = [
        accepted(60, 1, 9), accepted(60, 2, 8), accepted(60, 3, 6), accepted(60, 4, 12, disagrees_with_sender=behind),
        accepted(60, 5, 9, sender_queue_manager="b2"), accepted(60, 6, 9, queue="other"), accepted(60, 7, 9),
        accepted(70, 7, 6), accepted(NOW + 1, 8, 9), accepted(48.5, 9, 12),
    ]  # fmt: skip
    sent = [
        transfer(f"{number} {at}", sequence_key=f"s{number}", transaction_number=at, first_sent_at=40 + at)
        for number in range(1, 10)
        for at in (7, 8, 9)
    ]
    waits = [sequence(number, 1, 9, 3) for number in range(1, 10)]
    tables = {TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, *waits), MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *sent),
              EOD_SOURCES: rows(EOD_SOURCES, *reports)}  # fmt: skip
    found = {number: (last, at) for _, number, _, _, last, at in ask(tables, "never_acknowledged", *ACCEPTED)}
    assert found == {1: (9, 60), 2: (8, 60), 9: (8, 48.5)} | dict.fromkeys((3, 4, 5, 6, 7, 8), (None, None))


@pytest.mark.parametrize(
    ("reports", "stalled", "refused"),
    [
        ({}, None, None),
        ({EOD_TRANSFERS: reported(60, 1, next_number=10)}, 60, 60),
        ({EOD_TRANSFERS: reported(60, 1, first_unacked_number=8, last_unacked_number=9, unacked_count=2)}, 60, 60),
        ({EOD_TRANSFERS: reported(60, 1, first_unacked_number=7, last_unacked_number=9, unacked_count=3)}, None, None),
        ({EOD_TRANSFERS: reported(45, 1, next_number=10)}, None, None),  # before the last packet
        ({EOD_TRANSFERS: reported(NOW + 1, 1, next_number=10)}, None, None),
        ({MESSAGE_TRANSFERS: {"outcome": "delivered", "arrival_acked_at": 55}}, 55, None),
        ({EOD_SOURCES: accepted(60, 1, 6)}, None, None),
        ({EOD_SOURCES: accepted(49.9, 1, 9)}, None, None),  # the receiver refused the number later
        ({EOD_SOURCES: accepted(60, 1, 9)}, None, 60),
    ],
)
def test_a_sequence_that_got_further_than_its_order_acknowledgements_say(reports, stalled, refused):
    """Planted: 7 to 9 of a sequence wait; reports of both ends, and acknowledgements of another kind."""
    stall = {"began_at": 47 * 60_000_000, "ended_at": None, "first_number": 7, "waiting": 3, "sendings": 4}
    sent = transfer("m", sequence_key="s1", transaction_number=7, first_sent_at=47, last_sent_at=47, sendings=1)
    sent |= {"hop_count": 1, "outcome": "transferred", "message_kind": "application"}
    tables = {MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, sent | reports.get(MESSAGE_TRANSFERS, {}))}
    tables |= {table: rows(table, row) for table, row in reports.items() if table is not MESSAGE_TRANSFERS}

    def found(condition):
        waits = sequence(1, 1, 9, 3, condition=condition, stalls=[stall], hop_key="h", first_sent_at=40)
        every = alerts(tables | {TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, waits)}, "sequences")
        return {name: until for name, _, until in every}

    assert found("stalled")["order_acks_stalled"] == stalled
    assert found("refused")["sequence_refused"] == refused
    waits = sequence(1, 1, 9, 3, condition="refused", stalls=[stall], hop_key="h", first_sent_at=40, stalled_since=47)
    tables[TRANSFER_SEQUENCES] = rows(TRANSFER_SEQUENCES, waits)
    is_refused = refused is None and MESSAGE_TRANSFERS not in reports
    assert ask(tables, "message_hops", "refused") == [(is_refused,)]
    (message,) = on_the_site(tables, "message_transfers")
    assert (message["refused"], message["not_delivered"]) == (is_refused, "never_arrived" if is_refused else None)
    (shown,) = on_the_site(tables, "transfer_sequences")
    expected = ("refused", 47) if refused is None else ("stalled", 47) if EOD_SOURCES in reports else ("waiting", None)
    if reports.get(EOD_TRANSFERS, {}).get("next_number"):
        expected = ("refused", 47) if refused is None else ("acknowledged", None)
    assert (shown["condition"], plain(shown["stalled_since"])) == expected
    tables[TRANSFER_SEQUENCES] = rows(TRANSFER_SEQUENCES, sequence(1, 1, 9, 3))
    never = [(source, first) for source, _, first, *_ in ask(tables, "never_acknowledged", *NEVER)]
    assert (("transfers", 7) in never) is (stalled is None)


def test_a_stall_of_what_the_receiver_has_says_so():
    waits = sequence(1, 1, 9, 3, condition="stalled", hop_key="h", first_sent_at=40)
    waits["stalls"] = [{"began_at": 0, "ended_at": None, "first_number": 7, "waiting": 3, "sendings": 4}]
    sent = transfer("m", sequence_key="s1", transaction_number=8, first_sent_at=47, last_sent_at=47, sendings=1)
    tables = {TRANSFER_SEQUENCES: rows(TRANSFER_SEQUENCES, waits), MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, sent)}
    says = "; the receiver has number 8, as it reported at 1970-01-01 01:00:00: the acknowledgement does not come"
    for last, expected in ((8, True), (6, False)):
        tables[EOD_SOURCES] = rows(EOD_SOURCES, accepted(60, 1, last))
        (row,) = alerts_of(tables, ["sequences"], NOW)
        assert (says in row["message"]) is expected


@pytest.mark.parametrize(
    ("through", "acked_at", "ended"),
    [(13, NOW - 10, True), (12, NOW - 10, False), (13, NOW - 60, False), (13, NOW + 1, False)],
)
def test_a_transfer_is_not_stalled_that_an_order_ack_was_captured_of(through, acked_at, ended):
    """Planted: the last report is of minute ``NOW`` - 20, its oldest number 13; order acknowledgements on TCP 1801."""
    reports = [outgoing_transfer(at * MINUTE, 12, 4, ack_at=-60) for at in range(0, NOW - 10, 10)]
    tables = history_tables(reports)
    ids = tables[EOD_TRANSFERS]["sequence_id"].to_pylist()
    acks = sequence(ids[0], 13, 16, 0, destination_queue=FAR, acknowledged_number=through, acknowledged_at=acked_at)
    found = {name: until for name, _, until in alerts(tables, "transfers")}
    tables[TRANSFER_SEQUENCES] = rows(TRANSFER_SEQUENCES, acks | {"hop_key": "h", "first_sent_at": 1})
    both = ("messages_unacknowledged", "transfer_stalled")
    assert {name: found[name] for name in both} == dict.fromkeys(both)
    found = {name: until for name, _, until in alerts(tables, "transfers")}
    assert {name: found[name] for name in both} == dict.fromkeys(both, acked_at if ended else None)
    assert ask(tables, "transfer_stalls", "still") == [(not ended,)]


@pytest.mark.parametrize(
    ("more", "at", "ended"),
    [({}, NOW - 5, True), ({}, NOW + 1, False), ({"destination_queue": QUEUE}, NOW - 5, False)],
)
def test_messages_are_not_unread_where_receives_are_acknowledged(more, at, ended):
    """Planted: reports say that 3 messages are unread, as they go on to arrive; TCP 1801 shows a receive."""
    tables = history_tables(
        [outgoing_transfer(minute * MINUTE, 50 + minute, 0, unread=3) for minute in range(0, NOW, 10)]
    )
    ack = transfer("m", receive_class=RECEIVED, receive_acked_at=at, **{"destination_queue": FAR} | more)
    soon = replace(LIMITS, unread_after=dt.timedelta(hours=3))

    def until():
        (found,) = (until for name, _, until in alerts(tables, "transfers", soon) if name == "messages_unread")
        return found

    assert until() is None
    tables[MESSAGE_TRANSFERS] = rows(MESSAGE_TRANSFERS, ack)
    assert until() == (at if ended else None)


def test_a_receiver_reports_what_only_the_report_of_its_sender_calls_unacknowledged():
    """Planted: 5 to 9 are unacknowledged at minute 40; the receiver reports before, later, and of two senders."""
    waits = {"first_unacked_number": 5, "last_unacked_number": 9, "unacked_count": 5}
    later = [accepted(45, 1, 12), accepted(45, 2, 7), accepted(45, 3, 4), accepted(35, 4, 9), accepted(45, 5, 9)]
    later += [accepted(45, 5, 9, source_key="another", sender_queue_manager="b2")]
    later += [accepted(45, 6, 6, queue="its name", sender_queue=QUEUE)]
    tables = {EOD_TRANSFERS: rows(EOD_TRANSFERS, *(reported(40, number, **waits) for number in range(1, 7))),
              EOD_SOURCES: rows(EOD_SOURCES, *later)}  # fmt: skip
    found = {number: (last, at) for _, number, _, _, last, at in ask(tables, "never_acknowledged", *ACCEPTED)}
    assert found == {1: (9, 45), 2: (7, 45), 6: (6, 45)} | dict.fromkeys((3, 4, 5), (None, None))


def test_a_message_is_unread_in_the_one_queue_where_it_was_seen_last():
    """Planted: messages seen in two queues; sent to one queue, to several, with copies, and dead in their queue."""
    app, dead, journal = "srv1\\private$\\app", "srv1\\system$;deadxact", f"{QUEUE};journal"
    seen = {
        "moved": (QUEUE, app), "retried": (app, f"{app}_0"), "list": (QUEUE, app), "multicast": (QUEUE, app),
        "expanded": (QUEUE, app), "copied": (QUEUE, journal), "not sent": (QUEUE, dead), "expired": (QUEUE, dead),
        "purged": (QUEUE, dead), "list, one read": (QUEUE, app),
    }  # fmt: skip
    sent_to = {"list": f"{QUEUE},{app}", "list, one read": f"{QUEUE},{app}", "multicast": "multicast=234.1.1.1:8001"}
    classes = {"not sent": 0x8002, "expired": 0xC002}
    attempts, headers = [], []
    for name, places in seen.items():
        for at, queue in enumerate(places, 50):
            attempts.append(attempt(f"{name} {at}", at, "peeked", is_receive=False, message_key=name, queue=queue))
            to = queue if name == "expanded" else sent_to.get(name, QUEUE)
            code = classes.get(name, 0) if queue == dead else 0
            headers.append(dead_letter(name, at, queue, destination_queue=to, **{"class": code}))
    acks = [transfer("purged", final_class=0xC001), transfer("list, one read", outcome="received")]
    acks += [transfer("copied", outcome="received")]
    tables = {RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *attempts), MESSAGES: rows(MESSAGES, *headers),
              MESSAGE_TRANSFERS: rows(MESSAGE_TRANSFERS, *acks)}  # fmt: skip

    def unread(name):
        only = {table: found.filter(pc.equal(found["message_key"], name)) for table, found in tables.items()}
        return {queue for (queue,) in ask(only, "oldest_unread", "queue")}

    assert {name: unread(name) for name in seen} == {
        "moved": {app}, "retried": {f"{app}_0"}, "list": {QUEUE, app}, "multicast": {QUEUE, app},
        "expanded": {QUEUE, app}, "copied": {journal}, "not sent": {QUEUE, dead}, "expired": {dead}, "purged": {dead},
        "list, one read": {app},
    }  # fmt: skip


def test_a_message_whose_time_to_be_received_is_over_is_not_unread():
    """Planted: messages that were seen in their queue, and whose time is over or not; clocks of two senders."""
    dead = "srv1\\system$;deadxact"
    sent = {"over": (10, 3600, QUEUE, "a1"), "not over": (10, 86_400, QUEUE, "a1"), "infinite": (10, None, QUEUE, "a1"),
            "never sent": (None, 60, QUEUE, "a1"), "just": (NOW - 1, 60, QUEUE, "a1"), "kept": (10, 60, dead, "a1"),
            "by another clock": (10, 3600, QUEUE, "b2"), "and this": (10, 86_400, QUEUE, "b2")}  # fmt: skip
    headers = [
        dead_letter(name, 30, queue, source_queue_manager=source, sent_at=at, time_to_be_received_s=seconds,
                    destination_queue=QUEUE, arrived_at=at, **{"class": 0})
        for name, (at, seconds, queue, source) in sent.items()
    ]  # fmt: skip
    ahead = dead_letter("ahead", 30, QUEUE, source_queue_manager="b2", sent_at=40, arrived_at=30, message_key=None)
    attempts = [
        attempt(name, 30, "peeked", is_receive=False, message_key=name, queue=queue)
        for name, (_, _, queue, _) in sent.items()
    ]
    tables = {RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *attempts), MESSAGES: rows(MESSAGES, *headers, ahead)}

    def unread(name):
        only = {RECEIVE_ATTEMPTS: tables[RECEIVE_ATTEMPTS].filter(pc.field("message_key") == name)}
        found = ask(only | {MESSAGES: tables[MESSAGES]}, "oldest_unread", "messages", "may_have_expired")
        return found[0] if found else None

    assert {name: unread(name) for name in sent} == {
        "over": None, "not over": (1, 0), "infinite": (1, 0), "never sent": (1, 0), "just": (1, 0), "kept": (1, 0),
        "by another clock": (1, 1), "and this": (1, 0),
    }  # fmt: skip


def test_an_empty_outgoing_queue_says_nothing_of_its_destination():
    """Planted: a sender's queue of the same name has nothing to send, while a message waits at its destination."""
    peeked = attempt("m", 30, "peeked", is_receive=False)
    tables = {RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, peeked, attempt("held", 30)),
              MESSAGES: rows(MESSAGES, dead_letter("dead", 30, QUEUE + "_deadqueue"))}  # fmt: skip

    def found(*reports):
        lake = history_tables(reports) | tables
        (oldest,) = ask(lake, "oldest_unread", "messages") or [(0,)]
        return oldest[0], len(ask(lake, "receives_not_ended", "how")), len(ask(lake, "dead_letters", "queue"))

    names = (QUEUE, QUEUE + "_deadqueue")
    assert found(*(shot(60, 0, queue=name, manager="shop", state="CONNECTED") for name in names)) == (2, 1, 1)
    assert found(*(shot(60, 0, queue=name) for name in names)) == (0, 0, 0)
