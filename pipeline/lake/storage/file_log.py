"""Logs of tables in folders that this process reaches, read by delta-rs, whoever wrote them: no Java."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.types import StructType

from pipeline.arrow_rows import times_to_us
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.duckdb_sql import DataFiles, FileDates
from pipeline.lake.queries.inputs import CHANGE_FIELDS, ChangeFeedError
from pipeline.lake.storage.log import TableCommit, TableLocations, main_parameter
from schemas.table import Table
from udfs.files.filesystems import s3_endpoint_and_region, split_s3_uri
from udfs.times import DAY_US

PROVENANCE_FIELD: Final = "userMetadata"  # of a commit, as Delta names it
ROWS_WRITTEN: Final = "rowsWritten"  # beside it in commits of delta-rs, which have no metrics of all writes
_DELETION_VECTORS: Final = "deletionVectors"  # the feature of tables that may have some


class _OpenTable(NamedTuple):
    """A table that was read before: its log is read on. Another table made in its folder has another ``identity``."""

    delta: DeltaTable
    identity: tuple[int, ...]


class _KnownFiles(NamedTuple):
    """The files of a version of a table that was read before: a run asks for them with each query."""

    delta: DeltaTable
    version: int
    files: DataFiles | None


class FileLog:
    """The logs of the tables below a folder."""

    def __init__(self, locations: TableLocations) -> None:
        self._locations = locations
        self._known: dict[LakePath, _OpenTable] = {}
        self._files: dict[LakePath, _KnownFiles] = {}
        self._locks: dict[LakePath, RLock] = {}
        self._lock = Lock()
        self._in_use: set[LakePath] = set()

    def folder(self, table: Table) -> LakePath:
        """Return a table's folder."""
        return LakePath(self._locations.path(table))

    @contextmanager
    def newest(self, table: Table, until: int | None = None) -> Iterator[DeltaTable]:
        """Yield a table's newest version, which no other thread uses meanwhile; TableNotFoundError without a table.

        ``until``: what is asked is of versions up to this one, so that the log is not read on where it is known so far.
        Whatever this thread asks of the table within the block is of the same version.
        """
        folder = self.folder(table)
        with self._lock:
            lock = self._locks.setdefault(folder, RLock())
        with lock:
            if folder in self._in_use:
                yield self._known[folder].delta
                return
            known, identity = self._known.get(folder), _identity(folder)
            if known is None or known.identity != identity:
                opened = DeltaTable(folder_uri(folder), storage_options=storage_options(folder))
                known = self._known[folder] = _OpenTable(opened, identity)
            elif until is None or known.delta.version() < until:
                known.delta.update_incremental()
            self._in_use.add(folder)
            try:
                yield known.delta
            finally:
                self._in_use.remove(folder)

    def columns(self, table: Table) -> Mapping[str, str] | None:
        """Return the types of the stored columns by name; None when there is no table."""
        folder = self.folder(table)
        if not folder.is_remote and not (folder / "_delta_log").is_folder():
            return None
        try:
            with self.newest(table) as delta:
                schema = StructType.fromJson(json.loads(delta.schema().to_json()))
        except TableNotFoundError:
            return None
        return {field.name: field.dataType.simpleString() for field in schema.fields}

    def newest_commit(self, table: Table) -> TableCommit:
        """Return the newest commit."""
        with self.newest(table) as delta:
            return _table_commit(delta.history(1)[0])

    def commits_since(self, table: Table, version: int) -> list[TableCommit]:
        """Return the commits after a version that the log still has, the oldest first."""
        with self.newest(table) as delta:
            commits = map(_table_commit, delta.history(max(delta.version() - version, 1)))
            return sorted((commit for commit in commits if commit.version > version), key=lambda each: each.version)

    def size_bytes(self, table: Table) -> int:
        """Return the size of a table's files, in bytes."""
        with self.newest(table) as delta:
            return sum(pa.table(delta.get_add_actions())["size_bytes"].to_pylist())

    def count_rows(self, table: Table) -> int | None:
        """Return the number of a table's rows; None if somebody wrote files without saying how many they have."""
        with self.newest(table) as delta:
            counts = pa.table(delta.get_add_actions())["num_records"]
            deleted = sum(_deleted_rows(delta).values())
        return None if counts.null_count else (pc.sum(counts).as_py() or 0) - deleted

    def files(self, table: Table) -> DataFiles | None:
        """Return the rows of the newest version as files; None where deletion vectors hide some rows of these."""
        folder = self.folder(table)
        with self.newest(table) as delta:
            known = self._files.get(folder)
            if known is None or known.delta is not delta or known.version != delta.version():
                known = self._files[folder] = _KnownFiles(delta, delta.version(), _files(table, folder, delta))
        return known.files

    def changes(self, table: Table, since: int, until: int, columns: Sequence[str]) -> pa.Table | None:
        """Return columns of the change feed; None of a table that may have deletion vectors: Spark applies these."""
        schema = pa.schema([*(table.schema().field(name) for name in columns), *CHANGE_FIELDS])
        try:
            with self.newest(table, until) as delta:
                if _DELETION_VECTORS in (delta.protocol().reader_features or ()):
                    return None
                feed = pa.RecordBatchReader.from_stream(delta.load_cdf(since + 1, until, columns=schema.names))
            return feed.read_all().select(schema.names).cast(schema)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise ChangeFeedError(f"{table}: what changed after version {since} is not known: {error}") from error

    def properties(self, table: Table) -> Mapping[str, str]:
        """Return the properties of a table that are set."""
        with self.newest(table) as delta:
            return dict(delta.metadata().configuration)

    def location(self, table: Table) -> str:
        """Return the URI of a table's folder."""
        return folder_uri(self.folder(table))


