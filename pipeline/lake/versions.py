"""What a run knows of the tables of its lake: which exist, their newest commits, who made these, and of what.

With exclusive access a table is looked up once; after that only commits of this run change it, or it is a conflict.
Where a look-up takes long (``trusts_versions``), a table is taken to be as the last run left it until this run reads
or writes it: a change by somebody else in a table that no step reads is noticed by the run that next reads it. Who only
reads takes all tables to be as that run left them (``trust_watermarks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from pipeline.concurrency import run_concurrently
from pipeline.lake.errors import ConflictError, SchemaError
from pipeline.lake.storage.log import UNKNOWN_VERSION, TableCommit, TableLog
from pipeline.lake.watermarks import WITHOUT_WATERMARK, Watermarks, replace_versions, resolve_newest
from schemas.table import Table


def versions_by_name(newest_commits: Mapping[Table, TableCommit], tables: Iterable[Table]) -> dict[str, int | None]:
    """Return the versions of tables by their names, None for a table that does not exist."""
    return {str(table): newest_commits[table].version if table in newest_commits else None for table in tables}


class Changers(NamedTuple):
    """Who changed a table since some version: this program, others. A log with gaps counts as others."""

    ours: bool
    others: bool


class Versions:
    """The tables of one lake as a run knows them. Threads may use it for different tables at once."""

    def __init__(
        self, log: TableLog, root: str, read_watermarks: Callable[[], Watermarks],
        count_rows: Callable[[Table], int], *, trusts_versions: bool,
    ) -> None:  # fmt: skip
        """``root`` names the lake in messages. ``read_watermarks`` and ``count_rows`` ask the tables."""
        self._log, self._root = log, root
        self._ask_watermarks, self._count_rows = read_watermarks, count_rows
        self.trusts_versions = trusts_versions
        self._is_exclusive = False
        self._check: Callable[[], None] = lambda: None  # raises where no commit may be made
        self._existing: set[str] = set()  # they do not go away under a run
        self._missing: set[str] = set()  # while nobody else creates any
        self._created: set[str] = set()  # by this run
        self.committed: set[str] = set()  # tables to which this run may have committed, with exclusive access
        self.narrow: dict[str, Table] = {}  # tables made before some of their columns were declared
        self._newest: dict[str, TableCommit] = {}  # with exclusive access, of tables that are looked up
        self._known: dict[str, int] = {}  # with exclusive access, the last version of a table that was seen here
        self.watermarks = Watermarks({}, {})  # with exclusive access, or of who only reads and trusts them
        self._noted: dict[str, tuple[int, str]] = {}  # versions of tables, and what these rest on since no row changed
        self._same: dict[tuple[str, int], int] = {}  # versions of tables, and later ones with the same rows

    # -- exclusive access ------------------------------------------------------------------------------------------

    @contextmanager
    def hold(self, check: Callable[[], None], *, is_unfinished: bool) -> Iterator[None]:
        """Hold exclusive access within the block; ``check`` runs before every commit.

        ``is_unfinished``: the last run did not get to its watermarks, so that these say nothing.
        """
        self._is_exclusive, self._check = True, check
        self.trusts_versions &= not is_unfinished
        for noted in (self._missing, self._created, self.committed, self._known):
            noted.clear()
        try:
            self.watermarks = self._ask_watermarks()
            yield
        finally:
            self._is_exclusive = False
            self._newest.clear()
            self.watermarks = Watermarks({}, {})

    def trust_watermarks(self) -> None:
        """Take tables to be as their watermarks say where look-ups take long: for who only reads, until a ``hold``."""
        if self.trusts_versions:
            self.watermarks = self._ask_watermarks()

    @property
    def is_exclusive(self) -> bool:
        """Whether nobody else may change the lake now."""
        return self._is_exclusive

    def check_commit(self, table: Table) -> None:
        """Raise where no commit may be made: the lease is lost, or somebody else changed the table since."""
        self._check()
        if self._is_trusted(table):
            self._look_up(table)
        known, is_new = self._known.get(str(table)), self.trusts_versions and str(table) in self._created
        if known is not None and not is_new and self._log.newest_commit(table).version != known:
            self._raise_foreign(table, known)

    def note_commit(self, table: Table, made: TableCommit | None) -> TableCommit | None:
        """Note that this run has committed to a table; ``made``: the commit, where it is known; return it.

        ConflictError if somebody else committed between the look-up and this commit.
        """
        name = str(table)
        self._existing.add(name)
        self._missing.discard(name)
        self.committed.add(name)
        if made is not None and made.version == UNKNOWN_VERSION:
            newest = self._look_up(table)
            is_made = newest.provenance_json == made.provenance_json
            made = newest._replace(rows_written=made.rows_written) if is_made else None
        if made is None:
            self._newest.pop(name, None)
        elif self._is_exclusive:
            known = self._known.get(name, made.version - 1)
            self._newest[name], self._known[name] = made, made.version
            if made.version > known + 1:
                self._raise_foreign(table, known)
        return made

    def note_created(self, table: Table) -> None:
        """Note that this run creates a table: where look-ups take long, nobody is taken to change it meanwhile."""
        self._created.add(str(table))

    def note_provenance(self, table: Table, provenance: str) -> None:
        """Note what the rows of a table rest on now."""
        if (newest := self.newest_commit(table)) is not None:
            self._noted[str(table)] = (newest.version, provenance)

    def _raise_foreign(self, table: Table, since: int) -> None:
        """Raise ConflictError if somebody else changed a table after a version."""
        foreign = next((each for each in self._commits_since(table, since) if each.is_foreign), None)
        if foreign is not None:
            raise _conflict(table, foreign)

    def note_same_versions(self, same: Mapping[Table, Iterable[int]]) -> None:
        """Note versions of tables that have the same rows as the newest ones: tables made of those are up to date."""
        for table, versions in same.items():
            newest = self.version(table)
            if newest is not None:
                self._same |= {(str(table), version): newest for version in versions if version != newest}

    # -- tables ----------------------------------------------------------------------------------------------------

    def exists(self, table: Table) -> bool:
        """Whether the table has been created."""
        name = str(table)
        if name in self._existing or self._is_trusted(table):
            return True
        if (self._is_exclusive and name in self._missing) or self._has_watermarks_to_trust(table):
            return False
        stored = self._log.columns(table)
        if stored is None:
            self._missing.add(name)
            return False
        self._existing.add(name)
        self._check_schema(table, stored)
        return True

    def is_looked_up(self, table: Table) -> bool:
        """Whether this run has seen the table itself, and not only its watermark; only with exclusive access."""
        return str(table) in self._known

    def _check_schema(self, table: Table, stored: Mapping[str, str]) -> None:
        """Compare a stored table with its declaration; a difference other than missing columns is a SchemaError.

        Missing columns are added by runs; without exclusive access they read as null.
        """
        declared = {column.name: column.sql_type for column in table.columns}
        unknown = sorted(stored.keys() - declared.keys())
        differs = [
            f"{name} is {kind}, not {declared[name]}"
            for name, kind in stored.items()
            if name in declared and kind != declared[name]
        ]
        if unknown:
            raise SchemaError(
                f"{table} in {self._root} was written by a later version of this program "
                f"(columns {', '.join(unknown)}): run that version"
            )
        if differs:
            raise SchemaError(
                f"{table} in {self._root} was written by a version whose tables cannot be taken over"
                f" ({'; '.join(differs)}): have run_all read the captures into a new lake"
            )
        if declared.keys() - stored.keys():
            self.narrow[str(table)] = table

    # -- versions --------------------------------------------------------------------------------------------------

    def version(self, table: Table) -> int | None:
        """Return the table's version, from 0; None when it does not exist."""
        if not self._is_exclusive:  # what its watermark says is not needed
            return self._log.newest_commit(table).version if self.exists(table) else None
        newest = self.newest_commit(table)
        return None if newest is None else newest.version

    def version_to_read(self, table: Table) -> int:
        """Return the version of a table that is about to be read: it is looked up, also where watermarks are trusted.

        ConflictError if somebody else has changed it since a step was told another version.
        """
        if table in WITHOUT_WATERMARK if self._is_exclusive else self.trusts_versions:
            return 0  # only this run changes it; or the rows of the first time will do
        if self._is_trusted(table):
            self._look_up(table)
        newest = self.version(table)
        return -1 if newest is None else newest

    def newest_commit(self, table: Table) -> TableCommit | None:
        """Return the table as it is now: its version and provenance; None when there is no table."""
        if not self.exists(table):
            return None
        known = self._newest.get(str(table))
        if known is None and self._is_trusted(table):
            mark = self.watermarks.ends[str(table)]
            known = TableCommit(mark.version, mark.provenance_json)
        if known is None:
            known = self._look_up(table)
        version, provenance = self._noted.get(str(table), (None, None))
        if version == known.version:
            known = known._replace(provenance_json=provenance)
        return self._with_later_versions(known)

    def newest_commits(self, *tables: Table) -> dict[Table, TableCommit]:
        """Return the snapshot of each table, read concurrently; tables that do not exist are left out."""
        found = run_concurrently({table: partial(self.newest_commit, table) for table in tables})
        # Only now it is known of each of them which earlier versions have the same rows.
        return {table: self._with_later_versions(commit) for table, commit in found.items() if commit is not None}

    def _is_trusted(self, table: Table) -> bool:
        """Whether a table is taken to be as its watermark says: it was not looked up yet."""
        return self._has_watermarks_to_trust(table) and str(table) in self.watermarks.ends

    def _has_watermarks_to_trust(self, table: Table) -> bool:
        """Whether the watermarks are taken to tell of a table: of one that does not exist there is none."""
        is_told = table not in WITHOUT_WATERMARK and bool(self.watermarks.ends) and str(table) not in self._known
        return self.trusts_versions and is_told

    def _with_later_versions(self, newest_commit: TableCommit) -> TableCommit:
        """Return a snapshot whose provenance names the newest versions with the same rows, as far as they are known."""
        return newest_commit._replace(provenance_json=replace_versions(newest_commit.provenance_json, self._same))

    def _look_up(self, table: Table) -> TableCommit:
        """Return the newest commit of a table, with the provenance of its rows, whoever made the commit."""
        name, was_trusted = str(table), self._is_trusted(table)
        newest = self._log.newest_commit(table)
        if table not in WITHOUT_WATERMARK:
            newest = self._resolved(table, newest, was_trusted=was_trusted)
        if self._is_exclusive:
            if newest.version > self._known.get(name, newest.version) + 1:
                self._raise_foreign(table, self._known[name])
            self._newest[name], self._known[name] = newest, newest.version
        return newest

    def _resolved(self, table: Table, newest: TableCommit, *, was_trusted: bool) -> TableCommit:
        """Return a newest commit with the provenance of the table's rows."""
        name = str(table)
        mark = (watermarks := self.kept_watermarks()).ends.get(name)
        if mark is not None and mark.version == newest.version:
            return newest._replace(provenance_json=mark.provenance_json)
        newest = watermarks.of_commit(name, newest)
        if newest.is_ours:
            return newest
        commits = self._commits_since(table, -1 if mark is None else mark.version)
        resolved = resolve_newest(newest, mark, commits, partial(self._count_rows, table))
        if self._is_exclusive:
            if resolved.foreign is not None and (name in self._known or was_trusted):
                raise _conflict(table, resolved.foreign)
            self._same |= {(name, version): newest.version for version in resolved.same_versions}
        return resolved.newest_commit

    def _commits_since(self, table: Table, version: int) -> list[TableCommit]:
        """Return the commits after a version that the log still has, the oldest first, as announced ones were."""
        of_commit = partial(self.kept_watermarks().of_commit, str(table))
        return [*map(of_commit, self._log.commits_since(table, version))]

    def kept_watermarks(self) -> Watermarks:
        """Return what ``bronze.watermarks`` holds."""
        return self.watermarks if self._is_exclusive else self._ask_watermarks()

    def rows_written(self, table: Table) -> int:
        """Return how many rows the table's last commit wrote."""
        newest = self.newest_commit(table)
        return 0 if newest is None else newest.rows_written

    def provenance_json(self, table: Table) -> str | None:
        """Return the provenance in the table's last commit as text; None if it has none, or there is no table."""
        newest = self.newest_commit(table)
        return None if newest is None else newest.provenance_json

    def provenance(self, table: Table) -> dict[str, Any]:
        """Return the provenance in the table's last commit; empty if it has none, or no JSON."""
        return TableCommit(0, self.provenance_json(table)).provenance()

    def provenance_since(self, table: Table, since: int) -> dict[int, str | None]:
        """Return the provenance of each commit after a version, by version; maintenance is left out."""
        newest = self.version(table)
        if newest is None or newest <= since:
            return {}
        commits = self._commits_since(table, since)
        return {commit.version: commit.provenance_json for commit in commits if not commit.is_maintenance}

    def changed_since(self, table: Table, version: int | None) -> Changers:
        """Return who changed a table after a version; None: after it was made."""
        since = -1 if version is None else version
        newest = self.version_to_read(table) if self.exists(table) else None
        if newest is None or newest <= since:
            return Changers(ours=False, others=False)
        commits = self._commits_since(table, since)
        return Changers(
            ours=any(commit.is_ours for commit in commits),
            others=len(commits) < newest - since or any(commit.is_foreign for commit in commits),
        )


def _conflict(table: Table, foreign: TableCommit) -> ConflictError:
    what = f"version {foreign.version}, {foreign.operation}"
    return ConflictError(f"{table}: somebody else changed it while this run worked ({what})")
