"""gold.findings: rules that were broken, each with the calls or packets that prove it."""

from __future__ import annotations

from schemas.attempts import EVIDENCE
from schemas.table import STRING, TIMESTAMP, Column, Table, run_columns

FINDINGS = Table(
    "gold",
    "findings",
    "One row per violation of a conformance or operation rule (docs/reference/rules.md), with the calls that prove it.",
    key=("finding_key",),
    event_date_columns=("observed_at",),
    looked_up_by=("connection_id", "queue"),
    columns=(
        Column(
            "finding_key",
            STRING,
            "key of rule_id and call_key, or packet_key; without either of rule_id, subject and observed_at",
        ),
        Column(
            "rule_id",
            STRING,
            "the rule, see docs/reference/rules.md: P, Q, R, M, C of RPC, T of message packets, O of operation",
        ),
        Column("source", STRING, "the document and the section that state the rule for this call"),
        Column(
            "severity", STRING, "error for MUST, warning for SHOULD, info for what follows from the text or is soft"
        ),
        Column("subject", STRING, "who breaks it: client or server and its address, or what it is about"),
        Column("call_key", STRING, "bronze.rpc_calls, the call that breaks the rule; for what never ends its Start"),
        Column(
            "packet_key", STRING, "bronze.session_packets, the packet that breaks the rule; null for RPC and operation"
        ),
        Column("observed_at", TIMESTAMP, "time of the request, answer or packet that breaks it, UTC"),
        Column("message", STRING, "what is wrong, as a sentence"),
        Column("expected", STRING, "what the rule says"),
        Column("actual", STRING, "what was seen instead"),
        *EVIDENCE,
        Column("connection_id", STRING, "bronze.connections, of that call"),
        Column("server_address", STRING, "IP address of the server, as text"),
        Column("scope", STRING, "what was looked at: association, server, queue, session, hop, sequence, estate"),
        Column("queue", STRING, "canonical normal form of the queue that was looked at; null in other scopes"),
        *run_columns("gold", "observed_at"),
    ),
)

TABLES = (FINDINGS,)
