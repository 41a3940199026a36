"""Finds machines and queues by any of their names, and returns all names that tables have for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.silver.canonical_queues import with_canonical_queues
from schemas.table import Table
from udfs.queues.normal_form import normalize_queue_name

_MACHINE_COLUMNS: Final = frozenset({
    "server_address", "client_address", "sender_address", "receiver_address", "queue_manager", "source_queue_manager",
    "sender_queue_manager", "receiver_queue_manager",
})  # fmt: skip
_QUEUE_COLUMNS: Final = frozenset({
    "queue", "inferred_queue", "destination_queue", "admin_queue", "dead_letter_queue", "sender_queue",
    "canonical_queue", "other_queue",
})  # fmt: skip
_FORMAT_NAME: Final = "queue_format_name"
_MAX_NEAR: Final = 5
_LEAST_LIKENESS: Final = 0.6

Query = Callable[[str], pa.Table]
"""Answers a query that names tables as ``layer.name``."""


class Names(NamedTuple):
    """All names of what a text means. ``near`` are the most similar names where nothing has such a name."""

    found: frozenset[str]
    near: tuple[str, ...] = ()


class _Host(NamedTuple):
    queue_manager_id: str | None
    host_name: str | None
    address: str | None


def find_machines(query: Query, tables: Collection[Table], names: Mapping[str, str], text: str) -> Names:
    """Return all names, addresses and GUIDs of the machines that a text means.

    An IP address means the machines that have it. Any other text means those of whose names or GUIDs it is a part,
    whatever the case. Names, addresses and GUIDs belong to one machine where silver.hosts has them together, or
    ``names`` (names by address). What machines of different names share, a cloned GUID or an address behind NAT, does
    not lead from one name to another. ``tables`` have rows about machines.
    """
    hosts = [_Host(**row) for row in query(
        "SELECT DISTINCT queue_manager_id, host_name, address FROM silver.hosts"
    ).to_pylist()]  # fmt: skip
    hosts += [_Host(None, name, address) for address, name in names.items()]
    selected = _select_columns(tables, _MACHINE_COLUMNS)
    every = {*query(f"SELECT DISTINCT name FROM ({selected}) WHERE name IS NOT NULL")["name"].to_pylist()}
    every |= {each for host in hosts for each in host if each is not None}
    address = _address(text)
    meant = {
        each for each in every
        if (each == address if address or _address(each) else text.casefold() in each.casefold())
    }  # fmt: skip
    if not meant:
        return Names(frozenset(), similar_names(text, every))
    found = _grow(meant, [host for host in hosts if host.host_name is None])
    called = {host.host_name for host in hosts if host.host_name and found.intersection(host)}
    found = _grow(found, [host for host in hosts if host.host_name is None or host.host_name in called])
    folded = {each.casefold() for each in found}
    return Names(frozenset(each for each in every if each.casefold() in folded))


def find_queues(query: Query, tables: Collection[Table], text: str) -> Names:
    """Return all names of the queues that a text means: it, or its normal form, is a part of one of their names.

    The case does not matter. Texts name one queue where silver.queue_aliases says so, and where a row has both a queue
    and the format name that it was asked for by. ``tables`` have rows about queues.
    """
    selected = _select_columns(tables, _QUEUE_COLUMNS)
    formats = [
        f"SELECT {_FORMAT_NAME} AS name, queue AS known_as FROM {table}"
        for table in _sorted(tables) if {_FORMAT_NAME, "queue"} <= {*table.names}
    ]  # fmt: skip
    raw = " UNION ".join((f"SELECT name, name AS known_as FROM ({selected})", *formats))
    named = with_canonical_queues("raw", {"canonical": "rows.known_as"}, "rows.name")
    pairs = query(
        f"WITH raw AS (SELECT * FROM ({raw}) WHERE name IS NOT NULL AND known_as IS NOT NULL) SELECT * FROM {named}"
    )
    groups = defaultdict[str, set[str]](set)
    for row in pairs.to_pylist():
        groups[row["canonical"]] |= {row["canonical"], row["name"]}
    parts = {text.casefold(), (normalize_queue_name(text) or text).casefold()}
    found = [group for group in groups.values() if any(part in name.casefold() for name in group for part in parts)]
    every = frozenset[str]().union(*found)
    return (
        Names(every)
        if every
        else Names(every, similar_names(text, {name for group in groups.values() for name in group}))
    )


def _grow(found: set[str], hosts: Collection[_Host]) -> set[str]:
    """Return what hosts have together with something that was found, directly or by other hosts, and that."""
    more = {each for host in hosts if found.intersection(host) for each in host if each is not None}
    return found if more <= found else _grow(found | more, hosts)


def _select_columns(tables: Collection[Table], columns: Collection[str]) -> str:
    """Return a query of the values of some columns, those of them that tables have, as ``name``."""
    return " UNION ".join(
        f"SELECT {column} AS name FROM {table}"
        for table in _sorted(tables) for column in table.names if column in columns
    )  # fmt: skip


def _sorted(tables: Collection[Table]) -> list[Table]:
    return sorted(tables, key=str)


def _address(text: str) -> str | None:
    """Return an IP address as tables have it; None where a text is none."""
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def similar_names(text: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are most similar to a text, by the whole name or by what follows its last backslash."""
    by_part = defaultdict[str, set[str]](set)
    for name in names:
        for part in (name, name.rpartition("\\")[2]):
            by_part[part.casefold()].add(name)
    near = get_close_matches(text.casefold(), by_part, _MAX_NEAR, _LEAST_LIKENESS)
    return tuple(dict.fromkeys(name for part in near for name in sorted(by_part[part])))[:_MAX_NEAR]
