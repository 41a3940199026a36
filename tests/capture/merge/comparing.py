"""Compares the bronze tables of two reads, and describes the differences.

``same`` compares a read of many files with that of the uncut file; columns with positions in files are left out.
``equal`` compares two reads of the same files in all columns.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping
from typing import Any

import pyarrow as pa

from pcapgen.reading import to_rows
from udfs.rows import RowDict

PLACES = frozenset(
    {"capture_id", "response_capture_id", "request_packet", "response_packet", "packet_number", "byte_offset",
     "quarantine_key", "sightings"}
)  # fmt: skip
OF_THE_RUN = frozenset({"run_id", "ingested_at"})
OF_THE_FILE = frozenset({"path", "other_paths", "modified_at"})  # files in memory are named by their turn
OF_FILES = frozenset({"capture_files", "pending"})
NEVER = frozenset({"pdus"})
FOUR_TUPLE = ("client_address", "client_port", "server_address", "server_port")
# Rows that differ are shown beside the row that has the same key, else beside one that is alike.
BESIDE = {
    "connections": (("connection_id",), FOUR_TUPLE),
    "rpc_binds": (("bind_key",), (*FOUR_TUPLE, "context_id", "bound_at"), (*FOUR_TUPLE, "context_id")),
    "rpc_calls": (
        ("call_key",), (*FOUR_TUPLE, "call_id", "request_at"), (*FOUR_TUPLE, "call_id", "response_at"),
        (*FOUR_TUPLE, "call_id"),
    ),
    "quarantine": (("connection_id", "seen_at", "reason"), ("connection_id", "reason"), ("seen_at",)),
    "capture_files": (("capture_id",),),
    "pending": (("pending_key",), ("kind", *FOUR_TUPLE, "call_id", "context_id", "sequence")),
}  # fmt: skip
MANY = 12  # lines for each table
Tables = Mapping[str, pa.Table]


def same(tables: Tables, others: Tables) -> None:
    """Fail with a description unless the facts are the same: all tables except those of files, without positions."""
    found = differences(tables, others, left_out=PLACES | OF_THE_RUN, not_compared=OF_FILES)
    assert not found, "\n" + "\n".join(found)


def equal(tables: Tables, others: Tables) -> None:
    """Fail with a description unless two reads of the same files are equal in all columns except those of the run."""
    found = differences(tables, others, left_out=OF_THE_RUN | OF_THE_FILE)
    assert not found, "\n" + "\n".join(found)


def differences(
    tables: Tables, others: Tables, *, left_out: Collection[str], not_compared: Collection[str] = ()
) -> list[str]:
    """Return lines that describe how two reads differ as multisets of rows; none if they are equal."""
    lines = []
    for name in sorted((tables.keys() | others.keys()) - NEVER - set(not_compared)):
        if name not in tables or name not in others:
            lines.append(f"{name}: a table of the {'first' if name in tables else 'second'} alone")
            continue
        lines += _table(name, tables[name], others[name], left_out)
    return lines


def _table(name: str, one: pa.Table, two: pa.Table, left_out: Collection[str]) -> list[str]:
    columns, other_columns = (set(table.column_names) - set(left_out) for table in (one, two))
    if columns != other_columns:
        return [f"{name}: columns of one alone: {sorted(columns ^ other_columns)}"]
    rows, others = to_rows(one.select(sorted(columns))), to_rows(two.select(sorted(columns)))
    alone, alone_there = _minus(rows, others), _minus(others, rows)
    lines = []
    for names in BESIDE.get(name, ()):
        pairs, alone, alone_there = _paired(alone, alone_there, names)
        lines += [_beside(name, names, row, other) for row, other in pairs]
    lines += [f"{name}: in the first alone: {_shown(row)}" for row in alone]
    lines += [f"{name}: in the second alone: {_shown(row)}" for row in alone_there]
    if lines:
        cut = [f"  ... and {len(lines) - MANY} more"] if len(lines) > MANY else []
        lines = [f"{name}: {len(rows)} rows against {len(others)}", *(f"  {line}" for line in lines[:MANY]), *cut]
    return lines


def _frozen(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple((name, _frozen(value[name])) for name in sorted(value))
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _key(row: RowDict) -> Hashable:
    return tuple((name, _frozen(row[name])) for name in sorted(row))


def _minus(rows: list[RowDict], others: list[RowDict]) -> list[RowDict]:
    """Return the rows that the others do not have."""
    there = Counter(map(_key, others))
    out = []
    for row in rows:
        key = _key(row)
        if there[key]:
            there[key] -= 1
        else:
            out.append(row)
    return out


def _paired(
    rows: list[RowDict], others: list[RowDict], names: tuple[str, ...]
) -> tuple[list[tuple[RowDict, RowDict]], list[RowDict], list[RowDict]]:
    """Pair rows that have the same values in some columns; return the pairs, and the rest of both."""
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, other in enumerate(others):
        places[tuple(_frozen(other.get(name)) for name in names)].append(index)
    pairs, left, used = [], [], set()
    for row in rows:
        found = places[tuple(_frozen(row.get(name)) for name in names)]
        if found:
            used.add(found[0])
            pairs.append((row, others[found.pop(0)]))
        else:
            left.append(row)
    return pairs, left, [other for index, other in enumerate(others) if index not in used]


def _beside(table: str, names: tuple[str, ...], row: RowDict, other: RowDict) -> str:
    what = ", ".join(f"{name}={_value(name, row.get(name))}" for name in names)
    changed = [
        f"{name}: {_value(name, row[name])} | {_value(name, other[name])}" for name in row if row[name] != other[name]
    ]
    return f"{table} {what}: " + "; ".join(changed)


def _shown(row: RowDict) -> str:
    return ", ".join(f"{name}={_value(name, value)}" for name, value in row.items() if value is not None)


def _value(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return "{" + _shown(value) + "}"
    if isinstance(value, list):
        return f"[{', '.join(_value(name, each) for each in value)}]"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes {value[:8].hex()}>"
    if isinstance(value, int) and name.endswith("_at"):
        return f"{dt.datetime.fromtimestamp(value / 1e6, dt.UTC):%H:%M:%S.%f}"
    if isinstance(value, str) and len(value) == 32:
        return value[:8]
    return repr(value)
