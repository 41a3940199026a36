"""SQL that gives queues of silver tables, whose names are those of the wire, the canonical names that gold has."""

from __future__ import annotations

from collections.abc import Mapping


def with_canonical_queues(
    table: str, queues: Mapping[str, str], columns: str, aliases: str = "silver.queue_aliases"
) -> str:
    """Return a subquery over a table: some ``columns``, and the canonical names of queues.

    ``queues`` are SQL expressions of queue names (of the table ``rows``) by the name of their column. ``aliases`` is
    the SQL name of silver.queue_aliases. Journals and subqueues follow their queue, as in
    ``udfs.queues.alias_groups.canonical_queue_name``. The SQL is valid for Spark and for DuckDB.
    """
    names = f"(SELECT queue, max(canonical_queue) AS canonical FROM {aliases} GROUP BY queue)"
    selected, joins = [columns], []
    for column, queue in queues.items():
        is_whole = f"{queue} LIKE 'direct=%' OR {queue} LIKE '%,%'"
        base = f"CASE WHEN {is_whole} THEN {queue} ELSE split_part({queue}, ';', 1) END"
        whole, part = f"{column}_whole", f"{column}_base"
        suffix = f"substr({queue}, length({base}) + 1)"
        selected.append(f"coalesce({whole}.canonical, {part}.canonical || {suffix}, {queue}) AS {column}")
        joins.append(f"LEFT JOIN {names} AS {whole} ON {whole}.queue = {queue}")
        joins.append(f"LEFT JOIN {names} AS {part} ON {part}.queue = {base}")
    return f"(SELECT {', '.join(selected)} FROM {table} AS rows {' '.join(joins)})"
