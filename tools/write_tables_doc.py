"""Write the documentation page of the tables: columns from schemas/, an example row of each from example_rows.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from schemas.catalog import ALL_TABLES
from schemas.table import Table

EXAMPLE_ROWS: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "example_rows.json"
HEAD: Final = """\
# Tables

Made by `make tables-doc` from `schemas/`; change it there. The comments are in the Delta schema too (`DESCRIBE TABLE
EXTENDED`). Times are UTC with microseconds. Codes and numbers are as sent. What is not known is null. The words are
explained in the [glossary](../start/glossary.md).

The last column shows one row of each table, from the sample data, with values cut to 40 characters. Tests compare these
rows with what the pipeline computes (`tests/support/example_rows.py`).

| Table | One row is |
| --- | --- |
"""


def page() -> str:
    """Return the whole page."""
    examples = json.loads(EXAMPLE_ROWS.read_text(encoding="utf-8"))
    index = (f"| [`{table}`](#{str(table).replace('.', '')}) | {_cell(table.comment)} |\n" for table in ALL_TABLES)
    return HEAD + "".join(index) + "".join(_section(table, examples[str(table)]) for table in ALL_TABLES)


def _section(table: Table, example: Mapping[str, str]) -> str:
    key = ", ".join(f"`{name}`" for name in table.key)
    return f"\n### {table}\n\n{table.comment}\n\nKey: {key}.\n\n" + "".join(_rows(table, example))


def _rows(table: Table, example: Mapping[str, str]) -> Iterator[str]:
    yield "| Column | Type | Meaning | Example |\n| --- | --- | --- | --- |\n"
    for column in table.columns:
        value = example[column.name]
        shown = "" if value == "null" else f"`{_cell(value)}`" if value else '""'
        yield f"| `{column.name}` | `{column.sql_type}` | {_cell(column.comment)} | {shown} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
