"""How calls bear on answers: the names under which one tells something, and those that an answer rests on.

Of an association that goes on as it was, a call bears on few attempts: on its own; an End, a cancel and another Start
on those with their request number or handle; a rejection, and a Start that brought it too, on those of their message;
an opening and a close on those of their context, or number. Each such thing is a name. A call tells something under
some names, an answer (an attempt, a purge, a move) rests on some: what ``pipeline.attempts`` and ``pipeline.handles``
look up, and nothing that they do not. Names are hashes, so that two may meet by chance, and are not told apart by
association: more than what a change touches is settled anew then, and comes out as it was.

All are columns of silver.remote_read_calls, arrays of bigint with nulls among them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.calls import ROLES, Role
from pipeline.frames import frame

_RR, _QM = "RemoteRead", "qm2qm"
_LOOKUP_IDS: Final = 1 << 56  # what the wire carries of an identifier is below


def tells() -> Column:
    """Return the names under which a call tells something."""
    opens = _is(_RR, "open") | _is(_QM, "open")
    return _names(
        *_of_a_read(),
        F.when(_is(_RR, "start"), _message("sequence_id")),
        F.when(_is(_RR, "reject"), _message("lookup_id")),
        F.when(_is(_RR, "open", "close"), _context()),
        F.when(_is(_QM, "open"), numbered()),
        F.when(_is(_QM, "open", "close"), session()),
        F.when(_is(_RR, "target"), _target()),
        F.when(_is(_RR, "close"), _closes()),
        F.when(opens, _opens()),
    )


def rests_on() -> Column:
    """Return the names that the answer about a call rests on; empty for a call that has none.

    A move rests on all closes of its association: one may have been of the context that its target came with.
    """
    remote, by_number = _is(_RR, "start", "purge", "move"), _is(_QM, "start", "purge")
    answers = remote | by_number
    unknown = remote & (F.coalesce("context_handle", F.lit("")) == "")
    unknown |= by_number & (F.coalesce("queue_handle", F.lit(0)) == 0)
    return _names(
        F.when(answers, call("call_key")),
        F.when(_is(_RR, "start"), attempt()),
        F.when(_is(_QM, "start"), held()),
        F.when(_is(_QM, "start"), cancelled()),
        F.when(_is(_RR, "start"), _message("sequence_id")),
        F.when(remote, _context()),
        F.when(by_number, numbered()),
        F.when(_is(_RR, "move"), _target()),
        F.when(_is(_RR, "move"), _closes()),
        F.when(unknown, _opens()),
    )


def explains() -> Column:
    """Return the names by which calls of an association explain one another, in rules over several of them.

    A message is named by its number alone: rules look at it on all contexts of its queue.
    """
    starts = _is(_RR, "start") | _is(_QM, "start")
    return _names(
        *_of_a_read(),
        F.when(starts, _number("sequence_id")),
        F.when(_is(_RR, "reject", "move"), _number("lookup_id")),
        F.when(F.col("protocol") == _RR, _cursor()),
    )


def meeting(rows: DataFrame, column: str, names: Collection[int]) -> pa.Table:
    """Return the rows that have one of these names among those of a column, each once.

    By a join, however few they are: what Spark does with each element of an array it does not compile.
    """
    wanted = frame(rows.sparkSession, pa.table({"_name": pa.array(sorted(names), pa.int64())}))
    met = rows.withColumn("_name", F.explode(column)).join(F.broadcast(wanted), "_name", "left_semi")
    return once(met.drop("_name").toArrow())


def named(rows: pa.Table, column: str) -> set[int]:
    """Return the names in a column."""
    return set(pc.drop_null(pc.list_flatten(rows[column])).to_pylist())


def once(calls: pa.Table, *more: pa.Table) -> pa.Table:
    """Return calls and more of them, with the columns of the first ones, each once."""
    every = pa.concat_tables([calls, *(part.select(calls.column_names) for part in more)])
    places = {name: place for place, name in reversed([*enumerate(every["call_key"].to_pylist())])}
    return every if len(places) == every.num_rows else every.take(pa.array(sorted(places.values()), pa.int64()))


def call(key: str | Column) -> Column:
    """Name a call."""
    return _name("call", key)


def attempt() -> Column:
    """Name what an attempt of RemoteRead, its End and its cancel share."""
    return _name("attempt", "context_handle", "request_id")


def held() -> Column:
    """Name what an attempt of qm2qm and its End share."""
    return _name("held", "remote_read_handle")


def cancelled() -> Column:
    """Name what an attempt of qm2qm and its cancel share."""
    return _name("cancel", "queue_handle", "request_id")


def numbered() -> Column:
    """Name a queue of qm2qm by the number that it is read by."""
    return _name("number", "queue_handle")


def session() -> Column:
    """Name what an opening of qm2qm and its close share."""
    return _name("session", "context_handle")


def _of_a_read() -> list[Column]:
    """Return the names that a read shares with what ends and cancels it, and the call's own."""
    return [
        call("call_key"),
        F.when(_is(_RR, "start", "end", "cancel"), attempt()),
        F.when(_is(_QM, "start", "end"), held()),
        F.when(_is(_QM, "start", "cancel"), cancelled()),
    ]


def _message(number: str) -> Column:
    """Name the message that a read brought, or that was rejected, within its context."""
    return _name("message", "context_handle", _identifier(number))


def _number(number: str) -> Column:
    return _name("number of a message", _identifier(number))


def _identifier(number: str) -> Column:
    """Return what the wire carries of a message's identifier; null for 0, which is none."""
    identifier = (F.col(number) % _LOOKUP_IDS).cast("bigint")
    return F.when(identifier != 0, identifier)


def _cursor() -> Column:
    return _name("cursor", "context_handle", F.when(F.col("cursor_handle") != 0, F.col("cursor_handle")))


def _context() -> Column:
    return _name("context", "context_handle")


def _target() -> Column:
    return _name("target", "move_context")


def _closes() -> Column:
    return _name("closes", "protocol")


def _opens() -> Column:
    return _name("opens", "protocol")


def _is(protocol: str, *roles: Role) -> Column:
    opnums = [opnum for (name, opnum), role in ROLES.items() if name == protocol and role in roles]
    return (F.col("protocol") == protocol) & F.col("opnum").isin(*opnums)


def _name(kind: str, *parts: str | Column) -> Column:
    """Return a name; null where one of its parts is."""
    known = [F.col(part) if isinstance(part, str) else part for part in parts]
    there = F.lit(True)  # noqa: FBT003
    for part in known:
        there &= part.isNotNull()
    return F.when(there, F.xxhash64(F.lit(kind), *known))


def _names(*names: Column) -> Column:
    """Return an array of names, null in the place of each that a call has not: to leave these out is not compiled."""
    return F.array(*names)
