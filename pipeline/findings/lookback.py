"""Evaluation of ongoing associations with only those earlier calls that new calls can be related to.

Rules over several calls need all calls of an association, which may last for months. A new call can only break a rule
together with related calls, and these are few: calls in flight while the new ones were made, calls that were never
answered, calls with the same number, handle, message or cursor (``dependency_keys.RULE_KEYS``), calls on a queue that
was opened or closed now, and the evidence of earlier findings.

If evaluation of these calls alone gives the stored findings, nothing else can have changed. If it does not, even only
because calls are missing, the association is evaluated with all its calls. So the selected calls must suffice to show
that something is wrong, not what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import NO_TEXTS, distinct_texts, is_in
from pipeline.attempts import dependency_keys
from pipeline.attempts.dependency_keys import concat_unique, keys_in_column
from pipeline.concurrency import run_concurrently
from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.columns.call_history import CLOSE_METHODS, OPEN_METHODS, UNREADABLE_OUTCOMES
from pipeline.findings.evaluate import ASSOCIATION_SCOPE, FINDINGS_SCHEMA, EvaluationInput, evaluate_calls
from pipeline.findings.inputs import (
    BIND_INPUT,
    CALL_INPUT,
    CLIENT_CALL_INPUT,
    MANAGEMENT_CALL_INPUT,
    MESSAGE_INPUT,
    REMOTE_READ_INPUT,
    STUB_COLUMN_TYPES,
    ServersInput,
    connection_dates,
    join_decoded_columns,
    read_findings,
)
from pipeline.findings.rules.registry import single_call_rules
from pipeline.lake.date_filters import Dates
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, RowsOfDates
from schemas.calls import REMOTE_READ_CALLS
from udfs.codes import RR_NACK
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

_PURGE_OPNUM, _END_OPNUM, _START_OPNUMS = 6, 1, (0, 9, 10)  # of qm2qm
_PORT_OPNUM = 0  # of RemoteRead


class _RemoteReadCalls(NamedTuple):
    """The rows of silver.remote_read_calls of some connections and dates."""

    lake: Lake
    connection_ids: frozenset[str]
    dates: Dates | None

    def select_keys(self, where: str, /, **inputs: QueryInput) -> pa.Table:
        """Return the call keys of rows that meet a condition, with their dependency keys."""
        columns = f"SELECT call_key, {dependency_keys.key_array(dependency_keys.RULE_KEYS)} AS explains FROM {{reads}}"
        ours, reads = f"connection_id IN {{names}} AND ({where})", RowsOfDates(REMOTE_READ_CALLS, self.dates)
        return self.lake.query(f"{columns} WHERE {ours}", reads=reads, names=self.connection_ids, **inputs)

    def select_keys_sharing(self, rows: pa.Table, *others: str, **inputs: QueryInput) -> pa.Table:
        """Return the call keys of rows that have a dependency key in common with other rows, or meet a condition."""
        overlap = dependency_keys.keys_overlap(dependency_keys.RULE_KEYS, "{some}")
        return self.select_keys(" OR ".join((overlap, *others)), some=keys_in_column(rows, "explains"), **inputs)


def lookback_call_keys(
    reads: _RemoteReadCalls,
    changed_keys: pa.Array,
    span: tuple[int, int],
    evidence: pa.Array,
    openings: pa.Table,
) -> pa.Array:
    """Return the keys of the calls that the evaluation needs, among rows of silver.remote_read_calls.

    ``changed_keys`` are the changed calls; ``span`` is from the start of the first to the end of the last of them,
    microseconds. ``evidence`` are the calls that prove stored findings. ``openings`` are calls of the servers that open
    and close, with call_key, interface_name, opnum, context_handle and queue_handle.
    """
    concerned = f"{_in_flight_condition(*span)} OR {_ALWAYS_INCLUDED} OR call_key IN {{evidence}}"
    some = reads.select_keys(concerned, evidence=evidence)
    contexts, numbers = _opened_or_closed(openings, changed_keys)
    of_contexts = f"(protocol = '{REMOTE_READ_NAME}' AND context_handle IN {{contexts}})"
    of_numbers = f"(protocol = '{QM2QM_NAME}' AND queue_handle IN {{numbers}})"
    more = reads.select_keys_sharing(some, of_contexts, of_numbers, contexts=contexts, numbers=numbers)
    some = concat_unique(some, more)
    found = concat_unique(some, reads.select_keys_sharing(some))
    return distinct_texts(found["call_key"], changed_keys, evidence)


def _in_flight_condition(since: int, until: int) -> str:
    """Return the SQL condition of calls that were in flight in a time span, or never answered."""
    begun = f"coalesce(requested_at, responded_at) <= timestamp_micros({until})"
    return f"(responded_at IS NULL OR ({begun} AND responded_at >= timestamp_micros({since})))"


# Calls that rules need from any time: purges, rejections, reads with a cursor number, questions for a port.
_ALWAYS_INCLUDED: Final = (
    f"(protocol = '{QM2QM_NAME}' AND (opnum = {_PURGE_OPNUM} OR (opnum = {_END_OPNUM} AND ack = {RR_NACK})"
    f" OR (opnum IN ({', '.join(map(str, _START_OPNUMS))}) AND cursor_handle <> 0))"
    f" OR (protocol = '{REMOTE_READ_NAME}' AND opnum = {_PORT_OPNUM}))"
)


def _opened_or_closed(openings: pa.Table, changed: pa.Array) -> tuple[set[str], set[int]]:
    """Return the contexts of RemoteRead and the queue numbers of qm2qm that changed calls opened or closed."""
    methods = {*OPEN_METHODS, *CLOSE_METHODS}
    names = ["interface_name", "opnum", "context_handle", "queue_handle"]
    rows = openings.select(names).append_column("is_changed", is_in(openings, "call_key", changed)).to_pylist()
    ours = [row for row in rows if (row["interface_name"], row["opnum"]) in methods]
    contexts = {(row["interface_name"], row["context_handle"]) for row in ours if row["is_changed"]}
    numbers = {row["queue_handle"] for row in ours if (row["interface_name"], row["context_handle"]) in contexts}
    remote = {handle for interface, handle in contexts if interface == REMOTE_READ_NAME and handle is not None}
    return remote, {number for number in numbers if number is not None}


class LookbackResult(NamedTuple):
    """The associations that changed calls do not affect: their connections, and their findings now and as stored.

    The two tables of findings differ at most in rules on single calls.
    """

    unaffected_connections: pa.Array
    findings: pa.Table
    stored_findings: pa.Table

    @classmethod
    def nothing(cls) -> LookbackResult:
        """Return the result for no association."""
        return cls(NO_TEXTS, FINDINGS_SCHEMA.empty_table(), FINDINGS_SCHEMA.empty_table())


def evaluate_ongoing_associations(
    lake: Lake, ongoing: Mapping[str, str], changed: ChangedCalls, servers: ServersInput
) -> LookbackResult:
    """Evaluate ongoing associations with related calls only, and return those that are not affected.

    ``ongoing`` maps connections to their association's name. Associations with calls of qmcomm or qmmgmt count as
    affected.
    """
    names, connections, openings = frozenset(ongoing), servers.connections, servers.opening_calls
    dates = connection_dates(connections.filter(is_in(connections, "connection_id", ongoing)))
    ours = "connection_id IN {names}"
    unreadable = f"{ours} AND outcome IN ({', '.join(map(repr, sorted(UNREADABLE_OUTCOMES)))})"
    found: dict[str, Any] = run_concurrently(
        {
            "stored": partial(read_findings, lake, f"{ours} AND scope = '{ASSOCIATION_SCOPE}'", names=names),
            "binds": partial(BIND_INPUT.read_rows, lake, ours, dates, names=names),
            "unreadable": partial(CALL_INPUT.read_connection_ids, lake, unreadable, names=names),
            "clients": partial(CLIENT_CALL_INPUT.read_connection_ids, lake, ours, names=names),
            "management": partial(MANAGEMENT_CALL_INPUT.read_connection_ids, lake, ours, names=names),
        }
    )
    stored = found["stored"]
    reads = _RemoteReadCalls(lake, names, dates)
    keys = lookback_call_keys(reads, changed.call_keys, changed.time_span(ongoing), _evidence_keys(stored), openings)
    by_key, of_ours = "call_key IN {keys}", f"call_key IN {{keys}} AND {ours}"
    parts = run_concurrently(
        {
            "calls": partial(CALL_INPUT.read_rows, lake, of_ours, dates, keys=keys, names=names),
            "reads": partial(REMOTE_READ_INPUT.read_rows, lake, of_ours, dates, keys=keys, names=names),
            "messages": partial(MESSAGE_INPUT.read_rows, lake, by_key, dates, keys=keys),
        }
    )
    calls = join_decoded_columns(parts["calls"], [parts["reads"], parts["messages"], changed.rows])
    is_read = pc.is_in(openings["call_key"], calls["call_key"].combine_chunks())
    rest = openings.filter(pc.and_(is_in(openings, "connection_id", ongoing), pc.invert(is_read)))
    calls = pa.concat_tables([calls, rest.drop_columns([*STUB_COLUMN_TYPES])], promote_options="default")
    inputs = EvaluationInput(calls, openings, connections, found["binds"], frozenset(found["unreadable"].to_pylist()))
    findings = evaluate_calls(inputs, only_connections=ongoing, contexts=servers.contexts, server_rules_of=())
    elsewhere = distinct_texts(found["clients"], found["management"])
    with_other_interfaces = {ongoing[name] for name in elsewhere.to_pylist()}
    unaffected = _unaffected_associations(findings, stored, ongoing) - with_other_interfaces
    those = pa.array([name for name, association in ongoing.items() if association in unaffected], pa.string())
    findings, stored = (table.filter(is_in(table, "connection_id", those)) for table in (findings, stored))
    return LookbackResult(those, findings, stored)


def _of_several_calls(findings: pa.Table) -> pa.Table:
    """Return the findings of rules that look at several calls."""
    return findings.filter(pc.invert(is_in(findings, "rule_id", single_call_rules())))


def _evidence_keys(findings: pa.Table) -> pa.Array:
    """Return the keys of the calls that prove findings of rules over several calls."""
    ours = _of_several_calls(findings)
    return distinct_texts(pc.list_flatten(ours["evidence"]), ours["call_key"])


def _unaffected_associations(findings: pa.Table, stored: pa.Table, ongoing: Mapping[str, str]) -> set[str]:
    """Return the associations whose findings over several calls equal the stored ones."""
    now, before = (_findings_by_association(table, ongoing) for table in (findings, stored))
    if None in now:  # a finding without a call: its association is unknown
        return set()
    return {name for name in ongoing.values() if now.get(name, {}) == before.get(name, {})}


def _findings_by_association(findings: pa.Table, ongoing: Mapping[str, str]) -> dict[str | None, dict[str, Any]]:
    """Return findings over several calls without their run, by association and finding key."""
    found: defaultdict[str | None, dict[str, Any]] = defaultdict(dict)
    for row in _of_several_calls(findings).drop_columns(["run_id"]).to_pylist():
        found[ongoing.get(row["connection_id"])][row["finding_key"]] = row
    return found
