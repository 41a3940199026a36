"""Update of gold.findings from bronze and silver.

A change affects: the associations of changed calls, connections and binds; where a server's numbers changed, its
associations of qmcomm, and those of qm2qm that had packets since; its associations with moves, where move targets or
enlistments changed; all of these where the server's version changed; the associations with a finding that another
association's opening could explain; and what the server opened, as a whole. Of associations that only gained calls a
few calls are evaluated first (``lookback``): no others are where these show no new violation.

Many affected calls are evaluated by the grouped query for all calls, with a condition. Few are read one by one: that
query would read again what opens and closes at the servers, which ``lookback`` has read, and the messages of all calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, encode_texts, is_in, release_unused_memory, unique_rows
from pipeline.attempts.changed_rows import CHANGED_CONNECTIONS_QUERY, connections_before_change
from pipeline.attempts.server_openings import OPENING_CALLS
from pipeline.attempts.server_slices import SLICE_KEYS
from pipeline.concurrency import run_concurrently
from pipeline.findings import duplicate_machines, evaluate, queue_inputs
from pipeline.findings.affected_associations import (
    GET_VERSION_OPNUM,
    AffectedAssociations,
    changed_connections_query,
    connections_with_packets_since,
    not_in_commits_sql,
)
from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.columns.call_history import CapturedCall, ServerHistory
from pipeline.findings.columns.captured_rows import captured_calls, plain_columns, without_null_columns
from pipeline.findings.columns.joined_calls import add_columns
from pipeline.findings.columns.stored_calls import StoredCalls
from pipeline.findings.evaluate import FINDINGS_SCHEMA, EvaluationInput
from pipeline.findings.hops.hop_findings import HOP_SCOPE
from pipeline.findings.inputs import (
    BIND_INPUT,
    CLIENT_CALL_INPUT,
    MANAGEMENT_CALL_INPUT,
    MESSAGE_INPUT,
    REMOTE_READ_INPUT,
    RPC_CONNECTION_INPUT,
    STUB_COLUMN_TYPES,
    InputQuery,
    ServersInput,
    calls_with_stub_columns,
    connection_dates,
    decoded_columns,
    join_decoded_columns,
    read_findings,
    stub_column_expressions,
)
from pipeline.findings.lookback import LookbackResult, evaluate_ongoing_associations
from pipeline.findings.queue_inputs import AffectedQueues, QueueFindings
from pipeline.findings.rules.queue_facts import DEFAULT_LIMITS, QueueRuleLimits
from pipeline.findings.rules.versions import CALL_RULES
from pipeline.findings.session_findings import SESSION_SCOPE
from pipeline.findings.sliced_inputs import IS_FIRST, IS_OWN, SlicedInputs
from pipeline.findings.update_reported_sequences import SEQUENCE_SCOPE
from pipeline.lake.date_filters import Dates, not_before
from pipeline.lake.incremental import (
    CODE_VERSION,
    DerivedTable,
    IncrementalUpdate,
    UnknownChangesError,
    commits_with_provenance,
)
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import GroupedQuery, GroupFunction, QueryAnswers, RowsOfDates, Values
from pipeline.silver.machines import names_in_gold
from pipeline.silver.update import DECODED, STUBS_EMPTIED_PROVENANCE
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from udfs.columns.absent import BEFORE_ALL
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, QMMGMT_NAME, REMOTE_READ_NAME

_FOLLOWED: Final = (RPC_CALLS, CONNECTIONS, RPC_BINDS)
_FINDINGS: Final = DerivedTable(
    FINDINGS, (*_FOLLOWED, HOSTS, *queue_inputs.SOURCE_TABLES), code_version=CALL_RULES,
    needs=(RPC_CALLS, HOSTS, QUEUE_SNAPSHOTS), rows=f"scope NOT IN {(SESSION_SCOPE, HOP_SCOPE, SEQUENCE_SCOPE)}",
)  # fmt: skip
_MAX_CALLS_IN_MEMORY: Final = 200_000  # calls and connections; more of them are evaluated server by server, in tasks
_MAX_CALLS_IN_TASK: Final = 300_000  # in the memory of a task; more of one association are in files
_EXPLAINABLE_RULES: Final = ("P11", "R57", "R61", "R64", "R73")  # another association's opening can explain a violation
_MOVE_OPNUMS: Final = (10, 15)  # of RemoteRead: the first and last method that uses what moves open
_CALL_PARTS: Final = ("calls", "reads", "clients", "management")
_DECODED_PARTS: Final = (*_CALL_PARTS[1:], "messages", "changed", "managed")
_SLICE: Final = SLICE_KEYS[1]


def update(lake: Lake, *, stubs: bool = True, limits: QueueRuleLimits = DEFAULT_LIMITS) -> int:
    """Evaluate the rules on what changed; return how many rows are written.

    ``stubs``: bronze keeps stubs (``store.stubs``); rules that look at bytes of stubs are evaluated only then.
    ``limits`` are the settings of the rules on queues.
    """
    names, decoder = names_in_gold(lake), DECODED.provenance(lake).get(CODE_VERSION)
    settings = {**limits.as_provenance(), "stubs": stubs, "decoder": decoder}
    step = _FINDINGS.begin(lake, settings, {"names": names})
    return 0 if step is None else _FindingsUpdate(step, stubs, QueueFindings(lake, limits, names)).run()


@dataclass(slots=True)
class _FindingsUpdate:
    """One update of the findings."""

    step: IncrementalUpdate
    stubs: bool
    queues: QueueFindings

    @property
    def lake(self) -> Lake:
        return self.step.lake

    def run(self) -> int:
        """Evaluate the rules on what changes affect, or on everything."""
        return self.step.recompute(self._find_affected, self._evaluate)

    def _evaluate(self, affected: tuple[AffectedAssociations, AffectedQueues] | None) -> int:
        return self._evaluate_all() if affected is None else self._evaluate_affected(*affected)

    # What changed

    def _find_affected(self) -> tuple[AffectedAssociations, AffectedQueues]:
        """Return what changes affect; UnknownChangesError."""
        associations = self._find_associations()
        queues = self.queues.affected_queues(self.step.feeds)
        if queues is None:
            raise UnknownChangesError
        return associations, queues

    def _find_associations(self) -> AffectedAssociations:
        step = self.step
        emptied = commits_with_provenance(
            self.lake, RPC_CALLS, step.provenance_before.get(str(RPC_CALLS)), STUBS_EMPTIED_PROVENANCE
        )
        queries: dict[Any, Callable[[], Any]] = {
            table: partial(step.changed_rows, table, changed_connections_query(table, emptied)) for table in _FOLLOWED
        }
        condition = not_in_commits_sql(emptied)
        queries["calls"] = partial(ChangedCalls.from_feed, step.feeds, condition, stubs_kept=self.stubs)
        queries["images"] = partial(step.changes, CONNECTIONS, CHANGED_CONNECTIONS_QUERY)
        found = run_concurrently(queries)
        affected = AffectedAssociations(calls=found.pop("calls"), connection_images=found.pop("images"))
        changed = {table: rows for table, rows in found.items() if rows is not None}
        for rows in changed.values():
            affected.add_changes(rows)
        if RPC_BINDS in changed:
            before = connections_before_change(affected.connection_images)
            bound, new = changed[RPC_BINDS], {name for name, row in before.items() if row is None}
            affected.updated_connections = distinct_texts(
                bound["connection_id"].filter(pc.invert(is_in(bound, "connection_id", new)))
            )
        return affected

    def _add_dependents(self, affected: AffectedAssociations, connections: pa.Table) -> None:
        """Add the associations whose findings depend on what a server opened, or on another association."""
        reversioned = self._servers_with_other_version(affected)
        rules = f"rule_id IN ({', '.join(map(repr, _EXPLAINABLE_RULES))}) AND server_address IN {{servers}}"
        explainable = InputQuery(FINDINGS, ("connection_id",))
        queries = {"findings": partial(explainable.read_connection_ids, self.lake, rules, servers=affected.servers)}
        if numbered := affected.queue_numbers_changed_since.keys() | reversioned:
            of_interface = "interface_name = '{}' AND server_address IN {{servers}}"
            for name, part, interface in (
                ("owners", CLIENT_CALL_INPUT, QMCOMM_NAME),
                ("qm2qm", REMOTE_READ_INPUT, QM2QM_NAME),
            ):
                where = of_interface.format(interface)
                queries[name] = partial(part.read_connection_ids, self.lake, where, servers=numbered)
        if moves := affected.servers_with_changed_move_targets | reversioned:
            first, last = _MOVE_OPNUMS
            methods = f"protocol = '{REMOTE_READ_NAME}' AND opnum BETWEEN {first} AND {last}"
            uses = f"{methods} AND server_address IN {{servers}}"
            queries["moves"] = partial(REMOTE_READ_INPUT.read_connection_ids, self.lake, uses, servers=moves)
        found = run_concurrently(queries)
        if numbered:  # what was opened explains nothing of an association that had ended
            since = affected.queue_numbers_changed_since | dict.fromkeys(reversioned, BEFORE_ALL)
            lately = connections_with_packets_since(connections, since)
            found["qm2qm"] = found["qm2qm"].filter(pc.is_in(found["qm2qm"], lately))
        affected.connections = distinct_texts(affected.connections, *found.values())
        affected.updated_connections = distinct_texts(
            affected.updated_connections,
            connections["connection_id"].filter(is_in(connections, "server_address", reversioned)),
        )

    def _servers_with_other_version(self, affected: AffectedAssociations) -> set[str]:
        """Return the servers that report another version than before, or may."""
        found = {server for server, new in affected.new_version_calls.items() if new is None}
        new = {server: names for server, names in affected.new_version_calls.items() if names is not None}
        if not new:
            return found
        where = f"interface_name = '{QM2QM_NAME}' AND opnum = {GET_VERSION_OPNUM} AND server_address IN {{servers}}"
        parts = {"calls": calls_with_stub_columns(stubs_kept=False), "reads": REMOTE_READ_INPUT}
        queries = {
            name: partial(part.read_rows, self.lake, where, rows=OPENING_CALLS[part.table], servers=new.keys())
            for name, part in parts.items()
        }
        calls: defaultdict[str, list[CapturedCall]] = defaultdict(list)
        found_calls, *decoded = run_concurrently(queries).values()
        for call in captured_calls(join_decoded_columns(found_calls, decoded)):
            calls[call["server_address"]].append(call)
        for server, names in new.items():
            now = ServerHistory(calls[server], {})
            before = ServerHistory([call for call in calls[server] if call["call_key"] not in names], {})
            if (now.version, now.is_windows_2000_or_older) != (before.version, before.is_windows_2000_or_older):
                found.add(server)
        return found

    # Some associations

    def _evaluate_affected(self, affected: AffectedAssociations, queues: AffectedQueues) -> int:
        """Evaluate the rules on what is affected, and replace the findings that differ."""
        lake, lookback = self.lake, LookbackResult.nothing()
        rows = current = FINDINGS_SCHEMA.empty_table()
        if affected.servers:
            of_servers = "server_address IN {servers}"
            connections = RPC_CONNECTION_INPUT.read_rows(lake, of_servers, servers=affected.servers)
            self._add_dependents(affected, connections)
            affected.add_met_without_bind(connections)
            affected.add_groups(connections)
            servers = ServersInput.read(lake, connections, affected.servers)
            lookback = self._look_back(affected, servers)
            stays = pc.is_in(affected.connections, lookback.unaffected_connections)
            affected.connections = affected.connections.filter(pc.invert(stays))
            ours = connections.filter(is_in(connections, "connection_id", affected.connections))
            if (pc.sum(ours["calls"]).as_py() or 0) + len(ours) <= _MAX_CALLS_IN_MEMORY:
                rows, current = self._evaluate_in_memory(affected, servers, ours)
            else:
                rows, current = self._evaluate_by_server(affected, connection_dates(ours))
        kept = affected.unaffected_findings(lookback.stored_findings)
        rows = pa.concat_tables([rows, lookback.findings, kept])
        current = pa.concat_tables([current, lookback.stored_findings])
        return self._replace(rows, current, queues)

    def _look_back(self, affected: AffectedAssociations, servers: ServersInput) -> LookbackResult:
        """Evaluate a few calls of the associations that only gained calls."""
        ongoing = affected.ongoing_associations(servers.connections)
        if not ongoing or affected.calls is None:
            return LookbackResult.nothing()
        return evaluate_ongoing_associations(self.lake, ongoing, affected.calls, servers)

    def _replace(self, rows: pa.Table, current: pa.Table, queues: AffectedQueues) -> int:
        """Replace findings of calls, and beside them those of queues and of duplicate machines that changes affect."""
        lake = self.lake
        found = {}
        if not self.step.has_same_inputs(str(HOSTS)):
            estate = f"scope = '{duplicate_machines.ALL_MACHINES_SCOPE}'"
            found = run_concurrently(
                {
                    "now": partial(duplicate_machines.find_duplicate_machines, lake),
                    "current": partial(read_findings, lake, estate),
                }
            )
        of_queues, current_of_queues = self.queues.recompute(queues)
        now = [rows, of_queues, *([found["now"]] if found else [])]
        before = [current, current_of_queues, *([found["current"]] if found else [])]
        return self.step.replace_changed(pa.concat_tables(now), pa.concat_tables(before))

    def _evaluate_in_memory(
        self, affected: AffectedAssociations, servers: ServersInput, connections: pa.Table
    ) -> tuple[pa.Table, pa.Table]:
        """Return the findings of what is affected, as they are now and in the table; ``connections`` are affected.

        ``_evaluate_by_server`` gives the same: of a few calls it takes more queries (160 for 148, of 14 runs with one
        small capture each) and a quarter more processor time.
        """
        lake, names, dates = self.lake, affected.connections, connection_dates(connections)
        where = "connection_id IN {names}"
        parts = {"reads": REMOTE_READ_INPUT, "clients": CLIENT_CALL_INPUT, "management": MANAGEMENT_CALL_INPUT}
        parts["calls"] = calls_with_stub_columns(stubs_kept=self.stubs and affected.calls is None)
        queries: dict[str, Callable[[], pa.Table]] = {
            name: partial(part.read_rows, lake, where, dates, names=names)
            for name, part in {**parts, "binds": BIND_INPUT}.items()
        }
        queries["current"] = partial(self._current_findings, affected)
        found = run_concurrently(queries)
        answered = found["reads"].filter(pc.is_valid(found["reads"]["packet_bytes"]))["call_key"].combine_chunks()
        by_call = "call_key IN {keys}"
        messages = MESSAGE_INPUT.read_rows(lake, by_call, dates, keys=answered)
        calls, decoded = found["calls"], [found["reads"], found["clients"], found["management"], messages]
        if affected.calls is not None:
            calls, managed = calls.drop_columns([*STUB_COLUMN_TYPES]), found["management"]["call_key"].combine_chunks()
            decoded.append(affected.calls.rows)
            if len(managed):
                decoded.append(self._management_stubs.read_rows(lake, by_call, dates, keys=managed))
        calls = join_decoded_columns(calls, decoded)
        facts = EvaluationInput(calls, servers.opening_calls, servers.connections, found["binds"])
        only = {*names.to_pylist()}
        rows = evaluate.evaluate_calls(facts, only_connections=only, contexts=servers.contexts)
        return pa.concat_tables([rows, affected.unaffected_findings(found["current"])]), found["current"]

    def _evaluate_by_server(self, affected: AffectedAssociations, dates: Dates | None) -> tuple[pa.Table, pa.Table]:
        """Return the same, evaluated server by server; ``dates``: those of the calls on affected connections."""
        rows = self.lake.map_few_groups(self._findings_of_calls(affected, dates)).cast(FINDINGS_SCHEMA)
        current = self._current_findings(affected)
        return pa.concat_tables([rows, affected.unaffected_findings(current)]), current

    def _current_findings(self, affected: AffectedAssociations) -> pa.Table:
        """Return the findings in the table of what is affected."""
        associations = "scope = 'association' AND connection_id IN {names}"
        servers = "scope = 'server' AND server_address IN {servers}"
        where = f"(({associations}) OR ({servers}))"
        return read_findings(self.lake, where, names=affected.connections, servers=affected.servers)

    # Everything

    def _evaluate_all(self) -> int:
        """Evaluate the rules on everything."""
        lake, step = self.lake, self.step
        lake.add_missing_columns(FINDINGS)
        queries: dict[str, Callable[[], pa.Table]] = {
            "machines": partial(duplicate_machines.find_duplicate_machines, lake),
            "queues": self.queues.compute_all,
        }
        others = pa.concat_tables([*run_concurrently(queries).values()])
        with lake.map_groups(self._findings_of_calls(None)) as rows:
            return step.replace_all(lake.concat(rows, others))

    @property
    def _inputs(self) -> dict[str, InputQuery]:
        """What is read of calls, binds and connections, with the bytes of stubs where these are kept."""
        return {
            "calls": calls_with_stub_columns(stubs_kept=self.stubs),
            "reads": REMOTE_READ_INPUT,
            "clients": CLIENT_CALL_INPUT,
            "management": MANAGEMENT_CALL_INPUT,
            "binds": BIND_INPUT,
        }

    @property
    def _management_stubs(self) -> InputQuery:
        """The stub bytes of management calls: only their rules over several calls look at stubs."""
        columns = ("call_key", *stub_column_expressions(stubs_kept=self.stubs))
        return InputQuery(RPC_CALLS, columns, f"interface_name = '{QMMGMT_NAME}'")

    def _first_request(self, connections: pa.Array, dates: Dates | None) -> int:
        """Return when the first request on some connections, which are of some dates, was sent, microseconds; or 0."""
        sql = "SELECT min(unix_micros(request_at)) AS since FROM {calls} WHERE connection_id IN {names}"
        found = self.lake.query(sql, calls=RowsOfDates(RPC_CALLS, dates), names=connections)
        return found["since"][0].as_py() or 0

    def _findings_of_calls(self, affected: AffectedAssociations | None, dates: Dates | None = None) -> GroupedQuery:
        """Return the query for the findings of what is affected, or of all calls; ``dates``: of the messages read."""
        where: dict[str, str] = {}
        inputs: dict[str, Values] = {}
        queries, changed = self._inputs, None if affected is None else affected.calls
        if changed is not None:
            queries["calls"] = calls_with_stub_columns(stubs_kept=False)
        openings: str | None = None
        if affected is not None:
            of_servers, of_names = "server_address IN {servers}", "connection_id IN {names}"
            openings = f"{of_servers} AND connection_id NOT IN {{names}}"
            since = self._first_request(affected.connections, dates)
            where = dict.fromkeys(_CALL_PARTS, f"{of_names} AND {not_before('requested_at', since)}")
            where |= {"calls": f"{of_names} AND {not_before('request_at', since)}", "binds": of_names}
            where |= {"connections": of_servers, "messages": of_names}
            inputs = {"names": affected.connections, "servers": affected.servers}
        slices = SlicedInputs.of(self.lake)
        parts = {
            name: slices.rows(query, where.get(name, "TRUE"), openings, **inputs) for name, query in queries.items()
        }
        parts["connections"] = slices.connections(where.get("connections", "TRUE"), **inputs)
        parts["messages"] = slices.messages(where.get("messages", "TRUE"), dates, **inputs)
        if changed is not None:
            parts["managed"] = slices.rows(self._management_stubs, "connection_id IN {names}", **inputs)
            parts["changed"] = slices.changed(changed.rows)
        find = _findings_function(None if affected is None else affected.connections)
        return GroupedQuery(parts, SLICE_KEYS, find, FINDINGS.struct(), ("call_key",))


def _findings_function(only_connections: pa.Array | None) -> GroupFunction:
    """Return the function that gives the findings of servers' rows.

    ``only_connections``: those whose associations are evaluated; None: all.
    """

    def find(parts: QueryAnswers) -> Iterator[pa.Table]:
        rows = parts["connections"]
        own = rows.filter(rows[IS_OWN])["connection_id"]
        firsts = set(rows.filter(rows[IS_FIRST])["server_address"].to_pylist())
        connections = unique_rows(rows, "connection_id").select(list(evaluate.EVALUATED_CONNECTION_COLUMNS))
        only = {*(own if only_connections is None else own.filter(pc.is_in(own, only_connections))).to_pylist()}
        with TemporaryDirectory(prefix="msmq-") as folder:
            calls, openings = _joined_calls(parts, only, Path(folder))
            facts = EvaluationInput(calls, openings, connections, parts["binds"].drop_columns([_SLICE]))
            yield evaluate.evaluate_calls(facts, only_connections=only, server_rules_of=firsts)

    return find


def _joined_calls(
    parts: QueryAnswers, connections: Collection[str], folder: Path
) -> tuple[pa.Table | StoredCalls, pa.Table]:
    """Return the calls of some connections, and all that open or close, with what was decoded of them.

    Very many are in files of the folder, and a few columns of all at a time in memory.
    """
    order, count, openings = _order_of_calls(parts, connections)
    many = len(order) > _MAX_CALLS_IN_TASK
    if many:
        release_unused_memory()  # of what other tasks did
    columns: dict[str, pa.ChunkedArray] | StoredCalls = StoredCalls(folder, len(order)) if many else {}
    unused = {_SLICE, *(STUB_COLUMN_TYPES if "changed" in parts else ())}
    for rows in map(_plain, parts.iter_column_chunks("calls")):
        for name in rows.column_names:
            if name not in unused:
                columns[name] = rows[name].take(order)
    for part in _DECODED_PARTS:
        if part in parts and len(keys := parts.select(part, ["call_key"])["call_key"]):
            add_columns(columns, keys, map(_plain, map(decoded_columns, parts.iter_column_chunks(part))))
    if isinstance(columns, StoredCalls):
        release_unused_memory()
        return columns.first(count), columns.take(openings)
    joined = pa.table(columns)
    return joined.slice(0, count), joined.take(openings)


def _plain(rows: pa.Table) -> pa.Table:
    return encode_texts(plain_columns(without_null_columns(rows, "call_key")), "call_key")


def _order_of_calls(parts: QueryAnswers, connections: Collection[str]) -> tuple[pa.Array, int, pa.Array]:
    """Return the places of calls: of some connections, so many, and then of others; and of these which open or close.

    Every slice has all that open and close at its server: of some slices each is taken once.
    """
    calls = parts.select("calls", ["connection_id", "server_address", "interface_name", "opnum", _SLICE])
    is_opening = evaluate.is_open_or_close_call(calls).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(is_opening)
    openings = calls.select(["server_address", _SLICE]).take(pa.array(places)).to_pydict()
    firsts: dict[str | None, str] = {}
    kept = np.ones(len(calls), np.bool_)
    kept[places] = [firsts.setdefault(*opening) == opening[1] for opening in zip(*openings.values(), strict=True)]
    is_ours = kept & is_in(calls, "connection_id", connections).to_numpy()
    order = np.concatenate([np.flatnonzero(is_ours), np.flatnonzero(kept & ~is_ours)])
    return pa.array(order), int(is_ours.sum()), pa.array(np.flatnonzero(is_opening[order]))
