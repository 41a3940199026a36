"""Views of messages on their way, on rows with known answers; numbers of many rows equal a plain count."""

import datetime as dt
import random
from collections import defaultdict

import pytest

from jobs import ask
from pipeline.reports.views import evidence as ev
from pipeline.reports.views.catalog import COVERAGE_VIEW, VIEWS_BY_NAME, LakeViews
from reports.questions.both_engines import answers_of, quick_session, select
from reports.questions.in_memory_lake import NOW, InMemoryLake, rows
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.coverage import COVERAGE
from schemas.eod import EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.sessions import ORDER_ACKS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES

pytestmark = pytest.mark.spark

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
RAW, ORDERS = "guid\\00000009", "hq\\private$\\orders"  # one queue
RAW_ADMIN, ADMIN = "shop-guid\\00000001", "shop\\private$\\admin"
NACK = "MQMSG_CLASS_NACK_BAD_DST_Q"
DEAD, OWN_DEAD = "shop\\system$;deadxact", "shop\\private$\\mydead"


def transfer(name, at=10, *, hop=(A, B), **more):
    """A message on a hop, acknowledged after a second."""
    row = {
        "transfer_key": f"{name} {hop}", "message_key": name, "message_id": f"a1\\{name}",
        "message_kind": "application", "class": 0, "source_queue_manager": "a1", "destination_queue": RAW,
        "sender_address": hop[0], "receiver_address": hop[1], "hop_key": f"{hop}", "acknowledgement_requested": 0,
        "journaling": 0,
        "hop_count": 0, "sent_at": at, "packet_bytes": 1000, "resent_bytes": 0, "sendings": 1, "sessions": 1,
        "acknowledged_sendings": 1,
        "first_sent_at": at, "last_sent_at": at, "session_ack_ms": 1000.0, "outcome": "transferred",
        "confidence": "complete",
    }  # fmt: skip
    return row | more


def sighting(name, at=10, **more):
    """A message as it was captured on TCP 1801."""
    row = {
        "message_key": name, "sighting_key": f"{name} {at}", "packet_key": f"{name} {at}", "seen_at": at, "class": 0,
        "seen_in": "binary_protocol", "source_queue_manager": "a1", "message_id": f"a1\\{name}", "is_comqc": False,
        "destination_queue": RAW,
    }  # fmt: skip
    return row | more


def acknowledgement(name, at, code, of, **more):
    """An administration acknowledgement on its way to the administration queue."""
    names = {2: "MQMSG_CLASS_ACK_REACH_QUEUE", 0x4000: "MQMSG_CLASS_ACK_RECEIVE", 0x8000: NACK}
    given = {"class": code, "class_name": names[code], "source_queue_manager": "b2", "correlation_id": f"a1\\{of}"}
    return sighting(name, at, destination_queue=RAW_ADMIN, message_id=f"b2\\{name}", **given | more)


def was_read(row, **more):
    """The same message, read remotely."""
    name = f"{row['sighting_key']} read"
    return row | {"seen_in": "RemoteRead", "packet_key": None, "call_key": name, "sighting_key": name} | more


def sequence(number, first, last, waiting, **more):
    row = {
        "sequence_key": f"s{number}", "source_queue_manager": "a1", "destination_queue": RAW, "sender_address": A,
        "receiver_address": B, "hop_key": f"{(A, B)}", "transaction_sequence_id": number, "first_number": first,
        "last_number": last,
        "first_sent_at": number, "last_sent_at": number + 1, "last_packet_at": number + 1, "waiting": waiting,
        "first_waiting_number": last - waiting + 1 if waiting else None, "missing_numbers": 0, "out_of_order": 0,
        "condition": "waiting" if waiting else "acknowledged", "confidence": "complete",
    }  # fmt: skip
    return row | more


def reported(observed, number, first, last, **more):
    """A snapshot of the outgoing queue."""
    row = {"snapshot_id": f"e{observed}", "queue_manager": "shop", "queue": ORDERS, "queue_format_name": "direct=os:x",
           "source": "collector", "observed_at": observed, "sequence_id": number, "first_unacked_number": first,
           "last_unacked_number": last, "unacked_count": last - first + 1}  # fmt: skip
    return row | more


