"""Groups connections into associations, which share context handles, and finds when their last connection ended.

[C706] 9.3, [MS-RPCE] 3.3.1.5: connections between two hosts with the same association group id, other than 0, form one
association. Group ids are reused, so an association lasts as long as one of its connections is open.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from udfs.columns.absent import AFTER_ALL


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
    association_joined: bool | None = None

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
        """Whether its bind or the answer was not captured: it may belong to any association of its client."""
        return not self.association_group_id and (not self.syn_seen or self.missing_bytes > 0)

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

    ``ended_at``: the end of its last connection, None while one is open; ``beginning_seen``: all SYNs were captured,
    and the bind of a connection that did not join it, but began it; ``may_have_more``: a connection without bind may
    have joined it later.
    """

    name: str
    ended_at: int | None = None
    beginning_seen: bool = True
    may_have_more: bool = False


class ConnectionsWithoutBind:
    """When the connections without bind of each server and client existed (``RpcConnection.is_without_bind``)."""

    def __init__(self, connections: Iterable[RpcConnection]) -> None:
        # In the order of beginnings: these, and the latest end so far.
        self._times: defaultdict[tuple[str | None, str | None], tuple[list[int], list[int]]]
        self._times = defaultdict(lambda: ([], []))
        without_bind = (each for each in connections if each.is_without_bind)
        for connection in sorted(without_bind, key=lambda each: each.first_packet_at):
            begins, ends = self._times[connection.server_address, connection.client_address]
            begins.append(connection.first_packet_at)
            ends.append(max([connection.last_packet_at, *ends[-1:]]))

    def __bool__(self) -> bool:
        return bool(self._times)

    def existed(self, server: str | None, client: str | None, since: int, until: int) -> bool:
        """Whether one existed between two times."""
        begins, ends = self._times.get((server, client), ([], []))
        place = bisect_right(begins, until)
        return place > 0 and ends[place - 1] >= since

    def began(self, server: str | None, client: str | None, since: int, until: int) -> bool:
        """Whether one began after a time, and not after another."""
        begins, _ = self._times.get((server, client), ([], []))
        return bisect_right(begins, until) > bisect_right(begins, since)


def group_into_associations(connections: Iterable[RpcConnection]) -> dict[str, ClientAssociation]:
    """Return the association of each connection, by connection id.

    An association is named after its first connection. A connection without bind whose beginning was not captured may
    have joined those that began before it was seen: it asks for its association when it begins.
    """
    connections = list(connections)
    without_bind = ConnectionsWithoutBind(connections)
    begun_without_bind = ConnectionsWithoutBind(each for each in connections if each.syn_seen)
    groups: defaultdict[tuple[str | None, str | None, int | str], list[RpcConnection]] = defaultdict(list)
    for connection in connections:
        group = connection.association_group_id or connection.connection_id  # alone without a group
        groups[connection.server_address, connection.client_address, group].append(connection)
    found: dict[str, ClientAssociation] = {}

    def close(run: list[RpcConnection]) -> None:
        association = _association_of(run)
        if without_bind:
            life = association.ended_at if association.ended_at is not None else AFTER_ALL
            where = run[0].server_address, run[0].client_address, run[0].first_packet_at, life
            more = without_bind.began(*where) or begun_without_bind.existed(*where)
            association = replace(association, may_have_more=more)
        found.update(dict.fromkeys((each.connection_id for each in run), association))

    for members in groups.values():
        members.sort(key=lambda c: (c.first_packet_at, c.connection_id))
        run: list[RpcConnection] = []
        for connection in members:
            if run and _ended_at(run, connection.first_packet_at):
                close(run)
                run = []
            run.append(connection)
        close(run)
    return found


def _ended_at(run: list[RpcConnection], before: int) -> bool:
    """Whether all connections of a run had ended before a time."""
    return all(connection.closed_at is not None and connection.closed_at < before for connection in run)


def _association_of(run: Sequence[RpcConnection]) -> ClientAssociation:
    ends = [connection.closed_at for connection in run]
    ended_at = max(end for end in ends if end is not None) if None not in ends else None
    beginning_seen = all(each.syn_seen for each in run) and not all(each.association_joined for each in run)
    return ClientAssociation(run[0].connection_id, ended_at, beginning_seen)
