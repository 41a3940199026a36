"""Connections -> associations: what shares its context handles, and when the last connection of it ended.

[C706] 9.3, [MS-RPCE] 3.3.1.5: connections between two hosts with the same association group id, other than 0, form one
association. Group ids are used again, so an association lasts as long as one of its connections is open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Connection:
    """A row of bronze.connections, as far as attempts need it; times in microseconds since the epoch."""

    connection_id: str
    client_address: str | None
    first_packet_at: int
    last_packet_at: int
    closed_at: int | None = None
    association_group_id: int | None = None
    syn_seen: bool = True
    server_bytes: int = 1
    missing_bytes: int = 0

    @property
    def is_stray(self) -> bool:
        """Neither its beginning nor its bind was captured: it may be of any association of its client."""
        return not self.syn_seen and not self.association_group_id


@dataclass(frozen=True, slots=True)
class Association:
    """``ended_at``: when its last connection ended, None while one is open; ``beginning_seen``: all SYNs were."""

    name: str
    ended_at: int | None = None
    beginning_seen: bool = True


def associations(connections: Iterable[Connection]) -> dict[str, Association]:
    """Return the association of each connection of one server, by connection id. Its name is its first connection's."""
    groups: defaultdict[tuple[str | None, int | str], list[Connection]] = defaultdict(list)
    for connection in connections:
        group = connection.association_group_id or connection.connection_id  # without a group it is alone
        groups[connection.client_address, group].append(connection)
    found: dict[str, Association] = {}
    for members in groups.values():
        members.sort(key=lambda c: (c.first_packet_at, c.connection_id))
        run: list[Connection] = []
        for connection in members:
            if run and _ended_at(run, connection.first_packet_at):
                _close(run, found)
                run = []
            run.append(connection)
        _close(run, found)
    return found


def _ended_at(run: list[Connection], before: int) -> bool:
    """Tell whether all connections of a run had ended before a time."""
    return all(connection.closed_at is not None and connection.closed_at < before for connection in run)


def _close(run: list[Connection], found: dict[str, Association]) -> None:
    ends = [connection.closed_at for connection in run]
    ended_at = max(end for end in ends if end is not None) if None not in ends else None
    association = Association(run[0].connection_id, ended_at, all(connection.syn_seen for connection in run))
    for connection in run:
        found[connection.connection_id] = association
