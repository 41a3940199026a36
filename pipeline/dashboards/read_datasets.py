"""Reads the dashboard datasets from a lake, with a limited number of rows however large the lake is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType

from pipeline.bronze.event_time import newest_event_time_us
from pipeline.dashboards.dashboard_data import MAX_DATASET_BYTES, MAX_DATASET_ROWS, DashboardData, DatasetRows
from pipeline.dashboards.datasets import (
    CALLS_DATASET,
    CAPTURE_PATHS_SQL,
    DATASETS,
    HOSTS_SQL,
    MESSAGE_LABELS_SQL,
    SNAPSHOT_LINES_SQL,
    TIME_STEPS_S,
    Dataset,
)
from pipeline.lake.arrow_rows import us_to_datetime
from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.spark.frames import values_to_frame
from pipeline.queues.last_reports import max_gap_s
from pipeline.text import CUT_DIGEST_CHARS, MAX_TEXT_CHARS
from schemas import catalog

_KEYS_VIEW: Final = "msmq_dashboard_keys"  # temporary view with the keys to look up
_NOW_QUERY: Final = "now"  # name of the query that runs beside those of the datasets
_DATASETS_WITH_CALL_KEY: Final = ("comqc", "findings", "operations", "opens", "actions")  # their call is evidence too
_NOT_COMPUTED: Final = "not computed: the lake has no {}"


class RowLimits(NamedTuple):
    """Maximum number of rows of a dataset, and of the aggregates over a dataset with more rows; bytes of each."""

    dataset_rows: int = MAX_DATASET_ROWS
    summary_rows: int = 30_000
    table_bytes: int = MAX_DATASET_BYTES


def read_dashboard_data(
    lake: Lake, *, limits: RowLimits, published_at: datetime, as_of: datetime | None = None
) -> DashboardData:
    """Read all datasets of the dashboard. ``as_of`` overrides "now", the time of the newest packet or snapshot.

    A dataset whose table does not exist is marked as not computed.
    """
    tables = _existing_tables(lake)
    gap_s = max_gap_s(lake)
    queries = {dataset.name: partial(_read_dataset, lake, tables, dataset, limits, gap_s) for dataset in DATASETS}
    results: dict[str, Any] = run_concurrently({**queries, _NOW_QUERY: partial(newest_event_time_us, lake)})
    now: int | None = results.pop(_NOW_QUERY)
    data: dict[str, DatasetRows] = results
    data |= _read_referenced_rows(lake, tables, data, limits)
    return DashboardData(
        lake_name=lake.root if lake.catalog is None else f"{lake.catalog}.{lake.prefix}",
        as_of=as_of or (None if now is None else us_to_datetime(now)),
        published_at=published_at,
        datasets=data,
        column_comments={dataset.name: _column_comments(dataset, data[dataset.name]) for dataset in DATASETS},
    )


def _existing_tables(lake: Lake) -> dict[str, str]:
    """Return the quoted SQL names of the existing tables of all datasets, by ``layer.name``."""
    names = sorted({name for dataset in DATASETS for name in dataset.tables})
    sql_names = run_concurrently({name: partial(_sql_name, lake, name) for name in names})
    return {name: sql_name for name, sql_name in sql_names.items() if sql_name is not None}


def _sql_name(lake: Lake, name: str) -> str | None:
    """Return the quoted SQL name of a table; None if it does not exist."""
    table = catalog.table(name)
    return lake.sql_name(table) if lake.exists(table) else None


def fill_table_names(sql: str, tables: Mapping[str, str], **parameters: object) -> str:
    """Return SQL with ``{name}`` replaced by the SQL name of the table, and the other placeholders by parameters."""
    short_names = {name.partition(".")[2]: sql_name for name, sql_name in tables.items()}
    return sql.format_map({**short_names, **parameters})


def _read_dataset(
    lake: Lake, tables: Mapping[str, str], dataset: Dataset, limits: RowLimits, gap_s: float
) -> DatasetRows:
    missing = [name for name in dataset.tables if name not in tables]
    if missing:
        return DatasetRows(None, note=_NOT_COMPUTED.format(", ".join(missing)))
    query = fill_table_names(dataset.rows_sql, tables, max_gap_s=gap_s)
    rows = _read_rows(lake, f"{query}\nLIMIT {limits.dataset_rows + 1}")
    if rows.num_rows <= limits.dataset_rows and rows.nbytes <= limits.table_bytes:
        return DatasetRows(rows, rows.num_rows, query)
    total = _count_rows(lake, query)
    summary, step_s, note = _read_summary(lake, tables, dataset, query, limits)
    first_rows = _within_bytes(_read_first_rows(lake, dataset, query, limits.dataset_rows), limits.table_bytes)
    return DatasetRows(first_rows, total, query, dataset.selection, summary, step_s, note)


def _read_rows(lake: Lake, sql: str) -> pa.Table:
    """Return the rows of a query, with its texts cut."""
    return cut_texts(lake.spark.sql(sql)).toArrow()


def cut_texts(frame: DataFrame) -> DataFrame:
    """Return a frame with its texts cut in Spark, as ``pipeline.text.cut_text`` does; different ones stay different."""

    def cut(text: Column) -> Column:
        count = f.length(text) - MAX_TEXT_CHARS
        digest = f.substring(f.sha2(text, 256), 1, CUT_DIGEST_CHARS)
        parts = (
            f.substring(text, 1, MAX_TEXT_CHARS),
            f.lit("... (+"),
            count,
            f.lit(" characters, "),
            digest,
            f.lit(")"),
        )
        return f.when(count <= 0, text).otherwise(f.concat(*parts))

    columns = []
    for field in frame.schema:
        column = frame[f"`{field.name}`"]
        if isinstance(field.dataType, StringType):
            column = cut(column).alias(field.name)
        elif isinstance(field.dataType, ArrayType) and isinstance(field.dataType.elementType, StringType):
            column = f.transform(column, cut).alias(field.name)
        columns.append(column)
    return frame.select(columns)


def _within_bytes(rows: pa.Table, limit: int) -> pa.Table:
    """Return the first rows of a table that have at most ``limit`` bytes."""
    while rows.num_rows and rows.nbytes > limit:
        rows = rows.slice(0, min(rows.num_rows * limit // rows.nbytes, rows.num_rows - 1))
    return rows


def _count_rows(lake: Lake, query: str) -> int:
    count: int = lake.spark.sql(f"SELECT count(*) FROM ({query})").collect()[0][0]
    return count


def _read_first_rows(lake: Lake, dataset: Dataset, query: str, limit: int) -> pa.Table:
    """Return the first rows of each group: the first row of every group comes before the second of any."""
    rank = f"row_number() OVER (PARTITION BY {dataset.partition_by} ORDER BY {dataset.order_by})"
    ranked = f"SELECT *, {rank if dataset.partition_by else 1} AS _place FROM ({query})"
    selected = f"SELECT * FROM ({ranked}) ORDER BY _place, {dataset.order_by} LIMIT {limit}"
    return cut_texts(lake.spark.sql(selected).drop("_place")).toArrow()


def _read_summary(
    lake: Lake, tables: Mapping[str, str], dataset: Dataset, query: str, limits: RowLimits
) -> tuple[pa.Table | None, int | None, str]:
    """Return aggregates over all rows, their time step in seconds, and a note if groups were left out.

    The time step is the shortest that gives at most ``summary_rows`` groups, in ``table_bytes``.
    """
    limit = limits.summary_rows
    if not dataset.time_column and not dataset.summary_sql:
        return None, None, ""
    if dataset.summary_sql:
        texts = {step: fill_table_names(dataset.summary_sql, tables, step=step) for step in TIME_STEPS_S}
        sizes_sql = (fill_table_names(dataset.summary_size_sql, tables, step=step) for step in TIME_STEPS_S)
        estimate = f"SELECT {', '.join(f'({size})' for size in sizes_sql)}"
    else:
        texts = {step: _summary_sql(dataset, query, step) for step in TIME_STEPS_S}
        groups = _strip_aliases(dataset.group_by)
        counts = (
            f"approx_count_distinct(struct({_time_bucket_sql(dataset, step)}, {groups}))" for step in TIME_STEPS_S
        )
        estimate = f"SELECT {', '.join(counts)} FROM ({query})"
    sizes = dict(zip(TIME_STEPS_S, lake.spark.sql(estimate).collect()[0], strict=True))
    for step in TIME_STEPS_S:
        if sizes[step] > limit and step != TIME_STEPS_S[-1]:
            continue
        rows = _read_rows(lake, f"{texts[step]}\nORDER BY n DESC LIMIT {limit + 1}")
        if rows.num_rows <= limit and rows.nbytes <= limits.table_bytes:
            return rows, step, ""
    rows = _within_bytes(rows.slice(0, limit), limits.table_bytes)
    note = f"sums of the {rows.num_rows} largest groups; smaller ones are left out"
    return rows, TIME_STEPS_S[-1], note


def _summary_sql(dataset: Dataset, query: str, step: int) -> str:
    columns = f"{_time_bucket_sql(dataset, step)} AS {dataset.time_column}, {dataset.group_by}"
    numbers = ", ".join(str(number + 1) for number in range(1 + len(_split_columns(dataset.group_by))))
    return f"SELECT {columns}, {dataset.aggregates} FROM ({query}) GROUP BY {numbers}"


def _time_bucket_sql(dataset: Dataset, step: int) -> str:
    return f"timestamp_seconds(unix_seconds({dataset.time_column}) div {step} * {step})"


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


def _read_referenced_rows(
    lake: Lake, tables: dict[str, str], data: Mapping[str, DatasetRows], limits: RowLimits
) -> dict[str, DatasetRows]:
    """Return the calls, snapshots and hosts that rows have as evidence, and the labels of their messages."""
    calls = data[CALLS_DATASET.name]
    present = set() if calls.rows is None else set(calls.rows.column("call_key").to_pylist())
    evidence = [key for key in _evidence_keys(data) if key not in present][: 2 * limits.dataset_rows]
    messages = list(dict.fromkeys(_distinct_values(data, ("attempts", "sequences"), "message_key")))
    messages = messages[: 2 * limits.dataset_rows]
    keys = _create_keys_view(lake, evidence + messages)
    queries = {}
    if evidence and calls.truncated:  # otherwise the dataset has all calls, and the other keys are not of calls
        all_calls = fill_table_names(CALLS_DATASET.rows_sql, tables)
        evidence_calls = f"SELECT * FROM ({all_calls}) WHERE call_key IN (SELECT key FROM {keys})"
        queries["evidence_calls"] = partial(_read_query, lake, evidence_calls, limits.table_bytes)
    for name, table, sql, needed in (
        ("labels", "silver.messages", MESSAGE_LABELS_SQL, messages),
        ("snapshots", "bronze.snapshots_raw", SNAPSHOT_LINES_SQL, evidence),
        ("hosts", "silver.hosts", HOSTS_SQL, evidence),
    ):
        if needed and (sql_name := _sql_name(lake, table)):
            query = fill_table_names(sql, {table: sql_name}, keys=keys)
            queries[name] = partial(_read_query, lake, query, limits.table_bytes)
    found = run_concurrently(queries)
    return found | _add_capture_paths(lake, tables, data, {CALLS_DATASET.name: calls} | found)


def _create_keys_view(lake: Lake, keys: list[str]) -> str:
    """Create a temporary view with one column ``key``, and return its name."""
    values_to_frame(lake.spark, keys, "key").createOrReplaceTempView(_KEYS_VIEW)
    return _KEYS_VIEW


def _add_capture_paths(
    lake: Lake, tables: Mapping[str, str], data: Mapping[str, DatasetRows], results: Mapping[str, DatasetRows]
) -> dict[str, DatasetRows]:
    """Return the datasets of calls with capture paths in place of ids: columns ``capture``, ``response_capture``."""
    found = {}
    captures = data["captures"]
    for name in (CALLS_DATASET.name, "evidence_calls"):
        calls = results.get(name)
        if calls is None or calls.rows is None:
            continue
        rows, paths = calls.rows, captures.rows
        if captures.truncated:
            ids = pa.chunked_array([*rows.column("capture_id").chunks, *rows.column("response_capture_id").chunks])
            used = [key for key in pc.unique(ids).to_pylist() if key]
            sql = fill_table_names(CAPTURE_PATHS_SQL, tables, keys=_create_keys_view(lake, used))
            paths = _read_rows(lake, sql)
        for column in ("capture", "response_capture"):
            path_column = _paths_of(rows.column(f"{column}_id"), paths)
            rows = rows.set_column(rows.schema.get_field_index(f"{column}_id"), column, path_column)
        found[name] = replace(calls, rows=rows)
    return found


def _paths_of(capture_ids: pa.ChunkedArray, paths: pa.Table | None) -> pa.Array:
    if paths is None:
        return pa.nulls(len(capture_ids), pa.string())
    path_by_id = dict(zip(paths.column("capture_id").to_pylist(), paths.column("path").to_pylist(), strict=True))
    return pa.array([path_by_id.get(key) for key in capture_ids.to_pylist()], pa.string())


def _read_query(lake: Lake, sql: str, max_bytes: int) -> DatasetRows:
    rows = _read_rows(lake, sql)
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