def _files(table: Table, folder: LakePath, delta: DeltaTable) -> DataFiles | None:
    """Return the rows of a version as files; None where deletion vectors hide some."""
    if _deleted_rows(delta):
        return None
    files = pa.table(delta.get_add_actions(flatten=True))
    paths = [folder / unquote(name) for name in files["path"].to_pylist()]
    dates = {path: found for path, found in zip(paths, _file_dates(table, files), strict=True) if found is not None}
    return DataFiles(table.schema(), dict(zip(paths, files["size_bytes"].to_pylist(), strict=True)), dates=dates)


def _file_dates(table: Table, files: pa.Table) -> Iterator[FileDates | None]:
    """Yield the dates of the rows of each file, by the statistics of the times that give them; None if not known.

    delta-rs does not read those of ``event_date`` in all tables. Times cut off to milliseconds keep their date.
    """
    row_counts = files["num_records"].to_pylist()
    bounds = [_time_bounds(files, name) for name in table.event_date_columns]
    for row_count, *times in zip(row_counts, *bounds, strict=True):
        yield _dates_of_times(row_count, times) if times and row_count is not None else None


def _time_bounds(files: pa.Table, name: str) -> list[tuple[int | None, int | None, int | None]]:
    """Return the first and the last day of a column in each file, and how many rows have none."""
    days = (
        [None if us is None else us // DAY_US for us in times_to_us(files[f"{end}.{name}"]).to_pylist()]
        if f"{end}.{name}" in files.column_names
        else [None] * files.num_rows
        for end in ("min", "max")
    )
    missing = f"null_count.{name}"
    nulls = files[missing].to_pylist() if missing in files.column_names else [None] * files.num_rows
    return list(zip(*days, nulls, strict=True))


def _dates_of_times(row_count: int, times: Sequence[tuple[int | None, int | None, int | None]]) -> FileDates | None:
    """Return the dates of rows, each of the first of its times that is not null; None if they are not known."""
    firsts, lasts = list[int](), list[int]()
    for first, last, null_count in times:
        if null_count == row_count:
            continue
        if first is None or last is None or null_count is None:
            return None
        firsts.append(first)
        lasts.append(last)
        if not null_count:
            return FileDates(min(firsts), max(lasts), has_undated=False)
    return FileDates(min(firsts, default=0), max(lasts, default=-1), has_undated=True)


def _deleted_rows(delta: DeltaTable) -> dict[str, int]:
    """Return how many rows the deletion vector of each file hides, of files that have one."""
    if _DELETION_VECTORS not in (delta.protocol().reader_features or ()):
        return {}
    vectors = pa.table(delta.deletion_vectors())
    kept = (pc.sum(pc.invert(each.values)).as_py() or 0 for each in vectors["selection_vector"])
    return dict(zip(vectors["filepath"].to_pylist(), kept, strict=True))


def folder_uri(folder: LakePath) -> str:
    """Return a folder as delta-rs takes it: a URI with its escapes."""
    if not folder.is_remote:
        return Path(folder.location).as_uri()
    return f"s3://{quote(split_s3_uri(folder.location)[1])}"


def storage_options(folder: LakePath) -> dict[str, str] | None:
    """Return how delta-rs reaches the object store that a folder is on; its credentials it takes from the environment.

    Commits are put only where there is none of their version yet.
    """
    if not folder.is_remote:
        return None
    endpoint, region = s3_endpoint_and_region(split_s3_uri(folder.location)[0])
    options = {"aws_region": region, "aws_conditional_put": "etag"}
    if endpoint is not None:
        options |= {"aws_endpoint": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()}
    return options


def _identity(folder: LakePath) -> tuple[int, ...]:
    """Return what another table, made in the same folder later, has otherwise.

    () where the first commit is gone, and on an object store, where it is not looked at: each look takes a while.
    """
    if folder.is_remote:
        return ()
    try:
        first = Path(folder.location, "_delta_log", f"{0:020}.json").stat()
    except OSError:
        return ()
    return first.st_ino, first.st_mtime_ns


def _table_commit(commit: Mapping[str, Any]) -> TableCommit:
    written = commit.get(ROWS_WRITTEN) or (commit.get("operationMetrics") or {}).get("numOutputRows") or 0
    parameter = main_parameter(commit.get("operationParameters"))
    return TableCommit(
        commit["version"], commit.get(PROVENANCE_FIELD), int(written), commit.get("operation"), parameter
    )
