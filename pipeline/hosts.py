"""``silver.hosts``: machines by the names, addresses and identifiers that were seen together, and where.

It is small beside what it is made of, and made anew whenever that has changed: reading few columns of silver. Its
commit also says how far the collector's snapshots were brought to silver (``pipeline/collected.py``): it is the last.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline import collected
from pipeline.decoding import VERSION
from pipeline.derive_silver import LAST
from pipeline.lake import Lake
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.properties import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.silver import REMOTE_READ_CALLS
from schemas.snapshots import SNAPSHOTS_RAW
from schemas.table import EVENT_DATE, RUN_ID
from udfs.keys import key
from udfs.rpc.interfaces import EPT_MAP
from udfs.rpc.rows import towers

DECODER_VERSION: Final = "1"
ENDPOINT_MAPPER: Final = "endpoint_mapper"
_CALLS: Final = str(RPC_CALLS)
_TOGETHER: Final = ("queue_manager_id", "host_name", "address", "source")
_GUID: Final = r"\{?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\}?"
_IP: Final = r"^([0-9]{1,3}\.){3}[0-9]{1,3}$|:"


def collected_snapshots(lake: Lake) -> tuple[dict[str, int], str | None]:
    """Bring new snapshots of the collector to silver. Call it when silver has followed the calls.

    Returns how many rows of each table were written, and what ``write`` is to say; None when it has nothing to do.
    """
    raw = lake.version(SNAPSHOTS_RAW)
    made = lake.made(HOSTS)
    now = {collected.RAW: raw, _CALLS: lake.made(LAST).get(_CALLS), "decoder": VERSION, "hosts": DECODER_VERSION}
    if made == now or (raw is None and now[_CALLS] is None):
        return {}, None
    written: dict[str, int] = {}
    if raw is not None and (made.get(collected.RAW) != raw or made.get("decoder") != VERSION):
        since = made.get(collected.RAW) if made.get("decoder") == VERSION else None
        written = collected.follow(lake, since)
    return written, json.dumps(now)


def write(lake: Lake, run_id: str, says: str) -> int:
    """Bring silver.hosts to what silver shows, by a commit that says what it is made of; how many rows it wrote."""
    found = hosts(lake).toArrow()
    rows = []
    for row in found.to_pylist():
        together = [row[name] for name in _TOGETHER]
        first = row["first_seen_at"]
        rows.append(
            {
                **row,
                "host_key": key(*together),
                "errors": [],
                "decoder_version": DECODER_VERSION,
                EVENT_DATE: None if first is None else first.date(),
                RUN_ID: run_id,
            }
        )
    lake.create(HOSTS)
    there = lake.read(HOSTS).toArrow()
    if lake.made(LAST).get("emptied"):  # the endpoint mapper's answers may be gone: what they showed stays
        found_now = {row["host_key"] for row in rows}
        kept = (row for row in there.to_pylist() if row["source"] == ENDPOINT_MAPPER)
        rows += [row for row in kept if row["host_key"] not in found_now]
    made = pa.Table.from_pylist(rows, schema=there.schema)
    dates = set(there.column(EVENT_DATE).to_pylist())
    return lake.put(HOSTS, made, there, dates=dates, made_of=says)


def hosts(lake: Lake) -> DataFrame:
    """Return what is seen together, with the first and last time and how often: all columns but the row's own."""
    frames = [
        made(lake)
        for made, table in (
            (_queues_and_machines, QUEUE_SNAPSHOTS),
            (_messages, MESSAGES),
            (_opened_reads, REMOTE_READ_CALLS),
            (_opened_clients, CLIENT_CALLS),
            (_endpoint_mapper, RPC_CALLS),
        )
        if lake.exists(table)
    ]
    evidence = reduce(DataFrame.unionByName, frames)
    told = F.array_compact(F.array("queue_manager_id", "host_name", "address"))
    alone = F.col("source") == ENDPOINT_MAPPER  # that an address serves Message Queuing is news enough
    return (
        evidence.where((F.size(told) > 1) | (alone & (F.size(told) > 0)))
        .groupBy(*_TOGETHER)
        .agg(
            F.min("seen_at").alias("first_seen_at"),
            F.max("seen_at").alias("last_seen_at"),
            F.count("*").alias("sightings"),
        )
    )


def _row(*, guid: Column | None = None, name: Column | None = None, address: Column | None = None,
         source: str, seen_at: str) -> list[Column]:  # fmt: skip
    def text(column: Column | None) -> Column:
        return F.lit(None).cast("string") if column is None else F.nullif(column, F.lit(""))

    return [
        text(guid).alias("queue_manager_id"), text(name).alias("host_name"), text(address).alias("address"),
        F.lit(source).alias("source"), F.col(seen_at).alias("seen_at"),
    ]  # fmt: skip


