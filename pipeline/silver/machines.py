"""Machines by all their names: which addresses, host names and GUIDs mean one machine, and which name is shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.silver.machine_names import MachineInfo, MachineNames, NameSighting, NameSource
from schemas.bronze import CAPTURE_FILES
from schemas.hosts import HOSTS
from schemas.queue_history import QUEUE_HISTORY

if TYPE_CHECKING:  # whoever only holds machines needs no lake, and so no Spark
    from pipeline.lake.lake import Lake

HOST_COLUMNS: Final = ("queue_manager_id", "host_name", "address")
HOSTS_SQL: Final = f"SELECT DISTINCT {', '.join(HOST_COLUMNS)} FROM {{hosts}}"
_RESOLVED: Final = "name_resolution"
_NAMES_SQL: Final = f"""
SELECT {", ".join(HOST_COLUMNS)}, source, unix_micros(first_seen_at) AS first_seen_us,
  unix_micros(last_seen_at) AS last_seen_us
FROM {{hosts}}
UNION ALL
SELECT NULL, resolved.name, resolved.address, '{_RESOLVED}', min(first_us), max(last_us)
FROM (
  SELECT explode(host_names) AS resolved, unix_micros(first_packet_at) AS first_us,
    unix_micros(last_packet_at) AS last_us
  FROM {{captures}} WHERE host_names IS NOT NULL
) AS names GROUP BY resolved.name, resolved.address"""
_SOURCES: Final = {"snapshot": NameSource.SNAPSHOT, _RESOLVED: NameSource.NAME_RESOLUTION}  # others are the wire


def names_in_gold(lake: Lake) -> dict[str, str]:
    """Return the names of queue managers by address that gold.queue_history has, and what is computed after it."""
    return lake.versions.provenance(QUEUE_HISTORY).get("names") or {}


class _Host(NamedTuple):
    queue_manager_id: str | None
    host_name: str | None
    address: str | None


class Machines:
    """What was seen together of machines: rows of silver.hosts, and the names of gold by address.

    What machines of different names share, a cloned GUID or an address behind NAT, does not lead from one name to
    another. A machine is not found by other names, ``declared`` or of name resolution blocks: they are only shown.
    """

    def __init__(
        self, hosts: Iterable[Mapping[str, Any]], names: Mapping[str, str], declared: Iterable[NameSighting] = ()
    ) -> None:
        """``hosts`` have ``HOST_COLUMNS``, and for the names that are shown also source and times (``_NAMES_SQL``)."""
        self._seen = [*hosts]
        of_machines = (row for row in self._seen if row.get("source") != _RESOLVED)
        self._hosts = [*{_Host(*(row[name] for name in HOST_COLUMNS)) for row in of_machines}]
        self._hosts += [_Host(None, name, address) for address, name in names.items()]
        self._name_by_address = dict(names)
        self._declared = tuple(declared)
        self._folded: dict[str, frozenset[str]] = {}  # by identifier, all of its machine

    @staticmethod
    def of(lake: Lake, declared: Iterable[NameSighting] = ()) -> Machines:
        """Return the machines of a lake, with the names that gold has, and those that are ``declared``."""
        rows = lake.query(_NAMES_SQL, hosts=HOSTS, captures=CAPTURE_FILES).to_pylist()
        return Machines(rows, names_in_gold(lake), declared)

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
        """Return an address or GUID as it is shown to people: the name of its machine (``MachineNames.shown``)."""
        return self._names.shown(identifier)

    def in_text(self, text: str, queue: str | None = None) -> str:
        """Return a text with the names of machines in place of addresses and GUIDs, except in the name of a queue."""
        return self._names.in_text(text, queue)

    def shown_in(self, text: str) -> dict[str, str]:
        """Return ``text`` of the addresses and GUIDs in a text, of those that have a name."""
        return self._names.shown_in(text)

    def texts(self) -> dict[str, str]:
        """Return ``text`` of all that has a name."""
        return self._names.shown_by_identifier()

    def infos(self) -> list[MachineInfo]:
        """Return all machines by address and GUID, with their names."""
        return self._names.machines()

    @cached_property
    def _names(self) -> MachineNames:
        return MachineNames(self._sightings())

    def _sightings(self) -> Iterator[NameSighting]:
        yield from self._declared
        for address, name in self._name_by_address.items():
            yield NameSighting(NameSource.COLLECTOR, address, name=name)
        for row in self._seen:
            source = _SOURCES.get(str(row.get("source")), NameSource.WIRE)
            times = (row.get("first_seen_us"), row.get("last_seen_us"))
            yield NameSighting(source, row["address"], row["queue_manager_id"], row["host_name"], *times)


UNNAMED: Final = Machines((), {})
"""No machine is known: each has its own name."""


def _grow(found: set[str], hosts: Collection[_Host]) -> set[str]:
    """Return what hosts have together with something that was found, directly or by other hosts, and that."""
    more = {each for host in hosts if found.intersection(host) for each in host if each is not None}
    return found if more <= found else _grow(found | more, hosts)
