"""Parquet files for Delta tables, written by Arrow: rows as a table declares them, and what the log says of a file.

What Spark's session says of the tables' files (``jobs/session.py``) holds for these too: small row groups, checksums of
pages, no statistics of stubs and no dictionary of values that hardly ever come twice.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.lake.parquet_options import DISTINCT_VALUED_COLUMNS, GROUP_BYTES, MAX_ROW_GROUP_ROWS, STUB_COLUMNS
from pipeline.lake.schema_enforcement import arrow_schema, conform_table
from schemas.table import EVENT_DATE, Table

_MOST_LETTERS: Final = 32  # of a text in what the log says of a file; of a longer one nothing is said


class TableWriter:
    """One file of a table, written as rows come: it is the table's when that is committed."""

    def __init__(self, folder: Path, table: Table) -> None:
        """``folder`` is the table's."""
        self._table, self._schema = table, arrow_schema(table)
        self._path = folder / f"part-00000-{uuid4()}-c000.zstd.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waits = Counter(rows=0, bytes=0)
        self._rows = 0
        self._said = _Statistics(table)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, which are ``conformed``."""
        self._waiting.append(conform_table(self._table, pa.Table.from_batches([rows])))
        self._waits.update(rows=rows.num_rows, bytes=rows.nbytes)
        if self._waits["rows"] >= MAX_ROW_GROUP_ROWS or self._waits["bytes"] >= GROUP_BYTES:
            self._write()

    def close(self) -> dict[str, Any] | None:
        """Return what the log is to say of the file (``add``); None without a row, then there is none."""
        self._write()
        if self._writer is None:
            return None
        self._writer.close()
        return {
            "path": self._path.name, "partitionValues": {}, "size": self._path.stat().st_size, "dataChange": True,
            "modificationTime": time.time_ns() // 1_000_000, "stats": json.dumps(self._said.said(self._rows)),
        }  # fmt: skip

    def _write(self) -> None:
        """Write what waits, as row groups."""
        waiting = pa.concat_tables(self._waiting) if self._waiting else None
        self._waiting.clear()
        self._waits.update(rows=-self._waits["rows"], bytes=-self._waits["bytes"])
        if waiting is None or not waiting.num_rows:
            return
        if self._writer is None:
            names = [each.name for each in self._schema]
            self._writer = pq.ParquetWriter(
                self._path, self._schema, compression="zstd", write_page_checksum=True, store_schema=False,
                use_dictionary=[name for name in names if name not in DISTINCT_VALUED_COLUMNS],
                write_statistics=[name for name in names if name not in STUB_COLUMNS],
            )  # fmt: skip
        self._writer.write_table(waiting, row_group_size=MAX_ROW_GROUP_ROWS)
        self._rows += waiting.num_rows
        self._said.add(waiting)


class _Statistics:
    """What the log says of a file's columns (protocol of Delta: Per-file Statistics): those that are looked up."""

    def __init__(self, table: Table) -> None:
        self._names = columns_with_statistics(table)
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}
        self._nulls: Counter[str] = Counter(dict.fromkeys(self._names, 0))
        self._untold: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        """Take rows into account."""
        for name in self._names:
            column = rows[name]
            self._nulls[name] += column.null_count
            try:
                least, most = pc.min_max(column).as_py().values()
            except (ValueError, OverflowError):  # a time beyond the calendar
                self._untold.add(name)
                continue
            if least is None:
                continue
            if isinstance(most, str) and max(len(least), len(most)) > _MOST_LETTERS:
                self._untold.add(name)
            self._least[name] = min(least, self._least.get(name, least))
            self._most[name] = max(most, self._most.get(name, most))

    def said(self, rows: int) -> dict[str, Any]:
        """Return it, of a file of so many rows."""
        least, most = (
            {name: _plain(value) for name, value in found.items() if name not in self._untold}
            for found in (self._least, self._most)
        )
        return {"numRecords": rows, "minValues": least, "maxValues": most, "nullCount": dict(self._nulls)}


def columns_with_statistics(table: Table) -> list[str]:
    """Return the columns of a table of whose values the log says something."""
    dated = (EVENT_DATE,) if table.event_date_columns else ()
    return list(dict.fromkeys((*dated, *table.key, *table.event_date_columns)))


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a column holds
    """Return a value as the log has it: times to the millisecond, which readers take into account."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return value.isoformat() if isinstance(value, date) else value


def write(folder: Path, table: Table, rows: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Write rows to a file in a table's folder; return what the log is to say of it: of no row nothing."""
    writer = TableWriter(folder, table)
    for batch in rows:
        writer.add(batch)
    said = writer.close()
    return [] if said is None else [said]