ALIASES = [
    {"queue": raw, "canonical_queue": canonical, "evidence": "snapshot"}
    for raw, canonical in ((RAW, ORDERS), (RAW_ADMIN, ADMIN))
]


@pytest.fixture(scope="module")
def lake_views(request, spark):
    """Makes the views over a lake of literal rows, and reads columns of their rows, times in minutes.

    The lake made last counts: all are in one session. A plain run asks Spark for the same views of recorded transfers
    (``test_recorded_transfers``, ``test_views``), the long one here too.
    """
    quick = quick_session(spark)

    def make(tables):
        given = {QUEUE_ALIASES: ALIASES} | tables
        lake = InMemoryLake(quick, {table: rows(table, *found) for table, found in given.items()})
        views = LakeViews(lake)
        answer = answers_of(views, in_spark=request.config.getoption("--long"))

        def read(name, *columns):
            return [tuple(map(plain, row)) for row in select(answer(name), *columns)]

        read.views = views
        return read

    return make


def plain(value):
    if isinstance(value, dt.datetime):
        return round((value - EPOCH).total_seconds() / 60, 3)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def test_numbers_that_were_never_acknowledged(lake_views):
    read = lake_views({
        TRANSFER_SEQUENCES: [
            sequence(7, 1, 9, 3, missing=["capture_ends"], condition="stalled"),
            sequence(20, 1, 5, 2), sequence(30, 1, 4, 0, began="abandoned", previous_sequence_id=20),
            sequence(40, 1, 4, 2), sequence(50, 1, 4, 4, condition="unknown", began="emptied", previous_sequence_id=40),
        ],
        EOD_TRANSFERS: [
            reported(7.5, 7, 7, 9),  # what the sequence shows until minute 8
            reported(100, 60, 3, 4, queue_manager="other"),  # another sequence
            reported(101, 7, 7, 9, queue_manager="later"),  # later than what was captured
            reported(51, 50, 1, 4, queue_manager="unknown"),  # captured, but the acknowledgements were not
        ],
    })  # fmt: skip
    columns = ("source", "what", "queue", "sequence_id", "from_number", "to_number", "messages", "condition",
               "observed_at", "reset_seen_at")  # fmt: skip
    assert sorted(read("never_acknowledged", *columns), key=str) == [
        ("collector", "pending", ORDERS, 50, 1, 4, 4, None, 51, None),
        ("collector", "pending", ORDERS, 60, 3, 4, 2, None, 100, None),
        ("collector", "pending", ORDERS, 7, 7, 9, 3, None, 101, None),
        ("transfers", "given_up", ORDERS, 20, 4, 5, 2, "waiting", 21, 30),
        ("transfers", "pending", ORDERS, 7, 7, 9, 3, "stalled", 8, None),
    ]


def test_gaps_say_whether_they_may_be_the_captures(lake_views):
    gap = {"first": 3, "last": 4, "bridged": False}
    read = lake_views({
        TRANSFER_SEQUENCES: [
            sequence(1, 1, 9, 0, missing_numbers=2, gaps=[gap, {"first": 6, "last": 6, "bridged": True}], refusals=0),
            sequence(2, 1, 9, 0, missing_numbers=2, gaps=[gap], missing=["capture_loss"]),
            sequence(3, 1, 9, 0, out_of_order=1, refusals=4),
            sequence(4, 1, 9, 0, gaps=[gap | {"bridged": True}], refusals=5),
        ],
    })  # fmt: skip
    found = read("gaps_on_the_wire", "sequence_id", "missing_numbers", "out_of_order", "may_be_the_capture",
                 "refused_sendings", "source")  # fmt: skip
    assert found == [
        (1, 2, 0, False, 0, "transfers"), (3, 0, 1, False, 4, "transfers"), (2, 2, 0, True, None, "transfers"),
    ]  # fmt: skip
    assert read("gaps_on_the_wire", "to_json(gaps)")[0] == ('[{"first":3,"last":4,"bridged":false}]',)


