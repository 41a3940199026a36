"""Calls, connections and binds -> gold.findings. Arrow tables and plain rows; no session is needed.

What is judged is one association after the other, with what all of its server opened (``LEDGER``) beside it; then what
the server opened by itself. A rule is asked where what it rests on was read whole, so that a finding lacks nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.attempts.associations import Association, Connection, associations
from pipeline.attempts.server_openings import LEDGER
from pipeline.findings.rules import clocks, handles, messages, qm2qm, qmcomm, qmmgmt, reads, remote_read, rpc
from pipeline.findings.rules.conversations import Conversation, Exchange, Ledger
from pipeline.findings.rules.registry import ACROSS, ALL, ANYWHERE, BY_METHOD, OVER, Hit, Needs, Rule, Test, of_one_call
from pipeline.lake.arrow_rows import day_of, table_of
from schemas.findings import FINDINGS
from udfs.keys import key

MODULES: Final = (
    rpc, qm2qm, remote_read, reads, handles, messages, qmmgmt, qmcomm,
    clocks,
)  # fmt: skip
"""Where the tests of the rules are: importing them declares them."""

TIMES: Final = frozenset(
    {"request_at", "response_at", "cancelled_at", "orphaned_at", "arrived_at", "sent_at", "first_packet_at",
     "last_packet_at", "closed_at", "bound_at", "observed_at"}
)  # fmt: skip
CALLS: Final = (
    "call_key", "connection_id", "call_id", "context_id", "interface_name", "opnum", "transfer_syntax", "byte_order",
    "auth_level", "bind_seen", "sealed", "opened_by", "request_at",
    "response_at", "cancelled_at", "orphaned_at", "fault_status", "outcome",
    "client_address", "server_address", "server_port", "run_id",
)  # fmt: skip
READS: Final = (
    "call_key", "queue_format_type", "queue_format_name", "queue", "access", "share_mode", "client_id", "workgroup",
    "version_major", "version_minor", "build_number", "returned_port", "port_type", "context_handle",
    "remote_read_handle", "queue_handle", "queue_descriptor", "open_context", "mqs", "cursor_handle", "action",
    "timeout_ms", "request_id", "lookup_id", "sequence_id", "max_body_bytes", "transaction_id",
    "propagation_token_bytes", "acknowledgement_class", "ack", "move_context", "arrived_at", "section_types",
    "section_bytes", "section_allocated_bytes", "packet_bytes", "hresult", "errors",
)  # fmt: skip
CLIENTS: Final = (
    "call_key", "queue_format_name", "queue", "access", "share_mode", "client_id", "returned_port", "port_type",
    "context_handle", "queue_handle", "queue_descriptor", "open_context", "mqs", "cursor_handle", "remote_queue_name",
    "queue_manager_context", "hresult", "errors",
)  # fmt: skip
MANAGEMENT: Final = (
    "call_key",
    "object_type",
    "queue_format_name",
    "queue",
    "property_ids",
    "action",
    "hresult",
    "errors",
)
MESSAGES: Final = (
    "call_key",
    "source_queue_manager",
    "sent_at",
    "body_bytes",
    "is_srmp",
    "time_to_reach_queue_s",
    "header_sizes",
    "errors",
)
CONNECTIONS: Final = (
    "connection_id", "client_address", "server_address", "first_packet_at", "last_packet_at", "closed_at", "closed_by",
    "association_group_id", "syn_seen", "missing_bytes",
)  # fmt: skip
BINDS: Final = (
    "connection_id", "server_address", "context_id", "interface_name", "transfer_syntaxes_offered", "transfer_syntax",
    "result", "reason", "bound_at",
)  # fmt: skip
"""The columns that are read of bronze.rpc_calls and the tables of silver, of connections and of binds."""

HEAD_BYTES: Final = 80
TAIL_BYTES: Final = 12
SCHEMA: Final = to_arrow_schema(FINDINGS.struct())
_NOT_NULL: Final[dict[str, Any]] = {"syn_seen": False, "missing_bytes": 0}
ASSOCIATION, _SERVER = "association", "server"
_GRAVITY: Final = {"error": 0, "warning": 1, "info": 2, None: 3}


class Facts(NamedTuple):
    """What is judged: ``calls`` of whole associations of any number of servers, ``ledger`` what all associations of.

    these servers opened, as calls too, ``connections`` all of these servers, and ``binds``, at least of the calls.
    ``unread``: connections with calls that could not be read, where not all calls are here.
    """

    calls: pa.Table
    ledger: pa.Table
    connections: pa.Table
    binds: pa.Table
    unread: frozenset[str] = frozenset()


def beside(calls: pa.Table, *parts: pa.Table) -> pa.Table:
    """Return calls with the columns of other tables' rows of the same ``call_key``, the first that is not null.

    ``calls`` has ``CALLS`` and, where stubs are kept, request_bytes, request_head, request_tail, response_head,
    request_stub and response_stub. What is named twice has two names here: the action of a management call, a text, is
    action_text, and the errors of a message are message_errors.
    """
    out = calls
    placed = [(part, _places(calls, part)) for part in parts]
    names = dict.fromkeys(name for part, _ in placed for name in part.column_names if name != "call_key")
    for name in names:
        found = [part[name].take(places) for part, places in placed if name in part.column_names]
        out = out.append_column(name, found[0] if len(found) == 1 else pc.coalesce(*_alike(found)))
    return out


def _alike(columns: Sequence[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    return [column.cast(columns[0].type) for column in columns]


def _places(calls: pa.Table, part: pa.Table) -> pa.ChunkedArray:
    return pc.index_in(calls["call_key"], part["call_key"].combine_chunks())


def ledger_mask(table: pa.Table) -> pa.Array:
    """Tell the calls of the methods in ``LEDGER``."""
    methods = zip(table["interface_name"].to_pylist(), table["opnum"].to_pylist(), strict=True)
    return pa.array([method in LEDGER for method in methods], pa.bool_())


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries without nulls; times as microseconds since the epoch."""
    names = [name for name in table.column_names if table[name].null_count < table.num_rows]
    columns = [_plain(table[name]) if name in TIMES else table[name].to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        row = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if "action_text" in row:
            row["action"] = row.pop("action_text")
        if "header_sizes" in row:
            row["header_sizes"] = dict(row["header_sizes"])
        yield row


def _plain(column: pa.ChunkedArray) -> list[int | None]:
    if pa.types.is_integer(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


class Server(NamedTuple):
    """One server: its connections by association, the association of each, and what all of them opened."""

    members: Mapping[str, Sequence[dict[str, Any]]]
    associations: Mapping[str, Association]
    ledger: Ledger


def servers_of(connections: pa.Table, ledger: pa.Table) -> list[Server]:
    """Return the servers of connections; ``ledger`` is what they opened (``Facts``)."""
    by_server: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for row in rows_of(connections):
        by_server[row.get("server_address")].append(_whole(row))
    opened: defaultdict[str | None, list[Exchange]] = defaultdict(list)
    for row in rows_of(ledger):
        opened[row.get("server_address")].append(Exchange(row))
    return [_server(theirs, opened[server]) for server, theirs in by_server.items()]


def _server(connections: Sequence[dict[str, Any]], opened: Iterable[Exchange]) -> Server:
    found = associations(_connection(row) for row in connections)
    members: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in connections:
        members[found[row["connection_id"]].name].append(row)
    seen = {
        name: 0 if any(row["missing_bytes"] for row in rows) else max(row["last_packet_at"] for row in rows)
        for name, rows in members.items()
    }
    return Server(members, found, Ledger(opened, found, seen))


def findings(
    facts: Facts, *, only: Collection[str] | None = None, servers: Sequence[Server] | None = None, across: bool = True
) -> pa.Table:
    """Return the findings of these calls and of these servers' openings; ``only`` those of some connections' calls.

    Where calls have a column ``fresh``, what rests on one call alone (``of_one_call``) is judged where it is true.
    ``servers``: of the connections and the ledger, where these are known already; not ``across``: those on calls alone.
    """
    servers = servers_of(facts.connections, facts.ledger) if servers is None else servers
    binds = defaultdict(list)
    for row in rows_of(facts.binds):
        binds[row["connection_id"]].append(defaultdict(lambda: None, row))
    calls = _by_connection(facts.calls)
    rows: list[dict[str, Any]] = []
    for server in servers:
        rows += _of_associations(facts, calls, server, binds, only)
        if across:
            rows += _rows(((test, hit) for test in ACROSS for hit in test.test(server.ledger)), _SERVER)
    return table_of(rows, SCHEMA)


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(CONNECTIONS), **_NOT_NULL, **row}


def _by_connection(calls: pa.Table) -> dict[str, pa.Table]:
    """Return the calls of each connection; all of them are laid out anew once, and not for each."""
    ordered = calls.take(pc.sort_indices(calls["connection_id"]))
    names = ordered["connection_id"].to_pylist()
    starts = [place for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
    ends = [*starts[1:], len(names)]
    return {names[start]: ordered.slice(start, end - start) for start, end in zip(starts, ends, strict=False)}


def _of_associations(
    facts: Facts,
    calls: Mapping[str, pa.Table],
    server: Server,
    binds: Mapping[str, list[Any]],
    only: Collection[str] | None,
) -> Iterator[dict[str, Any]]:
    """Yield the findings of one server's associations, one after the other: rows are made of one at a time."""
    for rows in server.members.values():
        if only is not None and not any(row["connection_id"] in only for row in rows):
            continue
        theirs = [calls[row["connection_id"]] for row in rows if row["connection_id"] in calls]
        ours = [bind for row in rows for bind in binds.get(row["connection_id"], ())]
        if theirs or ours:
            exchanges = [Exchange(row) for several in theirs for row in rows_of(several)]
            unread = any(row["connection_id"] in facts.unread for row in rows)
            association = server.associations[rows[0]["connection_id"]]
            conversation = Conversation(exchanges, rows, association, binds=ours, ledger=server.ledger, unread=unread)
            yield from _rows(judge(conversation, narrow="fresh" in facts.calls.column_names), ASSOCIATION)


def _connection(row: Mapping[str, Any]) -> Connection:
    return Connection(
        row["connection_id"],
        row["client_address"],
        row["first_packet_at"],
        row["last_packet_at"],
        row["closed_at"],
        row["association_group_id"],
        row["syn_seen"],
    )


def judge(conversation: Conversation, *, narrow: bool = False) -> Iterator[tuple[Test, Hit]]:
    """Yield the rules that an association breaks, each with the test that found it.

    ``narrow``: of calls that are not fresh, what rests on one call alone is known already.
    """
    for call in conversation.calls:
        for test in _tests(call.method, known=narrow and not call["fresh"]):
            if _ready(call, test.needs):
                seen = test.test(call)
                if seen:
                    yield test, seen if isinstance(seen, Hit) else Hit(call, seen if isinstance(seen, str) else "")
    for test in OVER:
        for hit in test.test(conversation):
            yield test, hit


@lru_cache(maxsize=256)  # hostile captures have any opnum
def _tests(method: tuple[str, int], *, known: bool) -> tuple[Test, ...]:
    """Return the tests of one exchange that are asked of a method; ``known``: but those of rules of one call alone."""
    found = (*ANYWHERE, *BY_METHOD.get(method, ()))
    return tuple(test for test in found if test.rule_id not in of_one_call()) if known else found


def _ready(call: Exchange, needs: Needs) -> bool:
    if needs == "request":
        return call.asked
    if needs == "ok":
        return call.ok
    return needs == "headers" or call.answered


def _rows(hits: Iterable[tuple[Test, Hit]], scope: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each rule and call, of several hits the gravest."""
    best: dict[str, dict[str, Any]] = {}
    for test, hit in hits:
        row = _row(ALL[test.rule_id], hit, scope)
        before = best.get(row["finding_key"])
        if before is None or _order(row) < _order(before):
            best[row["finding_key"]] = row
    yield from best.values()


def _order(row: Mapping[str, Any]) -> tuple[int, str, list[str]]:
    return _GRAVITY[row["severity"]], row["actual"], row["evidence"]


def _row(rule: Rule, hit: Hit, scope: str) -> dict[str, Any]:
    call = hit.call
    server = hit.server if hit.server is not None else rule.who == "S"
    subject = hit.subject
    observed = None
    if call is not None:
        side = "server" if server else "client"
        subject = subject or f"{side} {call[f'{side}_address']}"
        observed = call.done if server and call.done is not None else call.at
    evidence = sorted(hit.evidence or ((call,) if call is not None else ()), key=lambda e: (e.at, e["call_key"]))
    actual = hit.actual or rule.violation
    return finding(
        rule.rule_id,
        source=rule.source,
        severity=hit.severity or rule.severity,
        subject=subject or "",
        call=call.row if call is not None else {},
        observed_at=observed,
        expected=rule.rule,
        actual=actual,
        evidence=list(dict.fromkeys(each["call_key"] for each in evidence)),
        scope=scope,
    )


def finding(
    rule_id: str, *, source: str, severity: str, subject: str, call: Mapping[str, Any], observed_at: int | None,
    expected: str, actual: str, evidence: list[str], scope: str, queue: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a row of the table; times are microseconds since the epoch, ``call`` a call's row, empty for none."""
    call_key = call.get("call_key")
    named = (rule_id, call_key) if call_key is not None else (rule_id, subject, observed_at)
    return {
        "finding_key": key(*named),
        "rule_id": rule_id,
        "source": source,
        "severity": severity,
        "subject": subject,
        "call_key": call_key,
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
        "event_date": day_of(observed_at),
        "run_id": call.get("run_id"),
    }
