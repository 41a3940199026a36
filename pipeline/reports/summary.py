"""Console summary of a lake: files, packets, calls, messages, receive attempts, transfers and bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.queues.last_reports import LAST_TRANSFERS_SQL, max_gap_s
from pipeline.runs.recovery import RunMarkers
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.eod import EOD_TRANSFERS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.table import Table
from udfs.dcerpc.interfaces import INTERFACES_BY_NAME

# Printing order of values; other values follow, sorted by name.
SUMMARY_OUTCOMES: Final = ("ok", "unbound", "encrypted", "fault", "no_response", "damaged", "no_request")
ATTEMPT_OUTCOMES: Final = (
    "acked", "nacked", "rejected", "peeked", "empty", "timed_out", "cancelled", "failed", "expired", "rundown",
    "in_flight", "unknown",
)  # fmt: skip
MESSAGE_FATES: Final = ("consumed", "returned", "rejected", "held", "moved", "purged", "unknown")
LOSS_RISKS: Final = ("read_twice", "ack_failed", "ack_unanswered", "reader_lost", "poison")
TRANSFER_CONDITIONS: Final = ("idle", "flowing", "slow", "resending", "stalled", "reset")
_PACKET_LABELS: Final = {
    "packets": "packets",
    "packets_used": "of MSMQ RPC",
    "packets_binary_protocol": "of TCP 1801",
    "packets_other": "other",
    "packets_damaged": "damaged",
    "packets_dropped": "dropped by the capturing machine",
}
_BYTE_LABELS: Final = {
    "payload": "payload bytes captured on MSMQ connections",
    "quarantined": "of them in quarantine",
    "missing": "bytes missing from the captures",
    "retransmitted": "retransmitted bytes",
}
_DECODED_TABLES: Final = {
    "COMQC calls": COMQC_CALLS,
    "queue snapshots": QUEUE_SNAPSHOTS,
    "machine snapshots": MACHINE_SNAPSHOTS,
    "management calls": MANAGEMENT_CALLS,
    "client calls": CLIENT_CALLS,
}
_CACHE_FORMAT: Final = 5  # increase it whenever something else is counted: a cache of another format is ignored


class SummaryCount(NamedTuple):
    """One number of the summary.

    ``section`` is "file", "packet", "byte", "call", "message", "decoded", "attempt", "sequence", "transfer" or
    "observation" (of transfers). ``name`` and ``detail`` say what is counted (file status; measure; interface and
    opnum; message class; kind of row and source; protocol; loss risk; source), ``outcome`` is the result.
    """

    section: str
    name: str
    detail: str
    outcome: str
    value: int


_CountQuery = Callable[[Lake], list[SummaryCount]]
_CachedCounts = tuple[int | None, list[SummaryCount]]  # version of the table, counts of its rows


def format_summary(counts: Iterable[SummaryCount], run_facts: Mapping[str, object] | None = None) -> str:
    """Return the summary as text. ``run_facts`` are printed first, as they are.

    The order of ``counts`` does not matter. A section without counts is left out, except for totals.
    """
    found = list(counts)
    lines: list[str] = []
    if run_facts:
        lines.append("run       " + ", ".join(f"{name} {value}" for name, value in run_facts.items()))
    lines += _file_lines(found)
    lines += _call_lines(found)
    lines += _decoded_lines(found)
    lines += _attempt_lines(found)
    lines += _sequence_lines(found)
    lines += _transfer_lines(found)
    lines += _byte_lines(found)
    return "\n".join(lines)


def _format_number(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _format_outcomes(counts: Iterable[SummaryCount], order: tuple[str, ...]) -> str:
    """Return counts by outcome as ``ok 5, fault 1``: the outcomes of ``order`` first, then the others by name."""
    totals: dict[str, int] = {}
    for count in counts:
        totals[count.outcome] = totals.get(count.outcome, 0) + count.value
    ranked = sorted(totals, key=lambda name: (order.index(name) if name in order else len(order), name))
    return ", ".join(f"{name} {_format_number(totals[name])}" for name in ranked)


def _total(counts: Iterable[SummaryCount]) -> int:
    return sum(count.value for count in counts)


def _file_lines(found: list[SummaryCount]) -> list[str]:
    files = [count for count in found if count.section == "file"]
    packets = {count.name: count.value for count in found if count.section == "packet"}
    statuses = ", ".join(f"{c.name} {_format_number(c.value)}" for c in sorted(files))
    lines = [f"files     {_format_number(_total(files))}" + (f": {statuses}" if files else "")]
    parts = [f"{_format_number(packets[name])} {text}" for name, text in _PACKET_LABELS.items() if packets.get(name)]
    lines.append("packets   " + (f"{', '.join(parts[1:])}; {parts[0]} in all" if len(parts) > 1 else "0"))
    return lines


def _call_lines(found: list[SummaryCount]) -> list[str]:
    calls = [count for count in found if count.section == "call"]
    lines = [f"calls     {_format_number(_total(calls))}"]
    for interface in sorted({count.name for count in calls}):
        of_interface = [count for count in calls if count.name == interface]
        lines.append(f"  {interface or '(interface not known)':<40} {_format_number(_total(of_interface)):>10}")
        for opnum in sorted({count.detail for count in of_interface}, key=lambda text: (len(text), text)):
            these = [count for count in of_interface if count.detail == opnum]
            outcomes = _format_outcomes(these, SUMMARY_OUTCOMES)
            lines.append(f"    {_method_name(interface, opnum):<38} {_format_number(_total(these)):>10}  {outcomes}")
    return lines


def _method_name(interface: str, opnum: str) -> str:
    known = INTERFACES_BY_NAME.get(interface)
    if not opnum:
        return "(opnum not seen)"
    number = int(opnum)
    return known.methods[number] if known is not None and number < len(known.methods) else f"opnum {number}"


def _decoded_lines(found: list[SummaryCount]) -> list[str]:
    """Return lines for messages and decoded rows other than remote reads; none without rows."""
    classes = {count.detail or "(class not seen)": count.value for count in found if count.section == "message"}
    ranked = sorted(classes, key=lambda name: (-classes[name], name))
    text = ", ".join(f"{name} {_format_number(classes[name])}" for name in ranked)
    lines = [f"messages  {_format_number(sum(classes.values()))} seen: {text}"] if classes else []
    others = [count for count in found if count.section == "decoded" and count.value]
    texts = {name: [_decoded_text(count) for count in sorted(others) if count.name == name] for name in _DECODED_TABLES}
    text = ", ".join(chain.from_iterable(texts.values()))
    return [*lines, f"decoded   {text}"] if text else lines


def _decoded_text(count: SummaryCount) -> str:
    """Return the number of rows of a table, of one source where sources report the same things."""
    return f"{_format_number(count.value)} {count.name}" + (f" by {count.detail}" if count.detail else "")


def _attempt_lines(found: list[SummaryCount]) -> list[str]:
    attempts = [count for count in found if count.section == "attempt"]
    lines = [f"attempts  {_format_number(_total(attempts))} to receive or peek"]
    for protocol in sorted({count.name for count in attempts}):
        these = [count for count in attempts if count.name == protocol]
        lines.append(
            f"  {protocol:<40} {_format_number(_total(these)):>10}  {_format_outcomes(these, ATTEMPT_OUTCOMES)}"
        )
    return lines


def _sequence_lines(found: list[SummaryCount]) -> list[str]:
    """Return lines for the fates and loss risks of received messages; none without such messages."""
    read = [count for count in found if count.section == "sequence" and count.value]
    lines = (
        [f"read      {_format_number(_total(read))} messages: {_format_outcomes(read, MESSAGE_FATES)}"] if read else []
    )
    risks: dict[str, int] = {}
    for count in read:
        if count.name:
            risks[count.name] = risks.get(count.name, 0) + count.value
    ranked = sorted(risks, key=lambda name: (LOSS_RISKS.index(name) if name in LOSS_RISKS else len(LOSS_RISKS), name))
    text = ", ".join(f"{name} {_format_number(risks[name])}" for name in ranked)
    return [*lines, f"at risk   {_format_number(sum(risks.values()))} of them: {text}"] if risks else lines


def _transfer_lines(found: list[SummaryCount]) -> list[str]:
    """Return a line for the last conditions of outgoing transactional queues; none without observations."""
    transfers = [c._replace(outcome=c.outcome or "unknown") for c in found if c.section == "transfer"]
    if not transfers:
        return []
    conditions = _format_outcomes(transfers, TRANSFER_CONDITIONS)
    sources = ", ".join(f"{c.name} {_format_number(c.value)}" for c in sorted(found) if c.section == "observation")
    return [f"transfers {_format_number(_total(transfers))}: {conditions} (observations: {sources})"]


def _byte_lines(found: list[SummaryCount]) -> list[str]:
    counted = {count.name: count.value for count in found if count.section == "byte"}
    captured = counted.get("payload", 0)
    quarantined = counted.get("quarantined", 0)
    share = f" ({(captured - quarantined) / captured:.2%} in PDUs and packets)" if captured else ""
    lines = []
    for place, (name, text) in enumerate(_BYTE_LABELS.items()):
        head = "bytes     " if place == 0 else "          "
        lines.append(f"{head}{_format_number(counted.get(name, 0)):>14} {text}{share if place == 0 else ''}")
    return lines


def console_summary(lake: Lake, run_facts: Mapping[str, object] | None = None) -> str:
    """Return the summary of a lake as text; ``run_facts`` are printed first."""
    return format_summary(read_counts(lake), run_facts)


def read_counts(lake: Lake) -> list[SummaryCount]:
    """Return all counts of a lake. Each table is scanned once, and only its small columns (no stub is read).

    Counts are cached by table version in the lake's folder of runs: only changed tables are counted again.
    """
    cache_file = RunMarkers.of(lake).root / "summary"
    before, newest = _read_cache(cache_file), lake.versions.newest_commits(*_COUNT_QUERIES)

    def count(table: Table) -> _CachedCounts:
        known, version = before.get(str(table)), newest[table].version
        return known if known is not None and known[0] == version else (version, _COUNT_QUERIES[table](lake))

    now = {str(table): counted for table, counted in run_concurrently({t: partial(count, t) for t in newest}).items()}
    if now != before:
        with suppress(OSError):  # a read-only lake has no cache
            _write_cache(cache_file, now)
    return [count for _, counts in now.values() for count in counts]


def _read_cache(path: LakePath) -> dict[str, _CachedCounts]:
    """Return the cached counts by table name; empty if the cache is missing, unreadable or of another format."""
    try:
        content = json.loads(path.read_text())
        tables = content["tables"].items() if content["format"] == _CACHE_FORMAT else ()
        return {name: (version, [SummaryCount(*each) for each in counts]) for name, (version, counts) in tables}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _write_cache(path: LakePath, counted: Mapping[str, _CachedCounts]) -> None:
    path.write_text(json.dumps({"format": _CACHE_FORMAT, "tables": counted}))


def _count_files(lake: Lake) -> list[SummaryCount]:
    rows = _query_rows(
        lake,
        CAPTURE_FILES,
        ["coalesce(status, '') AS status", "count(*) AS files", *_sums_sql({n: n for n in _PACKET_LABELS})],
    )
    packets = {name: sum(row[name] for row in rows) for name in _PACKET_LABELS}
    files = [SummaryCount("file", row["status"], "", "", row["files"]) for row in rows]
    return files + [SummaryCount("packet", name, "", "", number) for name, number in packets.items()]


def _sum_bytes(table: Table, where: str, columns: Mapping[str, str]) -> _CountQuery:
    """Return a query that sums byte columns of a table."""

    def counted(lake: Lake) -> list[SummaryCount]:
        (row,) = _query_rows(lake, table, _sums_sql(columns), where)
        return [SummaryCount("byte", name, "", "", row[name]) for name in columns]

    return counted


def _count_by_value(
    table: Table, section: str, name: str | None, detail: str | None = None, outcome: str | None = None
) -> _CountQuery:
    """Return a query that counts rows by the values of up to three columns."""
    columns = [column for column in (name, detail, outcome) if column is not None]
    values = f"SELECT {', '.join(columns)}, count(*) AS number FROM {{rows}} GROUP BY {', '.join(columns)}"
    named = zip((name, detail, outcome), "ndo", strict=True)
    texts = ", ".join(f"{_text_sql(column)} AS {alias}" for column, alias in named)
    sql = f"SELECT {texts}, CAST(sum(number) AS bigint) AS number FROM ({values}) GROUP BY ALL"  # few texts are made

    def counted(lake: Lake) -> list[SummaryCount]:
        return [SummaryCount(section, *row.values()) for row in lake.query(sql, rows=table).to_pylist()]

    return counted


def _count_rows(table: Table, name: str) -> _CountQuery:
    """Return a query that counts the rows of a table, by source if it has several."""
    source = [f"{_text_sql('source')} AS source"] if "source" in table.names else []

    def counted(lake: Lake) -> list[SummaryCount]:
        rows = _query_rows(lake, table, [*source, "count(*) AS number"])
        return [
            SummaryCount("decoded", name, row.get("source", ""), "", row["number"]) for row in rows if row["number"]
        ]

    return counted


def _count_transfers(lake: Lake) -> list[SummaryCount]:
    """Count transfers by their last condition, each once, and beside them the observations of each source."""
    last = LAST_TRANSFERS_SQL.replace("{max_gap_s}", repr(max_gap_s(lake)))
    condition = _text_sql("condition")
    sql = f"SELECT {condition} AS outcome, count(*) AS number FROM ({last}) GROUP BY ALL"
    transfers = lake.query(sql, eod_transfers=EOD_TRANSFERS).to_pylist()
    observations = _query_rows(lake, EOD_TRANSFERS, ["source", "count(*) AS number"])
    return [
        *(SummaryCount("transfer", "", "", row["outcome"], row["number"]) for row in transfers),
        *(SummaryCount("observation", row["source"] or "", "", "", row["number"]) for row in observations),
    ]


def _query_rows(lake: Lake, table: Table, columns: Iterable[str], where: str = "TRUE") -> list[dict[str, Any]]:
    sql = f"SELECT {', '.join(columns)} FROM {{rows}} WHERE {where} GROUP BY ALL"
    rows: list[dict[str, Any]] = lake.query(sql, rows=table).to_pylist()
    return rows


def _text_sql(column: str | None) -> str:
    return "''" if column is None else f"coalesce(CAST({column} AS string), '')"


def _sums_sql(columns: Mapping[str, str]) -> list[str]:
    """Return SQL that sums columns (expressions by alias); null counts as 0."""
    return [f"CAST(coalesce(sum({column}), 0) AS bigint) AS {name}" for name, column in columns.items()]


_BYTE_COLUMNS: Final = {
    "payload": "client_bytes + server_bytes",
    "missing": "missing_bytes",
    "retransmitted": "retransmitted_bytes",
}
_COUNT_QUERIES: Final[dict[Table, _CountQuery]] = {
    CAPTURE_FILES: _count_files,
    RPC_CALLS: _count_by_value(RPC_CALLS, "call", "interface_name", "opnum", "outcome"),
    RECEIVE_ATTEMPTS: _count_by_value(RECEIVE_ATTEMPTS, "attempt", "protocol", outcome="outcome"),
    ACK_SEQUENCES: _count_by_value(ACK_SEQUENCES, "sequence", "loss_risk", outcome="fate"),
    MESSAGES: _count_by_value(MESSAGES, "message", None, "class_name"),
    EOD_TRANSFERS: _count_transfers,
    CONNECTIONS: _sum_bytes(CONNECTIONS, "kind IN ('rpc', 'binary_protocol')", _BYTE_COLUMNS),
    QUARANTINE: _sum_bytes(QUARANTINE, "connection_id IS NOT NULL", {"quarantined": "size_bytes"}),
    **{table: _count_rows(table, name) for name, table in _DECODED_TABLES.items()},
}
"""The query that counts each table."""