def test_delivered_twice_is_not_read_twice(lake_views):
    read = lake_views({
        MESSAGE_TRANSFERS: [transfer(name, acknowledged_sendings=2) for name in ("both", "wire", "unread")]
        + [transfer("once"), transfer("read"), transfer("begun", confidence="partial")],
        ACK_SEQUENCES: [
            {"message_key": name, "sequence_key": name, "redelivered": name != "wire", "loss_risk": risk}
            for name, risk in (
                ("both", "read_twice"), ("wire", None), ("read", "read_twice"), ("uncaptured", None), ("begun", None),
            )
        ],
    })  # fmt: skip
    assert sorted(read("delivered_twice", "message_key", "queue", "read_twice", "source"), key=str) == [
        ("both", ORDERS, True, "transfers"), ("unread", ORDERS, None, "transfers"),
        ("wire", ORDERS, False, "transfers"),
    ]  # fmt: skip
    assert sorted(read("read_twice", "message_key", "read_twice", "delivered_twice", "source"), key=str) == [
        ("begun", None, None, "reads"), ("both", True, True, "reads"), ("read", True, False, "reads"),
        ("uncaptured", None, None, "reads"),
    ]  # fmt: skip


def test_a_message_counts_once_for_each_hop_whatever_its_addresses(lake_views):
    """Planted: sent and acknowledged from one address of its sender, and again, twice, from the other one."""
    first = transfer("m", hop_key="hop", session_ack_ms=5.0)
    again = transfer("m", 12, hop=(C, B), hop_key="hop", sendings=2, resent_bytes=1000, session_ack_ms=1.0)
    read = lake_views({MESSAGE_TRANSFERS: [first, again, transfer("other", 11, hop_key="hop"), transfer("next")]})
    columns = ("sender_address", "messages", "resent_messages", "sendings", "resends", "bytes", "resent_bytes")
    assert sorted(read("resent_messages", *columns)) == [(A, 1, 0, 1, 0, 1000, 0), (A, 2, 1, 4, 2, 4000, 2000)]
    assert sorted(read("transfer_latency", "messages", "session_ack_known")) == [(1, 1), (2, 2)]
    assert read("delivered_twice", "message_key", "acknowledged_sendings", "sendings") == [("m", 2, 3)]
    assert read("message_hops", "message_key") == []


def test_a_sequence_that_goes_on_from_another_address_waits_once(lake_views):
    row = sequence(5, 1, 9, 4)
    elsewhere = {"sequence_key": "there", "sender_address": C, "last_packet_at": 20, "first_number": 4}
    read = lake_views({TRANSFER_SEQUENCES: [row, row | elsewhere]})
    assert read("never_acknowledged", "sender_address", "from_number", "messages") == [(C, 6, 4)]


def test_negative_acknowledgements_count_once_over_hops_sightings_and_kinds_of_capture(lake_views):
    final = {"kind": "final_ack", "class": 0x8000, "class_name": NACK, "queue_manager": "b2"}
    nack, rejects = acknowledgement("n1", 20, 0x8000, "m1"), "shop\\rejects"
    read = lake_views({
        MESSAGES: [
            sighting("m1"), nack, nack | {"sighting_key": "hop 2"}, was_read(nack, queue=ADMIN, seen_at=25),
            was_read(acknowledgement("n2", 30, 0x8000, "m2"), queue=ADMIN),
            acknowledgement("n3", 40, 0x4000, "m1"),
            was_read(acknowledgement("dead", 50, 0x8000, "m1"), queue="shop\\system$;deadletter"),
            was_read(acknowledgement("own", 50, 0x8000, "m1"), queue=rejects, dead_letter_queue=rejects),
            acknowledgement("whole", 60, 0x8000, "m1", message_key=None),
            acknowledgement("parts", 61, 0x8000, "m1", message_key=None),
        ],
        ORDER_ACKS: [
            final | {"packet_key": "f1", "sent_at": 21, "acknowledged_message_id": "a1\\m1"},
            final | {"packet_key": "f2", "sent_at": 22, "acknowledged_message_id": "a1\\m1"},
            final | {"packet_key": "f3", "sent_at": 23},
            final | {"packet_key": "f4", "sent_at": 24, "class": 0x4000, "class_name": "MQMSG_CLASS_ACK_RECEIVE"},
            final | {"packet_key": "f5", "sent_at": 25, "kind": "order_ack", "class": 0xFF, "class_name": "0x00FF"},
        ],
    })  # fmt: skip
    columns = ("kind", "class_name", "admin_queue", "source", "messages", "first_seen_at", "last_seen_at",
               "destinations")  # fmt: skip
    assert sorted(read("negative_acknowledgements", *columns), key=str) == [
        ("administration", NACK, ADMIN, "reads", 1, 30, 30, []),
        ("administration", NACK, ADMIN, "transfers", 3, 20, 61, [ORDERS]),
        ("final", NACK, None, "transfers", 2, 21, 23, [ORDERS]),
    ]


