"""Console summary of a lake: files, packets, calls, messages, receive attempts, transfers and bytes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from pipeline.concurrency import run_concurrently
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import CHANGE_FEED_ERRORS, POST_IMAGES, ChangesSince
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
_SIGN: Final = "_sign"  # in SQL: how often a row counts
_OF_CHANGE: Final = f"CASE WHEN _change_type IN {POST_IMAGES} THEN 1 ELSE -1 END"
_CACHE_FORMAT: Final = 6  # increase it whenever something else is counted: a cache of another format is ignored


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


_Answer = Callable[[str], list[dict[str, Any]]]
"""Answers a query over ``{rows}``, in which ``_SIGN`` says how often each counts."""
_CountRows = Callable[[_Answer], list[SummaryCount]]
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
    """Return all counts of a lake.

    Counts are cached by table version in the lake's folder of runs: what changed since is counted, and added.
    """
    cache_file = RunMarkers.of(lake).root / "summary"
    before, newest = _read_cache(cache_file), lake.versions.newest_commits(EOD_TRANSFERS, *_COUNT_ROWS)

    def count(table: Table) -> _CachedCounts:
        known, version = before.get(str(table)), newest[table].version
        if known is not None and known[0] == version:
            return known
        return version, _count_transfers(lake) if table is EOD_TRANSFERS else _count(lake, table, known, version)

    now = {str(table): counted for table, counted in run_concurrently({t: partial(count, t) for t in newest}).items()}
    if now != before:
        with suppress(OSError):  # a read-only lake has no cache
            _write_cache(cache_file, now)
    return [count for _, counts in now.values() for count in counts]


def _count(lake: Lake, table: Table, known: _CachedCounts | None, version: int) -> list[SummaryCount]:
    """Return the counts of a table's rows: those of another version and of what changed since; else of all rows."""
    count_rows = _COUNT_ROWS[table]
    if known is not None and known[0] is not None:
        feed = ChangesSince(table, known[0], version)
        with suppress(*CHANGE_FEED_ERRORS):
            more = count_rows(lambda sql: lake.query(sql.replace(_SIGN, _OF_CHANGE), rows=feed).to_pylist())
            return _added(known[1], more)
    return _added(count_rows(lambda sql: lake.query(sql.replace(_SIGN, "1"), rows=table).to_pylist()))


def _added(*parts: Iterable[SummaryCount]) -> list[SummaryCount]:
    """Return counts of the same things added; those of nothing are left out."""
    values: defaultdict[SummaryCount, int] = defaultdict(int)
    for count in chain.from_iterable(parts):
        values[count._replace(value=0)] += count.value
    return [what._replace(value=value) for what, value in values.items() if value]


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


def _count_files(answer: _Answer) -> list[SummaryCount]:
    rows = answer(_sums("status", {"files": "1", **{name: name for name in _PACKET_LABELS}}))
    files = [SummaryCount("file", row["status"] or "", "", "", row["files"]) for row in rows]
    return files + [SummaryCount("packet", name, "", "", row[name]) for row in rows for name in _PACKET_LABELS]


def _sum_bytes(where: str, columns: Mapping[str, str]) -> _CountRows:
    """Return what sums byte columns of some rows."""

    def counted(answer: _Answer) -> list[SummaryCount]:
        (row,) = answer(_sums("", columns, where))
        return [SummaryCount("byte", name, "", "", row[name]) for name in columns]

    return counted


def _count_by_value(
    section: str, name: str | None, detail: str | None = None, outcome: str | None = None
) -> _CountRows:
    """Return what counts rows by the values of up to three columns."""
    columns = [column for column in (name, detail, outcome) if column is not None]

    def counted(answer: _Answer) -> list[SummaryCount]:
        def text(row: Mapping[str, Any], column: str | None) -> str:
            return "" if column is None else _text(row[column])

        rows = answer(_sums(", ".join(columns), {"number": "1"}))
        return [
            SummaryCount(section, text(row, name), text(row, detail), text(row, outcome), row["number"]) for row in rows
        ]

    return counted


def _count_decoded(table: Table, name: str) -> _CountRows:
    """Return what counts the rows of a table, by source if it has several."""
    source = "source" if "source" in table.names else ""

    def counted(answer: _Answer) -> list[SummaryCount]:
        rows = answer(_sums(source, {"number": "1"}))
        return [SummaryCount("decoded", name, _text(row.get("source")), "", row["number"]) for row in rows]

    return counted


def _sums(columns: str, sums: Mapping[str, str], where: str = "TRUE") -> str:
    """Return the query for sums over ``{rows}`` (expressions by alias), by columns; null counts as 0."""
    each = (f"CAST(coalesce(sum({_SIGN} * ({column})), 0) AS bigint) AS {name}" for name, column in sums.items())
    names = f"{columns}, " if columns else ""
    return f"SELECT {names}{', '.join(each)} FROM {{rows}} WHERE {where} GROUP BY ALL"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _count_transfers(lake: Lake) -> list[SummaryCount]:
    """Count transfers by their last condition, each once, and beside them the observations of each source."""
    last = LAST_TRANSFERS_SQL.replace("{max_gap_s}", repr(max_gap_s(lake)))
    sql = f"SELECT condition, count(*) AS number FROM ({last}) GROUP BY ALL"
    transfers = lake.query(sql, eod_transfers=EOD_TRANSFERS).to_pylist()
    sql = "SELECT source, count(*) AS number FROM {rows} GROUP BY ALL"
    observations = lake.query(sql, rows=EOD_TRANSFERS).to_pylist()
    return [
        *(SummaryCount("transfer", "", "", _text(row["condition"]), row["number"]) for row in transfers),
        *(SummaryCount("observation", _text(row["source"]), "", "", row["number"]) for row in observations),
    ]


_BYTE_COLUMNS: Final = {
    "payload": "client_bytes + server_bytes",
    "missing": "missing_bytes",
    "retransmitted": "retransmitted_bytes",
}
_COUNT_ROWS: Final[dict[Table, _CountRows]] = {
    CAPTURE_FILES: _count_files,
    RPC_CALLS: _count_by_value("call", "interface_name", "opnum", "outcome"),
    RECEIVE_ATTEMPTS: _count_by_value("attempt", "protocol", outcome="outcome"),
    ACK_SEQUENCES: _count_by_value("sequence", "loss_risk", outcome="fate"),
    MESSAGES: _count_by_value("message", None, "class_name"),
    CONNECTIONS: _sum_bytes("kind IN ('rpc', 'binary_protocol')", _BYTE_COLUMNS),
    QUARANTINE: _sum_bytes("connection_id IS NOT NULL", {"quarantined": "size_bytes"}),
    **{table: _count_decoded(table, name) for name, table in _DECODED_TABLES.items()},
}
"""What counts the rows of each table."""
