"""Groups connections into associations, which share context handles, and finds when their last connection ended.

[C706] 9.3, [MS-RPCE] 3.3.1.5: connections between two hosts with the same association group id, other than 0, form one
association. Group ids are reused, so an association lasts as long as one of its connections is open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class RpcConnection:
    """A row of bronze.connections with the fields that attempts need; times in microseconds since the epoch."""

    connection_id: str
    client_address: str | None
    first_packet_at: int
    last_packet_at: int
    closed_at: int | None = None
    association_group_id: int | None = None
    syn_seen: bool = True
    server_bytes: int = 1
    missing_bytes: int = 0
    closed_by: str | None = None
    server_address: str | None = None
    uncaptured_side: str | None = None

    @staticmethod
    def of(facts: Mapping[str, Any]) -> RpcConnection:
        """Return the connection with these fields.

        One whose beginning or end has no time, or of which one direction was not captured, counts as lost in part.
        """
        known = dict(facts)
        if known["first_packet_at"] is None:
            known |= {"first_packet_at": 0, "last_packet_at": 0, "missing_bytes": 1}
        if known["closed_by"] is not None and known["closed_at"] is None:
            known["missing_bytes"] = 1
        if known.get("uncaptured_side") is not None:
            known["missing_bytes"] = max(known["missing_bytes"], 1)
        return RpcConnection(**known)

    @property
    def is_without_bind(self) -> bool:
        """Whether neither its beginning nor its bind was captured: it may belong to any association of its client."""
        return not self.syn_seen and not self.association_group_id

    def including(self, begin: int, end: int) -> RpcConnection:
        """Return the connection with a lifetime that includes two times."""
        return replace(
            self,
            first_packet_at=min(self.first_packet_at, begin),
            last_packet_at=max(self.last_packet_at, end),
            closed_at=None if self.closed_at is None else max(self.closed_at, end),
        )


@dataclass(frozen=True, slots=True)
class ClientAssociation:
    """An association of connections between a client and a server.

    ``ended_at``: the end of its last connection, None while one is open; ``beginning_seen``: all SYNs were captured.
    """

    name: str
    ended_at: int | None = None
    beginning_seen: bool = True


def group_into_associations(connections: Iterable[RpcConnection]) -> dict[str, ClientAssociation]:
    """Return the association of each connection, by connection id.

    An association is named after its first connection.
    """
    groups: defaultdict[tuple[str | None, str | None, int | str], list[RpcConnection]] = defaultdict(list)
    for connection in connections:
        group = connection.association_group_id or connection.connection_id  # alone without a group
        groups[connection.server_address, connection.client_address, group].append(connection)
    found: dict[str, ClientAssociation] = {}
    for members in groups.values():
        members.sort(key=lambda c: (c.first_packet_at, c.connection_id))
        run: list[RpcConnection] = []
        for connection in members:
            if run and _ended_at(run, connection.first_packet_at):
                _close(run, found)
                run = []
            run.append(connection)
        _close(run, found)
    return found


def _ended_at(run: list[RpcConnection], before: int) -> bool:
    """Whether all connections of a run had ended before a time."""
    return all(connection.closed_at is not None and connection.closed_at < before for connection in run)


def _close(run: list[RpcConnection], found: dict[str, ClientAssociation]) -> None:
    ends = [connection.closed_at for connection in run]
    ended_at = max(end for end in ends if end is not None) if None not in ends else None
    association = ClientAssociation(run[0].connection_id, ended_at, all(connection.syn_seen for connection in run))
    for connection in run:
        found[connection.connection_id] = association
