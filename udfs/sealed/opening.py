"""Opening the calls of one connection: which are opened, by whose handshake, and why the others stay closed.

A call is opened whole or not at all: its stubs that were seen whole are all opened, or all kept as captured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from udfs.rpc.verification import trailer_start
from udfs.sealed.contexts import SecurityContext
from udfs.sealed.pieces import MalformedPiecesError, Piece, unpacked
from udfs.sealed.session import Closed, Opened, Sent

Row = Mapping[str, Any]
HALVES: Final = ("request", "response")
_MASK: Final = 0xFFFFFFFF
_ORDER: Final = tuple(Closed)


@dataclass(frozen=True, slots=True)
class Call:
    """What became of a sealed call: both stubs in the clear and the principal, or why it stays closed."""

    request_stub: bytes | None
    response_stub: bytes | None
    opened_by: str | None
    closed: Closed | None


def open_calls(calls: Sequence[Row], contexts: Sequence[SecurityContext]) -> list[Call]:
    """Return what becomes of the sealed calls of one connection, in their order.

    A call has ``<half>_stub`` as captured, ``<half>_pieces`` (udfs.sealed.pieces) and ``<half>_us`` (a time) of both
    halves.
    """
    sent: dict[int, list[tuple[int, str, int, Sent]]] = defaultdict(list)  # by context: call, half, index of the PDU
    reasons: list[Closed | None] = [None] * len(calls)
    principals: list[str | None] = [None] * len(calls)
    stubs: dict[tuple[int, str], dict[int, Opened]] = defaultdict(dict)
    for row, call in enumerate(calls):
        for half in HALVES:
            for number, piece in enumerate(_pieces(call, half, reasons, row)):
                chosen = _chosen(piece, contexts, client=half == "request")
                if chosen is None or contexts[chosen].session is None:
                    closed = Closed.NO_HANDSHAKE if chosen is None else contexts[chosen].closed
                    reasons[row] = _first(reasons[row], closed)
                    continue
                principals[row] = contexts[chosen].principal
                sent[chosen].append((row, half, number, Sent(half == "request", call[f"{half}_us"] or 0, piece)))
    for chosen, entries in sent.items():
        session = contexts[chosen].session
        if session is None:
            continue
        for (row, half, number, _), opened in zip(entries, session.open([one for *_, one in entries]), strict=True):
            stubs[row, half][number] = opened
            if isinstance(opened, Closed):
                reasons[row] = _first(reasons[row], opened)
    return [_call(call, reasons[row], principals[row], stubs, row) for row, call in enumerate(calls)]


def _pieces(call: Row, half: str, reasons: list[Closed | None], row: int) -> list[Piece]:
    records, stub = call[f"{half}_pieces"], call[f"{half}_stub"]
    if records is None or stub is None:
        return []
    try:
        return unpacked(records, stub)
    except MalformedPiecesError:
        reasons[row] = Closed.BAD_SIGNATURE
        return []


def _call(
    call: Row,
    reason: Closed | None,
    principal: str | None,
    stubs: Mapping[tuple[int, str], Mapping[int, Opened]],
    row: int,
) -> Call:
    if reason is None and principal is None:  # nothing was protected that was seen whole
        reason = Closed.NO_HANDSHAKE
    if reason is not None:
        return Call(call["request_stub"], call["response_stub"], None, reason)
    clear = {}
    for half in HALVES:
        parts = stubs.get((row, half), {})
        whole = b"".join(part for _, part in sorted(parts.items()) if isinstance(part, bytes))
        clear[half] = whole if parts else call[f"{half}_stub"]
    request = clear["request"]
    trailer = None if request is None else trailer_start(request)
    if request is not None and trailer is not None:
        request = request[:trailer]
    return Call(request, clear["response"], principal, None)


def _first(one: Closed | None, two: Closed | None) -> Closed | None:
    """Return the reason that stands first in the order of tables.md."""
    known = [each for each in (one, two) if each is not None]
    return min(known, key=_ORDER.index, default=None)


def _chosen(piece: Piece, contexts: Sequence[SecurityContext], *, client: bool) -> int | None:
    """Return which security context a PDU belongs to: of its context id, the last one that begins before it."""
    best: tuple[int, int] | None = None
    for number, context in enumerate(contexts):
        begins = context.begins[0 if client else 1]
        if context.context_id != piece.context_id:
            continue
        behind = 0 if begins is None else (piece.sequence - begins) & _MASK
        if best is None or behind < best[0]:
            best = behind, number
    return None if best is None else best[1]