def test_acknowledgements_that_were_asked_for_and_not_seen(lake_views):
    asks, arrived = {"acknowledgement_requested": 3}, {"arrival_acked_at": 12, "arrival_class": 2}
    other = "shop-guid\\00000002"

    def asked(name, admin=RAW_ADMIN, wanted=3):
        return sighting(name, admin_queue=admin, acknowledgement_requested=wanted)

    read = lake_views({
        MESSAGES: [
            asked("both"), asked("arrived"), asked("neither"), asked("elsewhere", other), asked("unnamed", None),
            asked("refused"), asked("failures", wanted=12),
            acknowledgement("k1", 20, 2, "arrived"),
            was_read(asked("read"), queue=ADMIN, seen_at=30), was_read(asked("quiet", other), queue=ADMIN),
            was_read(acknowledgement("k2", 31, 2, "read"), queue=ADMIN),
        ],
        MESSAGE_TRANSFERS: [
            transfer("both", receive_acked_at=13, receive_class=0x4000, **arrived, **asks),
            transfer("arrived", outcome="delivered", **arrived, **asks),
            transfer("arrived", hop=(B, C), last_sent_at=11, outcome="received", **arrived, **asks),
            transfer("neither", **asks), transfer("elsewhere", **asks), transfer("unnamed", **asks),
            transfer("refused", arrival_acked_at=12, arrival_class=0x8000, **asks),
            transfer("failures", acknowledgement_requested=12),
        ],
        RECEIVE_ATTEMPTS: [{"attempt_key": "r", "queue": ADMIN}],
    })  # fmt: skip
    columns = ("message_key", "lacks", "answer", "source", "outcome", "admin_queue", "admin_queue_read")
    assert sorted(read("acknowledgements_missing", *columns), key=str) == [
        ("arrived", "receive", "missing", "transfers", "received", ADMIN, True),
        ("elsewhere", "arrival, receive", "cannot be known", "transfers", "transferred", other, False),
        ("neither", "arrival, receive", "missing", "transfers", "transferred", ADMIN, True),
        ("quiet", "arrival, receive", "cannot be known", "reads", None, other, False),
        ("read", "receive", "missing", "reads", None, ADMIN, True),
        ("unnamed", "arrival, receive", "cannot be known", "transfers", "transferred", None, False),
    ]


