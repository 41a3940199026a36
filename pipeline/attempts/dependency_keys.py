"""Dependency keys: which calls affect which attempts of an association that only gained calls.

Each call publishes keys, and each attempt, purge or move requires some: a changed call affects the answers that
require one of its keys. The keys follow what ``receive_attempts`` and ``handles`` look up: the call itself; request
number and handle (a Start, its End, its cancel); the message within its context (a Start that brought it, a
rejection); the context or queue number (opens, closes, uses). Keys do not name the association: where another one has
the same, more is recomputed than needed, and comes out the same.

All are SQL expressions over the columns of silver.remote_read_calls: texts, the same in all engines; null where a call
has no such key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, unique_rows
from pipeline.attempts.calls.decoded_call import CALL_ROLES, CallRole

_RR, _QM = "RemoteRead", "qm2qm"
_LOOKUP_IDS: Final = 1 << 56  # the wire carries the lower 56 bits of an identifier


def role_condition_sql(protocol: str, *roles: CallRole) -> str:
    """Return the SQL condition that a call of a protocol has one of some roles."""
    opnums = (str(opnum) for (name, opnum), role in CALL_ROLES.items() if name == protocol and role in roles)
    return f"(protocol = '{protocol}' AND opnum IN ({', '.join(opnums)}))"


def _key_sql(kind: str, *parts: str) -> str:
    """Return the SQL of a key; null where one of its parts is null."""
    return " || ' ' || ".join((f"'{kind}'", *(f"CAST({part} AS string)" for part in parts)))


def _when(condition: str, name: str) -> str:
    return f"CASE WHEN {condition} THEN {name} END"


def _identifier(number: str) -> str:
    """Return the part of a message's identifier that the wire carries; null for 0, which is none."""
    return f"nullif(CAST({number} % {_LOOKUP_IDS} AS bigint), 0)"


def call_key_sql(key: str) -> str:
    """Return the SQL of the key of a call itself."""
    return _key_sql("call", key)


CALL_KEY: Final = call_key_sql("call_key")
ATTEMPT_KEY: Final = _key_sql("attempt", "context_handle", "request_id")
"""What an attempt of RemoteRead, its End and its cancel share."""
HELD_MESSAGE_KEY: Final = _key_sql("held", "remote_read_handle")
"""What an attempt of qm2qm and its End share."""
CANCEL_KEY: Final = _key_sql("cancel", "queue_handle", "request_id")
"""What an attempt of qm2qm and its cancel share."""
QUEUE_NUMBER_KEY: Final = _key_sql("number", "queue_handle")
"""A queue of qm2qm by the number that it is read by."""
SESSION_KEY: Final = _key_sql("session", "context_handle")
"""What an opening of qm2qm and its close share."""

_CONTEXT: Final = _key_sql("context", "context_handle")
_CURSOR: Final = _key_sql("cursor", "context_handle", "nullif(cursor_handle, 0)")
_TARGET: Final = _key_sql("target", "move_context")
_CLOSES: Final = _key_sql("closes", "protocol")
_OPENS: Final = _key_sql("opens", "protocol")
_SEQUENCE, _LOOKUP = (_identifier(number) for number in ("sequence_id", "lookup_id"))
_BROUGHT, _REJECTED = (_key_sql("message", "context_handle", number) for number in (_SEQUENCE, _LOOKUP))  # in a context
_IS_START, _IS_REJECT = role_condition_sql(_RR, "start"), role_condition_sql(_RR, "reject")
MESSAGE_KEY: Final = f"CASE WHEN {_IS_START} THEN {_BROUGHT} WHEN {_IS_REJECT} THEN {_REJECTED} END"
"""What a read of RemoteRead and the rejection of the message that it brought share."""
READ_KEY: Final = f"CASE WHEN protocol = '{_RR}' THEN CAST(request_id AS string) ELSE remote_read_handle END"
"""What a read and its End share, and of RemoteRead its cancel too, within an association; shorter than their keys."""
_NUMBERS = tuple(_key_sql("number of a message", number) for number in (_SEQUENCE, _LOOKUP))

