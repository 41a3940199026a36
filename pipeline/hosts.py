"""``silver.hosts``: machines by the names, addresses and identifiers that were seen together, and where.

Its commit says of which versions of the tables below it was made: their change feeds tell what was seen since, or is
seen no more, and numbers of sightings are added and taken off. Where they cannot tell, or what went was the first or
last sighting, it is made anew. It also says how far the collector's snapshots were brought to silver
(``pipeline/collected.py``): it is the last.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline import collected
from pipeline.decoding import VERSION
from pipeline.derive_silver import LAST
from pipeline.feeds import Feeds
from pipeline.lake import WAS, Lake
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.properties import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.silver import REMOTE_READ_CALLS
from schemas.snapshots import SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, RUN_ID, Table
from udfs.keys import key
from udfs.rpc.interfaces import EPT_MAP
from udfs.rpc.towers import towers

Row = dict[str, Any]

DECODER_VERSION: Final = "1"
MOST: Final = 20_000  # changes that are added one by one; more are counted anew
ENDPOINT_MAPPER: Final = "endpoint_mapper"
_CALLS: Final = str(RPC_CALLS)
_SEEN: Final = "seen "  # before a table's name: the version of it that the rows are made of
_TOGETHER: Final = ("queue_manager_id", "host_name", "address", "source")
_GUID: Final = r"\{?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\}?"
_IP: Final = r"^([0-9]{1,3}\.){3}[0-9]{1,3}$|:"


def collected_snapshots(lake: Lake) -> tuple[dict[str, int], dict[str, Any] | None]:
    """Bring new snapshots of the collector to silver. Call it when silver has followed the calls.

    Returns how many rows of each table were written, and what ``write`` is to say; None when it has nothing to do.
    """
    raw = lake.version(SNAPSHOTS_RAW)
    made = lake.made(HOSTS)
    now = {collected.RAW: raw, _CALLS: lake.made(LAST).get(_CALLS), "decoder": VERSION, "hosts": DECODER_VERSION}
    if made.items() >= now.items() or (raw is None and now[_CALLS] is None):
        return {}, None
    written: dict[str, int] = {}
    if raw is not None and (made.get(collected.RAW) != raw or made.get("decoder") != VERSION):
        since = made.get(collected.RAW) if made.get("decoder") == VERSION else None
        written = collected.follow(lake, since)
    return written, now


def write(lake: Lake, run_id: str, says: Mapping[str, Any]) -> int:
    """Bring silver.hosts to what silver shows, by a commit that says what it is made of; how many rows it wrote."""
    newest = lake.newest(HOSTS, *_SHOWN)
    made = newest[HOSTS].made() if HOSTS in newest else {}
    versions = {_SEEN + str(table): newest[table].version for table in _SHOWN if table in newest}
    lake.create(HOSTS)
    there = lake.read(HOSTS).toArrow()
    known = {row["host_key"]: row for row in there.to_pylist()}
    emptied = bool(lake.made(LAST).get("emptied"))
    same = all(made.get(name) == says[name] for name in ("decoder", "hosts"))
    changed = _changes(lake, made, versions) if same and not emptied else None
    rows = None if changed is None else applied(known, changed)
    if rows is None:
        rows = {row["host_key"]: row for row in map(_host_row, hosts(lake).toArrow().to_pylist())}
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


def hosts(lake: Lake) -> DataFrame:
    """Return what is seen together, with the first and last time and how often: all columns but the row's own."""
    frames = [evidence(lake, table, lake.read(table)) for table in _SHOWN if lake.exists(table)]
    return (
        reduce(DataFrame.unionByName, frames)
        .groupBy(*_TOGETHER)
        .agg(
            F.min("seen_at").alias("first_seen_at"),
            F.max("seen_at").alias("last_seen_at"),
            F.count("*").alias("sightings"),
        )
    )


def evidence(lake: Lake, table: Table, rows: DataFrame) -> DataFrame:
    """Return what rows of a table show: identifier, name, address, source, seen_at, sign.

    ``sign`` is 1, or -1 for a row that went (of a change feed). What tells no two things together is left out.
    """
    gone = F.col("_change_type").isin(*WAS) if "_change_type" in rows.columns else F.lit(False)  # noqa: FBT003
    shown = _SHOWN[table](lake, rows.withColumn("sign", F.when(gone, -1).otherwise(1)))
    told = F.array_compact(F.array("queue_manager_id", "host_name", "address"))
    alone = F.col("source") == ENDPOINT_MAPPER  # that an address serves Message Queuing is news enough
    return shown.where((F.size(told) > 1) | (alone & (F.size(told) > 0)))


def _changes(lake: Lake, made: Mapping[str, Any], versions: Mapping[str, int]) -> list[Row] | None:
    """Return what is seen more or less often than at a commit, and when; None when nothing tells."""
    found: list[Row] = []
    for table in _SHOWN:
        name = _SEEN + str(table)
        if name not in versions:
            continue
        feeds = Feeds(lake, {str(table): made.get(name)}, {str(table): versions[name]})
        rows = feeds.rows(table, partial(_net, lake, table), MOST - len(found))
        if rows is None:
            return None
        found += (row.asDict() for row in rows)
    for row in found:  # Spark gives the machine's own time
        row["seen_at"] = None if row["seen_at"] is None else row["seen_at"].astimezone(UTC)
    return found


def _net(lake: Lake, table: Table, feed: DataFrame) -> DataFrame:
    counted = evidence(lake, table, feed).groupBy(*_TOGETHER, "seen_at").agg(F.sum("sign").alias("sightings"))
    return counted.where("sightings <> 0")


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


