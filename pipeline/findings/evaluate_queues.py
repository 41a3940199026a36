"""What is told of queues -> rows of gold.findings: the tests that are declared by ``of_queue``. No Spark.

What is told comes in several ``PARTS``, each with its own columns; queues have their canonical texts, queue managers
the names that gold knows them by, and times are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pipeline.findings.evaluate import SCHEMA, finding
from pipeline.findings.rules import queues, several_readers
from pipeline.findings.rules.queue_facts import Limits, Read, Told
from pipeline.findings.rules.registry import ALL, QUEUES, Sign
from pipeline.lake.arrow_rows import microseconds, table_of
from pipeline.queues.growth import Point

MODULES: Final = (queues, several_readers)
SCOPE: Final = "queue"
PARTS: Final = ("counts", "reports", "reads", "calls", "connections", "sources")


def findings(rows: Mapping[str, Sequence[dict[str, Any]]], limits: Limits) -> pa.Table:
    """Return the findings of what is told: rows of each of ``PARTS``."""
    calls = {row["call_key"]: row for row in rows["calls"]}
    connections = {row["connection_id"]: row for row in rows["connections"]}
    every = (row for name in ("counts", "reports", "reads", "sources") for row in rows[name])
    places = dict.fromkeys((row["queue_manager"], row["queue"]) for row in every)
    found = {place: Told(*place) for place in places}
    for row in sorted(rows["counts"], key=lambda row: (row["observed_at"], row["snapshot_id"])):
        here, at, name = found[row["queue_manager"], row["queue"]], row["observed_at"], row["snapshot_id"]
        for points, column in ((here.counts, "message_count"), (here.journal, "journal_message_count")):
            if row[column] is not None:
                points.append(Point(name, at, row[column]))
    for row in sorted(rows["reports"], key=lambda row: (row["observed_at"], row["snapshot_id"])):
        found[row["queue_manager"], row["queue"]].reports.append(row)
    for row in sorted(rows["reads"], key=lambda row: str(row["attempt_key"])):
        theirs = {each: calls[each] for each in row["evidence"] or () if each in calls}
        read = Read(row, theirs, connections.get(row["connection_id"], {}))
        found[row["queue_manager"], row["queue"]].reads.append(read)
    for row in rows["sources"]:
        found[row["queue_manager"], row["queue"]].sources.append(row)
    return table_of([each for place in found.values() for each in _judged(place, limits)], SCHEMA)


def _judged(told: Told, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield a row for each rule and sign, of several of one time and subject the gravest."""
    signs = [(test.rule_id, sign) for test in QUEUES for sign in test.test(told, limits)]
    best: dict[str, dict[str, Any]] = {}
    for rule_id, sign in sorted(signs, key=_gravity):
        row = _row(rule_id, sign, told)
        best.setdefault(row["finding_key"], row)
    yield from best.values()


def _gravity(found: tuple[str, Sign]) -> tuple[bool, str]:
    return found[1].severity == "info", found[1].actual


def _row(rule_id: str, sign: Sign, told: Told) -> dict[str, Any]:
    rule = ALL[rule_id]
    return finding(
        rule_id, source=rule.source, severity=sign.severity or rule.severity, subject=sign.subject, call=sign.call,
        observed_at=sign.at, expected=rule.rule, actual=sign.actual, evidence=list(sign.evidence), scope=SCOPE,
        queue=told.queue,
    )  # fmt: skip


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows with times as microseconds since the epoch."""
    for place, each in enumerate(table.schema):
        if pa.types.is_timestamp(each.type):
            table = table.set_column(place, each.name, microseconds(table.column(place)))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def of_parts(rows: pa.Table, columns: Mapping[str, Iterable[str]]) -> dict[str, pa.Table]:
    """Return the parts that rows are marked with, each with its columns."""
    marks = rows.column("part").to_pylist()
    found: dict[str, pa.Table] = {}
    for name in PARTS:
        found[name] = rows.filter(pa.array([mark == name for mark in marks], pa.bool_())).select(list(columns[name]))
    return found