def test_dead_letters_by_reason(lake_views):
    expired = {"outcome": "expired", "journaling": 1}
    final = {"final_class": 0x8000, "final_class_name": NACK, "dead_letter_class": 0x8000, "journaling": 3,
             "final_acked_at": 14}  # fmt: skip
    normal = "MQMSG_CLASS_NORMAL"
    in_dead_queue = {"destination_queue": "app_deadqueue", "class_name": normal, "order_acked_at": 17}
    seen = sighting("seen", 50, sent_at=1, class_name="TIMEOUT", label="order")
    own = sighting("own", 51, sent_at=19, class_name=NACK, label="mine", dead_letter_queue=OWN_DEAD)
    read = lake_views({
        MESSAGES: [
            was_read(seen, queue=DEAD), was_read(seen, queue=DEAD, sighting_key="again", seen_at=60),
            was_read(own, queue=OWN_DEAD),
        ],
        MESSAGE_TRANSFERS: [
            transfer("seen", **final), transfer("final", 12, outcome="rejected", **final),
            transfer("final", 13, hop=(B, C), outcome="rejected", **final),
            transfer("late", sent_at=2, **expired), transfer("journal", outcome="expired", journaling=2),
            transfer("routed", sent_at=3), transfer("routed", 14, hop=(B, C), sent_at=3, **expired),
            transfer("another way", **expired), transfer("another way", 15, hop=(A, C), journaling=1),
            transfer("there", 20, **expired), transfer("there", 15, hop=(A, C), outcome="delivered", journaling=1),
            transfer("alive", journaling=1), transfer("moved", 16, **in_dead_queue, outcome="delivered"),
            transfer("taken", 17, **in_dead_queue, outcome="received"),
            transfer("on its way", 18, **in_dead_queue), transfer("own", 19, outcome="rejected", **final),
        ],
        RECEIVE_ATTEMPTS: [{"attempt_key": "r", "message_key": "seen", "queue": DEAD, "server_address": C}],
    })  # fmt: skip
    columns = ("queue", "source_queue_manager", "reason", "presumed", "source", "messages", "oldest_sent_at", "age_s")
    assert sorted(read("dead_letters", *columns), key=str) == [
        ("app_deadqueue", None, normal, False, "transfers", 1, 16, (NOW - 16) * 60),
        (OWN_DEAD, None, NACK, False, "reads", 1, 19, (NOW - 19) * 60),
        (DEAD, None, "TIMEOUT", False, "reads", 1, 1, (NOW - 1) * 60),
        (None, "a1", NACK, False, "transfers", 1, 12, (NOW - 12) * 60),
        (None, "a1", "expired", True, "transfers", 2, 2, (NOW - 2) * 60),
    ]
    listed = ("message_id", "label", "destination_queue", "reason", "reason_text", "queue", "server_address", "died_at",
              "presumed")  # fmt: skip
    missing, late = (
        "its queue does not exist, or is not available",
        "its time to reach its queue was over, by the clock",
    )
    assert sorted(row[:4] + row[5:] for row in read("dead_letter_messages", *listed)) == [
        ("a1\\final", None, ORDERS, NACK, None, None, 14, False),
        ("a1\\late", None, ORDERS, "expired", None, None, 10, True),
        ("a1\\moved", None, "app_deadqueue", normal, "app_deadqueue", None, 17, False),
        ("a1\\own", "mine", ORDERS, NACK, OWN_DEAD, None, None, False),
        ("a1\\routed", None, ORDERS, "expired", None, None, 14, True),
        ("a1\\seen", "order", ORDERS, "TIMEOUT", DEAD, C, None, False),
    ]
    words = {(row[3], row[4]) for row in read("dead_letter_messages", *listed)}
    assert words == {(NACK, missing), ("expired", f"{late} of its sender"), (normal, "its retries are used up"),
                     ("TIMEOUT", None)}  # fmt: skip


