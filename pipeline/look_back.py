"""The calls of associations that go on which rules over several calls look back on, when new ones come.

Rules over several calls rest on all calls of an association, which may last for months. What new calls can break they
break together with calls that they have something to do with, and these are few: those that were under way while the
new ones were made, those that never were answered, those with the same number, handle, message or cursor
(``bearing.explains``), those on a queue that was opened or closed now, and those that earlier findings rest on. Judged
of these alone an association either comes to the findings that it had: then nothing else can have changed. Or it does
not, be it for want of calls that are not here: then it is judged of all of its calls. So what is taken has to be enough
to show that something is wrong, not what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline import bearing
from pipeline.bearing import meeting, named, once
from pipeline.changed_calls import ChangedCalls
from pipeline.exchanges import CLOSES, OPENS, QM, RR, UNREAD
from pipeline.findings import ASSOCIATION, CONNECTIONS, SCHEMA, Facts, findings
from pipeline.findings_sources import HEADS, days_of, found_rows, messages_of, names_of, sources, strings, together
from pipeline.gather import gather
from pipeline.lake import Lake, on_dates
from pipeline.rules import of_one_call
from pipeline.touched import only
from schemas.findings import FINDINGS
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE
from udfs.codes import RR_NACK

_PURGE, _END, _STARTS = 6, 1, (0, 9, 10)  # of qm2qm


def look_back(
    reads: DataFrame, changed: Collection[str], span: tuple[int, int], evidence: Collection[str], openings: pa.Table
) -> set[str]:
    """Return the keys of the calls to look at, among calls of silver.remote_read_calls.

    ``changed`` are the calls that changed, ``span`` is when the first of them was asked and the last one answered,
    microseconds; ``evidence`` are the calls that findings rest on. ``openings`` are calls that opened and closed queues
    at their servers, with call_key, interface_name, opnum, context_handle and queue_handle.
    """
    known = reads.withColumn("explains", bearing.explains())
    keyed = known.select("call_key", "explains")
    some = _chosen(known.where(_under_way(*span) | _always()))
    some = once(some, _chosen(only(known, "call_key", evidence)))
    contexts, numbers = _opened(openings, changed)
    more = [meeting(keyed, "explains", named(some, "explains"))]
    if contexts:
        more.append(_chosen(only(known.where(F.col("protocol") == RR), "context_handle", contexts)))
    if numbers:
        theirs = known.where(F.col("protocol") == QM).withColumn("_number", F.col("queue_handle").cast("string"))
        more.append(_chosen(only(theirs, "_number", numbers)))
    some = once(some, *more)
    found = once(some, meeting(keyed, "explains", named(some, "explains")))
    return {*found["call_key"].to_pylist(), *changed, *evidence}


def _chosen(calls: DataFrame) -> pa.Table:
    return calls.select("call_key", "explains").toArrow()


def _under_way(since: int, until: int) -> Column:
    """Tell of calls whether they were under way at a time, or never were answered."""
    begun = F.coalesce("requested_at", "responded_at") <= F.timestamp_micros(F.lit(until))
    return F.col("responded_at").isNull() | (begun & (F.col("responded_at") >= F.timestamp_micros(F.lit(since))))


def _always() -> Column:
    """Tell of calls whether rules look back on them from any time: purges, what was given back, cursors by number."""
    opnum = F.col("opnum")
    rare = opnum == _PURGE
    rare |= (opnum == _END) & (F.col("ack") == RR_NACK)
    rare |= opnum.isin(*_STARTS) & (F.col("cursor_handle") != 0)
    return (F.col("protocol") == QM) & rare


def _opened(openings: pa.Table, changed: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the contexts of RemoteRead, and the numbers of qm2qm as text, that were opened or closed now."""
    methods = {*OPENS, *CLOSES}
    rows = openings.select(["call_key", "interface_name", "opnum", "context_handle", "queue_handle"]).to_pylist()
    ours = [row for row in rows if (row["interface_name"], row["opnum"]) in methods]
    contexts = {(row["interface_name"], row["context_handle"]) for row in ours if row["call_key"] in changed}
    numbers = {row["queue_handle"] for row in ours if (row["interface_name"], row["context_handle"]) in contexts}
    remote = {handle for interface, handle in contexts if interface == RR and handle is not None}
    return remote, {str(number) for number in numbers if number is not None}


