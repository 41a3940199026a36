"""The calls of associations that go on which rules over several calls look back on, when new ones come.

Rules over several calls rest on all calls of an association, which may last for months. What new calls can break they
break together with calls that they have something to do with, and these are few: those that were under way while the
new ones were made, those that never were answered, those with the same number, handle, message or cursor
(``bearing.EXPLAINS``), those on a queue that was opened or closed now, and those that earlier findings rest on. Judged
of these alone an association either comes to the findings that it had: then nothing else can have changed. Or it does
not, be it for want of calls that are not here: then it is judged of all of its calls. So what is taken has to be enough
to show that something is wrong, not what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.attempts import dependency_keys
from pipeline.attempts.dependency_keys import named, once
from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.evaluate import ASSOCIATION, SCHEMA, Facts, findings
from pipeline.findings.inputs import (
    BINDS,
    CALLS,
    CLIENTS,
    HEADS,
    MANAGEMENT,
    MESSAGES_SAID,
    READS,
    Servers,
    days_of,
    found_rows,
    together,
)
from pipeline.findings.rules.conversations import CLOSES, OPENS, UNREAD
from pipeline.findings.rules.registry import of_one_call
from pipeline.lake.arrow_rows import one_of
from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import on_dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries import Source
from schemas.remote_read_calls import REMOTE_READ_CALLS
from udfs.codes import RR_NACK
from udfs.dcerpc.interfaces import QM, RR

_PURGE, _END, _STARTS = 6, 1, (0, 9, 10)  # of qm2qm


class _Reads(NamedTuple):
    """The calls of silver.remote_read_calls among which calls are looked for: of some connections and dates."""

    lake: Lake
    names: frozenset[str]
    days: str

    def some(self, where: str, /, **of: Source) -> pa.Table:
        """Return the keys of those that meet a condition, with the names that explain them."""
        columns = f"SELECT call_key, {dependency_keys.listed(dependency_keys.EXPLAINS)} AS explains FROM {{reads}}"
        theirs = f"connection_id IN {{names}} AND {self.days} AND ({where})"
        return self.lake.query(f"{columns} WHERE {theirs}", reads=REMOTE_READ_CALLS, names=self.names, **of)

    def explained(self, by: pa.Table) -> pa.Table:
        """Return the same of those that have a name with some in common."""
        return self.some(dependency_keys.meets(dependency_keys.EXPLAINS, "some"), some=named(by, "explains"))


def look_back(
    reads: _Reads, changed: Collection[str], span: tuple[int, int], evidence: Collection[str], openings: pa.Table
) -> set[str]:
    """Return the keys of the calls to look at, among calls of silver.remote_read_calls.

    ``changed`` are the calls that changed, ``span`` is when the first of them was asked and the last one answered,
    microseconds; ``evidence`` are the calls that findings rest on. ``openings`` are calls that opened and closed queues
    at their servers, with call_key, interface_name, opnum, context_handle and queue_handle.
    """
    some = reads.some(f"{_under_way(*span)} OR {_ALWAYS} OR call_key IN {{evidence}}", evidence=evidence)
    contexts, numbers = _opened(openings, changed)
    more = [reads.explained(some)]
    if contexts:
        more.append(reads.some(f"protocol = '{RR}' AND context_handle IN {{contexts}}", contexts=contexts))
    if numbers:
        more.append(reads.some(f"protocol = '{QM}' AND queue_handle IN {{numbers}}", numbers=numbers))
    some = once(some, *more)
    found = once(some, reads.explained(some))
    return {*found["call_key"].to_pylist(), *changed, *evidence}


def _under_way(since: int, until: int) -> str:
    """Return the condition of calls that they were under way at a time, or never were answered."""
    begun = f"coalesce(requested_at, responded_at) <= timestamp_micros({until})"
    return f"(responded_at IS NULL OR ({begun} AND responded_at >= timestamp_micros({since})))"


# Of calls that rules look back on from any time: purges, what was given back, cursors by number.
_ALWAYS: Final = (
    f"(protocol = '{QM}' AND (opnum = {_PURGE} OR (opnum = {_END} AND ack = {RR_NACK})"
    f" OR (opnum IN ({', '.join(map(str, _STARTS))}) AND cursor_handle <> 0)))"
)


def _opened(openings: pa.Table, changed: Collection[str]) -> tuple[set[str], set[int]]:
    """Return the contexts of RemoteRead, and the numbers of qm2qm, that were opened or closed now."""
    methods = {*OPENS, *CLOSES}
    rows = openings.select(["call_key", "interface_name", "opnum", "context_handle", "queue_handle"]).to_pylist()
    ours = [row for row in rows if (row["interface_name"], row["opnum"]) in methods]
    contexts = {(row["interface_name"], row["context_handle"]) for row in ours if row["call_key"] in changed}
    numbers = {row["queue_handle"] for row in ours if (row["interface_name"], row["context_handle"]) in contexts}
    remote = {handle for interface, handle in contexts if interface == RR and handle is not None}
    return remote, {number for number in numbers if number is not None}


class Looked(NamedTuple):
    """Connections whose associations need not be judged as a whole, and their findings as they are, and were."""

    connections: frozenset[str]
    rows: pa.Table
    there: pa.Table

    @classmethod
    def of_none(cls) -> Looked:
        """No association."""
        return cls(frozenset(), SCHEMA.empty_table(), SCHEMA.empty_table())


def looked_at(lake: Lake, going_on: Mapping[str, str], changed: ChangedCalls, servers: Servers) -> Looked:
    """Judge a few calls of associations that go on (connections by their association's name), at some servers."""
    names, connections, opened = frozenset(going_on), servers.connections, servers.opened
    days = on_dates(days_of(connections.filter(one_of(connections, "connection_id", going_on))))
    here = "connection_id IN {names}"
    unread = f"{here} AND outcome IN ({', '.join(map(repr, sorted(UNREAD)))})"
    found: dict[str, Any] = gather(
        {
            "there": lambda: found_rows(lake, f"{here} AND scope = '{ASSOCIATION}'", names=names),
            "binds": partial(BINDS.rows, lake, here, names=names),
            "unread": partial(CALLS.connections, lake, unread, names=names),
            "clients": partial(CLIENTS.connections, lake, here, names=names),
            "management": partial(MANAGEMENT.connections, lake, here, names=names),
        }
    )
    there = found["there"]
    reads = _Reads(lake, names, days)
    keys = look_back(reads, changed.keys, changed.span(going_on), _evidence(there), opened)
    of: dict[str, Source] = {"keys": keys, "names": names}
    theirs = f"call_key IN {{keys}} AND {days}"
    asked = {
        "calls": partial(CALLS.rows, lake, f"{theirs} AND {here}", **of),
        "reads": partial(READS.rows, lake, f"{theirs} AND {here}", **of),
        "messages": partial(MESSAGES_SAID.rows, lake, theirs, keys=keys),
    }
    parts = gather(asked)
    calls = together(parts["calls"], parts["reads"], parts["messages"], changed.rows)
    rest = opened.filter(
        pc.and_(
            one_of(opened, "connection_id", going_on),
            pc.invert(pc.is_in(opened["call_key"], calls["call_key"].combine_chunks())),
        )
    )
    calls = pa.concat_tables([calls, rest.drop_columns([*HEADS])], promote_options="default")
    facts = Facts(calls, opened, connections, found["binds"], frozenset(found["unread"]))
    judged = findings(facts, only=going_on, servers=servers.each, across=False)
    others = {going_on[name] for name in found["clients"] | found["management"]}
    stay = _unbroken(judged, there, going_on) - others
    names = frozenset(name for name, association in going_on.items() if association in stay)
    rows, there = (table.filter(one_of(table, "connection_id", names)) for table in (judged, there))
    return Looked(names, rows, there)


def _evidence(found: pa.Table) -> frozenset[str]:
    """Return the calls that findings rest on which look at several."""
    ours = found.filter(pc.invert(one_of(found, "rule_id", of_one_call())))
    return frozenset({*pc.list_flatten(ours["evidence"]).to_pylist(), *ours["call_key"].to_pylist()} - {None})


def _unbroken(judged: pa.Table, there: pa.Table, going_on: Mapping[str, str]) -> set[str]:
    """Return the associations whose findings over several calls are those that were there."""
    now, before = (_by_association(table, going_on) for table in (judged, there))
    if None in now:  # of no call: nobody knows whose
        return set()
    return {name for name in going_on.values() if now.get(name, {}) == before.get(name, {})}


def _by_association(found: pa.Table, going_on: Mapping[str, str]) -> dict[str | None, dict[str, Any]]:
    """Return findings over several calls, but for the run that made them, by association and key."""
    ours = found.filter(pc.invert(one_of(found, "rule_id", of_one_call())))
    told: defaultdict[str | None, dict[str, Any]] = defaultdict(dict)
    for row in ours.drop_columns(["run_id"]).to_pylist():
        told[going_on.get(row["connection_id"])][row["finding_key"]] = row
    return told
