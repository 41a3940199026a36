"""Findings on duplicate machines (O01): two machines that use one queue manager identifier, as cloned machines do.

Messages for one of them may reach the other. No call shows this; silver.hosts does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from pipeline.arrow_rows import rows_to_table
from pipeline.findings.evaluate import FINDINGS_SCHEMA, finding_row
from pipeline.findings.rules.registry import OPERATIONAL_RULES
from pipeline.lake.lake import Lake
from schemas.hosts import HOSTS
from udfs.times import datetime_to_us

ALL_MACHINES_SCOPE: Final = "estate"  # the value of gold.findings.scope for what all machines show together
_MAX_EVIDENCE: Final = 10


def duplicate_machine_findings(hosts: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a finding for each queue manager identifier that several machines use.

    ``hosts`` are rows of silver.hosts. Machines are told apart by their names without domain, which come with the
    identifier or with an address of the same row. An address without a name may belong to a known machine.
    """
    hosts = list(hosts)
    names_at: defaultdict[str, set[str]] = defaultdict(set)
    for row in hosts:
        if row["host_name"] and row["address"]:
            names_at[row["address"]].add(_short_name(row["host_name"]))
    by_identifier: defaultdict[str, list[tuple[set[str], Mapping[str, Any]]]] = defaultdict(list)
    for row in hosts:
        if row["queue_manager_id"]:
            names = {_short_name(row["host_name"])} if row["host_name"] else names_at.get(row["address"] or "", set())
            if names:
                by_identifier[row["queue_manager_id"]].append((set(names), row))
    findings = []
    rule = OPERATIONAL_RULES["O01"]
    for identifier, found in sorted(by_identifier.items()):
        machines = _merge_overlapping([names for names, _ in found])
        if len(machines) > 1:
            actual = f"machines {', '.join(sorted('/'.join(sorted(names)) for names in machines))}"
            row = finding_row(
                rule.rule_id, source=rule.source_for(), severity=rule.severity, subject=f"queue manager {identifier}",
                call={}, observed_at=max(datetime_to_us(row["first_seen_at"]) for _, row in found),
                expected=rule.requirement, actual=actual, scope=ALL_MACHINES_SCOPE,
                evidence=sorted({row["host_key"] for _, row in found})[:_MAX_EVIDENCE],
            )  # fmt: skip
            findings.append(row)
    return rows_to_table(findings, FINDINGS_SCHEMA)


def _short_name(name: str) -> str:
    return name.split(".", 1)[0].lower()


def _merge_overlapping(sets: list[set[str]]) -> list[set[str]]:
    """Merge sets that have a name in common, until none do."""
    machines: list[set[str]] = []
    for names in sets:
        shared = [machine for machine in machines if machine & names]
        machines = [machine for machine in machines if not machine & names]
        machines.append(names.union(*shared))
    return machines


def find_duplicate_machines(lake: Lake) -> pa.Table:
    """Return the findings on duplicate machines of silver.hosts, by the machines that a name is known of."""
    named = "host_name IS NOT NULL OR address IN (SELECT address FROM {rows} WHERE host_name IS NOT NULL)"
    return duplicate_machine_findings(lake.select(HOSTS, named).to_pylist())
