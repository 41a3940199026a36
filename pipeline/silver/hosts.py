"""``silver.hosts``: machines by the names, addresses and identifiers that were seen together, and where.

Its commit says of which versions of the tables below it was made: their change feeds tell what was seen since, or is
seen no more, and numbers of sightings are added and taken off. Where they cannot tell, or what went was the first or
last sighting, it is made anew. It also says how far the collector's snapshots were brought to silver
(``pipeline/silver/collected_snapshots.py``): it is the last.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipeline.lake.change_feeds import Feeds
from pipeline.lake.lake import Lake
from pipeline.lake.queries import WAS
from pipeline.silver import collected_snapshots as silver_collected_snapshots
from pipeline.silver.decode import VERSION
from pipeline.silver.update import LAST
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import EVENT_DATE, RUN_ID, Table
from udfs.dcerpc.interfaces import EPT_MAP
from udfs.dcerpc.towers import towers
from udfs.keys import key

Row = dict[str, Any]

DECODER_VERSION: Final = "1"
MOST: Final = 20_000  # changes that are added one by one; more are counted anew
ENDPOINT_MAPPER: Final = "endpoint_mapper"
_CALLS: Final = str(RPC_CALLS)
_SEEN: Final = "seen "  # before a table's name: the version of it that the rows are made of
_TOGETHER: Final = ("queue_manager_id", "host_name", "address", "source")
_GUID: Final = r"\{?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\}?"
_PRIVATE: Final = re.compile(f"private={_GUID}")
_DIRECT: Final = re.compile(r"direct=os:(.*)$", re.IGNORECASE)
_PATH: Final = re.compile(r"([^\\=;]+)\\")
_IP: Final = re.compile(r"^([0-9]{1,3}\.){3}[0-9]{1,3}$|:")


def collected_snapshots(lake: Lake) -> tuple[dict[str, int], dict[str, Any] | None]:
    """Bring new snapshots of the collector to silver. Call it when silver has followed the calls.

    Returns how many rows of each table were written, and what ``write`` is to say; None when it has nothing to do.
    """
    raw = lake.version(SNAPSHOTS_RAW)
    made = lake.made(HOSTS)
    now = {
        silver_collected_snapshots.RAW: raw,
        _CALLS: lake.made(LAST).get(_CALLS),
        "decoder": VERSION,
        "hosts": DECODER_VERSION,
    }
    if made.items() >= now.items() or (raw is None and now[_CALLS] is None):
        return {}, None
    written: dict[str, int] = {}
    if raw is not None and (made.get(silver_collected_snapshots.RAW) != raw or made.get("decoder") != VERSION):
        since = made.get(silver_collected_snapshots.RAW) if made.get("decoder") == VERSION else None
        written = silver_collected_snapshots.follow(lake, since)
    return written, now


def write(lake: Lake, run_id: str, says: Mapping[str, Any]) -> int:
    """Bring silver.hosts to what silver shows, by a commit that says what it is made of; how many rows it wrote."""
    newest = lake.newest(HOSTS, *_SHOWN)
    made = newest[HOSTS].made() if HOSTS in newest else {}
    versions = {_SEEN + str(table): newest[table].version for table in _SHOWN if table in newest}
    lake.create(HOSTS)
    there = lake.select(HOSTS, "TRUE")
    known = {row["host_key"]: row for row in there.to_pylist()}
    emptied = bool(lake.made(LAST).get("emptied"))
    same = all(made.get(name) == says[name] for name in ("decoder", "hosts"))
    changed = _changes(lake, made, versions) if same and not emptied else None
    rows = None if changed is None else applied(known, changed)
    if rows is None:
        rows = {row["host_key"]: row for row in map(_host_row, hosts(lake))}
        if emptied:  # the endpoint mapper's answers may be gone: what they showed stays
            rows = {name: row for name, row in known.items() if row["source"] == ENDPOINT_MAPPER} | rows
    told = pa.Table.from_pylist([{**row, RUN_ID: run_id} for row in rows.values()], schema=there.schema)
    dates = set(there.column(EVENT_DATE).to_pylist())
    return lake.put(HOSTS, told, there, dates=dates, made_of=json.dumps({**says, **versions}))


def _host_row(row: Row) -> Row:
    """Return a row of the table, of what was seen together, when, and how often."""
    first = row["first_seen_at"]
    return {
        **row,
        "host_key": key(*(row[name] for name in _TOGETHER)),
        "errors": [],
        "decoder_version": DECODER_VERSION,
        EVENT_DATE: None if first is None else first.date(),
    }


def hosts(lake: Lake) -> list[Row]:
    """Return what is seen together, with the first and last time and how often: all columns but the row's own."""
    found: dict[tuple[Any, ...], Row] = {}
    for table, shown in _SHOWN.items():
        if not lake.exists(table):
            continue
        counts = "min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at, count(*) AS sightings"
        for row in lake.query(shown.sql(f"{counts}", "1"), rows=table, **shown.of).to_pylist():
            for told in shown.told(row):
                seen = found.setdefault(tuple(told.values()), {**told, **dict.fromkeys(_TIMES), "sightings": 0})
                for name, better in _TIMES.items():
                    times = [time for time in (seen[name], row[name]) if time is not None]
                    seen[name] = better(times, default=None)
                seen["sightings"] += row["sightings"]
    return list(found.values())


