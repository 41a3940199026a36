"""The rules, asked about every call: the reference for the evaluation that asks them about suspects only.

Every call becomes a row, and every association gets a history of all its calls.
"""

from collections import defaultdict

from pipeline.arrow_rows import rows_to_table
from pipeline.findings import evaluate
from pipeline.findings.captured_rows import captured_calls, iter_rows
from pipeline.findings.columns.call_history import AssociationHistory
from pipeline.findings.rules.registry import (
    ASSOCIATION_CHECKS,
    CALL_CHECKS_BY_METHOD,
    CALL_CHECKS_FOR_ANY_METHOD,
    SERVER_CHECKS,
    Violation,
    single_call_rules,
)


def check_association(history, *, changed_only=False):
    """Yield the violations of an association, each with the check that found it.

    ``changed_only``: rules on single calls are checked only for calls whose ``is_changed`` is true.
    """
    for call in history.calls:
        evidence = {"request": call.request_decoded, "answer": call.response_decoded, "ok": call.succeeded}
        skipped = single_call_rules() if changed_only and not call["is_changed"] else ()
        for check in (*CALL_CHECKS_FOR_ANY_METHOD, *CALL_CHECKS_BY_METHOD.get(call.method, ())):
            found = check.check(call) if check.rule_id not in skipped and evidence.get(check.needs, True) else None
            if found:
                is_violation = isinstance(found, Violation)
                yield check, found if is_violation else Violation(call, found if isinstance(found, str) else "")
    for check in ASSOCIATION_CHECKS:
        if history.is_complete or check.needs != "complete":
            for violation in check.check(history):
                yield check, violation


def evaluate_every_call(inputs):
    """The findings of an input of ``evaluate_calls``."""
    calls, binds = defaultdict(list), defaultdict(list)
    for call in captured_calls(inputs.calls):
        calls[call["connection_id"]].append(call)
    for row in iter_rows(inputs.binds):
        binds[row["connection_id"]].append(defaultdict(lambda: None, row))
    rows = []
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
            changed_only = "is_changed" in inputs.calls.column_names
            rows += evaluate.finding_rows(check_association(history, changed_only=changed_only), "association")
        found = ((check, violation) for check in SERVER_CHECKS for violation in check.check(server.history))
        rows += evaluate.finding_rows(found, "server")
    return rows_to_table(rows, evaluate.FINDINGS_SCHEMA)
