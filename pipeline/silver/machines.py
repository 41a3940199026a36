"""Machines by all their names: which addresses, host names and GUIDs mean one machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from pipeline.lake.lake import Lake
from pipeline.text import with_name
from schemas.hosts import HOSTS
from schemas.queue_history import QUEUE_HISTORY

HOST_COLUMNS: Final = ("queue_manager_id", "host_name", "address")
HOSTS_SQL: Final = f"SELECT DISTINCT {', '.join(HOST_COLUMNS)} FROM {{hosts}}"


class _Host(NamedTuple):
    queue_manager_id: str | None
    host_name: str | None
    address: str | None


class Machines:
    """What was seen together of machines: rows of silver.hosts, and configured names by address.

    What machines of different names share, a cloned GUID or an address behind NAT, does not lead from one name to
    another.
    """

    def __init__(self, hosts: Iterable[Mapping[str, str | None]], names: Mapping[str, str]) -> None:
        """``hosts`` have ``HOST_COLUMNS``."""
        self._hosts = [*{_Host(*(row[name] for name in HOST_COLUMNS)) for row in hosts}]
        self._hosts += [_Host(None, name, address) for address, name in names.items()]
        self._name_by_address = dict(names)
        self._folded: dict[str, frozenset[str]] = {}  # by identifier, all of its machine

    @staticmethod
    def of(lake: Lake) -> Machines:
        """Return the machines of a lake, with the names that gold has."""
        names = lake.versions.provenance(QUEUE_HISTORY).get("names") or {}
        return Machines(lake.query(HOSTS_SQL, hosts=HOSTS).to_pylist(), names)

    def identifiers(self) -> set[str]:
        """Return all addresses, host names and GUIDs."""
        return {each for host in self._hosts for each in host if each is not None}

    def known_as(self, identifiers: Collection[str]) -> set[str]:
        """Return all addresses, host names and GUIDs of the machines that some of these mean, with these."""
        found = _grow({*identifiers}, [host for host in self._hosts if host.host_name is None])
        called = {host.host_name for host in self._hosts if host.host_name and found.intersection(host)}
        return _grow(found, [host for host in self._hosts if host.host_name is None or host.host_name in called])

    def is_same(self, one: str | None, other: str | None) -> bool:
        """Whether two identifiers mean one machine, as far as was seen; no identifier means none."""
        if one is None or other is None:
            return False
        if one not in self._folded:
            self._folded[one] = frozenset(each.casefold() for each in self.known_as([one]))
        return other.casefold() in self._folded[one]

    def text(self, identifier: str) -> str:
        """Return an address or GUID with the name of its machine, if it has one; a name as it is."""
        name = self._name_by_address.get(identifier)
        if name is None:
            names = {host.host_name for host in self._hosts if identifier in host and host.host_name is not None}
            name = min(names) if len(names) == 1 else None
        return with_name(identifier, name)


def _grow(found: set[str], hosts: Collection[_Host]) -> set[str]:
    """Return what hosts have together with something that was found, directly or by other hosts, and that."""
    more = {each for host in hosts if found.intersection(host) for each in host if each is not None}
    return found if more <= found else _grow(found | more, hosts)
