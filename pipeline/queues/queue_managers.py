"""What gold calls a queue manager: the configured name where its address is tied to one, else the address."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Machines:
    """``names``: the configured name of an address; ``managers``: the queue managers, as in gold, that a GUID may be.

    Two machines have one GUID where one was cloned from the other.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    managers: Mapping[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def of(
        hosts: Iterable[Mapping[str, Any]], configured: Iterable[str], declared: Mapping[str, str] | None = None
    ) -> Machines:
        """Make it of rows of silver.hosts, the names that collectors called machines, and those that addresses have.

        ``declared`` is the collector's configuration of now, and comes first. Of several names the smallest counts.
        """
        rows = list(hosts)
        called: dict[str, str] = {}
        for name in sorted(configured):
            called.setdefault(name.lower(), name)
        found: defaultdict[str, set[str]] = defaultdict(set)
        addresses: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            if row["address"] and row["host_name"]:
                addresses[row["host_name"]].add(row["address"])
                if row["host_name"] in called:
                    found[row["address"]].add(called[row["host_name"]])
        names = {address: min(several) for address, several in found.items()} | dict(declared or {})
        managers: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            if not row["queue_manager_id"]:
                continue
            host = row["host_name"]
            at = {row["address"]} | addresses[host] if row["address"] else set(addresses[host]) if host else set()
            managers[row["queue_manager_id"]] |= {names.get(address, address) for address in at}
            if host in called:
                managers[row["queue_manager_id"]].add(called[host])
        return Machines(names, {guid: sorted(several) for guid, several in managers.items() if several})

    def name(self, source: str | None, queue_manager: str | None) -> str | None:
        """Return what gold calls a queue manager: a collector's is the configured name already."""
        if source == "collector" or queue_manager is None:
            return queue_manager
        return self.names.get(queue_manager, queue_manager)
