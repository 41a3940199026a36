"""Builders of events of a queue, as uniform rows of ``queue_rows``; times are seconds since the scenario's start."""

from __future__ import annotations

from pipeline.queues.history import COUNT_COLUMNS

US = 1_000_000
MINUTE = 60
GAP = 15 * MINUTE
FAR, FAR_NAME = "far\\private$\\q", "DIRECT=OS:far\\private$\\q"
MANAGER, QUEUE, NAME = "srv1", "srv1\\private$\\orders", "DIRECT=OS:srv1\\private$\\orders"
COLUMNS = {"message_count": "message_count", "state": "state", "bytes": "bytes_in_queue",
           "journal_count": "journal_message_count", "journal_bytes": "bytes_in_journal"}  # fmt: skip
NO_EOD = dict.fromkeys(
    ("location", "xact", "eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq", "eod_last_ack_time",
     "eod_last_ack_count", "eod_no_read_count", "eod_no_ack_count", "eod_resend_time", "eod_resend_interval",
     "eod_resend_count", "eod_source_info")
)  # fmt: skip


def us(seconds):
    return round(seconds * US)


def event(kind, at, key, *, queue=QUEUE, manager=MANAGER, name=NAME, source="operations", **more):
    return {
        "kind": kind, "queue_manager": manager, "queue": queue, "at": us(at), "key": key, "name": name,
        "source": source, "handed_out_at": None, "missing": [], "errors": [], "snapshot": None,
    } | more  # fmt: skip


def snapshot(at, key=None, *, source="collector", eod=None, errors=(), not_available=(), **values):
    """A snapshot that reports values; ``not_available``: those that were requested and answered VT_NULL."""
    place = {name: values.pop(name) for name in ("queue", "manager", "name") if name in values}
    reported = {COLUMNS[name]: value for name, value in values.items()}
    states = dict.fromkeys(reported, "value") | {COLUMNS[name]: "null" for name in not_available}
    content = (
        dict.fromkeys(COLUMNS.values()) | reported | NO_EOD | (eod or {}) | {"property_states": list(states.items())}
    )
    return event("snapshot", at, key or f"s{at}", source=source, snapshot=content, errors=list(errors), **place)


def read(at, kind="received", key=None, *, handed_out_at=None, missing=(), **place):
    since = None if handed_out_at is None else us(handed_out_at)
    return event(
        kind, at, key or f"{kind}{at}", source="wire", name=None, handed_out_at=since, missing=list(missing), **place
    )


def interval(begin, end, **known):
    """An interval as ``history_rows`` returns it, with only the given values known."""
    nothing = dict.fromkeys(
        ("message_count", "bytes", "journal_count", "journal_bytes", "paused", "expected_message_count",
         "unexplained_change", "source")
    )  # fmt: skip
    counts = dict.fromkeys(COUNT_COLUMNS, 0) | {"arrivals_seen": False}
    place = {"queue_manager": MANAGER, "queue": QUEUE, "queue_format_name": NAME}
    row = {
        "valid_from": us(begin),
        "valid_to": us(end),
        "state": "UNKNOWN",
        "evidence": [],
        "missing": [],
        "errors": [],
    }
    row |= place | nothing | counts | known
    row["evidence"] = row["evidence"].split() if isinstance(row["evidence"], str) else row["evidence"]
    row["missing"] = row["missing"].split() if isinstance(row["missing"], str) else row["missing"]
    return {"confidence": "partial" if row["missing"] else "complete"} | row


def sequence(number, *, stamp=7, ordinal=1, previous=None):
    previous = number - 1 if previous is None else previous
    return {"sequence_id": stamp << 32 | ordinal, "sequence_number": number, "previous_number": previous}


def outgoing(at, acked, waiting, *, key=None, queue=FAR, manager="relay", name=FAR_NAME, source="collector",
             stamp=7, ordinal=1, ack_at=None, unread=0, resends=0, previous=None, **more):  # fmt: skip
    """A snapshot of an outgoing transactional queue: ``acked`` is the last number acknowledged, ``waiting`` are not."""

    def number(value, **of):
        return sequence(value, stamp=stamp, ordinal=ordinal, **of)

    eod = {
        "location": "REMOTE", "xact": "YES", "eod_no_ack_count": waiting, "eod_no_read_count": unread,
        "eod_resend_count": resends, "eod_next_seq": number(acked + waiting + 1),
        "eod_last_ack_time": None if ack_at is None else us(ack_at),
    }  # fmt: skip
    if waiting:
        eod |= {"eod_last_ack": number(acked) if acked else None,
                "eod_first_non_ack": number(acked + 1, previous=previous),
                "eod_last_non_ack": number(acked + waiting)}  # fmt: skip
    place = {"queue": queue, "manager": manager, "name": name}
    return snapshot(at, key, source=source, state="CONNECTED", eod=eod | more, **place)


def incoming(at, *senders, key=None, queue=FAR, manager="far", name=FAR_NAME,
             source="collector"):  # fmt: skip
    """A snapshot of an incoming queue. ``senders``: (GUID, stamp, last number), optionally with a dict of more."""
    found = []
    for guid, stamp, last, *more in senders:
        each = {"sender_format_name": FAR_NAME, "sender_queue_manager": guid, "sequence_id": stamp << 32 | 1,
                "last_number": last, "last_access_at": us(at), "reject_count": 0}  # fmt: skip
        found.append(each | (more[0] if more else {}))
    eod = {"location": "LOCAL", "xact": "YES", "eod_source_info": found}
    return snapshot(at, key or f"r{at}", source=source, eod=eod, queue=queue, manager=manager, name=name)
