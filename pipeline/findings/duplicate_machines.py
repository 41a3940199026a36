"""Findings on operation that no call shows: two machines that answer to one identifier of a queue manager (O01).

Such are cloned machines, whose messages are then taken for each other's. The others are in ``rules_operation``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from pipeline.findings.evaluate import SCHEMA, finding
from pipeline.findings.rules.registry import OPERATION
from pipeline.lake.arrow_rows import table_of, us_of
from pipeline.lake.lake import Lake
from schemas.hosts import HOSTS

ESTATE: Final = "estate"  # what was looked at, in gold.findings.scope
_MOST_EVIDENCE: Final = 10


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
            last = max(us_of(row["first_seen_at"]) for _, row in seen)
            rule = OPERATION["O01"]
            found.append(
                finding(
                    rule.rule_id, source=rule.source, severity=rule.severity, call={},
                    subject=f"queue manager {identifier}",
                    observed_at=last, expected=rule.rule,
                    actual=f"machines {', '.join(sorted('/'.join(sorted(names)) for names in machines))}",
                    evidence=sorted({row["host_key"] for _, row in seen})[:_MOST_EVIDENCE], scope=ESTATE,
                )
            )  # fmt: skip
    return table_of(found, SCHEMA)


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


def hosts_of(lake: Lake) -> pa.Table:
    """Return the findings on machines, of all of silver.hosts, which is small."""
    return one_machine(lake.select(HOSTS, "TRUE").to_pylist())
