"""Reads the rows that message timelines are built from: finds the requested messages, then all rows about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.queries import where_in
from pipeline.reports.trace.timeline import (
    MessageTimeline,
    NumberInQueue,
    TraceRows,
    build_timelines,
    queue_location,
    truncate_to_hour,
)
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_opens import QUEUE_OPENS
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table
from udfs.queues.normal_form import normalize_queue_names

_CALL_COLUMNS: Final = (
    "call_key", "interface_name", "opnum", "outcome", "fault_status", "capture_id", "request_packet",
    "response_capture_id", "response_packet", "request_at", "response_at", "client_address", "client_port",
    "server_address", "connection_id",
)  # fmt: skip
_OPEN_COLUMNS: Final = (
    "call_key", "principal", "workstation", "access_name", "share_mode_name", "outcome", "closed_at", "ended_by",
)  # fmt: skip
_UNUSED_MESSAGE_COLUMNS: Final = (
    "body", "extension", "soap_header", "header_sizes", "run_id", "event_date", "decoder_version",
)  # fmt: skip
_LOCATION_COLUMNS: Final = ("queue", "server_address", "context_handle", "queue_handle")

TraceInputRows = list[dict[str, Any]]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Which messages to trace: those that match every given field, at most ``max_messages``, the earliest first."""

    message_id: str | None = None
    lookup_id: int | None = None
    queue: str | None = None  # any of its names: normal form, path name, format name, direct name
    label: str | None = None
    max_messages: int = 20


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The timelines of the found messages, and whether more messages matched than ``max_messages``."""

    timelines: list[MessageTimeline]
    truncated: bool


def trace_messages(lake: Lake, request: TraceRequest) -> TraceResult:
    """Return the timelines of the requested messages, ordered by their first event."""
    keys, numbers = _find_messages(lake, request)
    truncated = len(keys) + len(numbers) > request.max_messages
    if truncated:
        last_at = sorted([*keys.values(), *numbers.values()])[request.max_messages - 1]
        keys = _earliest(keys, last_at, request.max_messages)
        numbers = _earliest(numbers, last_at, request.max_messages - len(keys))
    if not keys and not numbers:
        return TraceResult([], truncated=False)
    return TraceResult(build_timelines(_read_trace_rows(lake, keys.keys(), numbers.keys()), keys, numbers), truncated)


def _earliest(seen_at: dict[_T, str], last_at: str, count: int) -> dict[_T, str]:
    """Return the first ``count`` entries by time, none later than ``last_at``."""
    entries = sorted(seen_at.items(), key=lambda entry: (entry[1], str(entry[0])))
    return dict([entry for entry in entries if entry[1] <= last_at][:count])


def queue_names(lake: Lake, queue: str) -> set[str]:
    """Return all names of a queue: its normal form, and the aliases in silver.queue_aliases."""
    name = normalize_queue_names(pa.array([queue], pa.string())).to_pylist()[0] or queue.lower()
    aliases = lake.read(QUEUE_ALIASES)
    canonical = aliases.where((F.col("queue") == name) | (F.col("canonical_queue") == name)).select("canonical_queue")
    group = aliases.join(F.broadcast(canonical.distinct()), "canonical_queue", "left_semi")
    found = group.select("queue", "canonical_queue").distinct().collect()
    return {name, *(text for row in found for text in row)}


def _find_messages(lake: Lake, request: TraceRequest) -> tuple[dict[str, str], dict[NumberInQueue, str]]:
    """Return the time at which each requested message was first seen, by message key, or by queue and lookup id.

    A lookup id stands for a message only where its reads have no message key.
    """
    names = None if request.queue is None else sorted(queue_names(lake, request.queue))
    messages, attempts = lake.read(MESSAGES), lake.read(RECEIVE_ATTEMPTS)
    if request.message_id is not None:
        messages = messages.where(F.col("message_id") == request.message_id.lower().strip("{}").replace("}\\", "\\"))
    if request.label is not None:
        messages = messages.where(F.col("label") == request.label)
    if request.lookup_id is not None:
        number = F.lit(str(request.lookup_id)).cast("decimal(20,0)")
        messages, attempts = (rows.where(F.col("lookup_id") == number) for rows in (messages, attempts))
    if names is not None:
        messages = messages.where(_any_column_in(names, "queue", "inferred_queue"))
        attempts = attempts.where(_any_column_in(names, "queue", "opened_queue", "inferred_queue"))
    limit = request.max_messages + 1
    with_key = messages.where("message_key IS NOT NULL")
    keyed = with_key.groupBy("message_key").agg(_sortable_text(F.min("seen_at")).alias("at"))
    queries = {"messages": partial(_to_rows, keyed.orderBy("at", "message_key").limit(limit))}
    if request.message_id is None and request.label is None:
        # Reads without a message key: the header was not captured whole. silver.messages has the others.
        first_at = F.min(F.coalesce("started_at", "returned_at"))
        without_key = attempts.where("message_key IS NULL AND lookup_id IS NOT NULL")
        grouped = without_key.groupBy(*_LOCATION_COLUMNS, "lookup_id").agg(_sortable_text(first_at).alias("at"))
        queries["attempts"] = partial(_to_rows, grouped.orderBy("at", "lookup_id").limit(limit))
    found = run_concurrently(queries)
    keys = {row["message_key"]: row["at"] or "" for row in found["messages"]}
    numbers = {(queue_location(row), int(row["lookup_id"])): row["at"] or "" for row in found.get("attempts", ())}
    return keys, numbers


def _any_column_in(names: Collection[str], *columns: str) -> Column:
    return reduce(or_, (F.col(column).isin(list(names)) for column in columns))


def _sortable_text(at: Column) -> Column:
    return F.date_format(at, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")


def _to_rows(frame: DataFrame) -> TraceInputRows:
    found: TraceInputRows = frame.toArrow().to_pylist()
    return found


def _read_trace_rows(lake: Lake, keys: Collection[str], numbers: Collection[NumberInQueue]) -> TraceRows:
    """Return all rows about messages given by key, or by queue location and lookup id."""
    messages = _to_rows(where_in(lake.read(MESSAGES), "message_key", keys).drop(*_UNUSED_MESSAGE_COLUMNS))
    lookups = {number for _, number in numbers}
    lookups |= {int(row["lookup_id"]) for row in messages if row["lookup_id"] is not None}
    by_number = f"lookup_id IN ({', '.join(map(str, sorted(lookups)))})" if lookups else "FALSE"
    ours = F.col("message_key").isin(sorted(keys)) | F.expr(by_number)
    attempts = _to_rows(lake.read(RECEIVE_ATTEMPTS).where(ours).drop("run_id", "event_date"))
    queues = sorted({row["queue"] for row in attempts if row["queue"] is not None})
    in_queues = _any_column_in(queues, "queue") if queues else F.lit(False)  # noqa: FBT003
    operations = lake.read(QUEUE_OPERATIONS)
    identifiers = {row["message_id"] for row in messages if row["message_id"] is not None}
    evidence = {call for row in attempts for call in row["evidence"] or ()} | {row["call_key"] for row in messages}
    found = run_concurrently(
        {
            "operations": partial(
                _to_rows, operations.where(F.expr(by_number) | ((F.col("operation") == "purge") & in_queues))
            ),
            "sequences": partial(_to_rows, lake.read(ACK_SEQUENCES).where(ours)),
            "comqc": partial(
                _to_rows, where_in(lake.read(COMQC_CALLS), "message_key", keys).drop("marshaled", "arguments")
            ),
            "replies": partial(
                _to_rows, where_in(lake.read(MESSAGES), "correlation_id", identifiers).drop(*_UNUSED_MESSAGE_COLUMNS)
            ),
        }
    )
    evidence |= {row["call_key"] for name in ("operations", "replies") for row in found[name]}
    found |= run_concurrently(
        {
            "calls": partial(_to_rows, where_in(lake.read(RPC_CALLS), "call_key", evidence).select(*_CALL_COLUMNS)),
            "reads": partial(_read_methods, lake, REMOTE_READ_CALLS, evidence, "ack_name"),
            "clients": partial(_read_methods, lake, CLIENT_CALLS, evidence),
            "findings": partial(_read_findings, lake, evidence),
            "opens": partial(_to_rows, where_in(lake.read(QUEUE_OPENS), "call_key", evidence).select(*_OPEN_COLUMNS)),
        }
    )
    times = {row[name] for row in found["calls"] for name in ("request_at", "response_at")} - {None}
    hours = {truncate_to_hour(at) for at in times}
    captures = {row[name] for row in found["calls"] for name in ("capture_id", "response_capture_id")} - {None}
    more = run_concurrently(
        {
            "coverage": partial(_read_coverage, lake, hours),
            "files": partial(
                _to_rows, where_in(lake.read(CAPTURE_FILES), "capture_id", captures).select("capture_id", "path")
            ),
        }
    )
    methods = {row["call_key"]: row for name in ("reads", "clients") for row in found[name]}
    no_method = dict.fromkeys(("method", "hresult_name", "ack_name"))
    return TraceRows(
        messages=messages,
        replies=found["replies"],
        attempts=attempts,
        sequences=found["sequences"],
        operations=found["operations"],
        opens={row["call_key"]: row for row in found["opens"]},
        findings=found["findings"],
        comqc=found["comqc"],
        calls={row["call_key"]: {**row, **methods.get(row["call_key"], no_method)} for row in found["calls"]},
        paths={row["capture_id"]: row["path"] for row in more["files"]},
        coverage=more["coverage"],
    )


def _read_methods(lake: Lake, table: Table, calls: Collection[str], *more: str) -> TraceInputRows:
    """Return method and result of calls, from a table of silver."""
    return _to_rows(where_in(lake.read(table), "call_key", calls).select("call_key", "method", "hresult_name", *more))


def _read_findings(lake: Lake, calls: Iterable[str]) -> TraceInputRows:
    """Return the findings whose violating call or evidence is among the calls."""
    evidence = F.array_union(F.array("call_key"), F.coalesce("evidence", F.array().cast("array<string>")))
    findings = lake.read(FINDINGS).withColumn("_evidence", F.explode(evidence))
    return _to_rows(where_in(findings, "_evidence", set(calls)).drop("_evidence", "run_id", "event_date").distinct())


def _read_coverage(lake: Lake, hours: Collection[Any]) -> TraceInputRows:
    """Return the counts of gold.coverage for these hours, and those without an hour; none without hours."""
    rows = lake.read(COVERAGE).select("hour", "server_address", "layer", "measure", "value")
    return _to_rows(rows.where(F.col("hour").isNull() | F.col("hour").isin(sorted(hours)))) if hours else []
