"""Evaluates calls: most rules by columns, and those on lifetimes of handles call by call. No Spark.

Calls that open, close or cancel are rows of Python, made once, whichever rules ask. A read or an End becomes a row only
where it breaks a rule, or proves that a call does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.attempts.calls.associations import ClientAssociation
from pipeline.findings.columns.association_calls import AssociationCalls, CallRows, is_always_row
from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask, Numbers
from pipeline.findings.columns.call_history import UNREADABLE_OUTCOMES, AssociationHistory, CapturedCall, ServerHistory
from pipeline.findings.columns.captured_rows import iter_rows, plain_columns, without_null_columns
from pipeline.findings.columns.stored_calls import StoredCalls
from pipeline.findings.rules.registry import (
    ALL_RULES,
    ASSOCIATION_CALL_CHECKS,
    ASSOCIATION_CHECKS,
    BIND_CHECKS,
    CALL_CHECKS,
    RuleCheck,
    ViolatingBind,
    ViolatingCalls,
    Violation,
    single_call_rules,
)

Violations = list[tuple[RuleCheck, Violation]]
_CALLS_AT_ONCE: Final = 1 << 17  # looked at by the rules on single calls: what these compute of columns is not kept


class Association(NamedTuple):
    """An association whose calls are evaluated: its rows of bronze.connections, and its server's openings."""

    connections: Sequence[Mapping[str, Any]]
    association: ClientAssociation
    server: ServerHistory


def find_violations(
    calls: pa.Table | StoredCalls,
    binds: pa.Table,
    associations: Sequence[Association],
    unreadable: Collection[str] = (),
) -> Iterator[Violations]:
    """Yield the violations of each association that has any, each with the check that found it.

    ``calls`` and ``binds`` may have rows of other associations; ``StoredCalls`` must not, and are plain columns.
    ``unreadable``: connections with calls that are not in ``calls`` and could not be read. Where calls have a column
    ``is_changed``, rules on single calls (``single_call_rules``) are checked only for calls where it is true.
    """
    if not associations:
        return
    owners = {row["connection_id"]: place for place, one in enumerate(associations) for row in one.connections}
    plain = _columns_of(calls, owners)
    rows = CallRows(plain.table)
    rows.add(is_always_row(plain))
    histories = _histories(plain, rows, binds, associations, owners, unreadable)
    columns = AssociationCalls(plain, histories, rows)
    changed = columns.nonzero("is_changed") if "is_changed" in calls.column_names else None
    of_calls = [*_evaluate_calls(columns, changed), *_found(violating_calls(columns, ASSOCIATION_CALL_CHECKS))]
    shown = columns.nothing()
    for _, places, violating in of_calls:
        for positions in (places, *(each for each in violating.evidence if each.dtype != np.object_)):
            shown[positions[positions >= 0]] = True
    of_binds = [*_evaluate_binds(histories)]
    firsts = columns.first_of_connection(
        columns.text_in("connection_id", {violating.bind["connection_id"] for _, _, violating in of_binds})
    )
    rows.add(shown | firsts)
    found: list[Violations] = [[] for _ in associations]
    for check, places, violating in of_calls:
        for number, place in enumerate(places.tolist()):
            violation = violating.violation(number, rows.calls[place], rows.calls)
            found[columns.association[place]].append((check, violation))
    first_calls = {rows.calls[place]["connection_id"]: rows.calls[place] for place in np.flatnonzero(firsts).tolist()}
    for place, check, bound in of_binds:
        first = first_calls.get(bound.bind["connection_id"])
        found[place].append((check, bound.violation(ALL_RULES[check.rule_id], first)))
    _evaluate_associations(found, histories)
    yield from filter(None, found)


