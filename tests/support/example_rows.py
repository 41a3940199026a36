"""The example rows of docs/reference/tables.md: docs/reference/example_rows.json, compared with rows of test lakes.

``UPDATE_EXAMPLE_ROWS=1`` writes the file instead of comparing: run the tests that call ``check`` with it, then
``make tables-doc``.
"""

import datetime as dt
import json
import os
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "example_rows.json"
LONGEST = 40
# What differs from run to run, or from machine to machine, and what the page shows in its place.
UNSTABLE = {
    "run_id": "0f8c1d7e9ab34c5d8e2f6a7b1c3d5e9f",
    "ingested_at": "2026-11-21 15:20:00.000000",
    "run_at": "2026-11-21 15:20:00.000000",
    "modified_at": "2026-11-21 15:19:58.000000",
    "result_key": "6b0c7f1de2a9438500d1c2b3a4f5e697",
    "quarantine_key": "c0d34e1fb855ffc2115b1175e448f332",  # of a line it is a hash of its file's path
}


def check(lake_rows, *, paths=()):
    """Compare ``{table: Arrow table of its rows}`` with the file: of each table the row with the fewest nulls.

    ``paths`` are (folder of the test, folder that the page shows) pairs.
    """
    given = {str(table): example(table, rows, paths) for table, rows in lake_rows.items()}
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if os.environ.get("UPDATE_EXAMPLE_ROWS"):
        text = json.dumps(dict(sorted((kept | given).items())), indent=1, ensure_ascii=False)
        FILE.write_text(text + "\n", encoding="utf-8")
        return
    assert {name: kept.get(name) for name in given} == given, "regenerate with UPDATE_EXAMPLE_ROWS=1"


def example(table, rows, paths=()):
    """The cells of the row with the fewest nulls, the smallest key among equals; cut to ``LONGEST`` characters."""
    assert rows.num_rows, f"{table} has no rows"
    row = min(rows.to_pylist(), key=lambda row: (sum(map(is_empty, row.values())), *(str(row[k]) for k in table.key)))
    cells = {name: _text(row.get(name), paths) for name in table.names}
    if "run_at" in cells:
        cells |= {"event_date": UNSTABLE["run_at"][:10]}
    return {name: _cut(UNSTABLE.get(name, cell)) for name, cell in cells.items()}


def is_empty(value):
    return value is None or (isinstance(value, (list, dict, str, bytes)) and not value)


def _text(value, paths):
    if isinstance(value, str):
        for folder, shown in paths:
            value = value.replace(str(folder), shown)
        return value
    if isinstance(value, (list, dict)):
        return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    return _plain(value) if isinstance(value, str) else _scalar(value)


def _scalar(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return value.hex() if isinstance(value, bytes) else str(value)


def _plain(value):
    """A nested value as JSON has it; entries of a map are in the order of their keys."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return {name: _plain(each) for name, each in sorted(value)}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else _scalar(value)


def _cut(text):
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
