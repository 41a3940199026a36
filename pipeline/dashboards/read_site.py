"""The lake's tables to the plain data of the pages: bounded, however much the lake holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.event_time import newest_at
from pipeline.dashboards.datasets import CALLS, DATASETS, HOSTS, LABELS, LAST, PATHS, SNAPSHOTS, STEPS, Dataset, Last
from pipeline.dashboards.model import Data, Site
from pipeline.lake.arrow_rows import moment_of
from pipeline.lake.concurrency import gather
from pipeline.lake.frames import column_of
from pipeline.lake.lake import Lake
from schemas import catalog

_WANTED: Final = "msmq_pages_wanted"  # a temporary view with the keys that are looked up
_NOW: Final = "now"  # beside the datasets, asked for with them
_CALL_KEYS: Final = ("comqc", "findings", "operations")  # datasets with a call of their own beside their evidence
_NOT_THERE: Final = "not computed: the lake has no {}"


class Limits(NamedTuple):
    """How much travels: rows of a dataset, and rows of the sums over one that is cut."""

    rows: int = 5_000
    sums: int = 30_000


def read_site(lake: Lake, *, limits: Limits, published_at: datetime, as_of: datetime | None = None) -> Site:
    """Read all that the pages show; ``as_of`` in the place of the newest packet or snapshot.

    Datasets of a table that the lake does not have are said to be not computed.
    """
    tables = _tables(lake)
    questions = {each.name: partial(_read, lake, tables, each, limits) for each in DATASETS}
    found: dict[str, Any] = gather({**questions, _NOW: partial(newest_at, lake)})
    now: int | None = found.pop(_NOW)
    data: dict[str, Data] = found
    data |= {each.name: _last(lake, data[each.of], each, limits) for each in LAST}
    data |= _looked_up(lake, tables, data, limits)
    declared = {each.name: each for each in DATASETS}
    declared |= {each.name: declared[each.of] for each in LAST}
    return Site(
        lake=lake.root if lake.catalog is None else f"{lake.catalog}.{lake.prefix}",
        as_of=as_of or (None if now is None else moment_of(now)),
        published_at=published_at,
        data=data,
        meanings={name: _meanings(each, data[name]) for name, each in declared.items()},
    )


def _tables(lake: Lake) -> dict[str, str]:
    """The SQL names of the tables that are there, by ``layer.name``."""
    asked = sorted({name for each in DATASETS for name in each.tables})
    there = gather({name: partial(_there, lake, name) for name in asked})
    return {name: quoted for name, quoted in there.items() if quoted is not None}


def filled(sql: str, tables: Mapping[str, str], **more: object) -> str:
    """The SQL with the tables' names for ``{name}``."""
    short = {name.partition(".")[2]: quoted for name, quoted in tables.items()}
    return sql.format_map({**short, **more})


def _read(lake: Lake, tables: Mapping[str, str], each: Dataset, limits: Limits) -> Data:
    lacking = [name for name in each.tables if name not in tables]
    if lacking:
        return Data(None, note=_NOT_THERE.format(", ".join(lacking)))
    query = filled(each.rows, tables)
    rows = lake.spark.sql(f"{query}\nLIMIT {limits.rows + 1}").toArrow()
    if rows.num_rows <= limits.rows:
        return Data(rows, rows.num_rows, query)
    total = lake.spark.sql(f"SELECT count(*) FROM ({query})").collect()[0][0]
    summed, step_s, note = _sums(lake, tables, each, query, limits.sums)
    return Data(_first(lake, each, query, limits.rows), total, query, each.chosen, summed, step_s, note)


