"""The verdict on a message: one sentence on what became of it, which never says more than the rows of its timeline.

Each queue that it was seen in, and its way to each destination, has an account: what the rows say of it there. Reads
prove that it arrived, so they replace what is known of its way; acknowledgements of its end must agree with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from pipeline.queues.history import DEAD_LETTER_QUEUE_PATTERN, JOURNAL_SUFFIX
from pipeline.reports.trace.missing_codes import MISSING_CODE_TEXTS
from pipeline.text import format_count
from udfs.codes import (
    MQMSG_CLASS_ACK_RECEIVE,
    NEGATIVE_CLASS_BIT,
    NEGATIVE_CLASS_TEXTS,
    RECEIVE_CLASS_BIT,
    message_class_name,
)
from udfs.queues.normal_form import split_queue_suffix
from udfs.rows import RowMapping
from udfs.times import FIRST_DATETIME

VERDICT_WORDS: Final = {
    "received": "read",
    "refused": "refused",
    "expired": "expired",
    "deleted": "deleted",
    "purged": "purged",
    "moved": "moved",
    "dead_letter": "dead letter",
    "in_queue": "in its queue",
    "given_back": "given back (poison)",
    "held": "held by a reader",
    "on_its_way": "on its way",
    "transferred": "at the next machine",
    "several": "differs by queue",
    "contradictory": "captures disagree",
    "unknown": "not known",
}
"""Codes of verdicts, and each in few words."""

_CODES_OF_CLASSES: Final = {
    0x8001: "deleted", 0x8002: "expired", 0xC000: "deleted", 0xC001: "purged", 0xC002: "expired", 0xC003: "expired",
}  # fmt: skip
_AT_OR_BY: Final = {"refused": "by", "expired": "at", "deleted": "at", "purged": "at"}
_CONTRADICTORY: Final = "contradictory"
_IN_ITS_QUEUE: Final = ("in_queue", "given_back")  # nobody has it: a purge or a move takes it
_THERE: Final = (*_IN_ITS_QUEUE, "held", "moved")
_RETURNED: Final = {
    "nacked": "gave it back",
    "rundown": "disconnected and had not acknowledged it",
    "expired": "did not acknowledge it in time",
    "aborted": "aborted its transaction",
}
_RISKS: Final = {
    "read_twice": "it was read more than once",
    "ack_failed": "an acknowledgement of a read was refused",
    "ack_unanswered": "no answer to an acknowledgement was seen",
    "reader_lost": "its reader disconnected right after",
    "poison": "it was given back again and again before",
}
_MAX_ACCOUNTS: Final = 3  # of several queues, that are told one by one
_MAX_QUEUES: Final = 5  # of several queues with the same fate, by name
_UNKNOWN_QUEUE: Final = "an unknown queue"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a message. ``code`` is one of ``VERDICT_WORDS``, ``text`` a sentence.

    ``complete``: nothing that was not captured, and nothing that comes later, could change it.
    """

    code: str
    text: str
    complete: bool


