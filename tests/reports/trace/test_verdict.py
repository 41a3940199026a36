"""The verdict on a message says what its rows say, from each outcome and fate, and no more."""

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.reports.trace.missing_codes import MISSING_CODE_TEXTS
from pipeline.reports.trace.verdict import VERDICT_WORDS, VerdictRows, find_verdict
from udfs.codes import NEGATIVE_CLASS_BIT, NEGATIVE_CLASS_TEXTS

A, B, C, READER = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"
ORDERS, AUDIT, DEAD = "hq\\private$\\orders", "hq\\private$\\audit", "shop\\system$;deadxact"
UNACKNOWLEDGED = dict.fromkeys(
    f"{name}_{what}" for name in ("final", "arrival", "receive") for what in ("class", "acked_at")
)


def at(minute):
    return datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(minutes=minute)


def text_at(minute):
    return f"2026-01-01 {12 + minute // 60}:{minute % 60:02}:00"


def hop(outcome, ends=(A, B), **more):
    row = {
        "transfer_key": f"{ends}", "sender_address": ends[0], "receiver_address": ends[1], "outcome": outcome,
        "sender_queue_manager": f"guid {ends[0]}", "receiver_queue_manager": f"guid {ends[1]}", "refused": False,
        "source_queue_manager": f"guid {A}", "canonical_destination": ORDERS, "first_sent_at": at(0),
        "last_sent_at": at(1), "expires_at": None, "sendings": 1, "session_acked_at": None, "order_acked_at": None,
        "dead_letter_class": None, "transaction_number": None, "confidence": "complete", "missing": [],
    }  # fmt: skip
    return row | UNACKNOWLEDGED | more


def final(code, minute=5, **more):
    outcome = "rejected" if code & NEGATIVE_CLASS_BIT else "received"
    return hop(outcome, **{"final_class": code, "final_acked_at": at(minute)} | more)


def fate(name, queue=ORDERS, minute=7, **more):
    row = {
        "queue": queue, "inferred_queue": None, "server_address": None, "handle": None, "attempt_keys": [],
        "readers": [READER], "outcomes": [], "settled_at": at(minute), "fate": name, "loss_risk": None,
        "moved_to": None, "removed_at": None, "confidence": "complete", "missing": [],
    }  # fmt: skip
    return row | more


def attempt(outcome, minute=7, queue=ORDERS, **more):
    row = {
        "attempt_key": f"{outcome} {minute}", "queue": queue, "inferred_queue": None, "server_address": "10.0.0.5",
        "context_handle": "aa", "client_address": READER, "returned_at": at(minute), "ended_at": at(minute),
        "outcome": outcome, "confidence": "complete", "missing": [],
    }  # fmt: skip
    return row | more


def operation(kind, minute, outcome="done", **more):
    row = {"operation": kind, "queue": ORDERS, "target_queue": None, "requested_at": at(minute), "responded_at": None,
           "outcome": outcome, "confidence": "complete", "missing": []}  # fmt: skip
    return row | more


def judged(*transfers, fates=(), **rows):
    return find_verdict(VerdictRows(transfers=transfers, sequences=fates, **rows))


