"""The lake's rows about messages: those that somebody asks for, and all that ``timeline`` tells of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake
from pipeline.lake.queries import only
from pipeline.reports.trace.timeline import Place, Sources, Story, hour_of, place_of, stories
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.receive_attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table, literal
from udfs.queues.normal_form import normal_form

_CALL: Final = (
    "call_key", "interface_name", "opnum", "outcome", "fault_status", "capture_id", "request_packet",
    "response_capture_id", "response_packet", "request_at", "response_at", "client_address", "client_port",
    "server_address", "connection_id",
)  # fmt: skip
_NOT_TOLD: Final = ("body", "extension", "header_sizes", "run_id", "event_date", "decoder_version")
_PLACES: Final = ("queue", "server_address", "context_handle", "queue_handle")

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; all that is given must hold. ``most`` messages are told at most, the earliest."""

    message_id: str | None = None
    lookup_id: int | None = None
    queue: str | None = None  # in any of its names: normal form, path, format or direct name
    label: str | None = None
    most: int = 20


@dataclass(frozen=True, slots=True)
class Told:
    """The stories, and whether there were more messages than were to be told."""

    stories: list[Story]
    cut: bool


def tell(lake: Lake, wanted: Wanted) -> Told:
    """Return the stories of the messages asked for, in order of time."""
    keys, numbers = _asked(lake, wanted)
    last = sorted([*keys.values(), *numbers.values()])[: wanted.most][-1:]  # when the last of those told was seen
    cut = len(keys) + len(numbers) > wanted.most
    if cut:
        our_keys = sorted((key for key, at in keys.items() if at <= last[0]), key=lambda key: (keys[key], key))
        keys = {key: keys[key] for key in our_keys[: wanted.most]}
        left = wanted.most - len(keys)
        ours = sorted(
            (each for each, at in numbers.items() if at <= last[0]), key=lambda each: (numbers[each], str(each))
        )
        numbers = {each: numbers[each] for each in ours[:left]}
    if not keys and not numbers:
        return Told([], cut=False)
    return Told(stories(_sources(lake, keys.keys(), numbers.keys()), keys, numbers), cut)


def names_of(lake: Lake, queue: str) -> set[str]:
    """Return the texts that name a queue: its normal form, and all that silver.queue_aliases shows to be the same."""
    name = normal_form(pa.array([queue], pa.string())).to_pylist()[0] or queue.lower()
    aliases = lake.read(QUEUE_ALIASES)
    canonical = aliases.where((F.col("queue") == name) | (F.col("canonical_queue") == name)).select("canonical_queue")
    group = aliases.join(F.broadcast(canonical.distinct()), "canonical_queue", "left_semi")
    found = group.select("queue", "canonical_queue").distinct().collect()
    return {name, *(text for row in found for text in row)}


def _asked(lake: Lake, wanted: Wanted) -> tuple[dict[str, str], dict[tuple[Place, int], str]]:
    """Return the messages asked for, with the time each was first seen: by key, and those that have none by number."""
    names = None if wanted.queue is None else sorted(names_of(lake, wanted.queue))
    messages, attempts = lake.read(MESSAGES), lake.read(RECEIVE_ATTEMPTS)
    if wanted.message_id is not None:
        messages = messages.where(F.col("message_id") == wanted.message_id.lower().strip("{}").replace("}\\", "\\"))
    if wanted.label is not None:
        messages = messages.where(F.col("label") == wanted.label)
    if wanted.lookup_id is not None:
        number = F.lit(str(wanted.lookup_id)).cast("decimal(20,0)")
        messages, attempts = (rows.where(F.col("lookup_id") == number) for rows in (messages, attempts))
    if names is not None:
        messages = messages.where(_any(names, "queue", "inferred_queue"))
        attempts = attempts.where(_any(names, "queue", "opened_queue", "inferred_queue"))
    most = wanted.most + 1
    keyed = messages.where("message_key IS NOT NULL").groupBy("message_key").agg(_text(F.min("seen_at")).alias("at"))
    asked = {"messages": partial(_rows, keyed.orderBy("at", "message_key").limit(most))}
    if wanted.message_id is None and wanted.label is None:
        # What no header tells: a read by its number in the queue. A key is told by silver.messages already.
        began = F.min(F.coalesce("started_at", "returned_at"))
        nameless = attempts.where("message_key IS NULL AND lookup_id IS NOT NULL")
        grouped = nameless.groupBy(*_PLACES, "lookup_id").agg(_text(began).alias("at"))
        asked["attempts"] = partial(_rows, grouped.orderBy("at", "lookup_id").limit(most))
    found = gather(asked)
    keys = {row["message_key"]: row["at"] or "" for row in found["messages"]}
    numbers = {(place_of(row), int(row["lookup_id"])): row["at"] or "" for row in found.get("attempts", ())}
    return keys, numbers


