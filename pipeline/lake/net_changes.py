"""The net change of each key between two versions of a table, however often it changed in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import CHANGE_FEED_ERRORS, POST_IMAGES, ChangesSince


class NetChanges(NamedTuple):
    """Keys of changed rows with facts: of rows that there were ``before``, and of rows that there are ``now``.

    A key that only came is in ``now`` alone, one that is gone in ``before`` alone. Facts are of the row before the
    first change, and of the row after the last one. ``keys``: all, with those that came and went in between; a key can
    be there twice.
    """

    before: pa.Table
    now: pa.Table
    keys: pa.ChunkedArray


def net_changes(
    lake: Lake, feed: ChangesSince, key: str, facts: Mapping[str, str], where: str = "TRUE"
) -> NetChanges | None:
    """Return the net change of the rows of a feed that meet a condition, None where it is not known.

    ``facts`` are SQL by name: of every changed row the driver takes these and the key.
    """
    try:
        found = lake.query(net_changes_sql(key, facts, where), feed=feed)
    except CHANGE_FEED_ERRORS:
        return None
    before = found.filter(pc.and_(found["is_first"], pc.invert(found["is_now"])))
    return NetChanges(before, found.filter(found["is_now"]), found[key])


def net_changes_sql(key: str, facts: Mapping[str, str], where: str) -> str:
    """Return the SQL for the last record of each key, and the first one, if it is of a row before.

    A commit can hold one key twice: before and after an update, or deleted and inserted again, as RESTORE does it.
    """
    after = f"_change_type IN ({', '.join(map(repr, POST_IMAGES))})"
    places = (
        f"row_number() OVER (PARTITION BY {key} ORDER BY _commit_version {order}, {after} {order}) = 1 AS {place}"
        for order, place in (("ASC", "is_first"), ("DESC", "is_last"))
    )
    columns = ", ".join([key, *(f"{sql} AS {name}" for name, sql in facts.items()), f"{after} AS is_after", *places])
    names = ", ".join([key, *facts, "is_first", "is_last AND is_after AS is_now"])
    ends = "is_last OR (is_first AND NOT is_after)"
    return f"SELECT {names} FROM (SELECT {columns} FROM {{feed}} WHERE {where}) WHERE {ends}"
