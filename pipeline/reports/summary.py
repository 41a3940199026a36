"""What a lake holds, on one screen: files, packets, calls, attempts, messages read, and what became of every byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipeline.lake.concurrency import gather
from pipeline.lake.lake import Lake
from pipeline.lake.recovery import Runs
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.eod import EOD_TRANSFERS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.table import Table
from udfs.dcerpc.interfaces import BY_NAME

# In the order in which they are read; what the tables add later comes after, by name.
CALL_OUTCOMES: Final = ("ok", "unbound", "encrypted", "fault", "no_response", "damaged", "no_request")
ATTEMPT_OUTCOMES: Final = (
    "acked", "nacked", "rejected", "peeked", "empty", "timed_out", "cancelled", "failed", "expired", "rundown",
    "in_flight", "unknown",
)  # fmt: skip
FATES: Final = ("consumed", "returned", "rejected", "held", "moved", "purged", "unknown")
LOSS_RISKS: Final = ("read_twice", "ack_failed", "ack_unanswered", "reader_lost", "poison")
TRANSFER_CONDITIONS: Final = ("idle", "flowing", "slow", "resending", "stalled", "reset")
_PACKETS: Final = {
    "packets": "packets",
    "packets_used": "of MSMQ RPC",
    "packets_binary_protocol": "of TCP 1801",
    "packets_other": "not ours",
    "packets_damaged": "damaged",
    "packets_dropped": "lost by the capturing machine",
}
_BYTES: Final = {
    "payload": "payload bytes captured on MSMQ connections",
    "quarantined": "of them in quarantine",
    "missing": "bytes that no capture holds",
    "retransmitted": "bytes seen again",
}


_DECODED: Final = {
    "COMQC calls": COMQC_CALLS,
    "queue snapshots": QUEUE_SNAPSHOTS,
    "machine snapshots": MACHINE_SNAPSHOTS,
    "management calls": MANAGEMENT_CALLS,
    "client calls": CLIENT_CALLS,
}
_COUNTED_AS: Final = 2  # another number when something else is counted: what was kept is passed over


class Count(NamedTuple):
    """One number of the summary.

    ``part`` is "file", "packet", "byte", "call", "message", "decoded", "attempt", "sequence" or "transfer"; ``name``
    and ``detail`` say what is counted there (status; measure; interface and opnum; class; kind of row; protocol; risk),
    ``outcome`` how it went.
    """

    part: str
    name: str
    detail: str
    outcome: str
    number: int


_Counting = Callable[[Lake], list[Count]]
_Kept = tuple[int | None, list[Count]]  # a table's version, and what was counted in it


def format_summary(counts: Iterable[Count], run: Mapping[str, object] | None = None) -> str:
    """Return the summary as text, one line per thing counted; ``run`` are facts of the run, shown as given.

    The order of ``counts`` does not matter; what is not counted is not shown, but for the totals.
    """
    found = list(counts)
    lines: list[str] = []
    if run:
        lines.append("run       " + ", ".join(f"{name} {value}" for name, value in run.items()))
    lines += _file_lines(found)
    lines += _call_lines(found)
    lines += _decoded_lines(found)
    lines += _attempt_lines(found)
    lines += _sequence_lines(found)
    lines += _transfer_lines(found)
    lines += _byte_lines(found)
    return "\n".join(lines)


def _number(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _by_outcome(counts: Iterable[Count], order: tuple[str, ...]) -> str:
    """Return "ok 5, fault 1", known outcomes first, in their order."""
    totals: dict[str, int] = {}
    for count in counts:
        totals[count.outcome] = totals.get(count.outcome, 0) + count.number
    ranked = sorted(totals, key=lambda name: (order.index(name) if name in order else len(order), name))
    return ", ".join(f"{name} {_number(totals[name])}" for name in ranked)


def _total(counts: Iterable[Count]) -> int:
    return sum(count.number for count in counts)


def _file_lines(found: list[Count]) -> list[str]:
    files = [count for count in found if count.part == "file"]
    packets = {count.name: count.number for count in found if count.part == "packet"}
    statuses = ", ".join(f"{c.name} {_number(c.number)}" for c in sorted(files))
    lines = [f"files     {_number(_total(files))}" + (f": {statuses}" if files else "")]
    shown = [f"{_number(packets[name])} {text}" for name, text in _PACKETS.items() if packets.get(name)]
    lines.append("packets   " + (f"{', '.join(shown[1:])}; {shown[0]} in all" if len(shown) > 1 else "0"))
    return lines


def _call_lines(found: list[Count]) -> list[str]:
    calls = [count for count in found if count.part == "call"]
    lines = [f"calls     {_number(_total(calls))}"]
    for interface in sorted({count.name for count in calls}):
        of_interface = [count for count in calls if count.name == interface]
        lines.append(f"  {interface:<40} {_number(_total(of_interface)):>10}")
        for opnum in sorted({count.detail for count in of_interface}, key=lambda text: (len(text), text)):
            these = [count for count in of_interface if count.detail == opnum]
            outcomes = _by_outcome(these, CALL_OUTCOMES)
            lines.append(f"    {_method(interface, opnum):<38} {_number(_total(these)):>10}  {outcomes}")
    return lines


def _method(interface: str, opnum: str) -> str:
    known = BY_NAME.get(interface)
    if not opnum:
        return "(opnum not seen)"
    number = int(opnum)
    return known.methods[number] if known is not None and number < len(known.methods) else f"opnum {number}"


def _decoded_lines(found: list[Count]) -> list[str]:
    """What was decoded beside remote reads; nothing of what there is none."""
    classes = {count.detail or "(class not seen)": count.number for count in found if count.part == "message"}
    ranked = sorted(classes, key=lambda name: (-classes[name], name))
    shown = ", ".join(f"{name} {_number(classes[name])}" for name in ranked)
    lines = [f"messages  {_number(sum(classes.values()))} seen: {shown}"] if classes else []
    others = {count.name: count.number for count in found if count.part == "decoded"}
    shown = ", ".join(f"{_number(others[name])} {name}" for name in _DECODED if others.get(name))
    return [*lines, f"decoded   {shown}"] if shown else lines


def _attempt_lines(found: list[Count]) -> list[str]:
    attempts = [count for count in found if count.part == "attempt"]
    lines = [f"attempts  {_number(_total(attempts))} to receive or peek"]
    for protocol in sorted({count.name for count in attempts}):
        these = [count for count in attempts if count.name == protocol]
        lines.append(f"  {protocol:<40} {_number(_total(these)):>10}  {_by_outcome(these, ATTEMPT_OUTCOMES)}")
    return lines


def _sequence_lines(found: list[Count]) -> list[str]:
    """What became of the messages that were received; nothing where there were none."""
    read = [count for count in found if count.part == "sequence" and count.number]
    lines = [f"read      {_number(_total(read))} messages: {_by_outcome(read, FATES)}"] if read else []
    risks: dict[str, int] = {}
    for count in read:
        if count.name:
            risks[count.name] = risks.get(count.name, 0) + count.number
    ranked = sorted(risks, key=lambda name: (LOSS_RISKS.index(name) if name in LOSS_RISKS else len(LOSS_RISKS), name))
    shown = ", ".join(f"{name} {_number(risks[name])}" for name in ranked)
    return [*lines, f"at risk   {_number(sum(risks.values()))} of them: {shown}"] if risks else lines


def _transfer_lines(found: list[Count]) -> list[str]:
    """What outgoing transactional queues were found to do; nothing where none was observed."""
    transfers = [c._replace(outcome=c.outcome or "not told") for c in found if c.part == "transfer"]
    if not transfers:
        return []
    return [f"transfers {_number(_total(transfers))} observations: {_by_outcome(transfers, TRANSFER_CONDITIONS)}"]


def _byte_lines(found: list[Count]) -> list[str]:
    counted = {count.name: count.number for count in found if count.part == "byte"}
    captured = counted.get("payload", 0)
    quarantined = counted.get("quarantined", 0)
    share = f" ({(captured - quarantined) / captured:.2%} in PDUs)" if captured else ""
    lines = []
    for place, (name, text) in enumerate(_BYTES.items()):
        head = "bytes     " if place == 0 else "          "
        lines.append(f"{head}{_number(counted.get(name, 0)):>14} {text}{share if place == 0 else ''}")
    return lines


def console_summary(lake: Lake, run: Mapping[str, object] | None = None) -> str:
    """Return the summary of everything in ``lake``; ``run`` are facts of the run that is ending."""
    return format_summary(counts_of(lake), run)


def counts_of(lake: Lake) -> list[Count]:
    """Count what the lake holds, each table looked through once, at its small columns (no stub is read).

    What was counted is kept beside the lake's tables, with each table's version: a table is counted when it changed.
    """
    kept = Runs.of(lake).root / "summary"
    before, newest = _read_kept(kept), lake.newest(*_COUNTED)

    def count(table: Table) -> _Kept:
        known, version = before.get(str(table)), newest[table].version
        return known if known is not None and known[0] == version else (version, _COUNTED[table](lake))

    now = {str(table): counted for table, counted in gather({t: partial(count, t) for t in newest}).items()}
    if now != before:
        with suppress(OSError):  # of a lake that may only be read all is counted each time
            _keep(kept, now)
    return [count for _, counts in now.values() for count in counts]


def _read_kept(path: Path) -> dict[str, _Kept]:
    """Return what was counted before; nothing when that cannot be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        tables = kept["tables"].items() if kept["counted_as"] == _COUNTED_AS else ()
        return {name: (version, [Count(*each) for each in counts]) for name, (version, counts) in tables}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _keep(path: Path, counted: Mapping[str, _Kept]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(".summary")
    temporary.write_text(json.dumps({"counted_as": _COUNTED_AS, "tables": counted}), encoding="utf-8")
    temporary.replace(path)


def _files(lake: Lake) -> list[Count]:
    rows = _rows_of(
        lake, CAPTURE_FILES, ["coalesce(status, '') AS status", "count(*) AS files", *_sums({n: n for n in _PACKETS})]
    )
    packets = {name: sum(row[name] for row in rows) for name in _PACKETS}
    files = [Count("file", row["status"], "", "", row["files"]) for row in rows]
    return files + [Count("packet", name, "", "", number) for name, number in packets.items()]


def _bytes(table: Table, where: str, columns: Mapping[str, str]) -> _Counting:
    """Return what sums columns of rows."""

    def counted(lake: Lake) -> list[Count]:
        (row,) = _rows_of(lake, table, _sums(columns), where)
        return [Count("byte", name, "", "", row[name]) for name in columns]

    return counted


def _values(
    table: Table, part: str, name: str | None, detail: str | None = None, outcome: str | None = None
) -> _Counting:
    """Return what counts the rows of each value of up to three columns."""
    named = [f"{_text(column)} AS {alias}" for column, alias in ((name, "n"), (detail, "d"), (outcome, "o"))]

    def counted(lake: Lake) -> list[Count]:
        rows = _rows_of(lake, table, [*named, "count(*) AS number"])
        return [Count(part, *row.values()) for row in rows]

    return counted


def _number_of(table: Table, name: str) -> _Counting:
    """Return what counts all rows."""
    return lambda lake: [Count("decoded", name, "", "", _rows_of(lake, table, ["count(*) AS number"])[0]["number"])]


def _rows_of(lake: Lake, table: Table, columns: Iterable[str], where: str = "TRUE") -> list[dict[str, Any]]:
    sql = f"SELECT {', '.join(columns)} FROM {{rows}} WHERE {where} GROUP BY ALL"
    rows: list[dict[str, Any]] = lake.query(sql, rows=table).to_pylist()
    return rows


def _text(column: str | None) -> str:
    return "''" if column is None else f"coalesce(CAST({column} AS string), '')"


def _sums(columns: Mapping[str, str]) -> list[str]:
    """Return the sums of columns, by names."""
    return [f"CAST(coalesce(sum({column}), 0) AS bigint) AS {name}" for name, column in columns.items()]


_PAYLOAD: Final = {
    "payload": "client_bytes + server_bytes",
    "missing": "missing_bytes",
    "retransmitted": "retransmitted_bytes",
}
_COUNTED: Final[dict[Table, _Counting]] = {
    CAPTURE_FILES: _files,
    RPC_CALLS: _values(RPC_CALLS, "call", "interface_name", "opnum", "outcome"),
    RECEIVE_ATTEMPTS: _values(RECEIVE_ATTEMPTS, "attempt", "protocol", outcome="outcome"),
    ACK_SEQUENCES: _values(ACK_SEQUENCES, "sequence", "loss_risk", outcome="fate"),
    MESSAGES: _values(MESSAGES, "message", None, "class_name"),
    EOD_TRANSFERS: _values(EOD_TRANSFERS, "transfer", None, outcome="condition"),
    CONNECTIONS: _bytes(CONNECTIONS, "kind = 'rpc'", _PAYLOAD),
    QUARANTINE: _bytes(QUARANTINE, "connection_id IS NOT NULL", {"quarantined": "size_bytes"}),
    **{table: _number_of(table, name) for name, table in _DECODED.items()},
}
"""What is counted of each table."""
