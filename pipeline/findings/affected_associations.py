"""Which associations and servers a change of bronze affects, so that rules are evaluated on them again.

A finding of one association rests on its calls, connections and binds; where numbers or transactions are those of the
whole server, also on what others opened there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, is_in, no_texts, times_to_us
from pipeline.attempts.affected_scope import MIN_CALLS_FOR_KEYS, select_ongoing
from pipeline.attempts.attempt_rows import CONNECTION_FIELDS, IS_RPC_CONNECTION_SQL
from pipeline.attempts.calls.decoded_call import CLOCK_TOLERANCE_US
from pipeline.attempts.changed_rows import connections_before_change, existed_in, times_without_bind
from pipeline.attempts.server_openings import IS_OPEN_OR_CLOSE
from pipeline.bronze.across_captures.capture_ends import values_of_servers
from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.columns.captured_rows import iter_rows
from pipeline.findings.rules.registry import single_call_rules
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.table import Table
from udfs.columns.arrays import to_flags
from udfs.columns.codes import row_codes_of_both
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, REMOTE_READ_NAME

GET_VERSION_OPNUM: Final = 8  # of qm2qm: RemoteQmGetVersion
_NUMBERING_INTERFACES: Final = (QM2QM_NAME, QMCOMM_NAME)  # whose opening calls give numbers of the whole server
_MOVE_TARGET_OPNUMS: Final = (11, 12)  # of RemoteRead: what opens move targets, and enlists
_GROUPS_SCHEMA: Final = pa.schema(
    [("server_address", pa.string()), ("client_address", pa.string()), ("association_group_id", pa.int64())]
)
_GROUP: Final[list[str]] = _GROUPS_SCHEMA.names


def changed_connections_query(table: Table, skipped_commits: Collection[int]) -> str:
    """Return the query for the connections of changed rows of a table, before and after, with what the change means.

    ``skipped_commits``: commits of bronze.rpc_calls that only emptied stubs.
    """
    where, group = "TRUE", "NULL"
    numbered, moves, versions, went = "CAST(NULL AS bigint)", "FALSE", "collect_set(CAST(NULL AS string))", "FALSE"
    if table is RPC_CALLS:
        where = not_in_commits_sql(skipped_commits)
        version = f"(interface_name = '{QM2QM_NAME}' AND opnum = {GET_VERSION_OPNUM})"
        numbering = f"{IS_OPEN_OR_CLOSE} AND interface_name IN ({', '.join(map(repr, _NUMBERING_INTERFACES))})"
        numbered = f"min(CASE WHEN {numbering} THEN unix_micros(coalesce(request_at, response_at)) END)"
        moves = f"coalesce(bool_or(interface_name = '{REMOTE_READ_NAME}' AND opnum IN {_MOVE_TARGET_OPNUMS}), FALSE)"
        versions = f"collect_set(CASE WHEN {version} THEN call_key END)"
        went = f"coalesce(bool_or({version} AND _change_type <> 'insert'), FALSE)"
    elif table is CONNECTIONS:
        where, group = IS_RPC_CONNECTION_SQL, "association_group_id"
    names = "connection_id, server_address, client_address"
    meaning = f"{numbered} AS numbered_at, {moves} AS moves, {versions} AS versions, {went} AS went"
    grouped = f"CAST({group} AS bigint) AS association_group_id"
    return f"SELECT {names}, {grouped}, {meaning} FROM {{feed}} WHERE {where} GROUP BY ALL"


def not_in_commits_sql(versions: Collection[int]) -> str:
    """Return the SQL condition that a row of a change feed is not of some commits."""
    return f"_commit_version NOT IN ({', '.join(map(str, versions))})" if versions else "TRUE"


@dataclass(slots=True)
class AffectedAssociations:
    """The connections whose associations are evaluated again, and the servers whose opening calls are.

    ``association_groups``: those of the connections before the change. ``queue_numbers_changed_since``: servers with
    changed opening calls that give numbers, and since when, microseconds; ``servers_with_changed_move_targets``: or
    with changed enlistments; ``new_version_calls``: new calls that asked a server for its version, None where such a
    call changed or was deleted. ``calls``: the changed calls, None where they do not fit in memory.
    ``connection_images``: connections that changed, before and after. ``updated_connections``: those that changed
    otherwise than by gaining calls.
    """

    connections: pa.Array = field(default_factory=no_texts)
    servers: set[str] = field(default_factory=set)
    association_groups: pa.Table = field(default_factory=_GROUPS_SCHEMA.empty_table)
    calls: ChangedCalls | None = None
    queue_numbers_changed_since: dict[str, int] = field(default_factory=dict)
    servers_with_changed_move_targets: set[str] = field(default_factory=set)
    new_version_calls: dict[str, set[str] | None] = field(default_factory=dict)
    connection_images: list[dict[str, Any]] = field(default_factory=list)
    updated_connections: pa.Array = field(default_factory=no_texts)

    def add_changes(self, rows: pa.Table) -> None:
        """Add the answer to ``changed_connections_query``."""
        self.connections = distinct_texts(self.connections, rows["connection_id"])
        groups = rows.filter(_has_group(rows)).select(_GROUP).cast(_GROUPS_SCHEMA)
        self.association_groups = pa.concat_tables([self.association_groups, groups])
        rows = rows.filter(rows["server_address"].is_valid())
        self.servers |= {*distinct_texts(rows["server_address"]).to_pylist()}
        moving = rows.filter(rows["moves"])
        self.servers_with_changed_move_targets |= {*distinct_texts(moving["server_address"]).to_pylist()}
        numbered = rows.filter(rows["numbered_at"].is_valid()).group_by("server_address")
        for server, at in zip(*numbered.aggregate([("numbered_at", "min")]).columns, strict=True):
            before = self.queue_numbers_changed_since.get(server.as_py(), at.as_py())
            self.queue_numbers_changed_since[server.as_py()] = min(at.as_py(), before)
        for row in rows.filter(pc.greater(pc.list_value_length(rows["versions"]), 0)).to_pylist():
            new = self.new_version_calls.setdefault(row["server_address"], set())
            if row["went"]:
                self.new_version_calls[row["server_address"]] = None
            elif new is not None:
                new.update(row["versions"])

    def ongoing_associations(self, connections: pa.Table) -> dict[str, str]:
        """Return the association, by connection, of those that only gained calls; none where all have few calls."""
        calls = pc.sum(connections["calls"].filter(is_in(connections, "connection_id", self.connections))).as_py() or 0
        if self.calls is None or calls <= MIN_CALLS_FOR_KEYS:
            return {}
        rows = [{**dict.fromkeys(CONNECTION_FIELDS), **row} for row in iter_rows(connections)]
        servers = self.calls.servers_with_updated_open_calls
        altered = {*self.updated_connections.to_pylist()} | self.calls.updated_connections
        altered |= {row["connection_id"] for row in rows if row["server_address"] in servers}
        names = {*self.connections.to_pylist()}
        found = select_ongoing(rows, names, connections_before_change(self.connection_images), altered)
        return dict(found.associations)

    def unaffected_findings(self, findings: pa.Table) -> pa.Table:
        """Return those of the findings that rest on one call alone which did not change."""
        if self.calls is None:
            return findings.slice(0, 0)
        changed = is_in(findings, "call_key", self.calls.call_keys)
        return findings.filter(pc.and_(is_in(findings, "rule_id", single_call_rules()), pc.invert(changed)))

    def add_met_without_bind(self, connections: pa.Table) -> None:
        """Add those that existed with a changed one of their client that is or was without bind."""
        spans = times_without_bind(self.connection_images)
        if spans:
            of = [connections[name].to_pylist() for name in ("connection_id", "server_address", "client_address")]
            times = [times_to_us(connections[name]).to_pylist() for name in ("first_packet_at", "closed_at")]
            met = [
                name
                for name, server, client, begun, ended in zip(*of, *times, strict=True)
                if existed_in(spans.get((server or "", client or ""), ()), begun, ended)
            ]
            self.connections = distinct_texts(self.connections, pa.array(met, pa.string()))

    def add_groups(self, connections: pa.Table) -> None:
        """Add all connections of the association groups of those that are affected."""
        ours = pc.and_(_has_group(connections), is_in(connections, "connection_id", self.connections))
        groups, before = row_codes_of_both(connections.select(_GROUP).columns, self.association_groups.columns)
        wanted = pa.array(np.isin(groups, np.concatenate([before, groups[to_flags(ours)]])))
        self.connections = distinct_texts(self.connections, connections["connection_id"].filter(wanted))


def _has_group(rows: pa.Table) -> Any:  # noqa: ANN401 - a column of Arrow
    """Return which connections are of a group: its id is not 0."""
    return pc.fill_null(pc.not_equal(rows["association_group_id"], 0), fill_value=False)


def connections_with_packets_since(connections: pa.Table, since: Mapping[str, int]) -> pa.Array:
    """Return the connections with packets after a time of their server, microseconds, give or take the clocks."""
    last = pc.add(times_to_us(connections["last_packet_at"]), CLOCK_TOLERANCE_US)
    is_since = pc.greater(last, values_of_servers(connections["server_address"], since))
    return distinct_texts(connections["connection_id"].filter(is_since))