def _row(*, guid: Column | None = None, name: Column | None = None, address: Column | None = None,
         source: str, seen_at: str) -> list[Column]:  # fmt: skip
    def text(column: Column | None) -> Column:
        return F.lit(None).cast("string") if column is None else F.nullif(column, F.lit(""))

    return [
        text(guid).alias("queue_manager_id"), text(name).alias("host_name"), text(address).alias("address"),
        F.lit(source).alias("source"), F.col(seen_at).alias("seen_at"), F.col("sign"),
    ]  # fmt: skip


def _host(path_name: Column) -> Column:
    r"""Return the host of a path name ``host\private$\q``, lower case; null where it is none, a dot, or an address."""
    host = F.lower(F.regexp_extract(path_name, r"^([^\\=;]+)\\", 1))
    return F.when(~host.isin("", ".") & ~host.rlike(_IP), host)


def _guid(format_name: Column) -> Column:
    """Return the queue manager's GUID of a private format name."""
    return F.regexp_extract(F.lower(format_name), f"^private={_GUID}", 1)


def _of_snapshots(lake: Lake, told: DataFrame) -> DataFrame:
    """What snapshots tell, with the address that was asked: the wire's queue manager, and what a collector noted."""
    address = F.when(F.col("source") == "wire", F.col("queue_manager"))
    if lake.exists(SNAPSHOTS_RAW):
        told = told.join(lake.read(SNAPSHOTS_RAW).select("snapshot_id", "server_address"), "snapshot_id", "left")
        address = address.otherwise(F.col("server_address"))
    return told.select(
        _row(guid=F.col("guid"), name=F.col("name"), address=address, source="snapshot", seen_at="observed_at")
    )


_TOLD: Final = ("snapshot_id", "source", "queue_manager", "observed_at", "sign")


def _local_queues(lake: Lake, rows: DataFrame) -> DataFrame:
    """Queues that their own machine answers for: host of the path name, GUID of the private format name."""
    rows = rows.where("upper(location) = 'LOCAL'")
    guid = F.coalesce(F.nullif(_guid(F.col("formatname")), F.lit("")), _guid(F.col("queue_format_name")))
    return _of_snapshots(lake, rows.select(*_TOLD, guid.alias("guid"), _host(F.col("pathname")).alias("name")))


def _machines(lake: Lake, rows: DataFrame) -> DataFrame:
    """Names of machines: those of their private queues, and what a collector's configuration calls them."""
    configured = F.when(F.col("source") == "collector", F.lower("queue_manager"))
    private = F.transform(F.coalesce("privateq", F.array().cast("array<string>")), _host)
    names = F.array_compact(F.array_distinct(F.array_append(private, configured)))
    nobody = F.lit(None).cast("string")
    return _of_snapshots(lake, rows.select(*_TOLD, nobody.alias("guid"), F.explode(names).alias("name")))


def _messages(_lake: Lake, rows: DataFrame) -> DataFrame:
    """Messages name the queue manager that first accepted them, and some the address that they came from."""
    return rows.where("source_queue_manager IS NOT NULL AND sender_address IS NOT NULL").select(
        _row(guid=F.col("source_queue_manager"), address=F.col("sender_address"), source="message", seen_at="seen_at")
    )


def _opened_reads(_lake: Lake, rows: DataFrame) -> DataFrame:
    """Queues opened at their owner by a name that holds its host or its GUID: RemoteRead 2 and 11."""
    return _opened(rows.where("protocol = 'RemoteRead' AND opnum IN (2, 11)"))


def _opened_clients(_lake: Lake, rows: DataFrame) -> DataFrame:
    """Likewise qmcomm 2."""
    return _opened(rows.where("interface_name = 'qmcomm' AND opnum = 2"))


def _opened(calls: DataFrame) -> DataFrame:
    name = F.col("queue_format_name")
    direct = F.regexp_extract(name, r"(?i)^direct=os:(.*)$", 1)
    return calls.where("context_handle IS NOT NULL").select(
        _row(guid=_guid(name), name=_host(direct), address=F.col("server_address"), source="format_name",
             seen_at="responded_at")
    )  # fmt: skip


def _endpoint_mapper(_lake: Lake, rows: DataFrame) -> DataFrame:
    """Addresses that the endpoint mapper tells to serve one of our interfaces: those of the towers, and its own."""
    answered = F.col("response_stub").isNotNull()
    calls = rows.where((F.col("interface_name") == "epm") & (F.col("opnum") == EPT_MAP) & answered)
    calls = calls.select("server_address", "response_stub", "response_at", "sign")
    found = calls.mapInArrow(_tower_rows, "address string, seen_at timestamp, sign int")
    return found.select(_row(address=F.col("address"), source=ENDPOINT_MAPPER, seen_at="seen_at"))


def _tower_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema({"address": pa.string(), "seen_at": pa.timestamp("us", "UTC"), "sign": pa.int32()})
    for batch in batches:
        rows: list[Row] = []
        for call in batch.to_pylist():
            found = {str(ipaddress.ip_address(address)) for address, _, _ in towers(call["response_stub"])}
            addresses = (found - {"0.0.0.0"}) | ({call["server_address"]} if found else set())  # noqa: S104 - of a tower
            seen = {"seen_at": call["response_at"], "sign": call["sign"]}
            rows += [{"address": address, **seen} for address in sorted(addresses)]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


# What shows who a machine is, and how.
_SHOWN: Final[dict[Table, Callable[[Lake, DataFrame], DataFrame]]] = {
    QUEUE_SNAPSHOTS: _local_queues,
    MACHINE_SNAPSHOTS: _machines,
    MESSAGES: _messages,
    REMOTE_READ_CALLS: _opened_reads,
    CLIENT_CALLS: _opened_clients,
    RPC_CALLS: _endpoint_mapper,
}