def _host(path_name: Column) -> Column:
    r"""Return the host of a path name ``host\private$\q``, lower case; null where it is none, a dot, or an address."""
    host = F.lower(F.regexp_extract(path_name, r"^([^\\=;]+)\\", 1))
    return F.when(~host.isin("", ".") & ~host.rlike(_IP), host)


def _guid(format_name: Column) -> Column:
    """Return the queue manager's GUID of a private format name."""
    return F.regexp_extract(F.lower(format_name), f"^private={_GUID}", 1)


def _queues_and_machines(lake: Lake) -> DataFrame:
    """What snapshots tell, with the address that was asked: the wire's queue manager, and what a collector noted."""
    told = _local_queues(lake).unionByName(_machines(lake))
    address = F.when(F.col("source") == "wire", F.col("queue_manager"))
    if lake.exists(SNAPSHOTS_RAW):
        told = told.join(lake.read(SNAPSHOTS_RAW).select("snapshot_id", "server_address"), "snapshot_id", "left")
        address = address.otherwise(F.col("server_address"))
    return told.select(
        _row(guid=F.col("guid"), name=F.col("name"), address=address, source="snapshot", seen_at="observed_at")
    )


_TOLD: Final = ("snapshot_id", "source", "queue_manager", "observed_at")


def _local_queues(lake: Lake) -> DataFrame:
    """Queues that their own machine answers for: host of the path name, GUID of the private format name."""
    rows = lake.read(QUEUE_SNAPSHOTS).where("upper(location) = 'LOCAL'")
    guid = F.coalesce(F.nullif(_guid(F.col("formatname")), F.lit("")), _guid(F.col("queue_format_name")))
    return rows.select(*_TOLD, guid.alias("guid"), _host(F.col("pathname")).alias("name"))


def _machines(lake: Lake) -> DataFrame:
    """Names of machines: those of their private queues, and what a collector's configuration calls them."""
    configured = F.when(F.col("source") == "collector", F.lower("queue_manager"))
    private = F.transform(F.coalesce("privateq", F.array().cast("array<string>")), _host)
    names = F.array_compact(F.array_distinct(F.array_append(private, configured)))
    nobody = F.lit(None).cast("string")
    return lake.read(MACHINE_SNAPSHOTS).select(*_TOLD, nobody.alias("guid"), F.explode(names).alias("name"))


def _messages(lake: Lake) -> DataFrame:
    """Messages name the queue manager that first accepted them, and some the address that they came from."""
    rows = lake.read(MESSAGES).where("source_queue_manager IS NOT NULL AND sender_address IS NOT NULL")
    return rows.select(
        _row(guid=F.col("source_queue_manager"), address=F.col("sender_address"), source="message", seen_at="seen_at")
    )


def _opened_reads(lake: Lake) -> DataFrame:
    """Queues opened at their owner by a name that holds its host or its GUID: RemoteRead 2 and 11."""
    return _opened(lake.read(REMOTE_READ_CALLS).where("protocol = 'RemoteRead' AND opnum IN (2, 11)"))


def _opened_clients(lake: Lake) -> DataFrame:
    """Likewise qmcomm 2."""
    return _opened(lake.read(CLIENT_CALLS).where("interface_name = 'qmcomm' AND opnum = 2"))


def _opened(calls: DataFrame) -> DataFrame:
    name = F.col("queue_format_name")
    direct = F.regexp_extract(name, r"(?i)^direct=os:(.*)$", 1)
    return calls.where("context_handle IS NOT NULL").select(
        _row(guid=_guid(name), name=_host(direct), address=F.col("server_address"), source="format_name",
             seen_at="responded_at")
    )  # fmt: skip


def _endpoint_mapper(lake: Lake) -> DataFrame:
    """Addresses that the endpoint mapper tells to serve one of our interfaces: those of the towers, and its own."""
    calls = lake.read(RPC_CALLS).where(
        (F.col("interface_name") == "epm") & (F.col("opnum") == EPT_MAP) & F.col("response_stub").isNotNull()
    )
    calls = calls.select("server_address", "response_stub", "response_at")
    found = calls.mapInArrow(_tower_rows, "address string, seen_at timestamp")
    return found.select(_row(address=F.col("address"), source=ENDPOINT_MAPPER, seen_at="seen_at"))


def _tower_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema({"address": pa.string(), "seen_at": pa.timestamp("us", "UTC")})
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for call in batch.to_pylist():
            found = {str(ipaddress.ip_address(address)) for address, _, _ in towers(call["response_stub"])}
            addresses = (found - {"0.0.0.0"}) | ({call["server_address"]} if found else set())  # noqa: S104 - of a tower
            rows += [{"address": address, "seen_at": call["response_at"]} for address in sorted(addresses)]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)
