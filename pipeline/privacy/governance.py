"""The SQL of Unity Catalog that tags private columns, makes views without them, and says who may read what.

Tags, privileges and owners belong to the catalog: no statement here changes a table of Delta, or what its rows are for
any reader. Masks, row filters and keys would (``docs/guides/privacy.md``).

Syntax: docs.databricks.com, "SQL language reference": CREATE SCHEMA, COMMENT ON, CREATE VIEW, "ALTER TABLE ... COLUMN
clause" (SET TAGS), GRANT, ALTER TABLE and ALTER VIEW (SET OWNER TO), "Information schema".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from pipeline.privacy.redacted_columns import private_content
from schemas.table import Column, Table, literal, quoted

PERSONAL: Final = "personal"
BODY: Final = "body"

# Something that is in effect in a catalog: its kind, and its values.
Effect = tuple[str | None, ...]
# Where the information schema has each kind: the relation and its columns, the first is the schema.
_IN_EFFECT: Final[Mapping[str, tuple[str, ...]]] = {
    "schema": ("schemata", "schema_name"),
    "schema comment": ("schemata", "schema_name", "comment"),
    "view": ("views", "table_schema", "table_name", "view_definition"),
    "view comment": ("tables", "table_schema", "table_name", "comment"),
    "column comment": ("columns", "table_schema", "table_name", "column_name", "comment"),
    "tag": ("column_tags", "schema_name", "table_name", "column_name", "tag_name", "tag_value"),
    "privilege": ("schema_privileges", "schema_name", "grantee", "replace(privilege_type, '_', ' ')"),
    "owner": ("tables", "table_schema", "table_name", "table_owner"),
}
LAYER_COMMENTS: Final = {  # of the schemas; ``databricks.yml`` has the same
    "bronze": "Message Queuing: what captures and snapshots contain, as read",
    "silver": "Message Queuing: decoded calls, messages, sessions and snapshots",
    "gold": "Message Queuing: what happened to messages and queues",
}
_VIEWS_COMMENT: Final = "Message Queuing: views of all tables, without columns that hold content of messages"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of SQL, without the semicolon, and what is in effect after it."""

    sql: str
    effects: frozenset[Effect]