_TIMES: Final[Mapping[str, Any]] = {"first_seen_at": min, "last_seen_at": max}


def _changes(lake: Lake, made: Mapping[str, Any], versions: Mapping[str, int]) -> list[Row] | None:
    """Return what is seen more or less often than at a commit, and when; None when nothing tells."""
    net: Counter[tuple[Any, ...]] = Counter()
    left = MOST
    sign = f"CASE WHEN _change_type IN ({', '.join(map(repr, WAS))}) THEN -1 ELSE 1 END"
    for table, shown in _SHOWN.items():
        name = _SEEN + str(table)
        if name not in versions:
            continue
        feeds = Feeds(lake, {str(table): made.get(name)}, {str(table): versions[name]})
        counted = shown.sql("seen_at, CAST(sum(sign) AS bigint) AS sightings", sign).replace("{rows}", "{feed}")
        rows = feeds.rows(table, f"SELECT * FROM ({counted}) WHERE sightings <> 0", left, **shown.of)
        if rows is None:
            return None
        left -= len(rows)
        for row in rows:
            for told in shown.told(row):
                net[(*told.values(), row["seen_at"])] += row["sightings"]
    names = (*_TOGETHER, "seen_at", "sightings")
    return [dict(zip(names, (*seen, count), strict=True)) for seen, count in net.items() if count]


def applied(known: Mapping[str, Row], changes: Iterable[Row]) -> dict[str, Row] | None:
    """Return rows of the table by their keys, of those before and of what changed; None when these do not tell.

    A change is what was seen together at a time, and how much more often than before: less where rows that showed it
    went. That must not be a first or last sighting, for nobody knows which one is that then.
    """
    rows = dict(known)
    for change in changes:
        name, at, more = key(*(change[part] for part in _TOGETHER)), change["seen_at"], change["sightings"]
        before = rows.get(name)
        if before is None or at is None:
            if more < 0 or at is None:
                return None
            seen = {part: change[part] for part in _TOGETHER}
            rows[name] = _host_row({**seen, "first_seen_at": at, "last_seen_at": at, "sightings": more})
            continue
        first, last = before["first_seen_at"], before["last_seen_at"]
        if more < 0 and not first < at < last:
            return None
        times = {"first_seen_at": min(first, at), "last_seen_at": max(last, at)}
        rows[name] = _host_row({**before, **times, "sightings": before["sightings"] + more})
    return rows


class _Shown(NamedTuple):
    """What rows of a table show of who a machine is: what is read of them, and what that tells.

    ``columns`` are SQL over ``{rows}``, or over what ``joined`` makes of them; ``seen_at`` is the time. ``told`` yields
    identifier, name and address that a row tells together.
    """

    columns: tuple[str, ...]
    where: str
    seen_at: str
    source: str
    tell: Callable[[Row], Iterable[tuple[str | None, str | None, str | None]]]
    of: Mapping[str, Table] = {}
    joined: str = "{rows}"

    def sql(self, counts: str, sign: str) -> str:
        """Ask for what is read, alike rows together, with aggregates over ``seen_at`` and ``sign``."""
        names = ", ".join(column.rpartition(" ")[2] for column in self.columns)
        read = f"SELECT {', '.join(self.columns)}, {self.seen_at} AS seen_at, {sign} AS sign FROM {self.joined}"
        return f"SELECT {names}, {counts} FROM ({read} WHERE {self.where}) GROUP BY ALL"

    def told(self, row: Row) -> Iterator[Row]:
        """Yield what a row tells together; what tells no two things together is left out.

        That an address serves Message Queuing is news enough.
        """
        for told in self.tell(row):
            known = [each or None for each in told]
            if len(known) - known.count(None) > (self.source != ENDPOINT_MAPPER):
                yield dict(zip(_TOGETHER, (*known, self.source), strict=True))