def _last(lake: Lake, data: Data, each: Last, limits: Limits) -> Data:
    """The newest row of each group: of the rows that were read, where these are all."""
    if data.rows is None:
        return data
    query = (
        f"SELECT * EXCEPT (_place) FROM (SELECT *, row_number() OVER (PARTITION BY {each.each} "
        f"ORDER BY {each.time} DESC) AS _place FROM ({data.query})) WHERE _place = 1"
    )
    if data.cut:
        rows = lake.spark.sql(f"{query}\nORDER BY {each.first} LIMIT {limits.rows + 1}").toArrow()
        total = rows.num_rows
        if total > limits.rows:
            total = lake.spark.sql(f"SELECT count(*) FROM ({query})").collect()[0][0]
        return Data(rows.slice(0, limits.rows), total, query, each.chosen)
    newest = data.rows.sort_by([(each.time, "descending")])
    groups = zip(*(newest.column(name).to_pylist() for name in _split(each.each)), strict=True)
    seen: set[tuple[Any, ...]] = set()
    places = []
    for place, group in enumerate(groups):
        if group not in seen:
            seen.add(group)
            places.append(place)
    return Data(newest.take(pa.array(places, pa.int64())), len(places), query)


def _first(lake: Lake, each: Dataset, query: str, most: int) -> pa.Table:
    """The first rows of each group, all groups' first before any group's second."""
    groups = f"PARTITION BY {each.each} " if each.each else ""
    ranked = f"SELECT *, row_number() OVER ({groups}ORDER BY {each.first}) AS _place FROM ({query})"
    if not each.each:
        ranked = f"SELECT *, 1 AS _place FROM ({query})"
    chosen = f"SELECT * FROM ({ranked}) ORDER BY _place, {each.first} LIMIT {most}"
    return lake.spark.sql(chosen).drop("_place").toArrow()


def _sums(
    lake: Lake, tables: Mapping[str, str], each: Dataset, query: str, most: int
) -> tuple[pa.Table | None, int | None, str]:
    """Sums over all rows in pieces of time as short as ``most`` rows allow, their length, and what is left out."""
    if not each.time and not each.summed:
        return None, None, ""
    if each.summed:
        texts = {step: filled(each.summed, tables, step=step) for step in STEPS}
        guess = f"SELECT {', '.join(f'({filled(each.guess, tables, step=step)})' for step in STEPS)}"
    else:
        texts = {step: _grouped(each, query, step) for step in STEPS}
        counted = (f"approx_count_distinct(struct({_piece(each, step)}, {_bare(each.groups)}))" for step in STEPS)
        guess = f"SELECT {', '.join(counted)} FROM ({query})"
    sizes = dict(zip(STEPS, lake.spark.sql(guess).collect()[0], strict=True))
    for step in STEPS:
        if sizes[step] > most and step != STEPS[-1]:
            continue
        rows = lake.spark.sql(f"{texts[step]}\nORDER BY n DESC LIMIT {most + 1}").toArrow()
        if rows.num_rows <= most:
            return rows, step, ""
    note = f"sums of the {most} largest groups; smaller ones are left out"
    return rows.slice(0, most), STEPS[-1], note


def _piece(each: Dataset, step: int) -> str:
    return f"timestamp_seconds(unix_seconds({each.time}) div {step} * {step})"


def _bare(groups: str) -> str:
    """The expressions of groups without the names that they are given."""
    return ", ".join(part.rsplit(" AS ", 1)[0] for part in _split(groups))


