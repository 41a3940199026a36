"""Tests of the rules on handles, cursors and transactions: what was opened, by whom, and is there still. No Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from pipeline.findings.rules.conversations import Busy, Conversation, Exchange, Ledger, Life, Lives
from pipeline.findings.rules.registry import WHOLE, Hit, across, over
from pipeline.findings.rules.remote_read import PEEK_ACCESS, RECEIVE_ACCESS
from udfs.dcerpc.interfaces import QC, QM, RR

_QM: Final = ((QM, 0), (QM, 9), (QM, 10))
_RR: Final = ((RR, 7), (RR, 13))
_BY_NUMBER: Final = (*_QM, (QM, 4), (QM, 5), (QM, 6))
_BY_CONTEXT: Final = tuple((RR, opnum) for opnum in (4, 5, 6, 7, 8, 9, 10, 13, 14, 15))
_NT_VERSION, _XP, _2003 = (0, 0), (5, 1), (5, 2)
_NO_OPNUM: Final = 0x1C010002
_PRIVACY: Final = 6
_ORDERLY: Final = "the association was captured whole, and every connection of it ended with FIN"
_LEDGER: Final = f"{WHOLE}; nor had another captured association opened it"


def _unopened(conv: Conversation) -> Iterator[Exchange]:
    """Yield qm2qm calls to a number that no session of any captured association had open."""
    if not conv.whole:
        return
    for call in conv.of(*_BY_NUMBER):
        number = call["queue_handle"]
        if call.asked and number and not conv.sessions.can_live(number, call) and not _elsewhere(conv, number):
            yield call


def _elsewhere(conv: Conversation, number: int) -> bool:
    """Tell whether another association opened a number while this one was there, or before."""
    ours = conv.connections.keys()
    return any(call["connection_id"] not in ours for call in conv.ledger.opened(number, conv.before))


@over("Q11", _LEDGER)
def read_unopened_taken(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a read from a queue that is not open."""
    for call in _unopened(conv):
        if call.ok and call.method in _QM:
            yield Hit(call, f"hRemoteQueue {call['queue_handle']} is not open")


@over("Q35", _LEDGER)
def used_unopened(conv: Conversation) -> Iterator[Hit]:
    """A call on a queue that is not open."""
    for call in _unopened(conv):
        yield Hit(call, f"queue {call['queue_handle']} is not open")