def _host(path_name: str | None) -> str | None:
    r"""Return the host of a path name ``host\private$\q``, lower case; None where it is none, a dot, or an address."""
    found = _PATH.match(path_name or "")
    host = found[1].lower() if found else ""
    return None if host in ("", ".") or _IP.search(host) else host


def _guid(format_name: str | None) -> str | None:
    """Return the queue manager's GUID of a private format name."""
    found = _PRIVATE.match((format_name or "").lower())
    return found[1] if found else None


# The address that was asked for a snapshot: the wire's queue manager, and what a collector noted.
_ASKED: Final = "CASE WHEN source = 'wire' THEN queue_manager ELSE server_address END AS address"
_WITH_ADDRESS: Final = "{rows} LEFT JOIN (SELECT snapshot_id, server_address FROM {raw}) AS raw USING (snapshot_id)"


def _local_queue(row: Row) -> Iterator[tuple[str | None, str | None, str | None]]:
    """A queue that its own machine answers for: host of the path name, GUID of the private format name."""
    yield _guid(row["formatname"]) or _guid(row["queue_format_name"]), _host(row["pathname"]), row["address"]


def _machine(row: Row) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Names of a machine: those of its private queues, and what a collector's configuration calls it."""
    names = {_host(each) for each in row["privateq"] or ()}
    if row["source"] == "collector" and row["queue_manager"] is not None:
        names.add(row["queue_manager"].lower())
    for name in sorted(names - {None}, key=str):
        yield None, name, row["address"]


def _opened(row: Row) -> Iterator[tuple[str | None, str | None, str | None]]:
    """A queue opened at its owner by a name that holds its host or its GUID."""
    direct = _DIRECT.match(row["queue_format_name"] or "")
    yield _guid(row["queue_format_name"]), _host(direct[1] if direct else None), row["server_address"]


def _mapped(row: Row) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Addresses that the endpoint mapper tells to serve one of our interfaces: those of the towers, and its own."""
    found = {str(ipaddress.ip_address(address)) for address, _, _ in towers(row["response_stub"])}
    addresses = (found - {"0.0.0.0"}) | ({row["server_address"]} if found else set())  # noqa: S104 - of a tower
    for address in sorted(addresses):
        yield None, None, address


# What shows who a machine is, and how. Messages name the queue manager that first accepted them, and some the address
# that they came from; opens are RemoteRead 2 and 11, and qmcomm 2.
_SHOWN: Final[dict[Table, _Shown]] = {
    QUEUE_SNAPSHOTS: _Shown(
        ("formatname", "queue_format_name", "pathname", _ASKED), "upper(location) = 'LOCAL'", "observed_at", "snapshot",
        _local_queue, {"raw": SNAPSHOTS_RAW}, _WITH_ADDRESS,
    ),
    MACHINE_SNAPSHOTS: _Shown(
        ("privateq", "source", "queue_manager", _ASKED), "TRUE", "observed_at", "snapshot", _machine,
        {"raw": SNAPSHOTS_RAW}, _WITH_ADDRESS,
    ),
    MESSAGES: _Shown(
        ("source_queue_manager", "sender_address"),
        "source_queue_manager IS NOT NULL AND sender_address IS NOT NULL", "seen_at", "message",
        lambda row: [(row["source_queue_manager"], None, row["sender_address"])],
    ),
    REMOTE_READ_CALLS: _Shown(
        ("queue_format_name", "server_address"),
        "protocol = 'RemoteRead' AND opnum IN (2, 11) AND context_handle IS NOT NULL", "responded_at", "format_name",
        _opened,
    ),
    CLIENT_CALLS: _Shown(
        ("queue_format_name", "server_address"),
        "interface_name = 'qmcomm' AND opnum = 2 AND context_handle IS NOT NULL", "responded_at", "format_name",
        _opened,
    ),
    RPC_CALLS: _Shown(
        ("response_stub", "server_address"),
        f"interface_name = 'epm' AND opnum = {EPT_MAP} AND response_stub IS NOT NULL", "response_at", ENDPOINT_MAPPER,
        _mapped,
    ),
}  # fmt: skip
