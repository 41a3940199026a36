"""gold.findings follows bronze and silver: what a change below can touch is judged anew, and nothing else.

A finding of one association rests on its calls, connections and binds, and where numbers or transactions are of the
whole server on what others opened there. So these are judged anew: the associations of calls, connections and binds
that changed; where a server's numbers changed, its associations of qmcomm, and those of qm2qm that had packets since;
those of moves, where targets or enlistments did; all of these where the server's version did; those with a finding that
another's opening could explain; and what the server opened, as a whole, which is little beside what was read. Of
associations that only go on a few calls are judged first (``look_back``), and no others where these show that nothing
is broken that was not. The commit says of which versions of the tables below it was made.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.attempts.affected_scope import CONNECTIONS_CHANGED, FEW, connections_before, those_going_on
from pipeline.attempts.attempt_rows import CONNECTION
from pipeline.attempts.server_openings import IS_LEDGER, OPENINGS
from pipeline.findings import duplicate_machines, queue_inputs
from pipeline.findings import evaluate as judging
from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.evaluate import Facts
from pipeline.findings.inputs import (
    BINDS,
    CLIENTS,
    CONNECTED,
    HEADS,
    MANAGEMENT,
    MESSAGES_SAID,
    READS,
    Part,
    Servers,
    days_of,
    found_rows,
    heads,
    together,
    with_heads,
)
from pipeline.findings.lookback import Looked, looked_at
from pipeline.findings.queue_inputs import Queues
from pipeline.findings.rules.conversations import CLOCKS_US, Exchange, Ledger
from pipeline.findings.rules.queue_facts import Limits
from pipeline.findings.rules.registry import of_one_call
from pipeline.lake.arrow_rows import one_of
from pipeline.lake.change_feeds import Feeds
from pipeline.lake.concurrency import gather
from pipeline.lake.date_filters import on_dates
from pipeline.lake.frames import frame
from pipeline.lake.lake import Lake, versions_of
from pipeline.lake.local.commits import Commit
from pipeline.lake.queries import MOST_NAMED, only
from pipeline.lake.settings import unmeasured
from pipeline.silver.update import EMPTIED, LAST
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, Table
from udfs.dcerpc.interfaces import MG, QC, QM, RR

VERSION: Final = "4"  # another one when rules are added or changed: then all is judged anew
_FED: Final = (RPC_CALLS, CONNECTIONS, RPC_BINDS)
_BELOW: Final = (*_FED, HOSTS, *queue_inputs.BELOW)
_MOST_AT_ONCE: Final = 200_000  # calls that are judged here; of more, in Spark
_EXPLAINED: Final = ("P11", "R57", "R61", "R64", "R73")  # findings that another association's opening can explain
_NUMBERED: Final = (QM, QC)  # interfaces whose openings give numbers of the whole server
_VERSION: Final = 8  # of qm2qm: RemoteQmGetVersion
_MOVES: Final = (11, 12)  # of RemoteRead: what opens targets, and enlists; below, what uses them
_USE_MOVES: Final = (10, 15)
_PARTS: Final = ("calls", "reads", "clients", "management", "connections", "binds")
_OF_CALLS: Final = ("calls", "reads", "clients", "management")  # of _PARTS, those of which what was opened is looked at
_EVER: Final = -(1 << 62)


def gold(lake: Lake, *, stubs: bool = True, limits: Limits | None = None) -> int:
    """Judge what changed below; return how many rows were written.

    ``stubs``: bronze keeps stubs (store.stubs); rules that need a byte of them are asked only then. ``limits``: the
    settings that rules on queues go by.
    """
    newest = lake.newest(*_BELOW, LAST, QUEUE_HISTORY, FINDINGS)
    if not any(table in newest for table in (RPC_CALLS, HOSTS, QUEUE_SNAPSHOTS)):
        return 0
    made = newest[FINDINGS].made() if FINDINGS in newest else {}
    limits = Limits() if limits is None else limits
    addresses = newest.get(QUEUE_HISTORY, Commit(0, None)).made().get("names") or {}
    decoder = newest.get(LAST, Commit(0, None)).made().get("decoder")
    rests_on: dict[str, Any] = {**versions_of(newest, _BELOW), **limits.said(), "names": addresses}
    rests_on |= {"decoder": decoder, "rules": VERSION, "stubs": stubs}
    if made == rests_on:
        return 0
    return _Work(lake, made, rests_on, stubs, Queues(lake, limits, addresses)).follow()


@dataclass(slots=True)
class _Touched:
    """What a change touches: connections, whose associations are judged, and servers, whose openings are.

    ``groups`` are the groups of connections as they were. ``numbered``: servers where what gives numbers changed, and
    since when, microseconds; ``moves``: where targets of moves or enlistments did; ``versions``: the calls that asked a
    server for its version and are new, None where one of them changed or went. ``calls``: those that changed, came or
    went; None: too many to be told from others. ``images``: connections that changed, as they were and are; None: too
    many. ``spoilt``: connections where more changed than that calls came.
    """

    connections: set[str] = field(default_factory=set)
    servers: set[str] = field(default_factory=set)
    groups: set[tuple[Any, ...]] = field(default_factory=set)
    calls: ChangedCalls | None = None
    numbered: dict[str, int] = field(default_factory=dict)
    moves: set[str] = field(default_factory=set)
    versions: dict[str, set[str] | None] = field(default_factory=dict)
    images: list[dict[str, Any]] | None = None
    spoilt: set[str] = field(default_factory=set)

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take rows of a feed."""
        for row in rows:
            self.connections.add(row["connection_id"])
            if row["association_group_id"]:
                self.groups.add((row["server_address"], row["client_address"], row["association_group_id"]))
            server = row["server_address"]
            if server is None:
                continue
            self.servers.add(server)
            if row["numbered_at"] is not None:
                self.numbered[server] = min(row["numbered_at"], self.numbered.get(server, row["numbered_at"]))
            if row["moves"]:
                self.moves.add(server)
            if any(row["versions"] or ()):
                new = self.versions.setdefault(server, set())
                if row["went"]:
                    self.versions[server] = None
                elif new is not None:
                    new.update(each for each in row["versions"] if each is not None)

    def going_on(self, connections: pa.Table) -> dict[str, str]:
        """Return the name of the association, by connection, of those that only go on and have many calls."""
        counts = dict(zip(connections["connection_id"].to_pylist(), connections["calls"].to_pylist(), strict=True))
        many = sum(counts[name] or 0 for name in self.connections & counts.keys()) > FEW
        if self.calls is None or self.images is None or not many:
            return {}
        rows = [{**dict.fromkeys(CONNECTION), **row} for row in judging.rows_of(connections)]
        spoilt = self.spoilt | self.calls.spoilt
        spoilt |= {row["connection_id"] for row in rows if row["server_address"] in self.calls.spoilt_servers}
        on = those_going_on(rows, self.connections, connections_before(self.images), spoilt)
        return dict(on.associations)

    def staying(self, there: pa.Table) -> pa.Table:
        """Return those of the findings that are there which rest on one call alone that did not change."""
        if self.calls is None:
            return there.slice(0, 0)
        alone = one_of(there, "rule_id", of_one_call())
        return there.filter(
            pc.and_(alone, pc.invert(pc.is_in(there["call_key"], self.calls.rows["call_key"].combine_chunks())))
        )

    def widen(self, connections: pa.Table) -> None:
        """Take all connections of the groups of those that are touched."""
        rows = connections.select(
            ["connection_id", "server_address", "client_address", "association_group_id"]
        ).to_pylist()
        named = {
            row["connection_id"]: (row["server_address"], row["client_address"], row["association_group_id"])
            for row in rows
        }
        wanted = self.groups | {named[name] for name in self.connections if name in named and named[name][2]}
        self.connections |= {name for name, group in named.items() if group in wanted}