CAPTURED = "as far as captured: "
OF_TRANSFERS = {
    "received": (
        final(0x4000), "received", f"read from {ORDERS} by an application, as {B} acknowledged at {text_at(5)}",
    ),
    "received, by an administration ack": (
        hop("received", receive_class=0x4000, receive_acked_at=at(6)), "received",
        f"read from {ORDERS} by an application, as an unknown queue manager acknowledged at {text_at(6)}",
    ),
    "rejected": (
        final(0x8004), "refused",
        f"refused by {B} at {text_at(5)}: its sender may not write to its queue (MQMSG_CLASS_NACK_ACCESS_DENIED)",
    ),
    "rejected by a class without a name": (
        final(0x8100), "refused", f"refused by {B} at {text_at(5)}: of a class without a name (0x8100)",
    ),
    "expired, with an acknowledgement": (
        final(0xC002), "expired",
        (f"expired at {B} at {text_at(5)}: its time to be received was over in its queue "
        "(MQMSG_CLASS_NACK_RECEIVE_TIMEOUT)"),
    ),
    "purged": (
        final(0xC001), "purged",
        f"purged at {B} at {text_at(5)}: its queue was purged before it was read (MQMSG_CLASS_NACK_Q_PURGED)",
    ),
    "deleted": (
        final(0xC000), "deleted",
        f"deleted at {B} at {text_at(5)}: its queue was deleted before it was read (MQMSG_CLASS_NACK_Q_DELETED)",
    ),
    "a dead letter of its sender": (
        final(0x8003, dead_letter_class=0x8003), "refused",
        (f"refused by {B} at {text_at(5)}: its queue is full (MQMSG_CLASS_NACK_Q_EXCEED_QUOTA); "
        f"as it asked, it becomes a dead letter in a dead-letter queue of {A}"),
    ),
    "delivered": (
        hop("delivered", order_acked_at=at(4)), "in_queue",
        f"{CAPTURED}in {ORDERS} when its arrival was acknowledged, {text_at(4)}",
    ),
    "transferred": (
        hop("transferred", session_acked_at=at(3)), "transferred",
        f"{CAPTURED}at {B} since {text_at(3)}; whether it came to {ORDERS} was not captured",
    ),
    "refused by its sequence": (
        hop("transferred", refused=True, transaction_number=4), "refused",
        f"{CAPTURED}refused by {B}: its queue does not accept number 4 of its sequence",
    ),
    "expired": (
        hop("expired", expires_at=at(9)), "expired",
        (f"{CAPTURED}expired at {text_at(9)} (the sender's clock): sent by {A} to {B} for {ORDERS}, and nothing "
        "acknowledged it before"),
    ),
    "in flight": (
        hop("in_flight", missing=["capture_ends"], confidence="partial"), "on_its_way",
        (f"{CAPTURED}on its way: sent by {A} to {B} for {ORDERS} at {text_at(1)}, and not acknowledged when the "
        f"capture ended (missing: {MISSING_CODE_TEXTS['capture_ends']})"),
    ),
    "unacknowledged": (
        hop("unacknowledged", sendings=3), "on_its_way",
        (f"{CAPTURED}on its way: waits at {A} for {B} since {text_at(0)}, 3 sendings for {ORDERS} and no "
        "acknowledgement"),
    ),
    "unknown": (
        hop("unknown", missing=["capture_loss", "no code"], confidence="partial"), "unknown",
        (f"{CAPTURED}sent by {A} to {B} for {ORDERS} at {text_at(1)}; whether {B} has it is not known (missing: "
        f"{MISSING_CODE_TEXTS['capture_loss']}; no code)"),
    ),
    "without queue": (
        hop("transferred", canonical_destination=None), "transferred",
        f"{CAPTURED}at {B}; whether it came to an unknown queue was not captured",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TRANSFERS)
def test_each_outcome_of_transfers(name):
    row, code, text = OF_TRANSFERS[name]
    found = judged(row, acknowledgers={(row["final_class"], row["final_acked_at"]): f"guid {B}"})
    assert (found.code, found.text, found.complete) == (code, text, not text.startswith(CAPTURED))


@pytest.mark.parametrize("code", NEGATIVE_CLASS_TEXTS)
def test_each_negative_class_has_its_reason(code):
    found = judged(final(code))
    assert f": {NEGATIVE_CLASS_TEXTS[code]} (MQMSG_CLASS_NACK_" in found.text
    assert found.complete


TWICE = {"attempt_keys": ["nacked 6", "nacked 7"], "outcomes": ["nacked", "nacked"]}
OF_READS = {
    "consumed": (fate("consumed"), "received", f"read from {ORDERS} by {READER} at {text_at(7)}"),
    "consumed, at a risk": (
        fate("consumed", loss_risk="reader_lost"), "received",
        f"read from {ORDERS} by {READER} at {text_at(7)}; its reader disconnected right after",
    ),
    "consumed in a transaction": (
        fate("consumed", confidence="provisional", missing=["transaction_open"]), "received",
        (f"{CAPTURED}read from {ORDERS} by {READER} at {text_at(7)} (missing: "
        f"{MISSING_CODE_TEXTS['transaction_open']})"),
    ),
    "inferred": (
        fate("consumed", None, inferred_queue=ORDERS, server_address=B, confidence="inferred"), "received",
        f"{CAPTURED}read from an unknown queue at {B}, perhaps {ORDERS} by {READER} at {text_at(7)}",
    ),
    "rejected": (fate("rejected"), "refused", f"refused by its reader {READER} in {ORDERS} at {text_at(7)}"),
    "given back": (
        fate("returned", **TWICE), "in_queue",
        f"{CAPTURED}in {ORDERS} when it was last seen there, {text_at(7)}: {READER} gave it back at {text_at(7)}",
    ),
    "poison": (
        fate("returned", loss_risk="poison", **TWICE), "given_back",
        (f"{CAPTURED}in {ORDERS} when it was last seen there, {text_at(7)}: {READER} gave it back at {text_at(7)}; "
        "given back 2 times in all"),
    ),
    "its reader went away": (
        fate("returned", outcomes=["rundown"]), "in_queue",
        (f"{CAPTURED}in {ORDERS} when it was last seen there, {text_at(7)}: {READER} disconnected and had not "
        f"acknowledged it at {text_at(7)}"),
    ),
    "held": (
        fate("held", settled_at=None, attempt_keys=["in_flight 8"]), "held",
        f"{CAPTURED}held by {READER} since {text_at(8)}, neither acknowledged nor given back to {ORDERS}",
    ),
    "moved": (
        fate("moved", moved_to=AUDIT, removed_at=at(9)), "moved",
        f"{CAPTURED}moved from {ORDERS} to {AUDIT} at {text_at(9)}",
    ),
    "moved, nobody knows where": (
        fate("moved"), "moved", f"{CAPTURED}moved from {ORDERS} to an unknown queue at an unknown time",
    ),
    "purged": (fate("purged", removed_at=at(9)), "purged", f"purged with {ORDERS} at {text_at(9)}"),
    "unknown": (
        fate("unknown"), "unknown",
        f"{CAPTURED}read from {ORDERS} by {READER} at {text_at(7)}; how that ended is not known",
    ),
    "no fate": (
        fate(None, readers=None, settled_at=None), "unknown",
        f"{CAPTURED}read from {ORDERS} by an unknown reader at an unknown time; how that ended is not known",
    ),
    "a dead letter": (
        fate("consumed", DEAD), "dead_letter",
        f"a dead letter (its queue is full): read from {DEAD} by {READER} at {text_at(7)}",
    ),
    "a copy": (
        fate("consumed", f"{ORDERS};journal"), "unknown",
        f"{CAPTURED}only a copy in a journal was seen: read from {ORDERS};journal by {READER} at {text_at(7)}",
    ),
}  # fmt: skip
READS = [attempt("nacked", 6), attempt("nacked", 7), attempt("in_flight", 8, ended_at=None)]


@pytest.mark.parametrize("name", OF_READS)
def test_each_fate_of_reads(name):
    row, code, text = OF_READS[name]
    named = set(row["attempt_keys"])
    found = judged(
        fates=[row], attempts=[each for each in READS if each["attempt_key"] in named], sightings=[{"class": 0x8003}]
    )
    assert (found.code, found.text, found.complete) == (code, text, not text.startswith(CAPTURED))


def test_each_code_has_words_and_no_rows_are_not_known():
    shown = {code for _, code, _ in (*OF_TRANSFERS.values(), *OF_READS.values())}
    assert VERDICT_WORDS.keys() == shown | {"several", "contradictory"}
    found = judged()
    assert (found.code, found.complete) == ("unknown", False)


def test_what_was_only_peeked_is_in_its_queue_until_it_was_purged_or_moved():
    peeks = [attempt("peeked", 3), attempt("peeked", 6)]
    found = judged(attempts=peeks)
    assert found.text == f"{CAPTURED}in {ORDERS} when it was last peeked, {text_at(6)}"
    for others in ([operation("purge", 5)], [operation("purge", 8, "failed")], [operation("purge", 8, queue=AUDIT)]):
        assert judged(attempts=peeks, purges=others) == found
    gone = judged(attempts=peeks, purges=[operation("purge", 8)])
    assert (gone.code, gone.complete) == ("purged", False)
    assert gone.text == f"{CAPTURED}purged with {ORDERS} at {text_at(8)}, unless it was taken before"
    moved = judged(attempts=peeks, moves=[operation("move", 8, target_queue=AUDIT)])
    assert moved.text == f"{CAPTURED}moved to {AUDIT} from {ORDERS} at {text_at(8)}, unless it was taken before"
    purged = judged(hop("delivered", order_acked_at=at(4)), purges=[operation("purge", 9)])
    assert purged.code == "purged"
    assert judged(hop("delivered", order_acked_at=at(4)), purges=[operation("purge", 3)]).code == "in_queue"


def test_a_peek_after_a_message_was_given_back_says_until_when_it_is_there():
    found = judged(fates=[fate("returned", **TWICE)], attempts=[*READS[:2], attempt("peeked", 30)])
    assert found.text.startswith(f"{CAPTURED}in {ORDERS} when it was last seen there, {text_at(30)}: ")


def test_a_read_that_no_fate_names_is_not_known():
    found = judged(attempts=[attempt("acked")])
    assert (found.code, found.text) == ("unknown", f"{CAPTURED}read from {ORDERS} by {READER} at {text_at(7)}: acked")


@pytest.mark.parametrize("outcome", ["transferred", "unknown", "expired", "in_flight", "unacknowledged", "delivered"])
def test_reads_prove_that_it_arrived(outcome):
    assert judged(hop(outcome, missing=["capture_loss"]), fates=[fate("consumed")]) == judged(fates=[fate("consumed")])


def test_the_last_place_counts_and_journals_do_not():
    retry, journal = f"{ORDERS}_0", f"{ORDERS};journal"
    places = [fate("consumed", minute=1), fate("returned", retry, 4), fate("returned", journal, 9)]
    assert judged(fates=places).text.startswith(f"{CAPTURED}in {retry} ")


def test_acknowledgements_of_its_end_follow_what_reads_saw_before():
    returned, end = fate("returned", minute=3), final(0xC002, 5)
    assert judged(end, fates=[returned]).code == "expired"
    assert judged(final(0x4000, 5), fates=[returned]).code == "received"
    assert judged(final(0x4000, 5), fates=[fate("consumed")]).text.startswith(f"read from {ORDERS} by {READER}")
    assert judged(final(0x4000, 5), fates=[fate("unknown")]).code == "received"
    assert judged(final(0x8003, 5), fates=[fate("returned", DEAD)]).code == "dead_letter"


@pytest.mark.parametrize(
    ("end", "read"),
    [
        (final(0xC002), fate("consumed")),  # expired, and read
        (final(0x4000), fate("returned")),  # read, and there afterwards
        (final(0x8003), fate("returned", minute=3)),  # never arrived, and there
        (final(0x4000), fate("purged", removed_at=at(9))),
        (final(0x4000), fate("consumed", DEAD)),
        (final(0x4000, receive_class=0xC001, receive_acked_at=at(6)), None),
        (final(0x4000, receive_class=0xC001, receive_acked_at=at(6)), fate("consumed")),
    ],
)
def test_contradictions_are_told_and_not_resolved(end, read):
    found = judged(end, fates=[] if read is None else [read])
    assert (found.code, found.complete) == ("contradictory", False)
    assert found.text.startswith(f"{CAPTURED}the captures contradict each other: ")
    assert "; but " in found.text


def test_the_last_of_several_hops_says_where_it_waits():
    first = hop("transferred", session_acked_at=at(1))
    found = judged(first, hop("unacknowledged", (B, C), first_sent_at=at(2), last_sent_at=at(3)))
    assert f"waits at {B} for {C} since {text_at(2)}" in found.text
    known = judged(first, final(0x4000, ends=(B, C)))
    assert (known.code, known.complete) == ("received", True)


def test_each_of_several_queues_has_its_own():
    two = judged(final(0x4000), hop("transferred", canonical_destination=AUDIT), fates=[fate("consumed")])
    assert (two.code, two.complete) == ("several", False)
    assert two.text == (
        f"{CAPTURED}at {B}; whether it came to {AUDIT} was not captured; read from {ORDERS} by {READER} at {text_at(7)}"
    )
    queues = [f"q{number}" for number in range(9)]
    same = judged(*(final(0x4000, canonical_destination=queue) for queue in queues))
    assert (same.code, same.complete) == ("received", True)
    assert same.text == "of 9 queues: read of 9 (q0, q1, q2, q3, q4 and 4 more)"
    refused = judged(final(0x8003), final(0x8003, canonical_destination=AUDIT))
    assert refused.text.startswith(f"{AUDIT}: refused by ")
    listed = judged(fates=[fate("consumed"), fate("returned", AUDIT)], sightings=[{"destination_list": ["a", "b"]}])
    assert listed.code == "several"
