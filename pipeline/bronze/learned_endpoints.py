"""Interfaces at servers' ports, as calls of any capture name them: captures that met them unknowing are read again.

A connection is followed from its first byte on where its port, or its bind, says that it may be ours. What another
capture's port-asking calls ([MS-MQQP] 3.1.4.1, [MS-MQRR] 3.1.4.1 and the like) or the endpoint mapper tell of a port
([C706] appendix O) comes too late for captures that were read: they are read again, for connections to that place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.lake.lake import Lake
from schemas.bronze import PENDING
from udfs.capture.reader import Place
from udfs.dcerpc.interfaces import at_home

Row = dict[str, Any]

ASKED: Final = (
    "capture_id", "connection_id", "kind", "client_address", "client_port", "server_address", "server_port", "learnt",
)  # fmt: skip
_UNKNOWING: Final = "(kind = 'cold' OR array_contains(waits_for, 'bind'))"


def unknowing(rows: pa.Table) -> list[Row]:
    """Return those of new remainders that a place can tell what they are: what ``to_read_again`` needs of them."""
    waits = pa.array(["bind" in names for names in rows.column("waits_for").to_pylist()], pa.bool_())
    found: list[Row] = rows.filter(pc.or_(pc.equal(rows.column("kind"), "cold"), waits)).select(ASKED).to_pylist()
    return found


def unknowing_before(lake: Lake, places: Collection[str]) -> list[Row]:
    """Return those of the remainders in bronze.pending that are at one of these places, with either end."""
    if not places or not lake.exists(PENDING):
        return []
    ends = sorted({(place.address, place.port) for place in map(Place.of, places)})
    at = lake.spark.createDataFrame(ends, "_address string, _port int")
    waiting = lake.read(PENDING).where(_UNKNOWING).select(*ASKED)
    return [row.asDict() for row in _met(waiting, at).collect()]


def _met(waiting: DataFrame, at: DataFrame) -> DataFrame:
    met = [
        (F.col(f"{end}_address") == F.col("_address")) & (F.col(f"{end}_port") == F.col("_port"))
        for end in ("client", "server")
    ]
    return waiting.join(F.broadcast(at), met[0] | met[1], "left_semi")


def to_read_again(rows: Iterable[Row], places: Iterable[str]) -> dict[str, set[str]]:
    """Return captures whose connections are at places that they do not know of, and these places.

    ``rows`` have the columns ``ASKED``. Of a connection that was never looked into (``cold``) either end can be the
    server; else what is at home on the port, or the capture itself shows, is nothing new.
    """
    there: dict[tuple[str, int], set[Place]] = defaultdict(set)
    for place in map(Place.of, places):
        there[place.address, place.port].add(place)
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for end in ("client", "server") if row["kind"] == "cold" else ("server",):
            port = row[f"{end}_port"]
            known = _known(row) if end == "server" else frozenset()
            for place in there.get((row[f"{end}_address"], port), ()):
                if place.interface not in known:
                    found[row["capture_id"]].add(place.text)
    return found


def _known(row: Mapping[str, Any]) -> frozenset[str]:
    return at_home(row["server_port"]).union(row["learnt"] or ())