@dataclass(slots=True)
class _Work:
    """One run's work: what the last commit said, and what this one's will say."""

    lake: Lake
    made: dict[str, Any]
    rests_on: dict[str, Any]
    stubs: bool
    queues: Queues

    @property
    def _parts(self) -> dict[str, Part]:
        """What is read of calls and binds, with the bytes of stubs where these are kept."""
        calls = with_heads(stubs=self.stubs)
        return {"calls": calls, "reads": READS, "clients": CLIENTS, "management": MANAGEMENT, "binds": BINDS}

    def follow(self) -> int:
        """Bring the table to what there is now."""
        same = all(self.made.get(name) == self.rests_on[name] for name in self.rests_on if name not in map(str, _BELOW))
        if not same or not self.made:
            return self._anew()
        touched = self._touched()
        of_queues = None if touched is None else self.queues.touched(self.made, self.rests_on)
        if touched is None or of_queues is None:
            return self._anew()
        return self._bring(touched, of_queues)

    def _touched(self) -> _Touched | None:
        """Return what changed; None when the feeds cannot tell, or of too much."""
        feeds = Feeds(self.lake, self.made, self.rests_on)
        emptied = self._emptied()
        asked: dict[Any, Callable[[], Any]] = {
            table: partial(feeds.rows, table, _where(table, emptied), MOST_NAMED) for table in _FED
        }
        asked["calls"] = partial(ChangedCalls.told, feeds, _but(emptied), stubs=self.stubs)
        asked["images"] = partial(feeds.rows, CONNECTIONS, CONNECTIONS_CHANGED, MOST_NAMED)
        found = gather(asked)
        touched = _Touched(calls=found.pop("calls"), images=found.pop("images"))
        if None in found.values():
            return None
        for rows in found.values():
            touched.take(rows)
        new = {name for name, row in connections_before(touched.images or ()).items() if row is None}
        touched.spoilt = {row["connection_id"] for row in found[RPC_BINDS]} - new
        return touched

    def _emptied(self) -> list[int]:
        """Return the commits of bronze.rpc_calls that only emptied stubs."""
        since = self.made.get(str(RPC_CALLS))
        said = {} if since is None else self.lake.said(RPC_CALLS, since)
        return [version for version, what in said.items() if what == EMPTIED]

    def _bring(self, touched: _Touched, of_queues: queue_inputs.Touched) -> int:
        """Judge what is touched anew."""
        lake, says = self.lake, json.dumps(self.rests_on)
        theirs = partial(CONNECTED.rows, lake, "server_address IN {servers}", servers=touched.servers)
        connections = theirs() if touched.servers else None
        looked, many = Looked.of_none(), len(touched.connections) > MOST_NAMED
        rows = there = judging.SCHEMA.empty_table()
        if connections is not None:
            self._add_explained(touched, connections)
            touched.widen(connections)
            servers = Servers.of(lake, connections, touched.servers)
            looked = self._look_back(touched, servers)
            touched.connections -= looked.connections
            ours = connections.filter(one_of(connections, "connection_id", touched.connections))
            many = len(touched.connections) > MOST_NAMED or (pc.sum(ours["calls"]).as_py() or 0) > _MOST_AT_ONCE
            if not many:
                rows, there = self._judge(touched, servers, ours)
        if many:
            rows, there = self._in_spark(touched)
        rows = pa.concat_tables([rows, looked.rows, touched.staying(looked.there)])
        there = pa.concat_tables([there, looked.there])
        return self._put(rows, there, of_queues, says)

    def _look_back(self, touched: _Touched, servers: Servers) -> Looked:
        """Judge a few calls of associations that only go on."""
        going_on = touched.going_on(servers.connections)
        if not going_on or touched.calls is None:
            return Looked.of_none()
        return looked_at(self.lake, going_on, touched.calls, servers)

    def _put(self, rows: pa.Table, there: pa.Table, of_queues: queue_inputs.Touched, says: str) -> int:
        """Put findings in the place of those that were there, and what operation and queues show beside them."""
        lake = self.lake
        asked: dict[str, Callable[[], pa.Table]] = {}
        if self.made.get(str(HOSTS)) != self.rests_on[str(HOSTS)]:
            was = partial(found_rows, lake, f"scope = '{duplicate_machines.ESTATE}'")
            asked |= {"hosts": partial(duplicate_machines.hosts_of, lake), "hosts there": was}
        found = gather(asked)
        ours, theirs = self.queues.bring(of_queues)
        rows = pa.concat_tables([rows, ours, *(found[name] for name in found if not name.endswith("there"))])
        there = pa.concat_tables([there, theirs, *(found[name] for name in found if name.endswith("there"))])
        dates = set(there[EVENT_DATE].to_pylist())
        return lake.put(FINDINGS, rows, there, dates=dates, made_of=says, was_made_of=json.dumps(self.made))

    def _add_explained(self, touched: _Touched, connections: pa.Table) -> None:
        """Add the associations that what a server opened, or the end of another association, can judge otherwise."""
        others = self._of_another_version(touched)
        rules = f"rule_id IN ({', '.join(map(repr, _EXPLAINED))}) AND server_address IN {{servers}}"
        explained = Part(FINDINGS, ("connection_id",))
        asked = {"findings": partial(explained.connections, self.lake, rules, servers=touched.servers)}
        if numbered := touched.numbered.keys() | others:
            theirs = "interface_name = '{}' AND server_address IN {{servers}}"
            asked["owners"] = partial(CLIENTS.connections, self.lake, theirs.format(QC), servers=numbered)
            asked["qm2qm"] = partial(READS.connections, self.lake, theirs.format(QM), servers=numbered)
        if moves := touched.moves | others:
            first, last = _USE_MOVES
            uses = f"protocol = '{RR}' AND opnum BETWEEN {first} AND {last} AND server_address IN {{servers}}"
            asked["moves"] = partial(READS.connections, self.lake, uses, servers=moves)
        names = gather(asked)
        if numbered:  # what was opened explains nothing of an association that was over
            names["qm2qm"] &= _since(connections, touched.numbered | dict.fromkeys(others, _EVER))
        touched.connections.update(*names.values())
        places = zip(*(connections[name].to_pylist() for name in ("connection_id", "server_address")), strict=True)
        touched.spoilt |= {name for name, server in places if server in others}

    def _of_another_version(self, touched: _Touched) -> set[str]:
        """Return the servers that tell another version than before, or may."""
        found = {server for server, new in touched.versions.items() if new is None}
        new = {server: names for server, names in touched.versions.items() if names is not None}
        if not new:
            return found
        version = f"interface_name = '{QM}' AND opnum = {_VERSION} AND server_address IN {{servers}}"
        parts = {"calls": with_heads(stubs=False), "reads": READS}
        asked = {
            name: partial(part.rows, self.lake, version, rows=OPENINGS[part.table], servers=new.keys())
            for name, part in parts.items()
        }
        told: defaultdict[str, list[Exchange]] = defaultdict(list)
        for row in judging.rows_of(together(*gather(asked).values())):
            told[row["server_address"]].append(Exchange(row))
        for server, names in new.items():
            now, before = Ledger(told[server], {}), Ledger([e for e in told[server] if e["call_key"] not in names], {})
            if (now.version, now.old) != (before.version, before.old):
                found.add(server)
        return found

    def _judge(self, touched: _Touched, servers: Servers, ours: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the findings of what is touched as they are now, and as they were; ``ours``: its connections."""
        lake, names, days = self.lake, touched.connections, on_dates(days_of(ours))
        here = f"connection_id IN {{names}} AND {days}"
        parts = {"reads": READS, "clients": CLIENTS, "management": MANAGEMENT}
        parts["calls"] = with_heads(stubs=self.stubs and touched.calls is None)
        asked: dict[str, Callable[[], pa.Table]] = {
            name: partial(part.rows, lake, here, names=names) for name, part in parts.items()
        }
        asked["binds"] = partial(BINDS.rows, lake, "connection_id IN {names}", names=names)
        asked["there"] = partial(self._there, touched)
        found = gather(asked)
        answered = found["reads"].filter(pc.is_valid(found["reads"]["packet_bytes"]))["call_key"].to_pylist()
        by_call = f"call_key IN {{keys}} AND {days}"
        messages = MESSAGES_SAID.rows(lake, by_call, keys=answered)
        calls, told = found["calls"], [found["reads"], found["clients"], found["management"], messages]
        if touched.calls is not None:
            calls, managed = calls.drop_columns([*HEADS]), found["management"]["call_key"].to_pylist()
            told.append(touched.calls.rows)
            if managed:
                told.append(self._managed.rows(lake, by_call, keys=managed))
        calls = together(calls, *told)
        facts = Facts(calls, servers.opened, servers.connections, found["binds"])
        rows, there = judging.findings(facts, only=touched.connections, servers=servers.each), found["there"]
        return pa.concat_tables([rows, touched.staying(there)]), there

    @property
    def _managed(self) -> Part:
        """The bytes of management calls: tests over several of them look into their stubs, and no others do."""
        return Part(RPC_CALLS, ("call_key", *heads(stubs=self.stubs)), f"interface_name = '{MG}'")

    def _there(self, touched: _Touched) -> pa.Table:
        """Return the findings of what is touched as they were."""
        ours = "scope = 'association' AND connection_id IN {names}"
        theirs = "scope = 'server' AND server_address IN {servers}"
        of = {"names": touched.connections, "servers": touched.servers}
        return found_rows(self.lake, f"(({ours}) OR ({theirs}))", **of)

    def _in_spark(self, touched: _Touched) -> tuple[pa.Table, pa.Table]:
        """Return what ``_judge`` does, made in Spark."""
        with unmeasured(self.lake.spark):
            found = self._judged(touched).toArrow().cast(judging.SCHEMA)
        there = self._there(touched)
        return pa.concat_tables([found, touched.staying(there)]), there

    def _anew(self) -> int:
        """Judge all there is: here if it is little."""
        lake = self.lake
        lake.widen(FINDINGS)
        for table in (*_FED, *queue_inputs.BELOW):
            lake.begin_with(table)
            self.rests_on[str(table)] = lake.version(table)
        says = json.dumps(self.rests_on)
        connections = CONNECTED.rows(lake, f"TRUE LIMIT {MOST_NAMED + 1}")
        few = connections.num_rows <= MOST_NAMED and (pc.sum(connections["calls"]).as_py() or 0) <= _MOST_AT_ONCE
        if few:
            parts = self._parts | {"messages": MESSAGES_SAID}
            asked: dict[str, Callable[[], pa.Table]] = {name: partial(part.rows, lake) for name, part in parts.items()}
            asked["hosts"] = partial(duplicate_machines.hosts_of, lake)
            found = gather(asked)
            calls = together(*(found[name] for name in ("calls", "reads", "clients", "management", "messages")))
            ledger = calls.filter(judging.ledger_mask(calls))
            facts = Facts(calls, ledger, connections.select(list(judging.CONNECTIONS)), found["binds"])
            rows = pa.concat_tables([judging.findings(facts), found["hosts"], self.queues.anew()])
        else:
            others = pa.concat_tables([duplicate_machines.hosts_of(lake), self.queues.anew()])
            rows = self._judged(None).unionByName(frame(lake.spark, others))
        with unmeasured(lake.spark):
            lake.replace(FINDINGS, rows, made_of=says)
        return lake.rows_written(FINDINGS)

    def _judged(self, touched: _Touched | None) -> DataFrame:
        """Return the findings of what is touched, or of all, made in Spark: one group for each server."""
        lake = self.lake
        parts = self._parts
        if touched is not None and touched.calls is not None:
            parts["calls"] = with_heads(stubs=False)
        frames = {name: part.frame(lake) for name, part in parts.items()}
        said = MESSAGES_SAID.frame(lake).select(*(name.rpartition(" ")[2] for name in MESSAGES_SAID.columns))
        frames["reads"] = frames["reads"].join(said, "call_key", "left")
        frames["connections"] = CONNECTED.frame(lake).drop("calls")
        if touched is not None:
            frames |= {name: _of_touched(frames[name], touched) for name in _OF_CALLS}
            frames["connections"] = only(frames["connections"], "server_address", touched.servers)
            frames["binds"] = only(frames["binds"], "connection_id", touched.connections)
            if touched.calls is not None:
                fresh = frame(lake.spark, touched.calls.rows)
                managed = only(self._managed.frame(lake), "connection_id", touched.connections)
                managed = managed.select("call_key", *HEADS).join(fresh.select("call_key"), "call_key", "left_anti")
                told = fresh.unionByName(managed, allowMissingColumns=True)
                frames["calls"] = frames["calls"].drop(*HEADS).join(told, "call_key", "left")
        marked = [frames[name].withColumn("part", F.lit(name)) for name in _PARTS]
        every = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), marked)
        columns = {name: tuple(frames[name].columns) for name in _PARTS}
        judge = _judge(columns, None if touched is None else frozenset(touched.connections))
        return every.groupBy("server_address").applyInArrow(judge, FINDINGS.struct())


def _where(table: Table, emptied: Collection[int]) -> str:
    """Ask where rows of a table changed, as they were and are; ``emptied``: commits of calls to be passed over."""
    where, group = "TRUE", "NULL"
    numbered, moves, versions, went = "CAST(NULL AS bigint)", "FALSE", "CAST(NULL AS string)", "FALSE"
    if table is RPC_CALLS:
        where = _but(emptied)
        version = f"(interface_name = '{QM}' AND opnum = {_VERSION})"
        ours = f"{IS_LEDGER} AND interface_name IN ({', '.join(map(repr, _NUMBERED))})"
        numbered = f"min(CASE WHEN {ours} THEN unix_micros(coalesce(request_at, response_at)) END)"
        moves = f"coalesce(bool_or(interface_name = '{RR}' AND opnum IN {_MOVES}), FALSE)"
        versions = f"collect_set(CASE WHEN {version} THEN call_key END)"
        went = f"coalesce(bool_or({version} AND _change_type <> 'insert'), FALSE)"
    elif table is CONNECTIONS:
        where, group = "kind = 'rpc'", "association_group_id"
    names = "connection_id, server_address, client_address"
    told = f"{numbered} AS numbered_at, {moves} AS moves, {versions} AS versions, {went} AS went"
    grouped = f"CAST({group} AS bigint) AS association_group_id"
    return f"SELECT {names}, {grouped}, {told} FROM {{feed}} WHERE {where} GROUP BY ALL"


def _but(versions: Collection[int]) -> str:
    """Return the condition of images that are not of some versions."""
    return f"_commit_version NOT IN ({', '.join(map(str, versions))})" if versions else "TRUE"


def _of_touched(rows: DataFrame, touched: _Touched) -> DataFrame:
    """Return the rows of connections that are touched, and, of calls, what was opened at their servers."""
    opened = F.expr(f"coalesce({IS_LEDGER}, FALSE)")
    theirs = only(rows.where(~opened), "connection_id", touched.connections)
    return theirs.unionByName(only(rows.where(opened), "server_address", touched.servers))


def _judge(columns: Mapping[str, tuple[str, ...]], ours: Collection[str] | None) -> Callable[[pa.Table], pa.Table]:
    """Return the function that gives the findings of one server's rows, each marked with the part that it is of.

    ``ours``: connections whose associations are judged; None: all.
    """

    def judge(rows: pa.Table) -> pa.Table:
        parts = {name: rows.filter(pc.equal(rows["part"], name)).select(list(columns[name])) for name in _PARTS}
        return judging.findings(_facts(parts), only=ours)

    return judge


def _facts(parts: Mapping[str, pa.Table]) -> Facts:
    """Return what is judged, of what was read of each table."""
    calls = together(parts["calls"], parts["reads"], parts["clients"], parts["management"])
    return Facts(calls, calls.filter(judging.ledger_mask(calls)), parts["connections"], parts["binds"])


def _since(connections: pa.Table, since: Mapping[str, int]) -> set[str]:
    """Return the connections of servers that had packets since a time, as far as clocks tell."""
    last = connections["last_packet_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    rows = zip(connections["connection_id"].to_pylist(), connections["server_address"].to_pylist(), last.to_pylist(),
               strict=True)  # fmt: skip
    return {name for name, server, at in rows if server in since and at + CLOCKS_US > since[server]}
