"""The rules, where every call is a row: the reference for the evaluation that makes rows of few.

Every call becomes a row, and every association gets a history of all its calls. Rules on columns have one association,
those on single calls a few calls at a time.
"""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import rows_to_table
from pipeline.findings import evaluate
from pipeline.findings.columns.association_calls import AssociationCalls, CallRows
from pipeline.findings.columns.call_columns import AssociationCallColumns
from pipeline.findings.columns.call_history import AssociationHistory
from pipeline.findings.columns.captured_rows import captured_calls, iter_rows, plain_columns, without_null_columns
from pipeline.findings.find_violations import violating_calls
from pipeline.findings.rules.registry import (
    ALL_RULES,
    ASSOCIATION_CALL_CHECKS,
    ASSOCIATION_CHECKS,
    BIND_CHECKS,
    CALL_CHECKS,
    SERVER_CHECKS,
)

_CALLS_AT_ONCE = 50  # far fewer than in production: no call's findings depend on the others


def check_calls(table, changed=None):
    """Yield the violations of rules on single calls, each with the check that found it.

    ``changed``: of rules on single calls alone, only these calls are checked.
    """
    plain, calls = plain_columns(without_null_columns(table)), [*captured_calls(table)]
    for begin in range(0, len(calls), _CALLS_AT_ONCE):
        rows = plain.slice(begin, _CALLS_AT_ONCE)
        part = AssociationCallColumns(rows, np.zeros(len(rows), np.int64)).slice(0, len(rows))
        of_part = None if changed is None else changed[begin : begin + _CALLS_AT_ONCE]
        for check, found in violating_calls(part, CALL_CHECKS, of_part):
            for place in np.flatnonzero(found.calls):
                yield check, found.violation(place, calls[begin + place], {})


class EveryRow(CallRows):
    """Calls of a history, in any order in a table."""

    def __init__(self, table, history):
        super().__init__(table)
        known = defaultdict(list)  # a row may stand twice
        for call in history.calls:
            known[call["call_key"]].append(call)
        self.calls = {place: known[name].pop() for place, name in enumerate(table["call_key"].to_pylist())}
        self.places = {call: place for place, call in self.calls.items()}
        self._made[:] = True


def check_association(history, table=None):
    """Yield the violations of an association, each with the check that found it.

    ``table``: the history's calls, for rules on columns; without it these are not asked.
    """
    if table is not None:
        plain = plain_columns(without_null_columns(table, "call_key", "connection_id")).combine_chunks()
        rows = EveryRow(plain, history)
        columns = AssociationCalls(AssociationCallColumns(plain, np.zeros(len(plain), np.int64)), [history], rows)
        for check, found in violating_calls(columns, ASSOCIATION_CALL_CHECKS):
            for place in np.flatnonzero(found.calls).tolist():
                yield check, found.violation(place, rows.calls[place], rows.calls)
    for check in BIND_CHECKS:
        for bound in check.check(history.binds):
            names = (call for call in history.calls if call["connection_id"] == bound.bind["connection_id"])
            yield check, bound.violation(ALL_RULES[check.rule_id], next(names, None))
    for check in ASSOCIATION_CHECKS:
        if history.is_complete or not check.complete:
            for violation in check.check(history):
                yield check, violation


def evaluate_every_call(inputs):
    """The findings of an input of ``evaluate_calls``."""
    calls, binds = defaultdict(list), defaultdict(list)
    for call in captured_calls(inputs.calls):
        calls[call["connection_id"]].append(call)
    for row in iter_rows(inputs.binds):
        binds[row["connection_id"]].append(defaultdict(lambda: None, row))
    changed = inputs.calls["is_changed"].to_numpy() if "is_changed" in inputs.calls.column_names else None
    rows = [*evaluate.finding_rows(check_calls(inputs.calls, changed), "association")]
    for server in evaluate.server_contexts(inputs.connections, inputs.open_calls):
        for connections in server.connections_by_association.values():
            names = [row["connection_id"] for row in connections]
            history = AssociationHistory(
                [call for name in names for call in calls[name]],
                connections,
                server.associations[names[0]],
                binds=[bind for name in names for bind in binds[name]],
                server=server.history,
                has_unreadable_calls=any(name in inputs.unreadable_connections for name in names),
            )
            table = inputs.calls.filter(pc.is_in(inputs.calls["connection_id"], pa.array(names)))
            rows += evaluate.finding_rows(check_association(history, table), "association")
        found = ((check, violation) for check in SERVER_CHECKS for violation in check.check(server.history))
        rows += evaluate.finding_rows(found, "server")
    return rows_to_table(rows, evaluate.FINDINGS_SCHEMA)