class Looked(NamedTuple):
    """Connections whose associations need not be judged as a whole, and their findings as they are, and were.

    ``opened``: what servers opened, where it was read for this.
    """

    connections: frozenset[str]
    rows: pa.Table
    there: pa.Table
    opened: pa.Table | None = None

    @classmethod
    def of_none(cls) -> Looked:
        """No association."""
        return cls(frozenset(), SCHEMA.empty_table(), SCHEMA.empty_table())


def looked_at(
    lake: Lake, going_on: Mapping[str, str], changed: ChangedCalls, *, connections: pa.Table, opened: pa.Table
) -> Looked:
    """Judge a few calls of associations that go on (connections by their association's name).

    ``connections`` are all of their servers, ``opened`` what these opened (``findings_sources.openings``).
    """
    here = partial(only, column="connection_id", values=frozenset(going_on))
    days = on_dates(days_of(connections.filter(pc.is_in(connections["connection_id"], strings(going_on)))))
    frames = {name: here(rows) for name, rows in sources(lake, stubs=False).items()}
    unread = frames["calls"].where(F.col("outcome").isin(*UNREAD))
    found: dict[str, Any] = gather(
        {
            "there": lambda: found_rows(here(lake.read(FINDINGS).where(F.col("scope") == ASSOCIATION))),
            "binds": frames["binds"].toArrow,
            "unread": partial(names_of, unread),
            **{name: partial(names_of, frames[name]) for name in ("clients", "management")},
        }
    )
    there = found["there"]
    reads = here(lake.read(REMOTE_READ_CALLS).where(days))
    keys = look_back(reads, changed.keys, changed.span(going_on), _evidence(there), opened)
    chosen = partial(only, column="call_key", values=keys)
    asked = {name: chosen(frames[name].where(days)).drop(EVENT_DATE).toArrow for name in ("calls", "reads")}
    asked["messages"] = chosen(messages_of(lake).where(days)).drop(EVENT_DATE).toArrow
    parts = gather(asked)
    calls = together(parts["calls"].drop_columns([*HEADS]), parts["reads"], parts["messages"], changed.rows)
    rest = opened.filter(
        pc.and_(
            pc.is_in(opened["connection_id"], strings(going_on)),
            pc.invert(pc.is_in(opened["call_key"], calls["call_key"].combine_chunks())),
        )
    )
    calls = pa.concat_tables([calls, rest.drop_columns([*HEADS])], promote_options="default")
    facts = Facts(calls, opened, connections.select(list(CONNECTIONS)), found["binds"], frozenset(found["unread"]))
    judged = findings(facts, only=going_on)
    judged = judged.filter(pc.equal(judged["scope"], ASSOCIATION))
    others = {going_on[name] for name in found["clients"] | found["management"]}
    stay = _unbroken(judged, there, going_on) - others
    names = frozenset(name for name, association in going_on.items() if association in stay)
    rows, there = (table.filter(pc.is_in(table["connection_id"], strings(names))) for table in (judged, there))
    return Looked(names, rows, there, opened)


def _evidence(found: pa.Table) -> frozenset[str]:
    """Return the calls that findings rest on which look at several."""
    ours = found.filter(pc.invert(pc.is_in(found["rule_id"], strings(of_one_call()))))
    return frozenset({*pc.list_flatten(ours["evidence"]).to_pylist(), *ours["call_key"].to_pylist()} - {None})


def _unbroken(judged: pa.Table, there: pa.Table, going_on: Mapping[str, str]) -> set[str]:
    """Return the associations whose findings over several calls are those that were there."""
    now, before = (_by_association(table, going_on) for table in (judged, there))
    if None in now:  # of no call: nobody knows whose
        return set()
    return {name for name in going_on.values() if now.get(name, {}) == before.get(name, {})}


def _by_association(found: pa.Table, going_on: Mapping[str, str]) -> dict[str | None, dict[str, Any]]:
    """Return findings over several calls, but for the run that made them, by association and key."""
    ours = found.filter(pc.invert(pc.is_in(found["rule_id"], strings(of_one_call()))))
    told: defaultdict[str | None, dict[str, Any]] = defaultdict(dict)
    for row in ours.drop_columns(["run_id"]).to_pylist():
        told[going_on.get(row["connection_id"])][row["finding_key"]] = row
    return told