@dataclass(frozen=True, slots=True)
class Governance:
    """Who may read the tables of a lake in a catalog, and what the views leave out.

    ``view_schema``: schema of the views. ``views_without``: kinds of names (``PSEUDONYM_KINDS``) that they leave out.
    ``tag``: name of the tag of private columns. ``owner`` of tables and views; ``readers`` may read the tables,
    ``view_readers`` the views alone. All are names as they are, without quotes.
    """

    catalog: str
    prefix: str
    view_schema: str
    views_without: Set[str]
    tag: str
    owner: str | None = None
    readers: tuple[str, ...] = ()
    view_readers: tuple[str, ...] = ()

    def statements(self, tables: Mapping[Table, Collection[str]]) -> Iterator[Statement]:
        """Yield the statements for tables with the names of their stored columns, in the order of execution.

        Nobody may read a view before it is made, and owners change last: who gave a table away may not alter it.
        KeyError for a declared column of which it is not declared what it holds.
        """
        columns = {table: [each for each in table.columns if each.name in names] for table, names in tables.items()}
        layers = dict.fromkeys(table.layer for table in tables)
        for layer in layers:
            yield self._comment_on_schema(self.prefix + layer, LAYER_COMMENTS[layer])
        yield self._create_view_schema()
        without = ", ".join(sorted(self.views_without))
        yield self._comment_on_schema(self.view_schema, _VIEWS_COMMENT + (without and f", {without}"))
        for table in tables:
            yield self._create_view(table, columns[table])
        for table in tables:
            for column in columns[table]:
                if (value := tag_value(table, column)) is not None:
                    yield self._set_tag(table, column.name, value)
        for reader in self.readers:
            for layer in layers:
                yield self._grant_reading(self.prefix + layer, reader)
        for reader in self.view_readers:
            yield self._grant_reading(self.view_schema, reader)
        if self.owner is not None:
            for table in tables:
                yield self._set_owner("TABLE", self.prefix + table.layer, table.name, self.owner)
                yield self._set_owner("VIEW", self.view_schema, view_name(table), self.owner)

    def in_effect_queries(self, layers: Collection[str]) -> list[str]:
        """Return queries of the information schema whose rows are what is in effect, of the schemas of these layers."""
        schemas = [self.view_schema, *(self.prefix + layer for layer in layers)]
        names = ", ".join(literal(_stored(schema)) for schema in schemas)
        return [
            f"SELECT {literal(kind)}, {', '.join(columns)} FROM {self._sql_name('information_schema', relation)} "
            f"WHERE {columns[0]} IN ({names})"
            for kind, (relation, *columns) in _IN_EFFECT.items()
        ]

    def is_in_views(self, table: Table, column: Column) -> bool:
        """Whether the view of a table has a column."""
        held = private_content(table, column)
        return not held.holds_content and not held.name_kinds & self.views_without

    def _sql_name(self, *parts: str) -> str:
        return ".".join(map(quoted, (self.catalog, *parts)))

    def _comment_on_schema(self, schema: str, comment: str) -> Statement:
        sql = f"COMMENT ON SCHEMA {self._sql_name(schema)} IS {literal(comment)}"
        return Statement(sql, frozenset({("schema comment", _stored(schema), comment)}))

    def _create_view_schema(self) -> Statement:
        sql = f"CREATE SCHEMA IF NOT EXISTS {self._sql_name(self.view_schema)}"
        return Statement(sql, frozenset({("schema", _stored(self.view_schema))}))

    def _create_view(self, table: Table, columns: Collection[Column]) -> Statement:
        schema, name = self.view_schema, view_name(table)
        kept = [column for column in columns if self.is_in_views(table, column)]
        definition = (
            f"SELECT {', '.join(quoted(column.name) for column in kept)} "
            f"FROM {self._sql_name(self.prefix + table.layer, table.name)}"
        )
        comments = ",\n".join(f"  {quoted(column.name)} COMMENT {literal(column.comment)}" for column in kept)
        sql = (
            f"CREATE OR REPLACE VIEW {self._sql_name(schema, name)} (\n{comments}\n)\n"
            f"COMMENT {literal(table.comment)}\nAS {definition}"
        )
        relation = (_stored(schema), name)
        effects: set[Effect] = {("view", *relation, definition), ("view comment", *relation, table.comment)}
        effects |= {("column comment", *relation, column.name, column.comment) for column in kept}
        return Statement(sql, frozenset(effects))

    def _set_tag(self, table: Table, column: str, value: str) -> Statement:
        schema = self.prefix + table.layer
        sql = (
            f"ALTER TABLE {self._sql_name(schema, table.name)} ALTER COLUMN {quoted(column)} "
            f"SET TAGS ({literal(self.tag)} = {literal(value)})"
        )
        return Statement(sql, frozenset({("tag", _stored(schema), table.name, column, self.tag, value)}))

    def _grant_reading(self, schema: str, reader: str) -> Statement:
        sql = f"GRANT USE SCHEMA, SELECT ON SCHEMA {self._sql_name(schema)} TO {quoted(reader)}"
        privileges = ("USE SCHEMA", "SELECT")
        return Statement(sql, frozenset(("privilege", _stored(schema), reader, each) for each in privileges))

    def _set_owner(self, kind: str, schema: str, name: str, owner: str) -> Statement:
        sql = f"ALTER {kind} {self._sql_name(schema, name)} SET OWNER TO {quoted(owner)}"
        return Statement(sql, frozenset({("owner", _stored(schema), name, owner)}))


def view_name(table: Table) -> str:
    """Return the name of the view of a table: one schema has the views of all layers."""
    return f"{table.layer}_{table.name}"


def tag_value(table: Table, column: Column) -> str | None:
    """Return the value of a column's tag: ``body``, ``personal``, or None for a column without one."""
    held = private_content(table, column)
    if held.holds_content:
        return BODY
    return PERSONAL if held.name_kinds else None


def _stored(schema: str) -> str:
    """Return the name of a schema as Unity Catalog stores it."""
    return schema.lower()
