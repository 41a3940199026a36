"""Data files of tables: Parquet, written by Arrow in this process or in tasks, and what a commit says of each.

They are written as Spark's session is told to write (``jobs/session.py``): small row groups, checksums of pages, no
statistics of stubs and no dictionary of values that hardly ever come twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake.lake_path import LakePath
from pipeline.lake.schema_enforcement import columns_with_statistics, conform_table
from pipeline.lake.storage.parquet import (
    BLOOM_ERROR_RATE,
    DISTINCT_VALUED_COLUMNS,
    GROUP_BYTES,
    LOOKED_UP_COLUMNS,
    MAX_ROW_GROUP_NAMES,
    MAX_ROW_GROUP_ROWS,
    STUB_COLUMNS,
)
from schemas.bronze import PENDING
from schemas.table import STRING, Table

MAX_FILE_BYTES: Final = 64 << 20  # a changed row makes its file be written again
MAX_FILE_ROWS: Final = MAX_ROW_GROUP_ROWS
_MAX_PENDING_FILE_ROWS: Final = 2_000  # each run changes what the captures before left open
# The pyarrow that a platform has may be older than 26, and write none: more is read then.
_WRITES_BLOOM_FILTERS: Final = int(pa.__version__.split(".")[0]) > 25
_MAX_TEXT_CHARS: Final = 32  # of a text in a file's statistics: of longer ones the beginning
_GREATEST_CHAR: Final = "\U0010ffff"


class DataFile(NamedTuple):
    """A data file: its name in the table's folder, its size in bytes, its rows, its statistics as the log has them."""

    name: str
    size: int
    row_count: int
    statistics_json: str


def max_file_rows(table: Table) -> int:
    """Return how many rows a file of a table may have, about."""
    return _MAX_PENDING_FILE_ROWS if table == PENDING else MAX_FILE_ROWS


def bloom_filter_values(table: Table) -> dict[str, int]:
    """Return the texts of a table that have Bloom filters, each with how many different ones a row group may have."""
    names = {name: MAX_ROW_GROUP_NAMES for name in table.looked_up_by if table.column(name).type == STRING}
    return names | {name: MAX_ROW_GROUP_ROWS for name in LOOKED_UP_COLUMNS if name in table.names}


def write_data_files(folder: LakePath, table: Table, rows: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write rows to files in a table's folder, as they come; return these, for the commit: no file without a row.

    event_date may be left out.
    """
    written, file, most_rows = list[DataFile](), None, max_file_rows(table)
    for group in _row_groups(table, rows, min(MAX_ROW_GROUP_ROWS, most_rows)):
        file = file or _DataFile(folder, table)
        file.write(group)
        if file.size >= MAX_FILE_BYTES or file.row_count >= most_rows:
            written.append(file.close())
            file = None
    return written if file is None else [*written, file.close()]


def _row_groups(table: Table, rows: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.Table]:
    """Yield rows as they are written at once: not more than so many, nor many more than ``GROUP_BYTES``."""
    waiting, row_count, size = list[pa.Table](), 0, 0
    for batch in rows:
        batch_size, begin = batch.get_total_buffer_size(), 0  # nbytes reads offsets that Spark does not send
        while begin < batch.num_rows:
            some = conform_table(table, pa.Table.from_batches([batch.slice(begin, most_rows - row_count)]))
            waiting.append(some)
            begin, row_count = begin + some.num_rows, row_count + some.num_rows
            size += batch_size * some.num_rows // batch.num_rows
            if row_count == most_rows or size >= GROUP_BYTES:
                yield pa.concat_tables(waiting)
                waiting, row_count, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


class _DataFile:
    """A file that is being written."""

    def __init__(self, folder: LakePath, table: Table) -> None:
        schema = table.schema()
        filters = {name: {"ndv": most, "fpp": BLOOM_ERROR_RATE} for name, most in bloom_filter_values(table).items()}
        self._name = f"part-00000-{uuid4()}-c000.zstd.parquet"
        self._sink = (folder / self._name).open_output()
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", write_page_checksum=True, store_schema=False,
            use_dictionary=[name for name in schema.names if name not in DISTINCT_VALUED_COLUMNS],
            write_statistics=[name for name in schema.names if name not in STUB_COLUMNS],
            **({"bloom_filter_options": filters} if _WRITES_BLOOM_FILTERS else {}),
        )  # fmt: skip
        self.row_count = 0
        self._table = table

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=MAX_ROW_GROUP_ROWS)
        self.row_count += rows.num_rows

    def close(self) -> DataFile:
        self._writer.close()
        size = self.size
        self._sink.close()
        statistics = _statistics(self._table, self._writer.writer.metadata)
        # Signs as they are: delta-rs takes some pairs of escapes (U+20000, U+10FFFF) for another sign.
        return DataFile(self._name, size, self.row_count, json.dumps(statistics, ensure_ascii=False))


def _statistics(table: Table, metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return the statistics of a file's columns, as the log has them (protocol of Delta: Per-file Statistics)."""
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    least, most, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for name in columns_with_statistics(table):
        groups = range(metadata.num_row_groups)
        parts = [metadata.row_group(group).column(places[name]).statistics for group in groups]
        nulls[name] = sum(part.null_count for part in parts)
        if any(part.num_values and not part.has_min_max for part in parts):  # a very long text has none
            continue
        try:
            bounds = [bound for part in parts if part.has_min_max for bound in (part.min, part.max)]
        except (ValueError, OverflowError):  # a time beyond the calendar
            continue
        if bounds:
            least[name], most[name] = _json_value(min(bounds)), _json_value(max(bounds), end=_GREATEST_CHAR)
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _json_value(value: Any, end: str = "") -> Any:  # noqa: ANN401 - whatever a column holds
    """Return a value as the log has it; ``end`` stands for the end of a long text."""
    if isinstance(value, str) and len(value) > _MAX_TEXT_CHARS:
        return value[:_MAX_TEXT_CHARS] + end
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value.isoformat() if isinstance(value, date) else value
