"""Tests of the rules of qmcomm and qmcomm2, and of queues that several associations have open. No Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pipeline.findings.rules.conversations import Conversation, Exchange, Ledger
from pipeline.findings.rules.qm2qm import port_of
from pipeline.findings.rules.registry import WHOLE, Hit, across, each, over
from udfs.codes import FAULT, HRESULT, name_of
from udfs.dcerpc.interfaces import QC, RR

_RECEIVE, _PEEK = 0x01, 0x20
_DENIED: Final = (0x00000005, 0xC00E0025)
_NOT_OPENED: Final = ("DL=", "MULTICAST=", "DIRECT=HTTP")
_OBJECTS: Final = (7, 8, 9, 10, 11)  # opnums whose request begins with an OBJECT_FORMAT
_NO_OPERATION: Final = 0x0B
_FIRST_CALLS: Final = ((QC, 2), (QC, 19))


@each("C01", (QC, 2))
def open_remote(call: Exchange) -> Hit | None:
    """A queue that cannot be opened so, or another access or share mode than two each."""
    name = call["queue_format_name"]
    actual = None
    if name is None or name.upper().startswith(_NOT_OPENED):
        actual = f"format name {name}"
    elif call["access"] not in (_RECEIVE, _PEEK) or call["share_mode"] not in (0, 1):
        actual = f"dwDesiredAccess {call['access']}, dwShareMode {call['share_mode']}"
    return None if actual is None else Hit(call, f"{actual}{', answered MQ_OK' if call.ok else ''}", server=call.ok)


@each("C03", (QC, 2), needs="ok")
def numbers(call: Exchange) -> str | None:
    """The context, pdwContext, is not phQueue."""
    wrong = call["open_context"] != call["queue_handle"]
    return f"pdwContext {call['open_context']}, phQueue {call['queue_handle']}" if wrong else None


@over("C03", "RemoteQmGetVersion told that the server is XP or later")
def one_number(conv: Conversation) -> Iterator[Hit]:
    """The descriptor, dwpQueue, is not phQueue."""
    version = conv.ledger.version
    for call in conv.of((QC, 2)) if version is not None and version >= (5, 1) else ():
        if call.ok and call["open_context"] == call["queue_handle"] != call["queue_descriptor"]:
            yield Hit(call, f"dwpQueue {call['queue_descriptor']}, phQueue {call['queue_handle']}")


@each("C07", (QC, 19))
def second_open(call: Exchange) -> str | None:
    """Numbers without the queue's, or the queue's without the others."""
    given = [bool(call[name]) for name in ("queue_handle", "queue_descriptor", "open_context")]
    if all(given) or not any(given):
        return None
    numbers = f"hRemoteQueue {call['queue_handle']}, dwpQueue {call['queue_descriptor']}"
    return f"{numbers}, dwpRemoteContext {call['open_context']}"


@each("C08", (QC, 19), needs="ok")
def name_and_handle(call: Exchange) -> bool:
    """A name was answered, and a handle or a context too."""
    return call["remote_queue_name"] is not None and bool(call["context_handle"] or call["queue_manager_context"])


@each("C10", (QC, 31), needs="headers")
def server_port(call: Exchange) -> str | None:
    """Asking for the port was refused, or answered with one that there is not."""
    if call.fault in _DENIED and call.fault is not None:
        return f"fault {name_of(FAULT | HRESULT, call.fault)}"
    if not call.answered or not call["returned_port"] or call["port_type"] is None:
        return None
    return (
        None
        if port_of(call["port_type"], call["returned_port"])
        else f"port {call['returned_port']} for fIP {call['port_type']}"
    )


@each("C11", (QC, 22), needs="answer")
def no_operation(call: Exchange) -> str | None:
    """Closing the cursor that stands for none failed."""
    wrong = call["cursor_handle"] == _NO_OPERATION and not call.ok
    return name_of(HRESULT, call["hresult"]) if wrong and call["hresult"] is not None else None


@each("C12", *((QC, opnum) for opnum in _OBJECTS))
def object_kind(call: Exchange) -> str | None:
    """The object is no queue."""
    kind = call.number("request", 0)
    return f"ObjType {kind}" if kind not in (None, 1) else None


@over("C14", WHOLE)
def registry_not_asked(conv: Conversation) -> Iterator[Hit]:
    """A supporting server is used before R_QMQueryQMRegistryInternal; said once for an association."""
    first = next(iter(conv.of((QC, 19))), None) if conv.whole else None
    if first is not None and not any(call.at <= first.at for call in conv.of((QC, 28))):
        yield Hit(first, "no R_QMQueryQMRegistryInternal before")


@dataclass(frozen=True, slots=True)
class _Open:
    """A queue that is open: from its answer, surely until the first thing that may have closed it."""

    call: Exchange
    born: int
    until: int

    @property
    def receives(self) -> bool:
        """Opened to receive."""
        return bool(self.call["access"] == _RECEIVE)

    @property
    def alone(self) -> bool:
        """Opened for itself alone: MQ_DENY_SHARE."""
        return bool(self.call["share_mode"] == 1)


def _opens(ledger: Ledger, opening: tuple[str, int], closing: tuple[str, int]) -> Iterator[_Open]:
    """Yield the queues that a server opened, each with the time until which it surely was."""
    closes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for call in ledger.of(closing):
        if call["context_handle"] is not None:
            closes[ledger.association(call).name, call["context_handle"]].append(call.at)
    for call in ledger.of(opening):
        if not call.answered or call["context_handle"] is None or call["hresult"] not in (None, 0) or call.done is None:
            continue
        association = ledger.association(call)
        done = call.done
        ends = [at for at in closes[association.name, call["context_handle"]] if at > done]
        if association.ended_at is not None:
            ends.append(association.ended_at)
        yield _Open(call, done, min(ends, default=ledger.seen_until(call)))


def _by_queue(opens: Iterator[_Open]) -> list[list[_Open]]:
    """Group what was opened under one name; those without are left out."""
    found: defaultdict[str, list[_Open]] = defaultdict(list)
    for each_open in sorted(opens, key=lambda o: (o.born, o.call["call_key"])):
        if each_open.call["queue"] is not None:
            found[each_open.call["queue"]].append(each_open)
    return list(found.values())


def _excluded(first: _Open, then: _Open) -> bool:
    """Tell whether a queue that is open so keeps another from opening it so ([MS-MQDMPR] 3.1.7.1.5)."""
    if first.alone and first.receives:
        return then.alone or then.receives
    if first.alone:
        return then.receives
    return first.receives and then.alone


def _shared(opens: list[list[_Open]]) -> Iterator[Hit]:
    for same in opens:
        standing: list[_Open] = []
        for then in same:
            standing = [first for first in standing if first.until > then.call.at]
            held = next(
                (f for f in standing if f.until > then.born and f.born < then.call.at and _excluded(f, then)), None
            )
            if held is not None:
                yield Hit(
                    then.call, f"the queue is open with dwShareMode {held.call['share_mode']}", (held.call, then.call)
                )
            standing.append(then)


@across("R08", "both openings of the queue by one name were read whole; the first was surely open still")
def opened_though_denied(ledger: Ledger) -> Iterator[Hit]:
    """A queue was opened though another had it open for itself alone, or shared where it was asked for alone."""
    yield from _shared(_by_queue(_opens(ledger, (RR, 2), (RR, 3))))


@across("C02", "both openings of the queue by one name were read whole; the first was surely open still")
def opened_though_exclusive(ledger: Ledger) -> Iterator[Hit]:
    """A queue was opened though another had it open for itself alone."""
    yield from (
        hit for hit in _shared(_by_queue(_opens(ledger, (QC, 2), (QC, 3)))) if hit.evidence[0]["share_mode"] == 1
    )


@across("C04", "both openings were read whole; the first was surely open still")
def number_twice(ledger: Ledger) -> Iterator[Hit]:
    """A queue was opened under the number of one that is open."""
    last: dict[int, _Open] = {}
    for then in sorted(_opens(ledger, (QC, 2), (QC, 3)), key=lambda o: (o.born, o.call["call_key"])):
        number = then.call["queue_handle"]
        before = last.get(number)
        if number and before is not None and before.until > then.born and before.born < then.call.at:
            yield Hit(then.call, f"phQueue {number} is open", (before.call, then.call))
        last[number] = then


@across("C05", "the association of the call opened queues itself, and was captured from its beginning without a gap")
def cursor_of_unknown(ledger: Ledger) -> Iterator[Hit]:
    """MQ_OK to a cursor of a queue's number that no captured association was given."""
    openers = {ledger.association(call).name for call in ledger.of((QC, 2))}
    unread = any(not call.answered and not call.refused for call in ledger.of((QC, 2)))
    for call in ledger.of((QC, 4)):
        association = ledger.association(call)
        whole = association.beginning_seen and ledger.seen_until(call) > 0
        ours = association.name in openers and whole and not unread
        if ours and call.ok and call["queue_handle"] not in ledger.numbers:
            yield Hit(call, f"hQueue {call['queue_handle']} was never given")
