"""How calls bear on answers: the names under which one tells something, and those that an answer rests on.

Of an association that goes on as it was, a call bears on few attempts: on its own; an End, a cancel and another Start
on those with their request number or handle; a rejection, and a Start that brought it too, on those of their message;
an opening and a close on those of their context, or number. Each such thing is a name. A call tells something under
some names, an answer (an attempt, a purge, a move) rests on some: what ``receive_attempts`` and ``handles``
look up, and nothing that they do not. Names are hashes, so that two may meet by chance, and are not told apart by
association: more than what a change touches is settled anew then, and comes out as it was.

All are SQL over the columns of silver.remote_read_calls: numbers, null where a call has no such name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.attempts.calls import ROLES, Role

_RR, _QM = "RemoteRead", "qm2qm"
_LOOKUP_IDS: Final = 1 << 56  # what the wire carries of an identifier is below


def _is(protocol: str, *roles: Role) -> str:
    opnums = (str(opnum) for (name, opnum), role in ROLES.items() if name == protocol and role in roles)
    return f"(protocol = '{protocol}' AND opnum IN ({', '.join(opnums)}))"


def _name(kind: str, *parts: str) -> str:
    """Return a name; null where one of its parts is."""
    there = " AND ".join(f"{part} IS NOT NULL" for part in parts)
    return f"CASE WHEN {there} THEN xxhash64('{kind}', {', '.join(parts)}) END"


def _when(condition: str, name: str) -> str:
    return f"CASE WHEN {condition} THEN {name} END"


def _identifier(number: str) -> str:
    """Return what the wire carries of a message's identifier; null for 0, which is none."""
    return f"nullif(CAST({number} % {_LOOKUP_IDS} AS bigint), 0)"


def call(key: str) -> str:
    """Name a call."""
    return _name("call", key)


CALL: Final = call("call_key")
ATTEMPT: Final = _name("attempt", "context_handle", "request_id")
"""What an attempt of RemoteRead, its End and its cancel share."""
HELD: Final = _name("held", "remote_read_handle")
"""What an attempt of qm2qm and its End share."""
CANCELLED: Final = _name("cancel", "queue_handle", "request_id")
"""What an attempt of qm2qm and its cancel share."""
NUMBERED: Final = _name("number", "queue_handle")
"""A queue of qm2qm by the number that it is read by."""
SESSION: Final = _name("session", "context_handle")
"""What an opening of qm2qm and its close share."""

_CONTEXT: Final = _name("context", "context_handle")
_CURSOR: Final = _name("cursor", "context_handle", "nullif(cursor_handle, 0)")
_TARGET: Final = _name("target", "move_context")
_CLOSES: Final = _name("closes", "protocol")
_OPENS: Final = _name("opens", "protocol")
_SEQUENCE, _LOOKUP = (_identifier(number) for number in ("sequence_id", "lookup_id"))
_BROUGHT, _REJECTED = (_name("message", "context_handle", number) for number in (_SEQUENCE, _LOOKUP))  # in a context
_NUMBERS = tuple(_name("number of a message", number) for number in (_SEQUENCE, _LOOKUP))

# The names that a read shares with what ends and cancels it, and the call's own.
_OF_A_READ: Final = (
    CALL,
    _when(_is(_RR, "start", "end", "cancel"), ATTEMPT),
    _when(_is(_QM, "start", "end"), HELD),
    _when(_is(_QM, "start", "cancel"), CANCELLED),
)
TELLS: Final = (
    *_OF_A_READ,
    _when(_is(_RR, "start"), _BROUGHT),
    _when(_is(_RR, "reject"), _REJECTED),
    _when(_is(_RR, "open", "close"), _CONTEXT),
    _when(_is(_QM, "open"), NUMBERED),
    _when(_is(_QM, "open", "close"), SESSION),
    _when(_is(_RR, "target"), _TARGET),
    _when(_is(_RR, "close"), _CLOSES),
    _when(f"{_is(_RR, 'open')} OR {_is(_QM, 'open')}", _OPENS),
)
"""The names under which a call tells something."""

_REMOTE, _BY_NUMBER = _is(_RR, "start", "purge", "move"), _is(_QM, "start", "purge")
_UNKNOWN: Final = (
    f"({_REMOTE} AND coalesce(context_handle, '') = '') OR ({_BY_NUMBER} AND coalesce(queue_handle, 0) = 0)"
)
RESTS_ON: Final = (
    _when(f"{_REMOTE} OR {_BY_NUMBER}", CALL),
    _when(_is(_RR, "start"), ATTEMPT),
    _when(_is(_QM, "start"), HELD),
    _when(_is(_QM, "start"), CANCELLED),
    _when(_is(_RR, "start"), _BROUGHT),
    _when(_REMOTE, _CONTEXT),
    _when(_BY_NUMBER, NUMBERED),
    _when(_is(_RR, "move"), _TARGET),
    _when(_is(_RR, "move"), _CLOSES),
    _when(_UNKNOWN, _OPENS),
)
"""The names that the answer about a call rests on; none of a call that has none.

A move rests on all closes of its association: one may have been of the context that its target came with.
"""

EXPLAINS: Final = (
    *_OF_A_READ,
    _when(f"{_is(_RR, 'start')} OR {_is(_QM, 'start')}", _NUMBERS[0]),
    _when(_is(_RR, "reject", "move"), _NUMBERS[1]),
    _when(f"protocol = '{_RR}'", _CURSOR),
)
"""The names by which calls of an association explain one another, in rules over several of them.

A message is named by its number alone: rules look at it on all contexts of its queue.
"""


def listed(names: Iterable[str]) -> str:
    """Return names as an array."""
    return f"array({', '.join(names)})"


def meets(names: Iterable[str], some: str) -> str:
    """Return the condition that a call has one of some names; ``some``: what stands for these, in braces."""
    return f"({' OR '.join(f'{name} IN {{{some}}}' for name in names)})"


def named(rows: pa.Table, column: str) -> set[int]:
    """Return the names in a column of arrays."""
    return set(pc.drop_null(pc.list_flatten(rows[column])).to_pylist())


def once(calls: pa.Table, *more: pa.Table) -> pa.Table:
    """Return calls and more of them, with the columns of the first ones, each once."""
    every = pa.concat_tables([calls, *(part.select(calls.column_names) for part in more)])
    places = {name: place for place, name in reversed([*enumerate(every["call_key"].to_pylist())])}
    return every if len(places) == every.num_rows else every.take(pa.array(sorted(places.values()), pa.int64()))
