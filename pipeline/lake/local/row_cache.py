"""Rows that are asked for again and again (``asking.Standing``), kept in files beside the tables.

What opens queues and lets them go is asked for by every run, of all dates: a few of a hundred calls, for which all of a
table would be looked through. A file holds such rows as they were in a version of their table, which its name tells;
what changed since is in the table's log, and little beside it. A file is a copy and never needed: where it is not there
or cannot be read, and where nothing tells what changed since, the table is asked.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.lake.queries import POST_IMAGES, CachedFilter
from pipeline.lake.schema_enforcement import arrow_schema, select_fields

_IS: Final = f"_change_type IN ({', '.join(map(repr, POST_IMAGES))})"


class CachedRows(NamedTuple):
    """Rows as they were in a version of their table."""

    rows: pa.Table
    version: int


def schema(standing: CachedFilter) -> pa.Schema:
    """Return the rows' columns."""
    return select_fields(arrow_schema(standing.table), standing.column_names)


def all_of_them(standing: CachedFilter) -> str:
    """Ask a table's rows, ``{rows}``, for them."""
    return f"SELECT {', '.join(standing.column_names)} FROM {{rows}} WHERE {standing.where}"


def what_changed(standing: CachedFilter) -> str:
    """Ask a feed, ``{feed}``, for what became last of each row that was, or is, one of them: ``_is`` where it is."""
    (key,) = standing.table.key
    last = f"row_number() OVER (PARTITION BY {key} ORDER BY _commit_version DESC, {_IS} DESC) = 1"
    return (
        f"SELECT {', '.join(standing.column_names)}, {_IS} AS _is FROM {{feed}} WHERE {standing.where} QUALIFY {last}"
    )


def brought_up_to_date(standing: CachedFilter, rows: pa.Table, changed: pa.Table) -> pa.Table:
    """Return rows as they are now, of those before and of what a feed answered (``what_changed``)."""
    (key,) = standing.table.key
    if not changed.num_rows:
        return rows
    stay = rows.filter(pc.invert(pc.is_in(rows[key], changed[key].combine_chunks())))
    came = changed.filter(changed["_is"]).select(standing.column_names).cast(schema(standing))
    return pa.concat_tables([stay, came])


class RowCacheFiles:
    """The files of a folder that hold some rows of one table; ``made`` is what tells the table from its like."""

    def __init__(self, folder: Path, standing: CachedFilter, made: str) -> None:
        told = "\n".join((made, standing.where, *standing.column_names))
        self._folder, self._schema = folder, schema(standing)
        self._name = f"{standing.table}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"

    def newest(self, version: int) -> CachedRows | None:
        """Return what is kept of the newest version up to one; None where there is nothing, or it cannot be read."""
        found = [(number, path) for number, path in self._files() if number <= version]
        if not found:
            return None
        number, path = max(found)
        try:
            rows = pq.read_table(path)
        except (OSError, pa.ArrowException):
            return None
        return CachedRows(rows, number) if rows.schema.equals(self._schema) else None

    def keep(self, kept: CachedRows, before: CachedRows | None) -> None:
        """Keep rows instead of those ``before``, which may be the same; in a folder that can only be read, do not."""
        others = [path for _, path in self._files()]
        path, temporary = self._path(kept.version), self._folder / f".{self._name}.{uuid4().hex}"
        with suppress(OSError):
            if before is not None and kept.rows is before.rows:
                self._path(before.version).replace(path)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(kept.rows, temporary, compression="zstd")
                temporary.replace(path)
            for other in [*others, *self._folder.glob(f".{self._name}.*")]:
                if other != path:
                    other.unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        return self._folder / f"{self._name}.{version}.parquet"

    def _files(self) -> list[tuple[int, Path]]:
        """Return the files with the versions that they are of."""
        found = [(path.suffixes[-2][1:], path) for path in self._folder.glob(f"{self._name}.*.parquet")]
        return [(int(number), path) for number, path in found if number.isdecimal()]