def test_identifiers_clocks_and_hops(lake_views):
    report = {
        "at": dt.datetime(1970, 1, 1, 0, 12, tzinfo=dt.UTC),
        "queue_manager": "b2",
        "hop_count": 1,
        "next_hop": None,
    }
    wire = {"is_comqc": True, "label": "order"}
    read = lake_views({
        FINDINGS: [
            {"finding_key": rule, "rule_id": rule, "subject": "queue manager g", "actual": rule, "observed_at": 3}
            for rule in ("O01", "O07", "T01")
        ],
        HOSTS: [{"queue_manager_id": "g", "host_name": "x", "address": A, "source": "session", "first_seen_at": 1}],
        MESSAGE_TRANSFERS: [
            transfer("ahead", 10, sent_at=12), transfer("behind", 20, sent_at=12), transfer("unknown", sent_at=None),
            transfer("routed", 30, sent_at=30), transfer("routed", 31, hop=(B, C), sent_at=30, hop_count=1),
            transfer("traced", 40, sent_at=40, reports=[report]), transfer("calls", 50, sent_at=50),
            transfer("late", 1500, sent_at=1400, source_queue_manager="late"),
            transfer("years", 2000, sent_at=2000 - 30 * 1440, source_queue_manager="years"),
        ],
        MESSAGES: [sighting("calls", 50, **wire), was_read(sighting("calls", 55, **wire), queue=RAW)],
        COMQC_CALLS: [
            {"message_key": "calls", "sighting_key": "calls 50", "call_index": 0, "opnum": 7, "seen_at": 50},
            {"message_key": "calls", "sighting_key": "r", "call_key": "r", "call_index": 0, "opnum": 7, "seen_at": 55},
        ],
    })  # fmt: skip
    assert read("shared_identifiers", "rule_id", "source", "addresses") == [
        ("O01", "session", [A]), ("O07", "transfers", [A]),
    ]  # fmt: skip
    columns = ("source_queue_manager", "day", "source", "messages", "sender_ahead_s", "least_transit_s",
               "may_be_behind")  # fmt: skip
    assert read("clock_differences", *columns) == [
        ("a1", 0, "transfers", 5, 120, -120, False), ("late", 1440, "transfers", 1, None, 6000, False),
        ("years", 1440, "transfers", 1, None, 30 * 86_400, True),
    ]  # fmt: skip
    hops = read(
        "message_hops", "message_key", "queue", "hop", "hops", "sender_address", "hop_count", "size(reports)", "calls"
    )
    assert hops == [
        ("routed", ORDERS, 1, 2, A, 0, None, None), ("routed", ORDERS, 2, 2, B, 1, None, None),
        ("traced", ORDERS, 1, 1, A, 0, 1, None), ("calls", ORDERS, 1, 1, A, 0, None, 1),
    ]  # fmt: skip
    assert read("comqc_paths", "message_key", "path", "sightings", "sources") == [
        ("calls", [ORDERS], 2, "reads, transfers")
    ]
    assert read("comqc_methods", "opnum", "calls", "sources") == [(7, 1, "reads, transfers")]


def test_what_was_not_captured_cannot_be_known(lake_views, monkeypatch, capsys):
    """An empty answer means "none" only where what the view reads was captured."""
    nothing = lake_views({CAPTURE_FILES: [{"capture_id": "c", "last_packet_at": NOW, "packets": 9}]})
    enough = {name for name in VIEWS_BY_NAME if nothing.views.evidence(name).is_enough}
    assert enough == {COVERAGE_VIEW, "estate_coverage"}
    monkeypatch.setattr(ask, "open_lake_with_data", lambda _: nothing.views.lake)
    assert ask.main(["--lake", "x", "delivered_twice"]) == 0
    assert "Cannot be known from what was captured: nothing was seen of TCP 1801." in capsys.readouterr().out
    tcp_1801 = {"connection_id": "c", "kind": "binary_protocol", "first_packet_at": 1, "last_packet_at": 2}
    with_session = lake_views({CONNECTIONS: [tcp_1801 | {"server_address": A}]})
    monkeypatch.setattr(ask, "open_lake_with_data", lambda _: with_session.views.lake)
    assert ask.main(["--lake", "x", "delivered_twice"]) == 0
    shown = capsys.readouterr().out
    assert "(no row)" in shown
    assert "Seen of TCP 1801: 1 connections at 1 servers, from 1970-01-01 00:01:00 until 1970-01-01 00:02:00." in shown
    assert "Cannot be known" not in shown


