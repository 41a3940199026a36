"""The names of queue managers in gold: the configured name where an address is tied to one, else the address."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class QueueManagerNames:
    """The names of queue managers in gold, by address and by GUID.

    A GUID has several names where machines were cloned from one another.
    """

    name_by_address: Mapping[str, str] = field(default_factory=dict)
    names_by_guid: Mapping[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def from_hosts(
        hosts: Iterable[Mapping[str, Any]], collected: Iterable[str], configured: Mapping[str, str] | None = None
    ) -> QueueManagerNames:
        """Derive the names from rows of silver.hosts and from the names in the collector's snapshots (``collected``).

        ``configured`` are the names by address in the current configuration; they take precedence. Of several names of
        an address the smallest counts.
        """
        rows = list(hosts)
        name_of_host: dict[str, str] = {}
        for name in sorted(collected):
            name_of_host.setdefault(name.lower(), name)
        candidates: defaultdict[str, set[str]] = defaultdict(set)
        addresses: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            if row["address"] and row["host_name"]:
                addresses[row["host_name"]].add(row["address"])
                if row["host_name"] in name_of_host:
                    candidates[row["address"]].add(name_of_host[row["host_name"]])
        names = {address: min(several) for address, several in candidates.items()} | dict(configured or {})
        by_guid: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            if not row["queue_manager_id"]:
                continue
            host = row["host_name"]
            at = {row["address"]} | addresses[host] if row["address"] else set(addresses[host]) if host else set()
            by_guid[row["queue_manager_id"]] |= {names.get(address, address) for address in at}
            if host in name_of_host:
                by_guid[row["queue_manager_id"]].add(name_of_host[host])
        return QueueManagerNames(names, {guid: sorted(several) for guid, several in by_guid.items() if several})

    def canonical_name(self, source: str | None, queue_manager: str | None) -> str | None:
        """Return the name in gold of a queue manager in silver; the collector's rows have it already."""
        if source == "collector" or queue_manager is None:
            return queue_manager
        return self.name_by_address.get(queue_manager, queue_manager)

    def canonical_names(self, rows: Iterable[Mapping[str, Any]]) -> set[str]:
        """Return the names in gold of the queue managers in rows of silver, with their ``source``."""
        names = (self.canonical_name(row["source"], row["queue_manager"]) for row in rows)
        return {name for name in names if name is not None}


def renamed_queue_managers(before: Mapping[str, str], now: Mapping[str, str]) -> set[tuple[str, str]]:
    """Compare names by address: return the names of queue managers that have another one now, each with that."""
    pairs = ((before.get(each, each), now.get(each, each)) for each in before.keys() | now.keys())
    return {(old, new) for old, new in pairs if old != new}


def names_table(name_by_address: Mapping[str, str]) -> pa.Table:
    """Return the names in gold by address as an Arrow table, ``{names}`` of ``with_machine_sql``."""
    columns = {"address": list(name_by_address.keys()), "name": list(name_by_address.values())}
    return pa.table(columns, schema=pa.schema([(each, pa.string()) for each in columns]))


def with_machine_sql(sql: str) -> str:
    """Return the SQL of rows of silver with the queue manager's name in gold as the column ``machine``.

    It is the SQL for ``QueueManagerNames.canonical_name`` of the rows' ``source`` and ``queue_manager``.
    """
    return f"""
SELECT named_rows.*, coalesce(named.name, named_rows.queue_manager) AS machine
FROM ({sql}) AS named_rows
LEFT JOIN {{names}} AS named ON named.address = named_rows.queue_manager AND named_rows.source <> 'collector'"""
