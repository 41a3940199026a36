"""An incremental update over Arrow tables: the interfaces of ``Lake`` and ``IncrementalUpdate`` that updates use."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pyarrow as pa

from engines import shared_sql
from pipeline.arrow_rows import rows_to_table
from pipeline.lake.incremental import IncrementalUpdate
from pipeline.lake.queries.inputs import QueryAnswers, values_array
from schemas.table import Table


def row(table, **values):
    """A row of a table; columns that are not given are null, lists empty."""
    lists = {"errors", "missing", "evidence"}
    empty = {
        column.name: [] if column.name in lists and pa.types.is_list(column.type) else None for column in table.columns
    }
    return empty | values


@dataclass
class InMemoryUpdate:
    """Rows of the input tables, of which runs see what changed, and of the target."""

    target: Table
    table = SimpleNamespace(inputs=())
    inputs: dict = field(default_factory=dict)
    changed: dict = field(default_factory=dict)  # what a run added and removed, by table
    rows: pa.Table = None
    provenance_before: dict = field(default_factory=dict)
    provenance_now: dict = field(default_factory=dict)
    read: list = field(default_factory=list)  # the number of rows that each query returned

    def __post_init__(self):
        self.rows = self.target.schema().empty_table()

    @property
    def lake(self):
        return self

    @property
    def feeds(self):
        return SimpleNamespace(rows=self.changes)

    def begin(self, new, gone=(), **provenance):
        """Add and remove rows of the inputs, as pairs of table and row, and begin an update."""
        self.changed = {}
        for kind, pairs in (("delete", gone), ("insert", new)):
            for table, each in pairs:
                self.changed.setdefault(table, []).append((kind, each))
                held = self.inputs.setdefault(table, [])
                held.append(each) if kind == "insert" else held.remove(each)
        self.provenance_before, self.provenance_now = self.provenance_now, provenance
        self.read = []
        return self

    def query(self, sql, /, **of):
        found = shared_sql().answer(sql, {name: self._input(each) for name, each in of.items()})
        self.read.append(found.num_rows)
        return found

    query_shared = query

    def query_at_most(self, sql, limit, /, **of):
        found = self.query(sql, **of)
        return found if found.num_rows <= limit else None

    @contextmanager
    def map_groups(self, query):
        parts = {name: self.query(part.sql, **part.inputs) for name, part in query.parts.items()}
        yield pa.concat_tables(query.function(QueryAnswers(parts)))

    def map_few_groups(self, query):
        with self.map_groups(query) as rows:
            return rows

    def _input(self, source):
        if isinstance(source, Table):
            if source == self.target:
                return self.rows
            return rows_to_table(self.inputs.get(source, []), source.schema())
        return source if isinstance(source, pa.Table) else values_array(source)

    def select(self, table, where, columns=(), /, **of):
        found = self.query(f"SELECT {', '.join(columns or table.names)} FROM {{rows}} WHERE {where}", rows=table, **of)
        schema = table.schema()
        return found.cast(pa.schema([schema.field(name) for name in found.column_names]))

    recompute, kept, keep = IncrementalUpdate.recompute, IncrementalUpdate.kept, IncrementalUpdate.keep

    @property
    def same_code_and_settings(self):
        return bool(self.provenance_before)

    def changes(self, table, sql, **of):
        return self.all_changed_rows([(table, sql)], **of).to_pylist()

    def all_changed_rows(self, queries, **of):
        return pa.concat_tables([self.query(sql, feed=self._feed(table), **of) for table, sql in queries])

    def _feed(self, table):
        changed = self.changed.get(table, [])
        feed = rows_to_table([each for _, each in changed], table.schema())
        feed = feed.append_column("_change_type", pa.array([kind for kind, _ in changed], pa.string()))
        return feed.append_column("_commit_version", pa.array([1] * len(changed), pa.int64()))

    def renew_versions(self, *tables):
        pass

    def note_provenance(self):
        return 0

    def replace_all(self, rows):
        self.rows = rows
        return rows.num_rows

    def replace_changed(self, rows, current):
        key = self.target.key[0]
        gone = set(current[key].to_pylist())
        kept = self.rows.filter(pa.array([each not in gone for each in self.rows[key].to_pylist()], pa.bool_()))
        self.rows = pa.concat_tables([kept, rows])
        keys = self.rows[key].to_pylist()
        assert len(set(keys)) == len(keys)
        return rows.num_rows

    def by_key(self):
        """The rows of the target by key."""
        return {each[self.target.key[0]]: each for each in self.rows.drop_columns(["run_id"]).to_pylist()}