@dataclass(frozen=True, slots=True)
class VerdictRows:
    """Rows that surely belong to one message, as dictionaries by column.

    ``transfers`` have ``refused`` and ``canonical_destination`` beside the columns of gold.message_transfers. ``moves``
    and ``purges`` are of gold.queue_operations. ``acknowledgers`` are the GUIDs of the queue managers that sent
    acknowledgements, by their class and time.
    """

    sightings: Sequence[RowMapping] = ()
    transfers: Sequence[RowMapping] = ()
    sequences: Sequence[RowMapping] = ()
    attempts: Sequence[RowMapping] = ()
    moves: Sequence[RowMapping] = ()
    purges: Sequence[RowMapping] = ()
    acknowledgers: Mapping[tuple[int, datetime], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Account:
    """What rows say of a message: in a queue, or on its way to one, at a time.

    ``final``: nothing that comes later changes it. ``rows``: what it rests on. ``message_class``: of the
    acknowledgement that it rests on.
    """

    code: str
    text: str
    at: datetime | None
    queue: str | None
    rows: tuple[RowMapping, ...]
    final: bool = False
    message_class: int | None = None

    @property
    def missing(self) -> set[str]:
        """Codes of the evidence that is missing."""
        return {code for row in self.rows for code in row["missing"] or ()}

    @property
    def complete(self) -> bool:
        """Whether nothing could change it."""
        return self.final and not self.missing and all(row["confidence"] == "complete" for row in self.rows)


def find_verdict(rows: VerdictRows) -> Verdict:
    """Return the verdict on a message."""
    accounts = _accounts_by_destination(rows)
    if not accounts:
        return Verdict("unknown", "not known: nothing that was captured tells what became of it", complete=False)
    codes = {account.code for account in accounts.values()}
    complete = all(account.complete for account in accounts.values())
    missing = sorted(set().union(*(account.missing for account in accounts.values())))
    text = "" if complete else "as far as captured: "
    text += _text_of_several(accounts) if len(accounts) > 1 else next(iter(accounts.values())).text
    if missing:
        text += f" (missing: {'; '.join(MISSING_CODE_TEXTS.get(code, code) for code in missing)})"
    return Verdict(codes.pop() if len(codes) == 1 else "several", text, complete)


def _text_of_several(accounts: Mapping[str | None, _Account]) -> str:
    if len(accounts) <= _MAX_ACCOUNTS:
        named = ((queue or _UNKNOWN_QUEUE, account.text) for queue, account in accounts.items())
        return "; ".join(text if queue in text else f"{queue}: {text}" for queue, text in named)
    by_code = defaultdict[str, list[str]](list)
    for queue, account in accounts.items():
        by_code[account.code].append(queue or _UNKNOWN_QUEUE)
    parts = []
    for code, queues in by_code.items():
        more = f" and {len(queues) - _MAX_QUEUES} more" if len(queues) > _MAX_QUEUES else ""
        parts.append(f"{VERDICT_WORDS[code]} of {len(queues)} ({', '.join(queues[:_MAX_QUEUES])}{more})")
    return f"of {len(accounts)} queues: {'; '.join(parts)}"


def _accounts_by_destination(rows: VerdictRows) -> dict[str | None, _Account]:
    """Return one account for each destination, by its queue; that of a message with a single one has the key None."""
    destinations = {row["canonical_destination"] for row in rows.transfers}
    several = len(destinations) > 1 or any(len(row.get("destination_list") or ()) > 1 for row in rows.sightings)
    on_the_way = {
        queue if several else None: _after_removal(
            _transfer_account([row for row in rows.transfers if row["canonical_destination"] == queue], rows), rows
        )
        for queue in sorted(destinations, key=str)
    }
    in_queues = defaultdict[str | None, list[_Account]](list)
    for account in _queue_accounts(rows):
        base = None if account.queue is None else split_queue_suffix(account.queue)[0]
        in_queues[base if several else None].append(account)
    found = {}
    for queue in sorted({*on_the_way, *in_queues}, key=str):
        read = _last(in_queues[queue]) if in_queues[queue] else None
        found[queue] = _agree(on_the_way.get(queue), read)
    return found


def _last(accounts: Sequence[_Account]) -> _Account:
    """Return what was known last. Journals have copies: they count where nothing else is known."""
    originals = [each for each in accounts if not (each.queue or "").endswith(JOURNAL_SUFFIX)]
    if not originals:
        copy = max(accounts, key=_age)
        return replace(copy, code="unknown", text=f"only a copy in a journal was seen: {copy.text}", final=False)
    return max(originals, key=_age)


def _age(account: _Account) -> tuple[datetime, bool]:
    return account.at or FIRST_DATETIME, account.final


def _agree(way: _Account | None, read: _Account | None) -> _Account:
    """Return what holds of a message that has an account of its way, one of reads, or both."""
    if way is None or read is None:
        found = way or read
        assert found is not None  # noqa: S101 (no key without an account)
        return found
    if way.code == _CONTRADICTORY or (way.message_class is not None and read.code == "unknown"):
        return way
    if way.message_class is None or read.code == way.code:  # reads prove that it arrived, and say more
        return read
    if way.code != "received" and read.code == "dead_letter":
        return read
    ended_in_queue = bool(way.message_class & RECEIVE_CLASS_BIT)
    if ended_in_queue and read.code in _THERE and (way.at is None or read.at is None or read.at <= way.at):
        return way
    return _contradict(way, read)


def _contradict(one: _Account, other: _Account) -> _Account:
    text = f"the captures contradict each other: {one.text}; but {other.text}"
    return _Account(_CONTRADICTORY, text, None, one.queue, (*one.rows, *other.rows))


def _after_removal(account: _Account, rows: VerdictRows) -> _Account:
    """Return what became of a message that was in its queue, where the queue was purged or it was moved since."""
    if account.code not in _IN_ITS_QUEUE or account.at is None:
        return account
    later = [
        (at, row) for row in (*rows.purges, *rows.moves)
        if row["outcome"] == "done" and row["queue"] is not None and row["queue"] == account.queue
        and (at := row["requested_at"] or row["responded_at"]) is not None and at >= account.at
    ]  # fmt: skip
    if not later:
        return account
    at, row = min(later, key=lambda each: each[0])
    code, what = "purged", "purged with"
    if row["operation"] == "move":
        code, what = "moved", f"moved to {row['target_queue'] or _UNKNOWN_QUEUE} from"
    text = f"{what} {account.queue} {_time_text(at)}, unless it was taken before"
    return _Account(code, text, at, account.queue, (*account.rows, row))


# What is known of its way.


def _transfer_account(hops: Sequence[RowMapping], rows: VerdictRows) -> _Account:
    """Return what rows of gold.message_transfers of one destination say."""
    last = max(hops, key=lambda row: (row["last_sent_at"] or FIRST_DATETIME, row["transfer_key"]))
    ends = [end for row in hops for end in _end_acknowledgements(row)]
    negative = [end for end in ends if end[0] & NEGATIVE_CLASS_BIT]
    positive = [end for end in ends if not end[0] & NEGATIVE_CLASS_BIT]
    if negative and positive:
        return _contradict(_end_account(*negative[0], rows), _end_account(*positive[0], rows))
    if ends:
        return _end_account(*ends[0], rows)
    delivered = next((row for row in hops if row["outcome"] == "delivered"), None)
    if delivered is not None:
        times = [delivered[name] for name in ("order_acked_at", "arrival_acked_at") if delivered[name] is not None]
        at, queue = min(times, default=None), delivered["canonical_destination"]
        text = f"in {queue or _UNKNOWN_QUEUE} when its arrival was acknowledged, {_time_text(at, '')}"
        return _Account("in_queue", text, at, queue, (delivered,))
    return _account_on_its_way(last)


def _end_acknowledgements(row: RowMapping) -> Iterator[tuple[int, datetime | None, RowMapping]]:
    """Yield class and time of the acknowledgements that say how a message ended; final ones first."""
    for name in ("final", "arrival", "receive"):
        code = row[f"{name}_class"]
        if code is not None and (code & NEGATIVE_CLASS_BIT or code == MQMSG_CLASS_ACK_RECEIVE):
            yield code, row[f"{name}_acked_at"], row


def _end_account(code: int, at: datetime | None, row: RowMapping, rows: VerdictRows) -> _Account:
    queue = row["canonical_destination"]
    guid = None if at is None else rows.acknowledgers.get((code, at))
    machine = _machine_text(guid, rows.transfers)
    if code == MQMSG_CLASS_ACK_RECEIVE:
        text = f"read from {queue or _UNKNOWN_QUEUE} by an application, as {machine} acknowledged {_time_text(at)}"
        return _Account("received", text, at, queue, (row,), final=True, message_class=code)
    kind = _CODES_OF_CLASSES.get(code, "refused")
    reason = NEGATIVE_CLASS_TEXTS.get(code, "of a class without a name")
    text = f"{kind} {_AT_OR_BY[kind]} {machine} {_time_text(at)}: {reason} ({message_class_name(code)})"
    if row["dead_letter_class"] is not None:
        own = next((each["dead_letter_queue"] for each in rows.sightings if each.get("dead_letter_queue")), None)
        where = own or f"a dead-letter queue of {_machine_text(row['source_queue_manager'], rows.transfers)}"
        text += f"; as it asked, it becomes a dead letter in {where}"
    return _Account(kind, text, at, queue, (row,), final=True, message_class=code)


def _account_on_its_way(row: RowMapping) -> _Account:
    """Return what the last hop of a message says whose arrival was not acknowledged."""
    sender, receiver = row["sender_address"], row["receiver_address"]
    found = _Account("unknown", "", row["last_sent_at"], row["canonical_destination"], (row,))
    queue = row["canonical_destination"] or _UNKNOWN_QUEUE
    if _is_refused_by_its_sequence(row):
        text = f"refused by {receiver}: its queue does not accept number {row['transaction_number']} of its sequence"
        return replace(found, code="refused", text=text)
    if row["outcome"] == "transferred":
        at = row["session_acked_at"]
        since = "" if at is None else f" since {_time_text(at, '')}"
        text = f"at {receiver}{since}; whether it came to {queue} was not captured"
        return replace(found, code="transferred", text=text)
    sent = f"sent by {sender} to {receiver} for {queue}"
    if row["outcome"] == "expired":
        text = (
            f"expired {_time_text(row['expires_at'])} (the sender's clock): {sent}, and nothing acknowledged it before"
        )
        return replace(found, code="expired", text=text)
    if row["outcome"] == "in_flight":
        text = f"on its way: {sent} {_time_text(row['last_sent_at'])}, and not acknowledged when the capture ended"
        return replace(found, code="on_its_way", text=text)
    if row["outcome"] == "unacknowledged":
        text = (
            f"on its way: waits at {sender} for {receiver} since {_time_text(row['first_sent_at'], '')}, "
            f"{format_count(row['sendings'] or 0, 'sending')} for {queue} and no acknowledgement"
        )
        return replace(found, code="on_its_way", text=text)
    return replace(found, text=f"{sent} {_time_text(row['last_sent_at'])}; whether {receiver} has it is not known")


def _is_refused_by_its_sequence(row: RowMapping) -> bool:
    """Return whether the receiver refuses the message's number in its sequence (``with_refusals``)."""
    return bool(row["refused"])


def _machine_text(guid: str | None, transfers: Iterable[RowMapping]) -> str:
    """Return the address of a queue manager where transfers have it, else its GUID."""
    if guid is None:
        return "an unknown queue manager"
    ends = ((row[f"{end}_queue_manager"], row[f"{end}_address"]) for row in transfers for end in ("sender", "receiver"))
    return next((address for manager, address in ends if manager == guid), guid)


# What is known of it in queues.


def _queue_accounts(rows: VerdictRows) -> Iterator[_Account]:
    """Yield what is known of a message in each queue that it was read or peeked in."""
    settled = {key for row in rows.sequences for key in row["attempt_keys"] or ()}
    others = defaultdict[tuple[str | None, ...], list[RowMapping]](list)
    for row in rows.attempts:
        if row["attempt_key"] not in settled:
            others[_place(row)].append(row)
    for row in rows.sequences:
        peeks = [each for each in others.pop(_place(row), ()) if each["outcome"] == "peeked"]
        yield _as_dead_letter(_after_removal(_fate_account(row, rows.attempts, peeks), rows), rows)
    for reads in others.values():
        last = max(reads, key=lambda row: row["returned_at"] or FIRST_DATETIME)
        where, at = _place_text(last), last["returned_at"]
        code, text = "in_queue", f"in {where} when it was last peeked, {_time_text(at, '')}"
        if last["outcome"] != "peeked":
            code, text = "unknown", f"read from {where} by {last['client_address']} {_time_text(at)}: {last['outcome']}"
        account = _after_removal(_Account(code, text, at, _queue(last), (last,)), rows)
        yield _as_dead_letter(account, rows)


def _fate_account(row: RowMapping, attempts: Sequence[RowMapping], peeks: Sequence[RowMapping]) -> _Account:
    """Return what a row of gold.ack_sequences says; ``peeks`` are of the same place."""
    receives = [each for each in attempts if each["attempt_key"] in (row["attempt_keys"] or ())]
    settling = [each for each in receives if row["settled_at"] is not None and each["ended_at"] == row["settled_at"]]
    last = max(settling or receives, key=lambda each: each["returned_at"] or FIRST_DATETIME, default=None)
    reader = last["client_address"] if last is not None else (row["readers"] or ["an unknown reader"])[-1]
    returned_at = None if last is None else last["returned_at"]
    at, where = row["settled_at"] or returned_at, _place_text(row)
    found = _Account("unknown", "", at, _queue(row), (row,))
    risk = f"; {_RISKS.get(row['loss_risk'], row['loss_risk'])}" if row["loss_risk"] else ""
    match row["fate"]:
        case "consumed":
            text = f"read from {where} by {reader} {_time_text(at)}{risk}"
            return replace(found, code="received", text=text, final=True)
        case "rejected":
            text = f"refused by its reader {reader} in {where} {_time_text(at)}"
            return replace(found, code="refused", text=text, final=True)
        case "held":
            text = (
                f"held by {reader} since {_time_text(returned_at, '')}, neither acknowledged nor given back to {where}"
            )
            return replace(found, code="held", text=text, at=returned_at)
        case "moved" | "purged":
            removed_at = row["removed_at"]
            text = f"purged with {where} {_time_text(removed_at)}"
            if row["fate"] == "moved":
                text = f"moved from {where} to {row['moved_to'] or _UNKNOWN_QUEUE} {_time_text(removed_at)}"
            return replace(found, code=row["fate"], text=text, at=removed_at or at, final=row["fate"] == "purged")
        case "returned":
            times = [each for each in (at, *(peek["returned_at"] for peek in peeks)) if each is not None]
            until = max(times, default=None)
            outcome = (row["outcomes"] or ["nacked"])[-1]
            text = f"in {where} when it was last seen there, {_time_text(until, '')}: {reader} "
            text += f"{_RETURNED.get(outcome, outcome)} {_time_text(at)}"
            if row["loss_risk"] != "poison":
                return replace(found, code="in_queue", text=text + risk, at=until)
            times_back = sum(each in _RETURNED for each in row["outcomes"] or ())
            return replace(found, code="given_back", text=f"{text}; given back {times_back} times in all", at=until)
    return replace(found, text=f"read from {where} by {reader} {_time_text(at)}; how that ended is not known")


def _as_dead_letter(account: _Account, rows: VerdictRows) -> _Account:
    """Return what is known of a message in a dead-letter queue as that of a dead letter, with its reason."""
    own = {row.get("dead_letter_queue") for row in rows.sightings} - {None}
    if account.queue is None or not (DEAD_LETTER_QUEUE_PATTERN.search(account.queue) or account.queue in own):
        return account
    classes = {row.get("class") for row in rows.sightings}
    reasons = [text for code, text in NEGATIVE_CLASS_TEXTS.items() if code in classes]
    reason = f" ({', '.join(reasons)})" if reasons else ""
    return replace(account, code="dead_letter", text=f"a dead letter{reason}: {account.text}")


def _place(row: RowMapping) -> tuple[str | None, ...]:
    """Return what tells the place of an attempt or a sequence from others: the queue, else server and handle."""
    if row["queue"] is not None:
        return (row["queue"],)
    handle = row.get("handle") or row.get("context_handle") or row.get("queue_handle")
    return None, row.get("server_address"), None if handle is None else str(handle)


def _queue(row: RowMapping) -> str | None:
    queue: str | None = row["queue"] or row.get("inferred_queue")
    return queue


def _place_text(row: RowMapping) -> str:
    if row["queue"] is not None:
        return str(row["queue"])
    guess = f", perhaps {row['inferred_queue']}" if row.get("inferred_queue") else ""
    return f"{_UNKNOWN_QUEUE} at {row.get('server_address') or '?'}{guess}"


def _time_text(at: datetime | None, before: str = "at ") -> str:
    return f"{before}an unknown time" if at is None else f"{before}{at.strftime('%Y-%m-%d %H:%M:%S')}"
