"""Findings on operation: what no single call breaks, and no conformance rule says. Rows of gold.findings.

O01: two machines answer to one identifier of a queue manager, as silver.hosts saw them: cloned machines, whose messages
are then taken for each other's.

O02: clocks differ. A message carries when it was sent, by the sender's clock, and when it was put in its queue, by
that of the queue's owner, both in whole seconds; it is read at a time of the capture's clock. None of these may lie
before the one before it, so that by how much one does is the least by which the clocks differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from pipeline.findings import finding, table_of
from pipeline.lake import Lake, on_dates
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.table import EVENT_DATE

ESTATE, CLOCKS = "estate", "clocks"  # what was looked at, in gold.findings.scope
_SLACK_S: Final = 2  # both times are rounded to seconds, and a clock is read at another moment than it is sent
_MOST_EVIDENCE: Final = 10

RULES: Final = {
    "O01": ("MS-MQMQ 2.1.1", "an identifier of a queue manager is one machine's"),
    "O02": ("docs/rules.md", "the clocks of sender, owner and capture agree to 2 s"),
}
"""Each with its source and what is expected."""


def one_machine(hosts: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a finding for each identifier that two machines have; ``hosts`` are rows of silver.hosts.

    Machines are told apart by their names, without domain: as told together with the identifier, or with an address
    that is. An address without a name may be the same machine's.
    """
    hosts = list(hosts)
    names_at: defaultdict[str, set[str]] = defaultdict(set)
    for row in hosts:
        if row["host_name"] and row["address"]:
            names_at[row["address"]].add(_label(row["host_name"]))
    of_id: defaultdict[str, list[tuple[set[str], Mapping[str, Any]]]] = defaultdict(list)
    for row in hosts:
        if row["queue_manager_id"]:
            names = {_label(row["host_name"])} if row["host_name"] else names_at.get(row["address"] or "", set())
            if names:
                of_id[row["queue_manager_id"]].append((set(names), row))
    found = []
    for identifier, seen in sorted(of_id.items()):
        machines = _apart([names for names, _ in seen])
        if len(machines) > 1:
            last = max(_micros(row["first_seen_at"]) for _, row in seen)
            source, expected = RULES["O01"]
            found.append(
                finding(
                    "O01", source=source, severity="error", subject=f"queue manager {identifier}", call={},
                    observed_at=last, expected=expected,
                    actual=f"machines {', '.join(sorted('/'.join(sorted(names)) for names in machines))}",
                    evidence=sorted({row["host_key"] for _, row in seen})[:_MOST_EVIDENCE], scope=ESTATE,
                )
            )  # fmt: skip
    return table_of(found)


def _label(name: str) -> str:
    return name.split(".", 1)[0].lower()


def _apart(sets: list[set[str]]) -> list[set[str]]:
    """Join sets that share a name, until none do."""
    machines: list[set[str]] = []
    for names in sets:
        shared = [machine for machine in machines if machine & names]
        machines = [machine for machine in machines if not machine & names]
        machines.append(names.union(*shared))
    return machines


def _micros(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def two_clocks(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a finding for each day and pair of clocks that differ.

    ``rows`` have event_date, the pair's names (``sender``, ``owner``), by how many seconds the first is ahead at least
    (``ahead_s``), how often it was seen (``sightings``), the first time (``at``), and ``calls``.
    """
    found = []
    for row in rows:
        source, expected = RULES["O02"]
        subject = f"clocks of {row['sender']} and {row['owner']}"
        found.append(
            finding(
                "O02", source=source, severity="warning", subject=subject, call={}, observed_at=row["at"],
                expected=expected, evidence=sorted(row["calls"])[:_MOST_EVIDENCE], scope=CLOCKS,
                actual=f"{row['sender']} is ahead by at least {row['ahead_s']} s ({row['sightings']} messages)",
            )
        )  # fmt: skip
    return table_of(found)


def hosts_of(lake: Lake) -> pa.Table:
    """Return the findings on machines, of all of silver.hosts, which is small."""
    return one_machine(lake.read(HOSTS).toArrow().to_pylist())


def clocks_of(lake: Lake, dates: Collection[date | None] | None) -> pa.Table:
    """Return the findings on clocks, of the messages read on some days, or on all."""
    messages = lake.read(MESSAGES).where(on_dates(dates)).where("arrived_at IS NOT NULL AND seen_at IS NOT NULL")
    sent, arrived, seen = (F.unix_micros(name) for name in ("sent_at", "arrived_at", "seen_at"))
    where = F.coalesce("queue", "inferred_queue", F.lit("?"))
    sender = F.concat(F.lit("queue manager "), F.coalesce("source_queue_manager", F.lit("?")))
    owner = F.concat(F.lit("the owner of "), where)
    pairs = F.array(
        F.struct(sender.alias("sender"), owner.alias("owner"), (sent - arrived).alias("ahead")),
        F.struct(owner.alias("sender"), F.lit("the capture").alias("owner"), (arrived - seen).alias("ahead")),
    )
    late = messages.select(EVENT_DATE, "call_key", seen.alias("at"), F.explode(pairs).alias("pair"))
    late = late.select(EVENT_DATE, "call_key", "at", "pair.*").where(F.col("ahead") > _SLACK_S * 1_000_000)
    grouped = late.groupBy(EVENT_DATE, "sender", "owner").agg(
        F.floor(F.max("ahead") / 1_000_000).alias("ahead_s"),
        F.count("*").alias("sightings"),
        F.min("at").alias("at"),
        F.slice(F.array_sort(F.collect_set("call_key")), 1, _MOST_EVIDENCE).alias("calls"),
    )
    return two_clocks(row.asDict() for row in grouped.collect())
