"""Reads the dashboard datasets from a lake, with a limited number of rows however large the lake is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.silence import Source, read_sources
from pipeline.bronze.event_time import newest_event_time_us
from pipeline.concurrency import run_concurrently
from pipeline.dashboards.dashboard_data import (
    MAX_DATASET_BYTES,
    MAX_DATASET_ROWS,
    DashboardData,
    DatasetRows,
    Stories,
)
from pipeline.dashboards.dataset_definition import TIME_STEPS_S, Dataset
from pipeline.dashboards.datasets import (
    CALLS_DATASET,
    CAPTURE_PATHS_SQL,
    DATASETS,
    HOST_ROWS_SQL,
    MESSAGE_LABELS_SQL,
    PACKET_TABLES,
    PACKETS_SQL,
    QUEUE_MANAGER_NAMES_SQL,
    SNAPSHOT_LINES_SQL,
)
from pipeline.dashboards.read_stories import read_stories
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery
from pipeline.queues.last_reports import max_gap_s
from pipeline.reports.lake_options import lake_name, lake_options
from pipeline.silver.machine_names import DeclaredNames
from pipeline.silver.machines import Machines
from pipeline.text import cut_text_sql
from schemas import catalog
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import quoted
from udfs.times import us_to_datetime

_THRESHOLDS: Final = Thresholds()
_NOW_QUERY, _SOURCES_QUERY, _MACHINES_QUERY = "now", "newest_by_source", "machine_names"
_DATASETS_WITH_CALL_KEY: Final = ("comqc", "findings", "operations", "opens", "actions")  # their call is evidence too
_DATASETS_WITH_MESSAGE_KEY: Final = ("attempts", "sequences", "message_transfers")
_QUEUE_MANAGER_COLUMNS: Final = {
    "message_transfers": ("sender_queue_manager", "receiver_queue_manager"),
    "transfer_sequences": ("sender_queue_manager", "receiver_queue_manager"),
    "sessions": ("initiator_queue_manager", "acceptor_queue_manager"),
}
_ESTIMATES_EXCEED: Final = 1.3  # what an estimated number of groups may be times their true number
_NOT_COMPUTED: Final = "not computed: the lake has no {}"


class RowLimits(NamedTuple):
    """Maximum number of rows of a dataset, and of the aggregates over a dataset with more rows; bytes of each."""

    dataset_rows: int = MAX_DATASET_ROWS
    summary_rows: int = 30_000
    table_bytes: int = MAX_DATASET_BYTES


def read_dashboard_data(
    lake: Lake, *, limits: RowLimits, published_at: datetime, as_of: datetime | None = None,
    names: DeclaredNames = (), thresholds: Thresholds = _THRESHOLDS,
) -> DashboardData:  # fmt: skip
    """Read all datasets of the dashboard. ``as_of`` overrides "now", the time of the newest packet or snapshot.

    A dataset whose table does not exist is marked as not computed. ``names``: declared ones of machines.
    ``thresholds``: those of the alerts.
    """
    gap_s = max_gap_s(lake)
    queries = {dataset.name: partial(_read_dataset, lake, dataset, limits, gap_s) for dataset in DATASETS}
    beside: dict[str, Callable[[], Any]] = {
        _NOW_QUERY: partial(newest_event_time_us, lake),
        _SOURCES_QUERY: partial(read_sources, lake, as_of or published_at),
        _MACHINES_QUERY: partial(Machines.of, lake, names),
    }
    results: dict[str, Any] = run_concurrently({**queries, **beside})
    newest: int | None = results.pop(_NOW_QUERY)
    sources: list[Source] = results.pop(_SOURCES_QUERY)
    machines: Machines = results.pop(_MACHINES_QUERY)
    now = as_of or (None if newest is None else us_to_datetime(newest))
    data: dict[str, DatasetRows] = results
    more: dict[str, Callable[[], Any]] = {"referenced": partial(_read_referenced_rows, lake, data, limits)}
    if now is not None:
        more["stories"] = partial(read_stories, lake, data, machines, thresholds, now)
    found = run_concurrently(more)
    stories, with_facts = found.get("stories", (Stories(), {}))
    data |= found["referenced"] | with_facts
    return DashboardData(
        lake_name=lake_name(lake),
        lake_options=lake_options(lake),
        as_of=now,
        published_at=published_at,
        datasets=data,
        column_comments={dataset.name: _column_comments(dataset, data[dataset.name]) for dataset in DATASETS},
        stories=stories,
        machines=machines,
        packet_tables=PACKET_TABLES,
        newest_by_source={(source.kind, source.name): source.newest_at for source in sources},
    )


def fill_table_names(sql: str, sql_names: Mapping[str, str]) -> str:
    """Return SQL with the names of tables in braces replaced by their SQL names, given by ``layer.name``."""
    return sql.format_map({name.partition(".")[2]: sql_name for name, sql_name in sql_names.items()})


def _read_dataset(lake: Lake, dataset: Dataset, limits: RowLimits, gap_s: float) -> DatasetRows:
    missing = [name for name in dataset.needed_tables if not lake.exists(catalog.table(name))]
    if missing:
        return DatasetRows(None, note=_NOT_COMPUTED.format(", ".join(missing)))
    tables = {catalog.table(name).name: catalog.table(name) for name in dataset.tables}
    query = BoundQuery(dataset.rows_sql.replace("{max_gap_s}", str(gap_s)), tables)
    shown = fill_table_names(query.sql, {str(table): lake.sql_name(table) for table in tables.values()})
    rows = _read_rows(lake, query.wrap(f"SELECT * FROM {{answer}} LIMIT {limits.dataset_rows + 1}"))
    if rows.num_rows <= limits.dataset_rows and rows.nbytes <= limits.table_bytes:
        return DatasetRows(rows, rows.num_rows, shown)
    total = _ask(lake, query.wrap("SELECT count(*) AS n FROM {answer}"))["n"][0].as_py()
    summary, step_s, note = _read_summary(lake, dataset, query, limits)
    first_rows = _within_bytes(_read_first_rows(lake, dataset, query, limits.dataset_rows), limits.table_bytes)
    return DatasetRows(first_rows, total, shown, dataset.selection, summary, step_s, note)


def _ask(lake: Lake, query: BoundQuery) -> pa.Table:
    return lake.query(query.sql, **query.inputs)


def _read_rows(lake: Lake, query: BoundQuery) -> pa.Table:
    """Return the rows of a query. Texts are cut before they get here: on the wire they may be a megabyte long."""
    columns = [
        f"{cut_text_sql(quoted(field.name))} AS {quoted(field.name)}"
        if pa.types.is_string(field.type)
        else quoted(field.name)
        for field in _ask(lake, query.wrap("SELECT * FROM {answer} LIMIT 0")).schema
    ]
    return _ask(lake, query.wrap(f"SELECT {', '.join(columns)} FROM {{answer}}"))


def _within_bytes(rows: pa.Table, limit: int) -> pa.Table:
    """Return the first rows of a table that have at most ``limit`` bytes."""
    while rows.num_rows and rows.nbytes > limit:
        rows = rows.slice(0, min(rows.num_rows * limit // rows.nbytes, rows.num_rows - 1))
    return rows


def _read_first_rows(lake: Lake, dataset: Dataset, query: BoundQuery, limit: int) -> pa.Table:
    """Return the first rows of each group: the first row of every group comes before the second of any."""
    rank = f"row_number() OVER (PARTITION BY {dataset.partition_by} ORDER BY {dataset.order_by})"
    ranked = query.wrap(f"SELECT *, {rank if dataset.partition_by else 1} AS _place FROM {{answer}}")
    selected = ranked.wrap(f"SELECT * FROM {{answer}} ORDER BY _place, {dataset.order_by} LIMIT {limit}")
    return _read_rows(lake, selected).drop_columns(["_place"])


def _read_summary(
    lake: Lake, dataset: Dataset, query: BoundQuery, limits: RowLimits
) -> tuple[pa.Table | None, int | None, str]:
    """Return aggregates over all rows, their time step in seconds, and a note if groups were left out.

    The time step is the shortest that gives at most ``summary_rows`` groups, in ``table_bytes``.
    """
    limit = limits.summary_rows
    if not dataset.time_column and not dataset.summary_sql:
        return None, None, ""
    if dataset.summary_sql:
        summary = query._replace(sql=dataset.summary_sql)
        sizes = [f"({_of_step(dataset.summary_size_sql, step)}) AS n{step}" for step in TIME_STEPS_S]
        estimate = query._replace(sql=f"SELECT {', '.join(sizes)}")
    else:
        summary = _summary(dataset, query)
        groups = _strip_aliases(dataset.group_by)
        counts = (
            f"approx_count_distinct(concat_ws('|', {_of_step(_time_bucket_sql(dataset), step)}, {groups})) AS n{step}"
            for step in TIME_STEPS_S
        )
        estimate = query.wrap(f"SELECT {', '.join(counts)} FROM {{answer}}")
    size = _ask(lake, estimate).to_pylist()[0]
    for step in TIME_STEPS_S:
        if (size[f"n{step}"] or 0) > limit * _ESTIMATES_EXCEED and step != TIME_STEPS_S[-1]:
            continue
        of_step = summary._replace(sql=_of_step(summary.sql, step))
        rows = _read_rows(lake, of_step.wrap(f"SELECT * FROM {{answer}} ORDER BY n DESC LIMIT {limit + 1}"))
        if rows.num_rows <= limit and rows.nbytes <= limits.table_bytes:
            return rows, step, ""
    rows = _within_bytes(rows.slice(0, limit), limits.table_bytes)
    note = f"sums of the {rows.num_rows} largest groups; smaller ones are left out"
    return rows, TIME_STEPS_S[-1], note


def _summary(dataset: Dataset, query: BoundQuery) -> BoundQuery:
    columns = f"{_time_bucket_sql(dataset)} AS {dataset.time_column}, {dataset.group_by}"
    numbers = ", ".join(str(number + 1) for number in range(1 + len(_split_columns(dataset.group_by))))
    return query.wrap(f"SELECT {columns}, {dataset.aggregates} FROM {{answer}} GROUP BY {numbers}")


def _time_bucket_sql(dataset: Dataset) -> str:
    micros = f"floor(unix_micros({dataset.time_column}) / {{step_us}}) * {{step_us}}"
    return f"timestamp_micros(CAST({micros} AS bigint))"


def _of_step(sql: str, step_s: int) -> str:
    return sql.replace("{step_us}", str(step_s * 1_000_000))


def _strip_aliases(columns: str) -> str:
    """Return a column list without ``AS name``."""
    return ", ".join(column.rsplit(" AS ", 1)[0] for column in _split_columns(columns))


def _split_columns(columns: str) -> list[str]:
    """Return the columns of a list; commas inside brackets separate none."""
    parts, depth = [""], 0
    for char in columns:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _read_referenced_rows(lake: Lake, data: Mapping[str, DatasetRows], limits: RowLimits) -> dict[str, DatasetRows]:
    """Return the calls, packets, snapshots and hosts that are evidence of rows, and names of messages and machines."""
    calls = data[CALLS_DATASET.name]
    present = set() if calls.rows is None else set(calls.rows.column("call_key").to_pylist())
    evidence = [key for key in _evidence_keys(data) if key not in present][: 4 * limits.dataset_rows]
    messages = list(dict.fromkeys(_distinct_values(data, _DATASETS_WITH_MESSAGE_KEY, "message_key")))
    messages = messages[: 2 * limits.dataset_rows]
    managers: set[str] = set()
    for name, columns in _QUEUE_MANAGER_COLUMNS.items():
        for column in columns:
            managers.update(_distinct_values(data, (name,), column))
    queries = {}
    if evidence and calls.truncated:  # otherwise the dataset has all calls, and the other keys are not of calls
        tables = {catalog.table(name).name: catalog.table(name) for name in CALLS_DATASET.tables}
        all_calls = BoundQuery(CALLS_DATASET.rows_sql, {**tables, "keys": evidence})
        wanted = all_calls.wrap("SELECT * FROM {answer} WHERE call_key IN {keys}")
        queries["evidence_calls"] = partial(_read_query, lake, wanted, limits.table_bytes)
    for name, table, sql, needed in (
        ("labels", MESSAGES, MESSAGE_LABELS_SQL, messages),
        ("snapshots", SNAPSHOTS_RAW, SNAPSHOT_LINES_SQL, evidence),
        ("hosts", HOSTS, HOST_ROWS_SQL, evidence),
        ("packets", SESSION_PACKETS, PACKETS_SQL, evidence),
        ("queue_manager_names", HOSTS, QUEUE_MANAGER_NAMES_SQL, sorted(managers)[: 2 * limits.dataset_rows]),
    ):
        if needed and lake.exists(table):
            query = BoundQuery(sql, {"rows": table, "keys": needed})
            queries[name] = partial(_read_query, lake, query, limits.table_bytes)
    found = run_concurrently(queries)
    return _add_capture_paths(lake, data, {CALLS_DATASET.name: calls} | found)


def _add_capture_paths(
    lake: Lake, data: Mapping[str, DatasetRows], results: Mapping[str, DatasetRows]
) -> dict[str, DatasetRows]:
    """Return calls and packets with capture paths in place of ids: ``capture`` and, of calls, ``response_capture``."""
    found = dict(results)
    captures = data["captures"]
    for name in (CALLS_DATASET.name, "evidence_calls", "packets"):
        dataset = results.get(name)
        if dataset is None or dataset.rows is None:
            continue
        rows, paths = dataset.rows, captures.rows
        columns = [each for each in ("capture", "response_capture") if f"{each}_id" in rows.schema.names]
        if captures.truncated:
            ids = pa.chunked_array(
                [chunk for each in columns for chunk in rows.column(f"{each}_id").chunks], pa.string()
            )
            used = [key for key in pc.unique(ids).to_pylist() if key]
            paths = _read_rows(lake, BoundQuery(CAPTURE_PATHS_SQL, {"rows": CAPTURE_FILES, "keys": used}))
        for column in columns:
            path_column = _paths_of(rows.column(f"{column}_id"), paths)
            rows = rows.set_column(rows.schema.get_field_index(f"{column}_id"), column, path_column)
        found[name] = replace(dataset, rows=rows)
    return found


def _paths_of(capture_ids: pa.ChunkedArray, paths: pa.Table | None) -> pa.Array:
    if paths is None:
        return pa.nulls(len(capture_ids), pa.string())
    path_by_id = dict(zip(paths.column("capture_id").to_pylist(), paths.column("path").to_pylist(), strict=True))
    return pa.array([path_by_id.get(key) for key in capture_ids.to_pylist()], pa.string())


def _read_query(lake: Lake, query: BoundQuery, max_bytes: int) -> DatasetRows:
    rows = _read_rows(lake, query)
    return DatasetRows(_within_bytes(rows, max_bytes), rows.num_rows, "")


def _evidence_keys(data: Mapping[str, DatasetRows]) -> list[str]:
    """Return the evidence keys of all datasets, each once: first keys of every dataset, then second keys, and so on."""
    lists = []
    for name, dataset in data.items():
        keys: list[str | None] = []
        if name in _DATASETS_WITH_CALL_KEY:
            keys += _distinct_values(data, (name,), "call_key")
        if dataset.rows is not None and "evidence" in dataset.rows.schema.names:
            keys += pc.list_flatten(dataset.rows.column("evidence")).to_pylist()
        lists.append(keys)
    return list(dict.fromkeys(key for keys_at_position in zip_longest(*lists) for key in keys_at_position if key))


def _distinct_values(data: Mapping[str, DatasetRows], names: Iterable[str], column: str) -> Iterable[str]:
    for name in names:
        rows = data[name].rows
        if rows is not None:
            yield from (value for value in pc.unique(rows.column(column)).to_pylist() if value)


def _column_comments(dataset: Dataset, data: DatasetRows) -> dict[str, str]:
    """Return the comments of a dataset's columns, from the schemas of its tables."""
    if data.rows is None:
        return {}
    comments: dict[str, str] = {}
    for name in reversed(dataset.tables):
        comments |= {column.name: column.comment for column in catalog.table(name).columns}
    return {name: comments[name] for name in data.rows.schema.names if name in comments}