def _split(groups: str) -> list[str]:
    """Parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for char in groups:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _grouped(each: Dataset, query: str, step: int) -> str:
    columns = f"{_piece(each, step)} AS {each.time}, {each.groups}"
    numbers = ", ".join(str(number + 1) for number in range(1 + len(_split(each.groups))))
    return f"SELECT {columns}, {each.sums} FROM ({query}) GROUP BY {numbers}"


def _looked_up(lake: Lake, tables: dict[str, str], data: Mapping[str, Data], limits: Limits) -> dict[str, Data]:
    """What rows refer to: the calls and snapshots that they rest on, and what the messages are called."""
    calls = data[CALLS.name]
    there = set() if calls.rows is None else set(calls.rows.column("call_key").to_pylist())
    keys = [key for key in _evidence(data) if key not in there][: 2 * limits.rows]
    messages = list(dict.fromkeys(_texts(data, ("attempts", "sequences"), "message_key")))[: 2 * limits.rows]
    wanted = _wanted(lake, keys + messages)
    questions = {}
    if keys and calls.cut:  # else all calls are there, and what is not among them is no call
        calls_of = f"SELECT * FROM ({filled(CALLS.rows, tables)}) WHERE call_key IN (SELECT key FROM {wanted})"
        questions["evidence_calls"] = partial(_lookup, lake, calls_of)
    asked = ("silver.messages", "bronze.snapshots_raw", "silver.hosts")
    more = {name: table for name in asked if (table := _there(lake, name))}
    if messages and "silver.messages" in more:
        questions["labels"] = partial(_lookup, lake, filled(LABELS, more, wanted=wanted))
    if keys and "bronze.snapshots_raw" in more:
        questions["snapshots"] = partial(_lookup, lake, filled(SNAPSHOTS, more, wanted=wanted))
    if keys and "silver.hosts" in more:
        questions["hosts"] = partial(_lookup, lake, filled(HOSTS, more, wanted=wanted))
    found = gather(questions)
    return found | _with_paths(lake, tables, data, {CALLS.name: calls} | found)


def _wanted(lake: Lake, keys: list[str]) -> str:
    """A temporary view with keys that are looked up."""
    column_of(lake.spark, keys, "key").createOrReplaceTempView(_WANTED)
    return _WANTED


def _with_paths(
    lake: Lake, tables: Mapping[str, str], data: Mapping[str, Data], named: Mapping[str, Data]
) -> dict[str, Data]:
    """Calls with the files of their captures, ``capture`` and ``response_capture``."""
    found = {}
    captures = data["captures"]
    for name in (CALLS.name, "evidence_calls"):
        each = named.get(name)
        if each is None or each.rows is None:
            continue
        paths = captures.rows
        if captures.cut:
            keys = pa.chunked_array(
                [*each.rows.column("capture_id").chunks, *each.rows.column("response_capture_id").chunks]
            )
            used = [key for key in pc.unique(keys).to_pylist() if key]
            paths = lake.spark.sql(filled(PATHS, tables, wanted=_wanted(lake, used))).toArrow()
        rows = each.rows
        for column in ("capture", "response_capture"):
            identities = rows.column(f"{column}_id")
            files = _mapped(identities, paths)
            rows = rows.set_column(rows.schema.get_field_index(f"{column}_id"), column, files)
        found[name] = replace(each, rows=rows)
    return found


def _mapped(keys: pa.ChunkedArray, paths: pa.Table | None) -> pa.Array:
    if paths is None:
        return pa.nulls(len(keys), pa.string())
    files = dict(zip(paths.column("capture_id").to_pylist(), paths.column("path").to_pylist(), strict=True))
    return pa.array([files.get(key) for key in keys.to_pylist()], pa.string())


def _there(lake: Lake, name: str) -> str | None:
    table = catalog.table(name)
    return lake.sql_name(table) if lake.exists(table) else None


def _lookup(lake: Lake, sql: str) -> Data:
    rows = lake.spark.sql(sql).toArrow()
    return Data(rows, rows.num_rows, "")


def _evidence(data: Mapping[str, Data]) -> list[str]:
    """The keys that rows rest on, each once: of every dataset the first, then of every one the second, and so on."""
    lists = []
    for name, each in data.items():
        keys: list[str | None] = list(_texts(data, (name,), "call_key")) if name in _CALL_KEYS else []
        if each.rows is not None and "evidence" in each.rows.schema.names:
            keys += pc.list_flatten(each.rows.column("evidence")).to_pylist()
        lists.append(keys)
    return list(dict.fromkeys(key for turn in zip_longest(*lists) for key in turn if key))


def _texts(data: Mapping[str, Data], names: Iterable[str], column: str) -> Iterable[str]:
    for name in names:
        rows = data[name].rows
        if rows is not None:
            yield from (value for value in pc.unique(rows.column(column)).to_pylist() if value)


def _meanings(each: Dataset, data: Data) -> dict[str, str]:
    """What the columns of a dataset hold, as its tables declare them."""
    if data.rows is None:
        return {}
    declared: dict[str, str] = {}
    for name in reversed(each.tables):
        declared |= {column.name: column.comment for column in catalog.table(name).columns}
    return {name: declared[name] for name in data.rows.schema.names if name in declared}