def any_evidence(kind, at):
    """Rows of tables that show a kind of evidence at a time."""
    shown = {"observed_at": at, "hresult": 0, "queue_manager": "srv1"}
    asked = [(name, "value") for name in ("eod_first_non_ack", "eod_source_info", "journal_message_count")]
    queue = shown | {"queue": "srv1\\private$\\q", "property_states": asked}
    connection = {"connection_id": "c", "kind": "binary_protocol", "first_packet_at": at, "last_packet_at": at}
    return {
        ev.SESSIONS_SEEN: {CONNECTIONS: [connection]},
        ev.CALLS: {RPC_CALLS: [{"call_key": "k", "outcome": "ok", "request_at": at}]},
        ev.READS: {REMOTE_READ_CALLS: [{"call_key": "k", "requested_at": at}]},
        ev.QUEUE_REPORTS: {QUEUE_SNAPSHOTS: [shown | {"queue": "srv1\\private$\\q"}]},
        ev.TRANSFER_REPORTS: {QUEUE_SNAPSHOTS: [queue]},
        ev.RECEIVER_REPORTS: {QUEUE_SNAPSHOTS: [queue]},
        ev.JOURNAL_REPORTS: {QUEUE_SNAPSHOTS: [queue]},
        ev.DEAD_LETTER_REPORTS: {QUEUE_SNAPSHOTS: [shown | {"queue": "srv1\\private$\\q_deadqueue"}]},
        ev.MACHINE_REPORTS: {MACHINE_SNAPSHOTS: [shown]},
        ev.PACKETS: {CAPTURE_FILES: [{"capture_id": "c", "packets": 1, "first_packet_at": at, "last_packet_at": at}]},
    }[kind]


KINDS = tuple(dict.fromkeys(kind for view in VIEWS_BY_NAME.values() for kind in view.needs.kinds))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_evidence_is_seen_where_it_is(lake_views, kind):
    at = NOW - 60
    views = lake_views(any_evidence(kind, at) | {SNAPSHOTS_RAW: [{"collected_at": NOW}]}).views
    views_of_it = [view for view in VIEWS_BY_NAME.values() if kind in view.needs.kinds]
    for view in views_of_it:
        found = views.evidence(view.name)
        (sight,) = [each for each in found.sights if each.kind == kind]
        seconds = [each.timestamp() for each in (sight.first_at, sight.last_at)]
        assert (sight.subjects, *seconds) == (1, at * 60, at * 60)
        others = {each for need in view.needs.needs for each in need} - {each.kind for each in found.sights}
        assert set(found.unseen) == set(view.needs.kinds) - {each.kind for each in found.sights}
        assert found.is_enough == all(set(need) - others for need in view.needs.needs)


def test_failed_reports_and_encrypted_reads_are_no_evidence(lake_views):
    views = lake_views({
        QUEUE_SNAPSHOTS: [{"queue_manager": "srv1", "observed_at": 1, "hresult": 0xC00E0025}],
        MACHINE_SNAPSHOTS: [{"queue_manager": "srv1", "observed_at": 1}],
        REMOTE_READ_CALLS: [{"call_key": "k", "requested_at": 1, "errors": [{"code": "encrypted"}]}],
        RPC_CALLS: [{"call_key": "k", "outcome": "encrypted", "request_at": 1}],
    }).views  # fmt: skip
    assert not any(views.evidence(name).sights for name in VIEWS_BY_NAME if name != COVERAGE_VIEW)


def test_gaps_beside_an_answer_are_of_both_ends_of_a_hop(lake_views):
    hours = [
        {"hour": 0, "server_address": server, "layer": "transport", "measure": measure, "value": 5}
        for server in (A, B, C) for measure in ("bytes_missing", "bytes_binary_protocol")
    ]  # fmt: skip
    views = lake_views({COVERAGE: hours}).views
    row = {"sender_address": A, "receiver_address": B, "first_at": None, "last_at": None}
    found = views.coverage_for({"resent_messages": [row]})
    assert select(found, "server_address", "bytes_binary_protocol") == [(A, 5), (B, 5)]