# The keys that a read shares with its End and its cancel, and its own.
_OF_A_READ: Final = (
    CALL_KEY,
    _when(role_condition_sql(_RR, "start", "end", "cancel"), ATTEMPT_KEY),
    _when(role_condition_sql(_QM, "start", "end"), HELD_MESSAGE_KEY),
    _when(role_condition_sql(_QM, "start", "cancel"), CANCEL_KEY),
)
PUBLISHED_KEYS: Final = (
    *_OF_A_READ,
    _when(role_condition_sql(_RR, "start"), _BROUGHT),
    _when(role_condition_sql(_RR, "reject"), _REJECTED),
    _when(role_condition_sql(_RR, "open", "close"), _CONTEXT),
    _when(role_condition_sql(_QM, "open"), QUEUE_NUMBER_KEY),
    _when(role_condition_sql(_QM, "open", "close"), SESSION_KEY),
    _when(role_condition_sql(_RR, "target"), _TARGET),
    _when(role_condition_sql(_RR, "close"), _CLOSES),
    _when(f"{role_condition_sql(_RR, 'open')} OR {role_condition_sql(_QM, 'open')}", _OPENS),
)
"""The dependency keys that a call publishes."""

_REMOTE, _BY_NUMBER = role_condition_sql(_RR, "start", "purge", "move"), role_condition_sql(_QM, "start", "purge")
_UNKNOWN: Final = (
    f"({_REMOTE} AND coalesce(context_handle, '') = '') OR ({_BY_NUMBER} AND coalesce(queue_handle, 0) = 0)"
)
REQUIRED_KEYS: Final = (
    _when(f"{_REMOTE} OR {_BY_NUMBER}", CALL_KEY),
    _when(role_condition_sql(_RR, "start"), ATTEMPT_KEY),
    _when(role_condition_sql(_QM, "start"), HELD_MESSAGE_KEY),
    _when(role_condition_sql(_QM, "start"), CANCEL_KEY),
    _when(role_condition_sql(_RR, "start"), _BROUGHT),
    _when(_REMOTE, _CONTEXT),
    _when(_BY_NUMBER, QUEUE_NUMBER_KEY),
    _when(role_condition_sql(_RR, "move"), _TARGET),
    _when(role_condition_sql(_RR, "move"), _CLOSES),
    _when(_UNKNOWN, _OPENS),
)
"""The names that the answer about a call rests on; none of a call that has none.

A move rests on all closes of its association: one may have been of the context that its target came with.
"""

RULE_KEYS: Final = (
    *_OF_A_READ,
    _when(f"{role_condition_sql(_RR, 'start')} OR {role_condition_sql(_QM, 'start')}", _NUMBERS[0]),
    _when(role_condition_sql(_RR, "reject", "move"), _NUMBERS[1]),
    _when(f"protocol = '{_RR}'", _CURSOR),
)
"""The names by which calls of an association explain one another, in rules over several of them.

A message is named by its number alone: rules look at it on all contexts of its queue.
"""


def key_array(names: Iterable[str]) -> str:
    """Return the SQL of an array of keys."""
    return f"array({', '.join(names)})"


def keys_overlap(names: Iterable[str], some: str) -> str:
    """Return the SQL condition that a call has one of some keys; ``some`` is the SQL of their values."""
    return f"({' OR '.join(f'({name}) IN {some}' for name in names)})"


def keys_in_column(rows: pa.Table, column: str) -> pa.Array:
    """Return the keys in an array column, each once."""
    return distinct_texts(pc.list_flatten(rows[column]))


def concat_unique(calls: pa.Table, *more: pa.Table) -> pa.Table:
    """Return calls and further ones, with the columns of the first, each call once."""
    return unique_rows(pa.concat_tables([calls, *(part.select(calls.column_names) for part in more)]), "call_key")