def _columns_of(calls: pa.Table | StoredCalls, owners: Mapping[str, int]) -> AssociationCallColumns:
    """Return the calls of associations as columns; ``owners`` are the associations' numbers, by connection."""
    names = calls["connection_id"].combine_chunks().dictionary_encode()
    numbers = np.array([*(owners.get(name, -1) for name in names.dictionary.to_pylist()), -1], np.int64)
    associations = numbers[names.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    if isinstance(calls, pa.Table):
        ours = associations >= 0
        if not ours.all():
            calls, associations = calls.filter(pa.array(ours)), associations[ours]
        calls = plain_columns(without_null_columns(calls, "connection_id")).combine_chunks()
    return AssociationCallColumns(calls, associations)


def _histories(
    columns: AssociationCallColumns,
    rows: CallRows,
    binds: pa.Table,
    associations: Sequence[Association],
    owners: Mapping[str, int],
    unreadable: Collection[str],
) -> list[AssociationHistory]:
    """Return the history of each association, with the calls that are rows so far."""
    theirs: list[list[CapturedCall]] = [[] for _ in associations]
    for place, call in rows.calls.items():
        theirs[columns.association[place]].append(call)
    bound: defaultdict[int, list[Any]] = defaultdict(list)
    for row in iter_rows(binds):
        if row["connection_id"] in owners:
            bound[owners[row["connection_id"]]].append(defaultdict(lambda: None, row))
    count = len(associations)
    unread = np.zeros(count, np.bool_)
    unread[columns.association[columns.text_in("outcome", UNREADABLE_OUTCOMES)]] = True
    unread[[owners[name] for name in unreadable if name in owners]] = True
    latest = np.zeros(count, np.int64)
    np.maximum.at(latest, columns.association[columns.seen_by_taps], columns.ended_at[columns.seen_by_taps])
    return [
        AssociationHistory(
            theirs[place], one.connections, one.association, binds=bound[place], server=one.server,
            has_unreadable_calls=bool(unread[place]), latest_by_taps=int(latest[place]),
        )
        for place, one in enumerate(associations)
    ]  # fmt: skip


_Found = tuple[RuleCheck, Numbers, ViolatingCalls]
"""What a check on columns finds: the positions of the calls that break its rule, and what was seen of these."""


def _evaluate_calls(columns: AssociationCallColumns, changed: Mask | None) -> Iterator[_Found]:
    """Yield what the checks on single calls find."""
    for begin in range(0, columns.count, _CALLS_AT_ONCE):
        part = columns.slice(begin, _CALLS_AT_ONCE)
        changed_part = None if changed is None else changed[begin : begin + _CALLS_AT_ONCE]
        yield from _found(violating_calls(part, CALL_CHECKS, changed_part), begin)


def _found(violations: Iterable[tuple[RuleCheck, ViolatingCalls]], begin: int = 0) -> Iterator[_Found]:
    for check, violating in violations:
        places = np.flatnonzero(violating.calls)
        yield check, places + begin, violating.at(places)


def violating_calls(
    columns: AssociationCallColumns, checks: Sequence[RuleCheck], changed: Mask | None = None
) -> Iterator[tuple[RuleCheck, ViolatingCalls]]:
    """Yield what checks on columns find, each call at most once for each check.

    Rules on single calls alone (``single_call_rules``) are checked only for the ``changed`` calls.
    """
    evidence: Final = {
        "request": columns.request_decoded, "answer": columns.response_decoded, "ok": columns.succeeded,
    }  # fmt: skip
    single = single_call_rules() if changed is not None else ()
    for check in checks:
        evaluated = columns.of(*check.methods) if check.methods else ~columns.nothing()
        for other in (evidence.get(check.needs), changed if check.rule_id in single else None):
            evaluated = evaluated if other is None else evaluated & other
        calls = columns
        if isinstance(columns, AssociationCalls):
            evaluated = evaluated & columns.complete if check.complete else evaluated
            calls = columns.judging(evaluated)
        if evaluated.any():
            for violating in check.check(calls):
                broken = violating.calls & evaluated
                if broken.any():
                    evaluated = evaluated & ~broken
                    yield check, violating._replace(calls=broken)


def _evaluate_binds(histories: Sequence[AssociationHistory]) -> Iterator[tuple[int, RuleCheck, ViolatingBind]]:
    """Yield what the checks on binds find, with the number of the association."""
    for place, history in enumerate(histories):
        for check in BIND_CHECKS if history.binds else ():
            for violating in check.check(history.binds):
                yield place, check, violating


def _evaluate_associations(found: list[Violations], histories: Sequence[AssociationHistory]) -> None:
    """Add what the checks on histories find, of calls of their methods."""
    for check in ASSOCIATION_CHECKS:
        for place, history in enumerate(histories):
            if history.has_calls_of(*check.methods) and (history.is_complete or not check.complete):
                for violation in check.check(history):
                    if violation.call is None or violation.call.method in check.methods:
                        found[place].append((check, violation))
