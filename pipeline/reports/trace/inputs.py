"""Reads the rows that message timelines are built from: finds the requested messages, then all rows about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput, Values
from pipeline.reports.trace.timeline import (
    MessageTimeline,
    NumberInQueue,
    TraceRows,
    build_timelines,
    queue_location,
    truncate_to_hour,
)
from pipeline.reports.trace.transfer_events import TransferRows
from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.names import Names, similar_names
from pipeline.reports.views.refused import with_refusals
from pipeline.reports.views.scope import timestamp_sql
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.transfers.sequences.sequence_progress import ProgressEvidence
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPENS, QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_PACKETS
from schemas.table import Table, quoted
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from udfs.queues.normal_form import normalize_queue_name
from udfs.times import datetime_to_us, us_to_datetime

_CALL_COLUMNS: Final = (
    "call_key", "interface_name", "opnum", "outcome", "fault_status", "capture_id", "request_packet",
    "response_capture_id", "response_packet", "request_at", "response_at", "client_address", "client_port",
    "server_address", "connection_id",
)  # fmt: skip
_OPEN_COLUMNS: Final = (
    "call_key", "principal", "workstation", "access_name", "share_mode_name", "outcome", "closed_at", "ended_by",
)  # fmt: skip
_PACKET_COLUMNS: Final = (
    "packet_key", "connection_id", "client_address", "client_port", "server_address", "server_port", "sent_by",
    "capture_id", "packet_number", "sent_at",
)  # fmt: skip
_METHOD_COLUMNS: Final = ("call_key", "method", "hresult_name")
_UNUSED_MESSAGE_COLUMNS: Final = (
    "body", "extension", "soap_header", "header_sizes", "run_id", "event_date", "decoder_version",
    "framework_evidence", "exception_message", "application_headers", "application_errors",
)  # fmt: skip
_LOOKUP_ID: Final = "CAST(lookup_id AS string)"  # as a value it may be larger than a bigint
_LOCATED_ATTEMPT: Final = """message_key, lookup_id, queue, coalesce(started_at, returned_at) AS started_at,
  CASE WHEN queue IS NULL THEN server_address END AS server_address,
  CASE WHEN queue IS NULL THEN coalesce(context_handle, CAST(queue_handle AS string)) END AS handle"""

_HAS_LABEL: Final = "contains(lower(label), lower({label}))"
_NEAR_LABELS: Final = 50  # candidates, by their distance in the tables
_MAX_LABEL_CHARS: Final = 250  # limit of a label ([MS-MQMQ] 2.3.1)
_EVERY: Final = 1 << 30
_LAST: Final = "~"  # behind all times

TraceInputRows = list[dict[str, Any]]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Which messages to trace: those that match every given field, at most ``max_messages``, the earliest first.

    ``queue`` is a part of any name of their queues, whatever the case; beside ``lookup_id`` it is a whole name, of any
    kind. ``sender`` is a part of a name or GUID of their source's machine, or an address. They were first seen from
    ``since`` until ``until``, both included.
    """

    message_id: str | None = None
    lookup_id: int | None = None
    queue: str | None = None
    label: str | None = None  # a part of it, whatever the case
    packet_key: str | None = None  # of any packet of TCP 1801 that shows the message, an acknowledgement too
    sender: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    max_messages: int | None = 20  # None: all


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The timelines of messages, and how many were ``found``: more than timelines if ``max_messages`` is less.

    ``near`` are the most similar names or labels, by the fields of the request that nothing was found for.
    """

    timelines: list[MessageTimeline]
    found: int = 0
    near: Mapping[str, Sequence[str]] = field(default_factory=dict)


def trace_messages(lake: Lake, request: TraceRequest) -> TraceResult:
    """Return the timelines of the requested messages, ordered by their first event."""
    named = _find_names(lake, request)
    if any(not names.found for names in named.values()):
        return TraceResult([], near={option: names.near for option, names in named.items() if not names.found})
    keys, numbers, found = _find_messages(lake, request, {option: names.found for option, names in named.items()})
    if not found:
        return TraceResult([], near=_near_texts(lake, request))
    if request.max_messages is not None and len(keys) + len(numbers) > request.max_messages:
        last_at = sorted([*keys.values(), *numbers.values()])[request.max_messages - 1]
        keys = _earliest(keys, last_at, request.max_messages)
        numbers = _earliest(numbers, last_at, request.max_messages - len(keys))
    return TraceResult(build_timelines(_read_trace_rows(lake, keys.keys(), numbers.keys()), keys, numbers), found)


def read_timelines(lake: Lake, keys: Collection[str]) -> list[MessageTimeline]:
    """Return the timelines of messages given by key, ordered by their first event."""
    return build_timelines(_read_trace_rows(lake, keys, ()), keys) if keys else []


def _earliest(seen_at: dict[_T, str], last_at: str, count: int) -> dict[_T, str]:
    """Return the first ``count`` entries by time, none later than ``last_at``."""
    entries = sorted(seen_at.items(), key=lambda entry: (entry[1], str(entry[0])))
    return dict([entry for entry in entries if entry[1] <= last_at][:count])


def _find_names(lake: Lake, request: TraceRequest) -> dict[str, Names]:
    """Return all names of the queues and machines that a request means, by its fields."""
    views, named = LakeViews(lake), dict[str, Names]()
    if request.sender is not None:
        named["sender"] = views.machines_called(request.sender)
    if request.queue is not None:
        whole = request.lookup_id is not None
        named["queue"] = Names(names_of_queue(lake, request.queue)) if whole else views.queues_called(request.queue)
    return named


def names_of_queue(lake: Lake, queue: str) -> frozenset[str]:
    """Return all names of a queue: its normal form, and the aliases in silver.queue_aliases."""
    name = normalize_queue_name(queue) or queue.lower()
    group = "SELECT canonical_queue FROM {aliases} WHERE queue = {name} OR canonical_queue = {name}"
    sql = f"SELECT DISTINCT queue, canonical_queue FROM {{aliases}} WHERE canonical_queue IN ({group})"
    found = _ask(lake, sql, aliases=QUEUE_ALIASES, name=name)
    return frozenset((name, *(text for row in found for text in row.values())))


def _near_texts(lake: Lake, request: TraceRequest) -> dict[str, Sequence[str]]:
    """Return what is most similar to a label that no message has, and to a whole name that no queue has."""
    near: dict[str, Sequence[str]] = {}
    having = f"SELECT label FROM {{messages}} WHERE {_HAS_LABEL} LIMIT 1"
    if request.label is not None and not _ask(lake, having, messages=MESSAGES, label=request.label):
        near["label"] = _near_labels(lake, request.label[:_MAX_LABEL_CHARS])
    if request.queue is not None and request.lookup_id is not None:
        called = LakeViews(lake).queues_called(request.queue)
        near |= {} if called.found else {"queue": called.near}
    return near


def _near_labels(lake: Lake, label: str) -> Sequence[str]:
    sql = f"""SELECT label FROM (SELECT DISTINCT label FROM {{messages}} WHERE length(label) <= {_MAX_LABEL_CHARS})
  ORDER BY levenshtein(lower(label), lower({{label}})), label LIMIT {_NEAR_LABELS}"""
    return similar_names(label, [row["label"] for row in _ask(lake, sql, messages=MESSAGES, label=label)])


def _find_messages(
    lake: Lake, request: TraceRequest, names: Mapping[str, Values]
) -> tuple[dict[str, str], dict[NumberInQueue, str], int]:
    """Return when each requested message was first seen, by message key, or by queue and lookup id; and their count.

    ``names`` are those of the queues and machines. A lookup id stands for a message only where its reads have no
    message key. The messages are the earliest ones, the count is that of all.
    """
    values: dict[str, QueryInput] = dict(names)
    messages, attempts = ["message_key IS NOT NULL"], ["lookup_id IS NOT NULL"]
    if request.message_id is not None:
        values["message_id"] = request.message_id.lower().strip("{}").replace("}\\", "\\")
        messages.append("message_id = {message_id}")
    if request.label is not None:
        values["label"] = request.label
        messages.append(_HAS_LABEL)
    if request.packet_key is not None:
        values |= {"packet_key": request.packet_key, "transfers": MESSAGE_TRANSFERS}
        shown = "SELECT message_key FROM {transfers} WHERE array_contains(evidence, {packet_key})"
        messages.append(f"(packet_key = {{packet_key}} OR message_key IN ({shown}))")
    if request.lookup_id is not None:
        values["lookup_id"] = str(request.lookup_id)
        messages.append(f"{_LOOKUP_ID} = {{lookup_id}}")
        attempts.append(f"{_LOOKUP_ID} = {{lookup_id}}")
    if "queue" in names:
        sent_to = "(packet_key IS NOT NULL AND destination_queue IN {queue})"
        messages.append(f"(queue IN {{queue}} OR inferred_queue IN {{queue}} OR {sent_to})")
        attempts.append("(queue IN {queue} OR opened_queue IN {queue} OR inferred_queue IN {queue})")
    if "sender" in names:  # the sender of a packet of TCP 1801 is that of its hop
        of_source = "sender_address IN {sender} AND (packet_key IS NULL OR hop_count = 0)"
        messages.append(f"(source_queue_manager IN {{sender}} OR ({of_source}))")

    def earliest(table: Table, rows: str, key: str, at: str, *having: str) -> TraceInputRows:
        hours = [f"min({at}) >= {timestamp_sql(request.since)}"] if request.since is not None else []
        hours += [f"min({at}) <= {timestamp_sql(request.until)}"] if request.until is not None else []
        sql = f"SELECT {key}, unix_micros(min({at})) AS first_us, count(*) OVER () AS found FROM {rows} GROUP BY {key}"
        sql += f" HAVING {' AND '.join((*having, *hours))}" if having or hours else ""
        limit = _EVERY if request.max_messages is None else request.max_messages
        return _ask(lake, f"{sql} ORDER BY first_us NULLS LAST, {key} LIMIT {limit}", rows=table, **values)

    wanted = f"SELECT message_key FROM {{rows}} WHERE {' AND '.join(messages)}"
    matching = f"(SELECT message_key, seen_at FROM {{rows}} WHERE message_key IN ({wanted})) AS matching"
    queries = {"messages": partial(earliest, MESSAGES, matching, "message_key", "seen_at")}
    if (request.message_id, request.label, request.packet_key, request.sender) == (None, None, None, None):
        # Reads without a message key: the header was not captured whole. silver.messages has the others.
        located = f"(SELECT {_LOCATED_ATTEMPT} FROM {{rows}} WHERE {' AND '.join(attempts)}) AS located"
        number = "lookup_id, queue, server_address, handle"
        queries["attempts"] = partial(
            earliest, RECEIVE_ATTEMPTS, located, number, "started_at", "count(message_key) = 0"
        )
    found = run_concurrently(queries)
    keys = {row["message_key"]: _sortable_text(row["first_us"]) for row in found["messages"]}
    numbers = {
        (queue_location(row), int(row["lookup_id"])): _sortable_text(row["first_us"])
        for row in found.get("attempts", ())
    }
    return keys, numbers, sum(rows[0]["found"] for rows in found.values() if rows)


def _sortable_text(at_us: int | None) -> str:
    return _LAST if at_us is None else us_to_datetime(at_us).replace(tzinfo=None).isoformat(timespec="microseconds")


def _ask(lake: Lake, sql: str, **inputs: QueryInput) -> TraceInputRows:
    found: TraceInputRows = lake.query(sql, **inputs).to_pylist()
    return found


def _rows_where(lake: Lake, table: Table, columns: Sequence[str], where: str, **values: Values) -> TraceInputRows:
    found: TraceInputRows = lake.select(table, where, columns, **values).to_pylist()
    return found


def _all_columns(table: Table, *without: str) -> list[str]:
    return [name for name in table.names if name not in without]


def _read_trace_rows(lake: Lake, keys: Collection[str], numbers: Collection[NumberInQueue]) -> TraceRows:
    """Return all rows about messages given by key, or by queue location and lookup id."""
    message_columns = _all_columns(MESSAGES, *_UNUSED_MESSAGE_COLUMNS)
    messages = _rows_where(lake, MESSAGES, message_columns, "message_key IN {keys}", keys=keys)
    lookups = {str(number) for _, number in numbers}
    lookups |= {str(row["lookup_id"]) for row in messages if row["lookup_id"] is not None}
    by_number = f"{_LOOKUP_ID} IN {{lookups}}"
    ours = partial(_rows_where, where=f"message_key IN {{keys}} OR {by_number}", keys=keys, lookups=lookups)
    columns = _all_columns(RECEIVE_ATTEMPTS, "run_id", "event_date")
    found = run_concurrently(
        {
            "attempts": partial(ours, lake, RECEIVE_ATTEMPTS, columns),
            "transfers": partial(_read_transfers, lake, keys),
        }
    )
    attempts, transfers = found["attempts"], found["transfers"]
    queues = {row["queue"] for row in attempts} | {row["canonical_destination"] for row in transfers}
    queues.discard(None)
    identifiers = {row["message_id"] for row in messages if row["message_id"] is not None}
    sent_packets = {row["packet_key"] for row in messages} - {None}
    found = run_concurrently(
        {
            "operations": partial(
                _rows_where, lake, QUEUE_OPERATIONS, QUEUE_OPERATIONS.names,
                f"{by_number} OR (operation = 'purge' AND queue IN {{queues}})", lookups=lookups, queues=queues,
            ),
            "sequences": partial(ours, lake, ACK_SEQUENCES, ACK_SEQUENCES.names),
            "comqc": partial(
                _rows_where, lake, COMQC_CALLS, _all_columns(COMQC_CALLS, "marshaled", "arguments"),
                "message_key IN {keys}", keys=keys,
            ),
            "sendings": partial(_rows_of_packets, lake, SENDINGS, sent_packets, SENDINGS.names),
            "replies": partial(
                _rows_where, lake, MESSAGES, message_columns, "correlation_id IN {identifiers}", identifiers=identifiers
            ),
        }
    )  # fmt: skip
    evidence = {key for row in (*attempts, *transfers) for key in row["evidence"] or ()}
    evidence |= {row["call_key"] for row in (*messages, *found["operations"], *found["replies"])}
    evidence |= {row["packet_key"] for row in (*messages, *found["replies"])}
    evidence |= {row[name] for row in found["sendings"] for name in ("session_acked_by", "stored_by")}
    evidence.discard(None)
    found |= run_concurrently(
        {
            "calls": partial(_rows_of_calls, lake, RPC_CALLS, evidence, _CALL_COLUMNS),
            "reads": partial(_rows_of_calls, lake, REMOTE_READ_CALLS, evidence, (*_METHOD_COLUMNS, "ack_name")),
            "clients": partial(_rows_of_calls, lake, CLIENT_CALLS, evidence, _METHOD_COLUMNS),
            "findings": partial(_read_findings, lake, evidence),
            "order_acks": partial(_rows_of_packets, lake, ORDER_ACKS, evidence, ORDER_ACKS.names),
            "reports": partial(
                _rows_where, lake, MESSAGES, message_columns,
                "message_kind = 'report' AND (call_key IN {keys} OR packet_key IN {keys})", keys=evidence,
            ),
            "opens": partial(_rows_of_calls, lake, QUEUE_OPENS, evidence, _OPEN_COLUMNS),
        }
    )  # fmt: skip
    shown = evidence | {row["packet_key"] for row in found["findings"]} - {None}
    packets = _rows_of_packets(lake, SESSION_PACKETS, shown, _PACKET_COLUMNS)
    times = {row[name] for row in found["calls"] for name in ("request_at", "response_at")} - {None}
    hours = {truncate_to_hour(at) for at in times | {row["sent_at"] for row in packets}}
    captures = {row[name] for row in found["calls"] for name in ("capture_id", "response_capture_id")} - {None}
    captures |= {row["capture_id"] for row in packets}
    more = run_concurrently(
        {
            "coverage": partial(_read_coverage, lake, hours),
            "files": partial(
                _rows_where, lake, CAPTURE_FILES, ("capture_id", "path"), "capture_id IN {ids}", ids=captures
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
        transfer_rows=TransferRows(
            transfers=transfers,
            sendings={row["packet_key"]: row for row in found["sendings"]},
            order_acks={row["packet_key"]: row for row in found["order_acks"]},
            reports=found["reports"],
            packets={row["packet_key"]: row for row in packets},
        ),
        calls={row["call_key"]: {**row, **methods.get(row["call_key"], no_method)} for row in found["calls"]},
        paths={row["capture_id"]: row["path"] for row in more["files"]},
        coverage=more["coverage"],
    )


def _read_transfers(lake: Lake, keys: Collection[str]) -> TraceInputRows:
    """Return the rows of gold.message_transfers of messages, each with ``refused`` and ``canonical_destination``."""
    columns = ", ".join(map(quoted, (*_all_columns(MESSAGE_TRANSFERS, "run_id", "event_date"), "refused")))
    chosen = "(SELECT * FROM {message_transfers} WHERE message_key IN {keys})"
    refusable = with_refusals(chosen, "{transfer_sequences}", ProgressEvidence())
    queues = {"canonical_destination": "rows.destination_queue"}
    named = with_canonical_queues(refusable, queues, columns, "{queue_aliases}")
    tables = (MESSAGE_TRANSFERS, TRANSFER_SEQUENCES, EOD_TRANSFERS, EOD_SOURCES, QUEUE_ALIASES)
    return _ask(lake, f"SELECT * FROM {named} AS named", keys=keys, **{table.name: table for table in tables})


def _rows_of_calls(lake: Lake, table: Table, calls: Collection[str], columns: Sequence[str]) -> TraceInputRows:
    return _rows_where(lake, table, columns, "call_key IN {calls}", calls=calls)


def _rows_of_packets(lake: Lake, table: Table, packets: Collection[str], columns: Sequence[str]) -> TraceInputRows:
    return _rows_where(lake, table, columns, "packet_key IN {packets}", packets=packets)


def _read_findings(lake: Lake, evidence: Collection[str]) -> TraceInputRows:
    """Return the findings whose violating call or packet, or whose evidence, is among calls and packets by key."""
    columns = ", ".join(map(quoted, _all_columns(FINDINGS, "run_id", "event_date")))
    each = "SELECT finding_key, explode(evidence) AS shown FROM {findings}"
    sql = f"""SELECT {columns} FROM {{findings}} WHERE call_key IN {{keys}} OR packet_key IN {{keys}}
  OR finding_key IN (SELECT finding_key FROM ({each}) WHERE shown IN {{keys}})"""
    return _ask(lake, sql, findings=FINDINGS, keys=evidence)


def _read_coverage(lake: Lake, hours: Collection[datetime]) -> TraceInputRows:
    """Return the counts of gold.coverage for these hours, and those without an hour; none without hours."""
    columns = ("hour", "server_address", "layer", "measure", "value")
    where, values = "hour IS NULL OR unix_micros(hour) IN {hours}", [datetime_to_us(hour) for hour in hours]
    return _rows_where(lake, COVERAGE, columns, where, hours=values) if hours else []