def _any(names: Collection[str], *columns: str) -> Column:
    named = ", ".join(map(literal, names))
    return F.expr(" OR ".join(f"{column} IN ({named})" for column in columns))


def _text(at: Column) -> Column:
    return F.date_format(at, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")


def _rows(frame: DataFrame) -> Rows:
    found: Rows = frame.toArrow().to_pylist()
    return found


def _sources(lake: Lake, keys: Collection[str], numbers: Collection[tuple[Place, int]]) -> Sources:
    """Return all rows about messages by their keys, or by places and numbers."""
    messages = _rows(only(lake.read(MESSAGES), "message_key", keys).drop(*_NOT_TOLD))
    lookups = {number for _, number in numbers}
    lookups |= {int(row["lookup_id"]) for row in messages if row["lookup_id"] is not None}
    by_number = f"lookup_id IN ({', '.join(map(str, sorted(lookups)))})" if lookups else "FALSE"
    by_key = f"message_key IN ({', '.join(map(literal, sorted(keys)))})" if keys else "FALSE"
    attempts = _rows(lake.read(RECEIVE_ATTEMPTS).where(f"{by_key} OR {by_number}").drop("run_id", "event_date"))
    queues = sorted({row["queue"] for row in attempts if row["queue"] is not None})
    there = _any(queues, "queue") if queues else F.lit(False)  # noqa: FBT003
    operations = lake.read(QUEUE_OPERATIONS)
    identifiers = {row["message_id"] for row in messages if row["message_id"] is not None}
    proof = {call for row in attempts for call in row["evidence"] or ()} | {row["call_key"] for row in messages}
    found = gather(
        {
            "operations": partial(
                _rows, operations.where(F.expr(by_number) | ((F.col("operation") == "purge") & there))
            ),
            "sequences": partial(_rows, lake.read(ACK_SEQUENCES).where(f"{by_key} OR {by_number}")),
            "comqc": partial(_rows, only(lake.read(COMQC_CALLS), "message_key", keys).drop("marshaled", "arguments")),
            "reports": partial(_rows, only(lake.read(MESSAGES), "correlation_id", identifiers).drop(*_NOT_TOLD)),
        }
    )
    proof |= {row["call_key"] for name in ("operations", "reports") for row in found[name]}
    found |= gather(
        {
            "calls": partial(_rows, only(lake.read(RPC_CALLS), "call_key", proof).select(*_CALL)),
            "reads": partial(_said, lake, REMOTE_READ_CALLS, proof, "ack_name"),
            "clients": partial(_said, lake, CLIENT_CALLS, proof),
            "findings": partial(_findings, lake, proof),
        }
    )
    hours = {hour_of(at) for row in found["calls"] for at in (row["request_at"], row["response_at"]) if at is not None}
    captures = {row[name] for row in found["calls"] for name in ("capture_id", "response_capture_id")} - {None}
    more = gather(
        {
            "coverage": partial(_coverage, lake, hours),
            "files": partial(
                _rows, only(lake.read(CAPTURE_FILES), "capture_id", captures).select("capture_id", "path")
            ),
        }
    )
    said = {row["call_key"]: row for name in ("reads", "clients") for row in found[name]}
    unsaid = dict.fromkeys(("method", "hresult_name", "ack_name"))
    return Sources(
        messages=messages,
        reports=found["reports"],
        attempts=attempts,
        sequences=found["sequences"],
        operations=found["operations"],
        findings=found["findings"],
        comqc=found["comqc"],
        calls={row["call_key"]: {**row, **said.get(row["call_key"], unsaid)} for row in found["calls"]},
        paths={row["capture_id"]: row["path"] for row in more["files"]},
        coverage=more["coverage"],
    )


def _said(lake: Lake, table: Table, calls: Collection[str], *more: str) -> Rows:
    """Return what silver says of calls: the method and its result."""
    return _rows(only(lake.read(table), "call_key", calls).select("call_key", "method", "hresult_name", *more))


def _findings(lake: Lake, calls: Iterable[str]) -> Rows:
    """Return findings that calls break or prove."""
    proof = F.array_union(F.array("call_key"), F.coalesce("evidence", F.array().cast("array<string>")))
    findings = lake.read(FINDINGS).withColumn("_proof", F.explode(proof))
    return _rows(only(findings, "_proof", set(calls)).drop("_proof", "run_id", "event_date").distinct())


def _coverage(lake: Lake, hours: Collection[Any]) -> Rows:
    """Return what gold.coverage counts in these hours, and of what has no time."""
    rows = lake.read(COVERAGE).select("hour", "server_address", "layer", "measure", "value")
    return _rows(rows.where(F.col("hour").isNull() | F.col("hour").isin(sorted(hours)))) if hours else []