@over("Q48", _LEDGER)
def purged_unopened(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a purge of a queue that is not open."""
    for call in _unopened(conv):
        if call.ok and call.method == (QM, 6):
            yield Hit(call, f"hQueue {call['queue_handle']} is not open")


def _cursors(conv: Conversation) -> Iterator[tuple[Exchange, str]]:
    """Yield reads and closes with a cursor of a captured opening that was never given, or is closed."""
    if not conv.whole:
        return
    closed = Lives()
    for call in conv.of(*_QM, (QM, 4)):
        cursor, number = call["cursor_handle"], call["queue_handle"]
        if not call.asked or not cursor or not conv.ledger.numbered(number, conv.before):
            continue
        gone = closed.latest((number, cursor), call.at)
        if not conv.ledger.cursors(number, cursor, conv.before):
            yield call, f"hCursor {cursor} was never given"
        elif gone is not None and gone.born < call.at and not _given_since(conv, call, gone.born):
            yield call, f"hCursor {cursor} is closed"
        if call.method == (QM, 4) and call.ok:
            closed.open((number, cursor), call)


def _given_since(conv: Conversation, call: Exchange, at: int) -> bool:
    """Tell whether a cursor was given again after a time."""
    given = conv.ledger.cursors(call["queue_handle"], call["cursor_handle"], conv.before)
    return any((each.done or each.at) > at for each in given)


@over("Q12", f"{WHOLE}; R_QMOpenRemoteQueue of its queue was captured")
def cursor_unknown_taken(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a read with a cursor that is not open."""
    for call, actual in _cursors(conv):
        if call.ok and call.method in _QM:
            yield Hit(call, actual)


@over("Q13", f"{WHOLE}; R_QMOpenRemoteQueue of its queue was captured")
def cursor_unknown(conv: Conversation) -> Iterator[Hit]:
    """A read with a cursor that was never given, or is closed."""
    for call, actual in _cursors(conv):
        if call.method in _QM:
            yield Hit(call, actual)


@over("Q40", f"{WHOLE}; for the cursor, R_QMOpenRemoteQueue of its queue was captured")
def cursor_close_taken(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to the close of a cursor that is not open, or of a queue that is not."""
    wrong = {call["call_key"]: (call, actual) for call, actual in _cursors(conv)}
    wrong |= {call["call_key"]: (call, f"hQueue {call['queue_handle']} is not open") for call in _unopened(conv)}
    for call, actual in wrong.values():
        if call.ok and call.method == (QM, 4):
            yield Hit(call, actual)


@over("Q41", WHOLE)
def cursor_left(conv: Conversation) -> Iterator[Hit]:
    """A cursor is open when its session is closed: Windows leaves them."""
    used: dict[tuple[int, int], Exchange] = {}
    for call in conv.of(*_QM, (QM, 3), (QM, 4)) if conv.whole else ():
        if call.method in _QM and call.ok and call["cursor_handle"]:
            used[call["queue_handle"], call["cursor_handle"]] = call
        elif call.method == (QM, 4):
            used.pop((call["queue_handle"], call["cursor_handle"]), None)
        elif call.method == (QM, 3) and call.ok:
            life = conv.contexts.latest((QM, call["context_handle"]), call.at)
            for name in [name for name in used if life is not None and name[0] == life.opened["queue_handle"]]:
                yield Hit(call, f"hCursor {name[1]} is open", (used.pop(name), call))


def _session(conv: Conversation, call: Exchange) -> Life | None:
    """Return the session that a call by number belongs to."""
    life = conv.sessions.latest(call["queue_handle"], call.at)
    return life if life is not None and not life.died_before(call.at) else None


def _one_number(life: Life) -> bool:
    """Tell whether the owner gave one number for all: it is not NT or 2000 (D8)."""
    opened = life.opened
    return bool(opened["queue_handle"] == opened["queue_descriptor"] == opened["open_context"])


@over("Q08", "the session was opened in the same association, and its owner is not NT or 2000 (D8)")
def other_queue(conv: Conversation) -> Iterator[Hit]:
    """The read's dwQueue is another number than its hRemoteQueue, or 0."""
    for call in conv.of((QM, 0), (QM, 9)):
        life = _session(conv, call) if call.asked else None
        if life is not None and _one_number(life) and call["queue_descriptor"] != call["queue_handle"]:
            actual = f"dwQueue {call['queue_descriptor']}, hRemoteQueue {call['queue_handle']}"
            yield Hit(call, f"{actual}{', answered MQ_OK' if call.ok else ''}", (life.opened, call), server=call.ok)


@over("Q42", "the session was opened in the same association, and its owner is not NT or 2000")
def cancel_other_queue(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a cancel whose pQueue is another number than hQueue."""
    for call in conv.of((QM, 5)):
        life = _session(conv, call) if call.ok else None
        if life is not None and _one_number(life) and call["queue_descriptor"] != call["queue_handle"]:
            yield Hit(call, f"pQueue {call['queue_descriptor']}, hQueue {call['queue_handle']}", (life.opened, call))


@over("Q27", "RemoteQmGetVersion told that the server is 2003 or later")
def two_numbers_taken(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to an open whose pQueue is not its dwpContext."""
    version = conv.ledger.version
    for call in conv.of((QM, 2)) if version is not None and version >= _2003 else ():
        if call.ok and call["queue_descriptor"] != call["open_context"]:
            yield Hit(call, f"pQueue {call['queue_descriptor']}, dwpContext {call['open_context']}")


@over("Q28", "the server does not know RemoteQmGetVersion: it is NT or 2000; R_QMOpenRemoteQueue was captured")
def number_unknown_taken(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to an open of a number that was never given."""
    for call in conv.of((QM, 2)) if conv.ledger.old and conv.ledger.gives_numbers(conv.before) else ():
        if call.ok and not conv.ledger.numbered(call["queue_handle"], conv.before):
            yield Hit(call, f"hQueue {call['queue_handle']} was never given")


@over("Q30", "the R_QMOpenRemoteQueue that gave hQueue was captured")
def other_numbers(conv: Conversation) -> Iterator[Hit]:
    """hQueue, pQueue and dwpContext are not those of one answer of the owner."""
    for call in conv.of((QM, 2)):
        given = [
            each for each in conv.ledger.numbers.get(call["queue_handle"] or 0, ()) if (each.done or each.at) <= call.at
        ]
        told = {(each["queue_descriptor"], each["open_context"]) for each in given}
        ours = (call["queue_descriptor"], call["open_context"])
        if call.asked and given and ours not in told:
            yield Hit(call, f"pQueue {ours[0]}, dwpContext {ours[1]}, given {sorted(told)}", (given[-1], call))


@over("Q32", "both openings were read whole")
def other_client(conv: Conversation) -> Iterator[Hit]:
    """The client gives another identifier than before."""
    first: Exchange | None = None
    for call in conv.of((QM, 2)):
        if call.asked and call["client_id"] is not None:
            if first is not None and first["client_id"] != call["client_id"]:
                yield Hit(call, f"{call['client_id']}, before {first['client_id']}", (first, call))
            first = first or call


def _twice(lives: Lives, conv: Conversation, methods: tuple[tuple[str, int], ...]) -> Iterator[Hit]:
    """Yield calls that were given a handle which surely lived."""
    if not conv.whole:
        return
    seen: dict[tuple[str, str], list[Life]] = {}
    for life in lives:
        name = life.opened["remote_read_handle"] if methods[0] == (QM, 0) else life.opened["context_handle"]
        if life.opened.method in methods:
            seen.setdefault((life.opened.method[0], name), []).append(life)
    for same in seen.values():
        same.sort(key=lambda life: life.born)
        for before, life in itertools.pairwise(same):
            if before.born < life.opened.at and (before.closed is None or before.closed.at > life.born):
                yield Hit(life.opened, "the handle is in use", (before.opened, life.opened))


@over("Q14")
def read_handle_twice(conv: Conversation) -> Iterator[Hit]:
    """A read was given the handle of one that is not ended."""
    yield from _twice(conv.held, conv, _QM)


@over("Q29")
def session_handle_twice(conv: Conversation) -> Iterator[Hit]:
    """An open was given the handle of a session that is open."""
    yield from _twice(conv.contexts, conv, ((QM, 2),))


@over("R09")
def context_twice(conv: Conversation) -> Iterator[Hit]:
    """An open was given the handle of a context that is open."""
    yield from _twice(conv.contexts, conv, ((RR, 2), (RR, 11)))


def _never_closed(conv: Conversation, methods: tuple[tuple[str, int], ...], close: tuple[str, int]) -> Iterator[Hit]:
    if not (conv.whole and conv.orderly):
        return
    asked = {call["context_handle"] for call in conv.of(close)}
    for life in conv.contexts:
        if life.opened.method in methods and life.closed is None and life.opened["context_handle"] not in asked:
            yield Hit(life.opened, "never closed, before the connection was")


@over("Q39", _ORDERLY)
def session_left(conv: Conversation) -> Iterator[Hit]:
    """A session is never closed."""
    yield from _never_closed(conv, ((QM, 2),), (QM, 3))


@over("R14", _ORDERLY)
def context_left(conv: Conversation) -> Iterator[Hit]:
    """A context is never closed."""
    yield from _never_closed(conv, ((RR, 2), (RR, 11)), (RR, 3))


@over("C06", _ORDERLY)
def owner_context_left(conv: Conversation) -> Iterator[Hit]:
    """R_QMCloseRemoteQueueContext never came, or before the supporting server had opened the queue."""
    yield from _never_closed(conv, ((QC, 2),), (QC, 3))
    for life in conv.contexts:
        close, number = life.closed, life.opened["queue_handle"]
        if life.opened.method != (QC, 2) or close is None or close.done is None:
            continue
        opens = [call for call in conv.ledger.sessions.get(number, ()) if life.born <= call.at]
        again = [call for call in conv.ledger.numbers.get(number, ()) if (call.done or call.at) > life.born]
        if opens and not again and all(call.at > close.done for call in opens):
            yield Hit(close, "closed before RemoteQMOpenQueue", (life.opened, close, opens[0]))


@over("Q51", "RemoteQmGetVersion told that the server is XP or later")
def other_ports(conv: Conversation) -> Iterator[Hit]:
    """A port for a protocol that the server does not have."""
    version = conv.ledger.version
    for call in conv.of((QM, 7)) if version is not None and version >= _XP else ():
        if call.answered and call["port_type"] in (2, 3) and call["returned_port"]:
            yield Hit(call, f"port {call['returned_port']} for dwPortType {call['port_type']}")


@over("Q55", f"{WHOLE}; the client is not NT or 2000: it uses RemoteQMStartReceive2")
def version_not_asked(conv: Conversation) -> Iterator[Hit]:
    """The first read comes before the client asked for the version."""
    first = next((call for call in conv.of((QM, 9), (QM, 10)) if call.asked), None) if conv.whole else None
    if first is not None:
        asked = [call for call in conv.ledger.of((QM, 8)) if call["client_address"] == first["client_address"]]
        if not any(call.at <= first.at for call in asked):
            yield Hit(first, "no RemoteQmGetVersion before")


@over("Q56", "RemoteQmGetVersion told the server's version")
def other_method(conv: Conversation) -> Iterator[Hit]:
    """The old method to a server that knows the new (a SHOULD, once for a connection), or the new to an old server."""
    version, said = conv.ledger.version, set()
    for call in conv.of(*_QM):
        if version is None or not call.asked:
            continue
        if call.method == (QM, 0) and version >= _XP and call["connection_id"] not in said and _told_before(conv, call):
            said.add(call["connection_id"])
            yield Hit(call, f"opnum 0 to a server of version {version[0]}.{version[1]}", severity="warning")
        elif call.method != (QM, 0) and version < _XP:
            yield Hit(call, f"opnum {call.method[1]} to a server of version {version[0]}.{version[1]}")


def _told_before(conv: Conversation, call: Exchange) -> bool:
    told = conv.ledger.of((QM, 8))
    return any(e["client_address"] == call["client_address"] and e.done is not None and e.done < call.at for e in told)


def _unsafe(call: Exchange) -> bool:
    return (call["auth_level"] or 1) <= 1


@over("Q66", "the binds of the connection were captured")
def unauthenticated(conv: Conversation) -> Iterator[Hit]:
    """A call without authentication was answered MQ_OK; said once for a connection."""
    said = set()
    for call in conv.calls:
        ours = call.method[0] == QM and call.method[1] not in (7, 8)
        if ours and call.ok and call["bind_seen"] and _unsafe(call) and call["connection_id"] not in said:
            said.add(call["connection_id"])
            yield Hit(call, "MQ_OK without authentication")


@over("R74", "the client is Vista or later by its own account, and in no workgroup")
def unprotected(conv: Conversation) -> Iterator[Hit]:
    """A queue was opened below the level PRIVACY, which the registry may allow; said once for a connection."""
    said = set()
    for call in conv.of((RR, 2)):
        modern = (call["version_major"] or 0) >= 6 and call["workgroup"] is False
        if modern and call.answered and (call["auth_level"] or 1) < _PRIVACY and call["connection_id"] not in said:
            said.add(call["connection_id"])
            yield Hit(call, f"authentication level {call['auth_level'] or 1}")


@over("R78", "RemoteQmGetVersion told that the server is 2003")
def too_new(conv: Conversation) -> Iterator[Hit]:
    """A server of 2003 answered a method that came later."""
    for call in conv.of(*((RR, opnum) for opnum in range(10, 16))):
        if conv.ledger.version == _2003 and call["outcome"] == "ok":
            yield Hit(call, f"a response to opnum {call.method[1]}")


@over("R10")
def context_misused(conv: Conversation) -> Iterator[Hit]:
    """A context that R_OpenQueue did not give, or that is closed."""
    for call in conv.of(*_BY_CONTEXT) if conv.whole else ():
        life = conv.context(call) if call.asked else None
        if not call.asked:
            continue
        if life is None:
            yield Hit(call, "a context that was never given")
        elif life.opened.method != (RR, 2):
            yield Hit(call, "a context of R_OpenQueueForMove", (life.opened, call))
        elif life.died_before(call.at):
            yield Hit(call, "a closed context", tuple(c for c in (life.opened, life.closed, call) if c))


@over("R11")
def close_misused(conv: Conversation) -> Iterator[Hit]:
    """R_CloseQueue of a context that was never given, or is closed."""
    for call in conv.of((RR, 3)) if conv.whole else ():
        life = conv.context(call) if call.asked and call["context_handle"] is not None else None
        if not call.asked:
            continue
        if life is None:
            yield Hit(call, "a NULL context" if call["context_handle"] is None else "a context that was never given")
        elif life.closed is not call and life.died_before(call.at):
            yield Hit(call, "a closed context", tuple(c for c in (life.opened, life.closed, call) if c))


@over("R15", WHOLE)
def close_in_use(conv: Conversation) -> Iterator[Hit]:
    """A context is closed while reads of it wait: Windows does so."""
    reads = Busy.by(conv.of(*_RR), lambda call: call["context_handle"])
    for call in conv.of((RR, 3)) if conv.whole else ():
        before = reads.before(call["context_handle"], call.at) if call.ok else []
        waiting = [read for read in before if read.done is not None and read.done > call.at]
        if waiting:
            yield Hit(call, f"{len(waiting)} reads wait", (*waiting[:3], call))


@over("R17", WHOLE)
def cursors_left(conv: Conversation) -> Iterator[Hit]:
    """A context is closed with a cursor open: Windows does so."""
    for life in conv.cursors if conv.whole else ():
        context = conv.context(life.opened)
        if life.closed is None and context is not None and context.closed is not None and context.closed.at > life.born:
            yield Hit(context.closed, f"hCursor {life.opened['cursor_handle']} is open", (life.opened, context.closed))


def _no_cursor(conv: Conversation, call: Exchange) -> tuple[str, tuple[Exchange, ...]] | None:
    """Return why the cursor of a call is none of its context."""
    name = (call["context_handle"], call["cursor_handle"])
    life = conv.cursors.latest(name, call.done if call.done is not None else 1 << 62)
    if life is None:
        return f"hCursor {name[1]} was never given", (call,)
    if life.closed is not call and life.died_before(call.at):
        return f"hCursor {name[1]} is closed", tuple(c for c in (life.opened, life.closed, call) if c)
    return None


@over("R16")
def cursor_misused(conv: Conversation) -> Iterator[Hit]:
    """R_CloseCursor of a cursor that is not open on the context."""
    for call in conv.of((RR, 5)) if conv.whole else ():
        wrong = _no_cursor(conv, call) if call.asked else None
        if wrong is not None:
            yield Hit(call, f"{wrong[0]}{', answered MQ_OK' if call.ok else ''}", wrong[1], server=call.ok)


@over("R27")
def cursor_unknown_read(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a read with a cursor that is not open on the context."""
    for call in conv.of(*_RR) if conv.whole else ():
        wrong = _no_cursor(conv, call) if call.ok and call["cursor_handle"] else None
        if wrong is not None:
            yield Hit(call, *wrong)


def _for_peeks(conv: Conversation, *methods: tuple[str, int]) -> Iterator[tuple[Exchange, Exchange]]:
    """Yield calls on a context that was opened to peek alone, with the open."""
    for call in conv.of(*methods):
        life = conv.context(call) if call.asked else None
        if life is not None and life.opened.method == (RR, 2) and life.opened["access"] == PEEK_ACCESS:
            yield call, life.opened


@over("R18", "the R_OpenQueue of its context was read whole")
def purge_by_peeker(conv: Conversation) -> Iterator[Hit]:
    """R_PurgeQueue on a context for peeks."""
    for call, opened in _for_peeks(conv, (RR, 6)):
        actual = f"opened with dwAccess {opened['access']}{', answered MQ_OK' if call.ok else ''}"
        yield Hit(call, actual, (opened, call), server=call.ok)


@over("R19", "the R_OpenQueue of its context was read whole")
def receive_by_peeker(conv: Conversation) -> Iterator[Hit]:
    """A receive on a context for peeks."""
    for call, opened in _for_peeks(conv, *_RR):
        if call.receives:
            yield Hit(call, f"opened with dwAccess {opened['access']}", (opened, call))


@over("R20", "the R_OpenQueue of its context was read whole")
def transaction_by_peeker(conv: Conversation) -> Iterator[Hit]:
    """A read in a transaction, or an acknowledgement's class, on a context for peeks."""
    for call, opened in _for_peeks(conv, (RR, 13), (RR, 14)):
        yield Hit(call, f"opened with dwAccess {opened['access']}", (opened, call))


@over("R56", "the opening of its context was read whole")
def move_from_other(conv: Conversation) -> Iterator[Hit]:
    """A message is moved out of a context that was not opened to receive."""
    for call in conv.of((RR, 10)):
        life = conv.context(call) if call.asked else None
        opened = life.opened if life is not None else None
        if opened is not None and (opened.method != (RR, 2) or opened["access"] != RECEIVE_ACCESS):
            yield Hit(call, f"opened by opnum {opened.method[1]} with dwAccess {opened['access']}", (opened, call))


def _target(conv: Conversation, call: Exchange) -> Life | None:
    """Return the newest R_OpenQueueForMove whose move context a move names."""
    found = [life for life in conv.contexts
             if life.opened.method == (RR, 11) and life.opened["move_context"] == call["move_context"]
             and life.opened.at <= (call.done or call.at)]  # fmt: skip
    return max(found, key=lambda life: life.born) if found else None


@over("R57")
def move_to_nowhere(conv: Conversation) -> Iterator[Hit]:
    """A message is moved to a context that R_OpenQueueForMove did not give, or that is closed."""
    for call in conv.of((RR, 10)) if conv.whole else ():
        life = _target(conv, call) if call.asked else None
        gone = life is not None and life.died_before(call.at)
        elsewhere = any(each["move_context"] == call["move_context"] for each in conv.ledger.of((RR, 11)))
        if call.asked and ((life is None and not elsewhere) or gone):
            actual = f"ullContextTo {call['move_context']} is {'closed' if gone else 'unknown'}"
            yield Hit(call, f"{actual}{', answered MQ_OK' if call.ok else ''}", server=call.ok)


@over("R58", "the openings of both queues were read whole")
def move_between_others(conv: Conversation) -> Iterator[Hit]:
    """A message is moved between queues that are not one queue's."""
    for call in conv.of((RR, 10)):
        source, target = conv.context(call), _target(conv, call)
        if not call.asked or source is None or target is None or target.died_before(call.at):
            continue
        names = [(life.opened["queue"] or "").split(";")[0] for life in (source, target)]
        places = [name.partition("\\")[2] or name for name in names]  # one host has a name and addresses
        kinds = ["=" in name for name in names]  # a private format name names no path
        if all(names) and places[0] != places[1] and kinds[0] == kinds[1]:
            actual = f"from {names[0]} to {names[1]}{', answered MQ_OK' if call.ok else ''}"
            yield Hit(call, actual, (source.opened, target.opened, call), server=call.ok)


def _not_enlisted(conv: Conversation, opnum: int) -> Iterator[Exchange]:
    for call in conv.of((RR, opnum)) if conv.whole else ():
        name = call["transaction_id"]
        if call.asked and name is not None and conv.ledger.transactions.get(name, 1 << 62) > call.at:
            yield call


_ENLISTED: Final = f"{WHOLE}; nor did another captured association enlist it before"


@over("R61", _ENLISTED)
def move_not_enlisted(conv: Conversation) -> Iterator[Hit]:
    """A move names a transaction that was not enlisted before."""
    for call in _not_enlisted(conv, 10):
        yield Hit(call, f"{call['transaction_id']}{', answered MQ_OK' if call.ok else ''}", server=call.ok)


@over("R64", _ENLISTED)
def read_not_enlisted(conv: Conversation) -> Iterator[Hit]:
    """A read names a transaction that was not enlisted before."""
    for call in _not_enlisted(conv, 13):
        yield Hit(call, f"{call['transaction_id']} was not enlisted before")


@over("R73", "another captured association was given the handle, and had ended")
def context_of_the_dead(conv: Conversation) -> Iterator[Hit]:
    """MQ_OK to a context handle of an association that is gone."""
    for call in conv.of(*_BY_CONTEXT) if conv.whole else ():
        if call.ok and conv.context(call) is None:
            born = conv.ledger.born(RR, call["context_handle"])
            ended_at = conv.ledger.association(born).ended_at if born is not None else None
            if (
                born is not None
                and born["connection_id"] not in conv.connections
                and ended_at is not None
                and ended_at < call.at
            ):
                yield Hit(call, "MQ_OK to a context whose connections are gone", (born, call))


@across("Q33", "the client called RemoteQMGetQMQMServerPort on a captured connection to this server")
def other_port(ledger: Ledger) -> Iterator[Hit]:
    """RemoteQMOpenQueue comes over another port than the client was told."""
    told: dict[str, list[Exchange]] = {}
    for call in ledger.of((QM, 7)):
        if call.answered and call["returned_port"]:
            told.setdefault(call["client_address"], []).append(call)
    for call in ledger.of((QM, 2)):
        before = [
            each for each in told.get(call["client_address"], ()) if each.done is not None and each.done <= call.at
        ]
        ports = {each["returned_port"] for each in before}
        if call["request_at"] is not None and ports and call["server_port"] not in ports:
            yield Hit(call, f"port {call['server_port']}, told {sorted(ports)}", (before[-1], call))
