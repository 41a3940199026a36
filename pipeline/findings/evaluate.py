"""Evaluation of the rules on calls, connections and binds -> rows of gold.findings. No Spark session is needed.

One association is checked after the other, together with what all associations of its server opened; then the openings
of the server as a whole. A check runs only where its input was captured completely.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.arrow_rows import epoch_day, rows_to_table
from pipeline.attempts.calls.associations import ClientAssociation, RpcConnection, group_into_associations
from pipeline.attempts.server_openings import OPEN_AND_CLOSE_METHODS
from pipeline.findings.columns.call_columns import AssociationCallColumns
from pipeline.findings.columns.call_history import CapturedCall, ServerHistory, has_losses
from pipeline.findings.columns.captured_rows import captured_calls, iter_rows
from pipeline.findings.columns.stored_calls import StoredCalls
from pipeline.findings.find_violations import Association, find_violations
from pipeline.findings.rules import (
    clocks,
    handles,
    message_packets,
    messages,
    qm2qm,
    qmcomm,
    qmmgmt,
    queued_components,
    reads,
    remote_read,
    rpc,
)
from pipeline.findings.rules.registry import ALL_RULES, SERVER_CHECKS, Rule, RuleCheck, Violation
from schemas.findings import FINDINGS
from udfs.keys import key

RULE_MODULES: Final = (
    rpc, qm2qm, remote_read, reads, handles, messages, message_packets, queued_components, qmmgmt, qmcomm, clocks,
)  # fmt: skip
"""The modules whose import registers the checks."""

CALL_COLUMNS: Final = (
    "call_key", "connection_id", "call_id", "context_id", "interface_name", "opnum", "transfer_syntax", "byte_order",
    "auth_level", "bind_seen", "sealed", "opened_by", "request_at", "response_at", "clocks", "cancelled_at",
    "orphaned_at", "fault_status", "outcome", "client_address", "server_address", "server_port", "run_id",
)  # fmt: skip
REMOTE_READ_COLUMNS: Final = (
    "call_key", "queue_format_type", "queue_format_name", "queue", "access", "share_mode", "client_id", "workgroup",
    "version_major", "version_minor", "build_number", "returned_port", "port_type", "context_handle",
    "remote_read_handle", "queue_handle", "queue_descriptor", "open_context", "mqs", "cursor_handle", "action",
    "timeout_ms", "request_id", "lookup_id", "sequence_id", "max_body_bytes", "transaction_id",
    "propagation_token_bytes", "acknowledgement_class", "ack", "move_context", "arrived_at", "section_types",
    "section_bytes", "section_allocated_bytes", "packet_bytes", "hresult", "errors",
)  # fmt: skip
EVALUATED_CLIENT_CALL_COLUMNS: Final = (
    "call_key", "queue_format_name", "queue", "access", "share_mode", "client_id", "returned_port", "port_type",
    "context_handle", "queue_handle", "queue_descriptor", "open_context", "mqs", "cursor_handle", "remote_queue_name",
    "queue_manager_context", "hresult", "errors",
)  # fmt: skip
MANAGEMENT_CALL_COLUMNS: Final = (
    "call_key", "object_type", "queue_format_name", "queue", "property_ids", "action", "hresult", "errors",
)  # fmt: skip
EVALUATED_MESSAGE_COLUMNS: Final = (
    "call_key", "source_queue_manager", "sent_at", "body_bytes", "is_srmp", "time_to_reach_queue_s",
    "time_to_be_received_s", "header_sizes", "priority", "delivery", "class", "acknowledgement_requested",
    "admin_queue_type", "journaling", "hop_count", "traced", "transactional", "transaction_number",
    "previous_transaction_number", "privacy_level", "encryption_algorithm", "correlation_id",
    "dead_letter_queue", "comqc_rejected", "comqc_deviations", "is_comqc", "destination_queue", "errors",
)  # fmt: skip
EVALUATED_CONNECTION_COLUMNS: Final = (
    "connection_id", "client_address", "server_address", "first_packet_at", "last_packet_at", "closed_at", "closed_by",
    "association_group_id", "association_joined", "syn_seen", "missing_bytes",
)  # fmt: skip
BIND_COLUMNS: Final = (
    "connection_id", "server_address", "context_id", "interface_name", "transfer_syntaxes_offered", "transfer_syntax",
    "result", "reason", "bound_at",
)  # fmt: skip
"""The columns that the rules use of bronze.rpc_calls, the tables of silver, connections and binds."""

STUB_HEAD_BYTES: Final = 80
STUB_TAIL_BYTES: Final = 12
FINDINGS_SCHEMA: Final = FINDINGS.schema()
_CONNECTION_DEFAULTS: Final[dict[str, Any]] = {"syn_seen": False, "missing_bytes": 0}
ASSOCIATION_SCOPE, _SERVER_SCOPE = "association", "server"
_SEVERITY_RANK: Final = {"error": 0, "warning": 1, "info": 2, None: 3}


class EvaluationInput(NamedTuple):
    """The input of an evaluation, as Arrow tables.

    ``calls`` are those of complete associations of any number of servers. ``open_calls`` are the calls that open and
    close (``OPEN_AND_CLOSE_METHODS``) of all associations of these servers, with the columns of ``calls``.
    ``connections`` are all of these servers, ``binds`` at least those of the calls. ``unreadable_connections`` are
    connections with calls that could not be read, for evaluations that do not have all calls.
    """

    calls: pa.Table | StoredCalls
    open_calls: pa.Table
    connections: pa.Table
    binds: pa.Table
    unreadable_connections: frozenset[str] = frozenset()


def is_open_or_close_call(table: pa.Table) -> pa.Array:
    """Return which calls are of the methods in ``OPEN_AND_CLOSE_METHODS``."""
    calls = AssociationCallColumns(table.select(["interface_name", "opnum"]), np.zeros(table.num_rows, np.int64))
    return pa.array(calls.of(*OPEN_AND_CLOSE_METHODS))


class ServerContext(NamedTuple):
    """One server: its connections by association, the association of each connection, and its opening calls."""

    server: str | None
    connections_by_association: Mapping[str, Sequence[dict[str, Any]]]
    associations: Mapping[str, ClientAssociation]
    history: ServerHistory


def server_contexts(connections: pa.Table, opening_calls: pa.Table) -> list[ServerContext]:
    """Return the servers of connections; ``opening_calls`` are theirs (``EvaluationInput``)."""
    by_server: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for row in iter_rows(connections):
        by_server[row.get("server_address")].append(_complete_connection_row(row))
    calls: defaultdict[str | None, list[CapturedCall]] = defaultdict(list)
    for call in captured_calls(opening_calls):
        calls[call["server_address"]].append(call)
    return [_server_context(server, theirs, calls[server]) for server, theirs in by_server.items()]


def _server_context(
    server: str | None, connections: Sequence[dict[str, Any]], opening_calls: Iterable[CapturedCall]
) -> ServerContext:
    associations = group_into_associations(_to_connection(row) for row in connections)
    by_association: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in connections:
        by_association[associations[row["connection_id"]].name].append(row)
    by_name = {association.name: association for association in associations.values()}
    lossless_until = {
        name: 0 if has_losses(rows, by_name[name]) else max(row["last_packet_at"] for row in rows)
        for name, rows in by_association.items()
    }
    history = ServerHistory(opening_calls, associations, lossless_until)
    return ServerContext(server, by_association, associations, history)


def evaluate_calls(
    inputs: EvaluationInput,
    *,
    only_connections: Collection[str] | None = None,
    contexts: Sequence[ServerContext] | None = None,
    server_rules_of: Collection[str | None] | None = None,
) -> pa.Table:
    """Evaluate the rules on calls and servers, and return the findings as rows of gold.findings.

    ``only_connections``: evaluate only associations that have one of these connections. ``contexts``: the server
    contexts of the input, where they are known already. ``server_rules_of``: evaluate the rules on servers only of
    these; None: of all. Where calls have a column ``is_changed``, rules on single calls (``single_call_rules``) are
    evaluated only where it is true.
    """
    contexts = server_contexts(inputs.connections, inputs.open_calls) if contexts is None else contexts
    associations = [
        Association(rows, server.associations[rows[0]["connection_id"]], server.history)
        for server in contexts
        for rows in server.connections_by_association.values()
        if only_connections is None or any(row["connection_id"] in only_connections for row in rows)
    ]
    rows: list[dict[str, Any]] = []
    for violations in find_violations(inputs.calls, inputs.binds, associations, inputs.unreadable_connections):
        rows += finding_rows(violations, ASSOCIATION_SCOPE)
    for server in contexts:
        if server_rules_of is None or server.server in server_rules_of:
            found = ((check, violation) for check in SERVER_CHECKS for violation in check.check(server.history))
            rows += finding_rows(found, _SERVER_SCOPE)
    return rows_to_table(rows, FINDINGS_SCHEMA)


def _complete_connection_row(row: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(EVALUATED_CONNECTION_COLUMNS), **_CONNECTION_DEFAULTS, **row}


def _to_connection(row: Mapping[str, Any]) -> RpcConnection:
    return RpcConnection(
        row["connection_id"], row["client_address"], row["first_packet_at"], row["last_packet_at"], row["closed_at"],
        row["association_group_id"], row["syn_seen"], missing_bytes=row["missing_bytes"] or 0,
        association_joined=row["association_joined"],
    )  # fmt: skip


def finding_rows(violations: Iterable[tuple[RuleCheck, Violation]], scope: str) -> Iterator[dict[str, Any]]:
    """Yield one row for each rule and call; of several violations the most severe."""
    best: dict[str, dict[str, Any]] = {}
    for check, violation in violations:
        row = finding_of_violation(ALL_RULES[check.rule_id], violation, scope)
        before = best.get(row["finding_key"])
        if before is None or _severity_order(row) < _severity_order(before):
            best[row["finding_key"]] = row
    yield from best.values()


def _severity_order(row: Mapping[str, Any]) -> tuple[int, str, list[str]]:
    return _SEVERITY_RANK[row["severity"]], row["actual"], row["evidence"]


def finding_of_violation(rule: Rule, violation: Violation, scope: str) -> dict[str, Any]:
    """Return the row of gold.findings for a violation of a rule on calls; ``scope`` is what was looked at."""
    call, subject, observed_at = violation.call, violation.subject or "", None
    by_server = violation.by_server if violation.by_server is not None else rule.bound_party == "S"
    if call is not None:
        side = "server" if by_server else "client"
        subject = subject or f"{side} {call[f'{side}_address']}"
        requested_at, responded_at = call["request_at"], call["response_at"]
        observed_at = responded_at if requested_at is None or (by_server and responded_at is not None) else requested_at
    evidence = violation.evidence or ((call,) if call is not None else ())
    in_order = sorted(evidence, key=lambda each: (each.started_at, each["call_key"]))
    return finding_row(
        rule.rule_id, source=violation.source or rule.source_for(call.method if call is not None else ("", -1)),
        severity=violation.severity or rule.severity, subject=subject,
        call=call if call is not None else {}, observed_at=observed_at, expected=rule.requirement,
        actual=violation.actual or rule.violation, evidence=list(dict.fromkeys(each["call_key"] for each in in_order)),
        scope=scope,
    )  # fmt: skip


def finding_row(
    rule_id: str, *, source: str, severity: str, subject: str, call: Mapping[str, Any], observed_at: int | None,
    expected: str, actual: str, evidence: list[str], scope: str, queue: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a row of gold.findings.

    ``call`` is the row of the call that breaks the rule, empty without one. Times are microseconds since the epoch.
    """
    call_key = call.get("call_key")
    key_parts = (rule_id, call_key) if call_key is not None else (rule_id, subject, observed_at)
    return {
        "finding_key": key(*key_parts),
        "rule_id": rule_id,
        "source": source,
        "severity": severity,
        "subject": subject,
        "call_key": call_key,
        "packet_key": None,
        "observed_at": observed_at,
        "message": f"{subject}: {actual}",
        "expected": expected,
        "actual": actual,
        "evidence": evidence,
        "confidence": "complete",
        "missing": [],
        "errors": [],
        "connection_id": call.get("connection_id"),
        "server_address": call.get("server_address"),
        "scope": scope,
        "queue": queue,
        "event_date": epoch_day(observed_at),
        "run_id": call.get("run_id"),
    }
