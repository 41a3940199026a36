"""Finds machines and queues by any of their names, and returns all names that tables have for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.silver.machines import HOSTS_SQL, Machines
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


def find_machines(query: Query, tables: Collection[Table], names: Mapping[str, str], text: str) -> Names:
    """Return all names, addresses and GUIDs of the machines that a text means.

    An IP address means the machines that have it. Any other text means those of whose names or GUIDs it is a part,
    whatever the case. Which belong to one machine say silver.hosts and ``names`` (names by address). ``tables`` have
    rows about machines.
    """
    machines = Machines(query(HOSTS_SQL.format(hosts="silver.hosts")).to_pylist(), names)
    selected = _select_columns(tables, _MACHINE_COLUMNS)
    every = {*query(f"SELECT DISTINCT name FROM ({selected}) WHERE name IS NOT NULL")["name"].to_pylist()}
    every |= machines.identifiers()
    address = _address(text)
    meant = {
        each for each in every
        if (each == address if address or _address(each) else text.casefold() in each.casefold())
    }  # fmt: skip
    if not meant:
        return Names(frozenset(), similar_names(text, every))
    found = machines.known_as(meant)
    folded = {each.casefold() for each in found}
    return Names(frozenset(each for each in every if each.casefold() in folded))


def find_queues(query: Query, tables: Collection[Table], text: str) -> Names:
    """Return all names of the queues that a text means: it, or its normal form, is a part of one of their names.

    ``tables`` have rows about queues.
    """
    groups = queue_names(query, tables)
    found = frozenset[str]().union(*(names for names in groups.values() if is_called(names, text)))
    return Names(found, () if found else similar_names(text, set().union(*groups.values())))


def queues_meant(names: Mapping[str, Collection[str]], text: str) -> list[str]:
    """Return the queues that a text means: those that have it as a whole name, else those of whose names it is a part.

    Whatever the case; ``names`` are all names of each queue, by its canonical one.
    """
    wholes = {text.casefold(), (normalize_queue_name(text) or text).casefold()}
    named = [queue for queue, every in names.items() if not wholes.isdisjoint(name.casefold() for name in every)]
    return named or [queue for queue, every in names.items() if is_called(every, text)]


def similar_queues(names: Mapping[str, Collection[str]], text: str) -> tuple[str, ...]:
    """Return the queues with the names that are most similar to a text; ``names`` as for ``queues_meant``."""
    queues = {name: queue for queue, every in names.items() for name in every}
    return tuple(dict.fromkeys(queues[name] for name in similar_names(text, queues)))


def is_called(names: Iterable[str], text: str) -> bool:
    """Whether a text, or the normal form of a queue's name, is a part of any name, whatever the case."""
    parts = {text.casefold(), (normalize_queue_name(text) or text).casefold()}
    return any(part in name.casefold() for name in names for part in parts)


def queue_names(query: Query, tables: Collection[Table]) -> dict[str, set[str]]:
    """Return all names of each queue, by its canonical one.

    Texts name one queue where silver.queue_aliases says so, and where a row has both a queue and the format name that
    it was asked for by. ``tables`` have rows about queues.
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
    return dict(groups)


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
