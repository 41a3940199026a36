"""Evaluates calls: rules on single calls, by columns, and those on associations, call by call. No Spark.

A call that breaks no rule on single calls, and that no condition finds (``RuleCheck.suspects``), never becomes a row.
Of the others, and of all calls that open, close or cancel, rows are made once, whichever rules ask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.attempts.calls.associations import ClientAssociation
from pipeline.findings.columns.association_calls import AssociationCalls, Suspects, is_always_row, no_reads
from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask, Numbers
from pipeline.findings.columns.call_history import UNREADABLE_OUTCOMES, AssociationHistory, CapturedCall, ServerHistory
from pipeline.findings.columns.captured_rows import captured_calls, iter_rows, plain_columns, without_null_columns
from pipeline.findings.columns.receives import with_whole_exchanges
from pipeline.findings.columns.stored_calls import StoredCalls
from pipeline.findings.rules.registry import (
    ASSOCIATION_CHECKS,
    CALL_CHECKS,
    RuleCheck,
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
    rows = _RowsByPosition(plain.table)
    rows.add(is_always_row(plain))
    histories = _histories(plain, rows, binds, associations, owners, unreadable)
    columns = AssociationCalls(plain, histories, rows.places)
    changed = columns.nonzero("is_changed") if "is_changed" in calls.column_names else None
    of_calls = _evaluate_calls(columns, changed)
    of_associations, related = _suspects_of_association_checks(columns)
    if related.any():  # a receive without its End would seem to be pending
        related = with_whole_exchanges(columns, related)
    _add_rows(histories, columns, rows, rows.add(related))
    broken = columns.nothing()
    for _, places, _ in of_calls:
        broken[places] = True
    rows.add(broken)
    found: list[Violations] = [[] for _ in associations]
    for check, places, violating in of_calls:
        for number, place in enumerate(places.tolist()):
            violation = violating.violation(number, rows.calls[place])
            found[columns.association[place]].append((check, violation))
    _evaluate_associations(found, rows, histories, of_associations)
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


class _RowsByPosition:
    """The calls that have become rows of Python, by their position in the table, and the positions of these."""

    def __init__(self, table: pa.Table | StoredCalls) -> None:
        self._table = table
        self._made = np.zeros(table.num_rows, np.bool_)
        self.calls: dict[int, CapturedCall] = {}
        self.places: dict[CapturedCall, int] = {}

    def add(self, mask: Mask) -> Numbers:
        """Make rows of calls, and return the positions of those that were none."""
        new = np.nonzero(mask & ~self._made)[0]
        if new.size:
            made = captured_calls(self._table.take(pa.array(new)))
            for place, call in zip(new.tolist(), made, strict=True):
                self.calls[place] = call
                self.places[call] = place
            self._made |= mask
        return new


def _histories(
    columns: AssociationCallColumns,
    rows: _RowsByPosition,
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


def _add_rows(
    histories: Sequence[AssociationHistory], columns: AssociationCallColumns, rows: _RowsByPosition, added: Numbers
) -> None:
    """Add to the histories the calls that became rows since they were made."""
    theirs: defaultdict[int, list[CapturedCall]] = defaultdict(list)
    for place in added.tolist():
        theirs[int(columns.association[place])].append(rows.calls[place])
    for place, calls in theirs.items():
        histories[place].add_calls(calls)


def _evaluate_calls(
    columns: AssociationCallColumns, changed: Mask | None
) -> list[tuple[RuleCheck, Numbers, ViolatingCalls]]:
    """Return what the checks on single calls find: the positions of calls that break a rule, and what was seen."""
    found = []
    for begin in range(0, columns.count, _CALLS_AT_ONCE):
        part = columns.slice(begin, _CALLS_AT_ONCE)
        changed_part = None if changed is None else changed[begin : begin + _CALLS_AT_ONCE]
        for check, violating in violating_calls(part, changed_part):
            places = np.flatnonzero(violating.calls)
            found.append((check, places + begin, violating.at(places)))
    return found


def violating_calls(
    columns: AssociationCallColumns, changed: Mask | None = None
) -> Iterator[tuple[RuleCheck, ViolatingCalls]]:
    """Yield what the checks on single calls find, each call at most once for each check.

    Rules on single calls alone (``single_call_rules``) are checked only for the ``changed`` calls.
    """
    evidence: Final = {
        "request": columns.request_decoded, "answer": columns.response_decoded, "ok": columns.succeeded,
    }  # fmt: skip
    single = single_call_rules() if changed is not None else ()
    for check in CALL_CHECKS:
        evaluated = columns.of(*check.methods) if check.methods else ~columns.nothing()
        for other in (evidence.get(check.needs), changed if check.rule_id in single else None):
            evaluated = evaluated if other is None else evaluated & other
        if evaluated.any():
            for violating in check.check(columns):
                calls = violating.calls & evaluated
                if calls.any():
                    evaluated = evaluated & ~calls
                    yield check, violating._replace(calls=calls)


class _Judged(NamedTuple):
    """What a check on associations evaluates: these associations, and of their calls those at these positions."""

    associations: list[int]
    calls: frozenset[int]


def _suspects_of_association_checks(calls: AssociationCalls) -> tuple[list[_Judged], Mask]:
    """Return what each check evaluates, and which calls it evaluates or needs beside them.

    Those that are rows in any case are not among the latter where all of these are evaluated.
    """
    found: dict[tuple[Any, bool], _Judged] = {}
    every = calls.nothing()
    for condition, whole in map(_condition, ASSOCIATION_CHECKS):
        if (condition, whole) not in found:
            suspects: Suspects = condition(calls)
            masks = [mask & calls.complete if whole else mask for mask in suspects if mask is not None]
            if condition is not no_reads:
                every |= np.logical_or.reduce(masks)
            places = np.flatnonzero(masks[0])
            associations = np.unique(calls.association[places]).tolist()
            found[condition, whole] = _Judged(associations, frozenset(places.tolist()))
    return [found[_condition(check)] for check in ASSOCIATION_CHECKS], every


def _condition(check: RuleCheck) -> tuple[Any, bool]:
    """Return the condition of a check, and whether its association must be complete."""
    return check.suspects, check.needs == "complete"


def _evaluate_associations(
    found: list[Violations],
    rows: _RowsByPosition,
    histories: Sequence[AssociationHistory],
    evaluated: Sequence[_Judged],
) -> None:
    """Add what the checks on associations find: check by check, only of the calls that may break its rule."""
    with_binds = [place for place, history in enumerate(histories) if history.binds]
    for check, (associations, calls) in zip(ASSOCIATION_CHECKS, evaluated, strict=True):
        for place in with_binds if check.evaluates_binds else associations:
            if check.needs == "complete" and not histories[place].is_complete:
                continue
            for violation in check.check(histories[place]):
                if violation.call is None or rows.places[violation.call] in calls:
                    found[place].append((check, violation))