@pytest.mark.parametrize("seed", range(3))
def test_numbers_equal_a_plain_count(lake_views, seed):
    draw = random.Random(seed)
    hops, kinds = [(A, B), (B, A), (A, C)], ["application", "administration_ack", "report"]
    sizes = (100, 4095, 4096, 65535, 65536, 1048575, 1048576, 4_000_000)
    found = [
        transfer(
            f"m{place}", draw.choice((10, 700, 1500)), hop=draw.choice(hops), message_kind=draw.choice(kinds),
            packet_bytes=(size := draw.choice(sizes)), sendings=(sendings := draw.choice((1, 1, 2, 5))),
            resent_bytes=size * (sendings - 1),
            **{f"{name}_ms": draw.choice((None, round(draw.uniform(0, 9000), 3)))
               for name in ("transmit", "session_ack", "order_ack")},
        )
        for place in range(400)
    ]  # fmt: skip
    read = lake_views({MESSAGE_TRANSFERS: found})

    groups = defaultdict(list)
    for row in found:
        band = next(
            (name for limit, name in ((4 << 10, "below 4 KiB"), (64 << 10, "below 64 KiB"), (1 << 20, "below 1 MiB"))
             if row["packet_bytes"] < limit), "1 MiB and above",
        )  # fmt: skip
        groups[row["sender_address"], row["receiver_address"], band].append(row)
    expected = {}
    for place, members in groups.items():
        numbers = [len(members)]
        for name in ("transmit_ms", "session_ack_ms", "order_ack_ms"):
            times = sorted(row[name] for row in members if row[name] is not None)
            numbers += [len(times), *(nearest_rank(times, share) for share in (50, 95, 99))]
        expected[place] = numbers
    columns = [
        f"{name}_{part}" for name in ("transmit", "session_ack", "order_ack")
        for part in ("known", "p50_ms", "p95_ms", "p99_ms")
    ]  # fmt: skip
    answer = read("transfer_latency", "sender_address", "receiver_address", "size", "messages", *columns)
    assert {row[:3]: list(row[3:]) for row in answer} == expected

    days = defaultdict(list)
    for row in found:
        day = row["first_sent_at"] // 1440 * 1440
        days[day, row["sender_address"], row["receiver_address"], row["message_kind"]].append(row)
    columns = ("messages", "resent_messages", "sendings", "resends", "share", "bytes", "resent_bytes", "bytes_share")
    answer = read("resent_messages", "day", "sender_address", "receiver_address", "message_kind", *columns)
    assert {row[:4]: row[4:] for row in answer} == {
        place: (
            len(members), sum(row["sendings"] > 1 for row in members), sum(row["sendings"] for row in members),
            sum(row["sendings"] - 1 for row in members),
            round(sum(row["sendings"] - 1 for row in members) / sum(row["sendings"] for row in members), 6),
            sum(row["packet_bytes"] * row["sendings"] for row in members),
            sum(row["packet_bytes"] * (row["sendings"] - 1) for row in members),
            round(sum(row["packet_bytes"] * (row["sendings"] - 1) for row in members)
                  / sum(row["packet_bytes"] * row["sendings"] for row in members), 6),
        )
        for place, members in days.items()
    }  # fmt: skip


def nearest_rank(times, share):
    """Return the smallest time that is not below ``share`` percent of the times."""
    return times[-(-len(times) * share // 100) - 1] if times else None


def test_a_message_that_is_refused_for_ever_says_so(lake_views):
    """Its outcome is that of the hop (`transferred`); its sequence shows that its queue does not accept it."""
    of_sequence = {"sequence_key": "s1", "acknowledgement_requested": 3, "hop_count": 1}
    sent = [
        transfer("before", 10, transaction_number=4, outcome="delivered", **of_sequence),
        transfer("refused", 11, transaction_number=5, **of_sequence),
        transfer("behind", 12, transaction_number=6, **of_sequence),
        transfer("elsewhere", 13, transaction_number=6, **of_sequence | {"sequence_key": "s2"}),
    ]
    refusing, waiting = sequence(1, 4, 6, 2, condition="refused"), sequence(2, 5, 6, 2)
    read = lake_views({MESSAGE_TRANSFERS: sent, TRANSFER_SEQUENCES: [refusing, waiting]})
    expected = [("before", False), ("behind", True), ("elsewhere", False), ("refused", True)]
    for name in ("message_hops", "acknowledgements_missing"):
        assert sorted(read(name, "message_key", "refused")) == expected
