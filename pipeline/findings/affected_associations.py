"""Which associations and servers a change of bronze affects, so that rules are evaluated on them again.

A finding of one association rests on its calls, connections and binds; where numbers or transactions are those of the
whole server, also on what others opened there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in, times_to_us
from pipeline.attempts.affected_scope import MIN_CALLS_FOR_KEYS, select_ongoing
from pipeline.attempts.attempt_rows import CONNECTION_FIELDS, IS_RPC_CONNECTION_SQL
from pipeline.attempts.calls.decoded_call import CLOCK_TOLERANCE_US
from pipeline.attempts.changed_rows import connections_before_change, existed_in, times_without_bind
from pipeline.attempts.server_openings import IS_OPEN_OR_CLOSE
from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.columns.captured_rows import iter_rows
from pipeline.findings.rules.registry import single_call_rules
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.table import Table
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, REMOTE_READ_NAME

GET_VERSION_OPNUM: Final = 8  # of qm2qm: RemoteQmGetVersion
_NUMBERING_INTERFACES: Final = (QM2QM_NAME, QMCOMM_NAME)  # whose opening calls give numbers of the whole server
_MOVE_TARGET_OPNUMS: Final = (11, 12)  # of RemoteRead: what opens move targets, and enlists
_GROUP: Final = ("server_address", "client_address", "association_group_id")


def changed_connections_query(table: Table, skipped_commits: Collection[int]) -> str:
    """Return the query for the connections of changed rows of a table, before and after, with what the change means.

    ``skipped_commits``: commits of bronze.rpc_calls that only emptied stubs.
    """
    where, group = "TRUE", "NULL"
    numbered, moves, versions, went = "CAST(NULL AS bigint)", "FALSE", "CAST(NULL AS string)", "FALSE"
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

    connections: set[str] = field(default_factory=set)
    servers: set[str] = field(default_factory=set)
    association_groups: set[tuple[Any, ...]] = field(default_factory=set)
    calls: ChangedCalls | None = None
    queue_numbers_changed_since: dict[str, int] = field(default_factory=dict)
    servers_with_changed_move_targets: set[str] = field(default_factory=set)
    new_version_calls: dict[str, set[str] | None] = field(default_factory=dict)
    connection_images: list[dict[str, Any]] = field(default_factory=list)
    updated_connections: set[str] = field(default_factory=set)

    def add_changes(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the answer to ``changed_connections_query``."""
        for row in rows:
            self.connections.add(row["connection_id"])
            if row["association_group_id"]:
                self.association_groups.add(tuple(row[name] for name in _GROUP))
            server = row["server_address"]
            if server is None:
                continue
            self.servers.add(server)
            if row["numbered_at"] is not None:
                self.queue_numbers_changed_since[server] = min(
                    row["numbered_at"], self.queue_numbers_changed_since.get(server, row["numbered_at"])
                )
            if row["moves"]:
                self.servers_with_changed_move_targets.add(server)
            if any(row["versions"] or ()):
                new = self.new_version_calls.setdefault(server, set())
                if row["went"]:
                    self.new_version_calls[server] = None
                elif new is not None:
                    new.update(each for each in row["versions"] if each is not None)

    def ongoing_associations(self, connections: pa.Table) -> dict[str, str]:
        """Return the association, by connection, of those that only gained calls; none where all have few calls."""
        counts = dict(zip(connections["connection_id"].to_pylist(), connections["calls"].to_pylist(), strict=True))
        many = sum(counts[name] or 0 for name in self.connections & counts.keys()) > MIN_CALLS_FOR_KEYS
        if self.calls is None or not many:
            return {}
        rows = [{**dict.fromkeys(CONNECTION_FIELDS), **row} for row in iter_rows(connections)]
        servers = self.calls.servers_with_updated_open_calls
        altered = self.updated_connections | self.calls.updated_connections
        altered |= {row["connection_id"] for row in rows if row["server_address"] in servers}
        found = select_ongoing(rows, self.connections, connections_before_change(self.connection_images), altered)
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
            self.connections |= {
                name
                for name, server, client, begun, ended in zip(*of, *times, strict=True)
                if existed_in(spans.get((server or "", client or ""), ()), begun, ended)
            }

    def add_groups(self, connections: pa.Table) -> None:
        """Add all connections of the association groups of those that are affected."""
        rows = connections.select(["connection_id", *_GROUP]).to_pylist()
        group_of = {row["connection_id"]: tuple(row[name] for name in _GROUP) for row in rows}
        wanted = self.association_groups | {
            group_of[name] for name in self.connections if name in group_of and group_of[name][2]
        }
        self.connections |= {name for name, group in group_of.items() if group in wanted}


def connections_with_packets_since(connections: pa.Table, since: Mapping[str, int]) -> set[str]:
    """Return the connections with packets after a time of their server, microseconds, give or take the clocks."""
    columns = (connections["connection_id"], connections["server_address"], times_to_us(connections["last_packet_at"]))
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return {name for name, server, at in rows if server in since and at + CLOCK_TOLERANCE_US > since[server]}
