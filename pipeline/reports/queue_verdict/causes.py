"""Why a queue is in trouble: one sentence, as far as the evidence goes, and what to do about it.

The leading alert of the queue's entry says most. Where it only says that messages wait, the negative acknowledgements
of the queue's messages say more; and where Windows sends none, which is its default, that the receiver took messages
and they are not in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pipeline.alerts.conditions import CONDITIONS, CONNECTION_SUGGESTIONS, FAILURE_CAUSES
from pipeline.alerts.entries import AlertRow, Entry
from pipeline.reports.queue_verdict.inputs import QueueRows
from pipeline.silver.machines import Machines
from pipeline.text import format_cell, format_count
from udfs.codes import NEGATIVE_CLASS_TEXTS


class Cause(NamedTuple):
    """Why a queue is in trouble. ``text`` is a sentence, ``evidence`` the keys that it rests on.

    ``code``: no_answer, reset, answer_not_captured, session_refused, session_unanswered, not_connected; queue_missing,
    queue_full, access_refused, rejected, reason_not_sent, receiver_silent; paused, offline, sequence_refused,
    duplicate_identifier; nobody_reads, given_back, reader_fails; else the condition of an alert.
    """

    code: str
    text: str
    suggestion: str
    since: datetime | None = None
    evidence: tuple[str, ...] = ()


class _Case(NamedTuple):
    """What a cause is found from. ``leading``: None where no alert is active. What is older than ``recent`` is over."""

    leading: AlertRow | None
    facts: QueueRows
    machines: Machines
    recent: timedelta

    def name(self, machine: str | None, otherwise: str = "an unknown machine") -> str:
        """Return a machine as it is shown."""
        return otherwise if machine is None else self.machines.text(machine)


_REJECTED: Final = {0x8000: "queue_missing", 0x8003: "queue_full", 0x8004: "access_refused", 0xC000: "queue_missing"}
_REJECTED_SUGGESTIONS: Final = {
    "queue_missing": "Create the queue there, or correct the name to which the sender sends.",
    "queue_full": CONDITIONS["nearly_full"].suggestion,
    "access_refused": "Give the sender the right to write messages (Send Message) in the queue's security settings.",
    "rejected": CONDITIONS["negative_acknowledgements"].suggestion,
}
_WAITING: Final = (
    "order_acks_stalled",
    "transfer_stalled",
    "messages_unacknowledged",
    "resend_storm",
    "transfers_slow",
)
_UNREAD: Final = ("queue_stuck", "messages_unread")
_NOT_OPENED: Final = {
    "refused": ("session_refused", "the session is refused: another queue manager answers, or its limit is reached"),
    "unanswered": ("session_unanswered", "the session is not answered: its service may not run"),
}
_MISSING_RESULTS: Final = ("MQ_ERROR_QUEUE_NOT_FOUND",)


def find_cause(entry: Entry | None, facts: QueueRows, machines: Machines, recent: timedelta) -> Cause | None:
    """Return why a queue is in trouble; None where nothing shows that it is. ``entry`` is that of its alerts.

    Without an alert, what happened once counts while it is ``recent`` (alerts.failure_window).
    """
    case = _Case(None if entry is None else entry.leading, facts, machines, recent)
    return next((cause for find in _CAUSES if (cause := find(case)) is not None), None)


def _from_alert(code: str, row: AlertRow, text: str, suggestion: str | None = None) -> Cause:
    return Cause(code, text, suggestion or row["suggestion"], row["since"], tuple(row["evidence"] or ()))


def _identifier(case: _Case) -> Cause | None:
    row = case.leading
    if row is None or row["condition"] != "duplicate_queue_manager":
        return None
    return _from_alert("duplicate_identifier", row, f"two machines have one identifier: {row['message']}")


def _sender(case: _Case) -> Cause | None:
    """Return that a machine is offline, a queue paused, or a sequence refused."""
    row = case.leading
    if row is None:
        return None
    if row["condition"] == "machine_disconnected":
        return _from_alert("offline", row, f"{case.name(row['queue_manager'])} is offline: {row['message']}")
    if row["condition"] == "queue_on_hold":
        return _from_alert("paused", row, f"the queue is paused at {case.name(row['queue_manager'])}: {row['message']}")
    if row["condition"] in ("sequence_refused", "sequence_gap", "ends_disagree"):
        return _from_alert("sequence_refused", row, f"the receiver refuses the sequence: {row['message']}")
    return None


def _connection(case: _Case) -> Cause | None:
    """Return that a machine cannot connect to another."""
    row = case.leading
    if row is None or row["from_machine"] is None or row["cause"] not in (*FAILURE_CAUSES, *_NOT_OPENED):
        return None
    code, why = _NOT_OPENED.get(row["cause"]) or (row["cause"], FAILURE_CAUSES[row["cause"]])
    ends = case.name(row["from_machine"]), case.name(row["to_machine"], "other machines")
    suggestion = CONNECTION_SUGGESTIONS.get(row["cause"])
    return _from_alert(code, row, f"{ends[0]} cannot connect to {ends[1]}: {why}", suggestion)


def _not_connected(case: _Case) -> Cause | None:
    row = case.leading
    if row is None or row["condition"] != "queue_disconnected":
        return None
    name = case.name(row["queue_manager"])
    return _from_alert("not_connected", row, f"{name} has no connection for it: {row['message']}")


def _rejections(case: _Case) -> Cause | None:
    """Return that messages are rejected: since one arrived last, or while alerts say no more than that they wait."""
    delivered = max((row["last_delivered_at"] for row in case.facts.senders if row["last_delivered_at"]), default=None)
    current = [row for row in case.facts.rejections if delivered is None or row["last_at"] > delivered]
    if not current or not _says_only(case.leading, (*_WAITING, "negative_acknowledgements")):
        return None
    row = current[0]
    if case.leading is None and case.facts.as_of - row["last_at"] > case.recent:
        return None
    code = _REJECTED.get(row["class"], "rejected")
    text = (
        f"{format_count(row['messages'], 'message')} rejected ({row['class_name']}), the last one at "
        f"{format_cell(row['last_at'])}: {NEGATIVE_CLASS_TEXTS.get(row['class'], 'for a reason that has no name')}"
    )
    return Cause(code, text, _REJECTED_SUGGESTIONS[code], row["since"], _keys(row["packet_key"]))


def _error_of_machine(case: _Case) -> Cause | None:
    """Return that the machine which is asked about the queue says that it has none."""
    row = next((row for row in case.facts.errors if row["hresult_name"] in _MISSING_RESULTS), None)
    if row is None or case.facts.local or not _says_only(case.leading, _WAITING):
        return None
    text = f"{case.name(row['queue_manager'])} says that it has no such queue ({row['hresult_name']})"
    return Cause("queue_missing", text, _REJECTED_SUGGESTIONS["queue_missing"], row["last_at"])


def _given_back(case: _Case) -> Cause | None:
    poison = next(iter(case.facts.poison), None)
    if poison is None or not _says_only(case.leading, (*_UNREAD, "receives_not_ended", "ends_refused")):
        return None
    text = (
        f"a reader gives {format_count(poison['messages'], 'message')} back again and again (poison), "
        f"{poison['attempts']} times at most"
    )
    suggestion = "See why the application fails with it; move it aside, so that the messages behind it are read."
    return Cause("given_back", text, suggestion, poison["since"], _keys(poison["call_key"]))


def _reader(case: _Case) -> Cause | None:
    row = case.leading
    if row is None:
        return None
    if row["condition"] in ("receives_not_ended", "ends_refused"):
        return _from_alert("reader_fails", row, f"reader {case.name(row['from_machine'])} fails: {row['message']}")
    if row["condition"] in _UNREAD:
        last = case.facts.last_read_at
        since = "no read was captured" if last is None else f"the last read was at {format_cell(last)}"
        return _from_alert("nobody_reads", row, f"nobody reads: {row['message']}; {since}")
    if row["condition"] in ("nearly_full", "machine_nearly_full"):
        return _from_alert("queue_full", row, f"it is nearly full: {row['message']}")
    return None


def _taken(case: _Case) -> Cause | None:
    """Return that messages wait: whether the receiver took them, where sessions were captured."""
    row = case.leading
    if row is None or row["condition"] not in _WAITING:
        return None
    taken = sum(each["taken"] for each in case.facts.senders)
    keys = _keys(*(each["packet_key"] for each in case.facts.senders))
    if taken:
        text = (
            f"taken by the receiver, not in its queue, reason not sent: {format_count(taken, 'message')}. Possible, in "
            "this order: the queue is missing or not transactional there, it or the machine is full, the sender may "
            "not write to it"
        )
        suggestion = (
            "Ask the receiver: see whether the queue exists and is transactional, how full it and the machine are, and "
            "its security settings. Negative source journaling at the sender keeps messages that die, with the reason."
        )
        return _from_alert("reason_not_sent", row, text, suggestion)._replace(evidence=(*row["evidence"], *keys))
    return _from_alert("receiver_silent", row, f"the receiver does not acknowledge: {row['message']}")


def _other(case: _Case) -> Cause | None:
    row = case.leading
    return None if row is None else _from_alert(row["condition"], row, row["message"])


_CAUSES: Final[Sequence[Callable[[_Case], Cause | None]]] = (
    _identifier, _sender, _connection, _rejections, _error_of_machine, _not_connected, _given_back, _reader, _taken,
    _other,
)  # fmt: skip
"""In the order in which they say more of why."""


def _says_only(leading: AlertRow | None, conditions: Sequence[str]) -> bool:
    """Whether no alert is active, or the leading one has one of some conditions, which do not say why."""
    return leading is None or leading["condition"] in conditions


def _keys(*keys: str | None) -> tuple[str, ...]:
    return tuple(key for key in keys if key is not None)
