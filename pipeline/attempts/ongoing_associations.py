"""Ongoing associations: they gained calls but are otherwise unchanged: still open, same connections or more, same gaps.

Of such an association only the attempts are recomputed that share a dependency key with a changed call. It began
before the change and has not ended; whether its beginning was captured, and whether bytes of it are missing, is as
before. No Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.attempts.calls.associations import ClientAssociation, RpcConnection, group_into_associations


class OngoingAssociations(NamedTuple):
    """``associations``: the name of the ongoing association of each connection.

    ``newly_closed_connections``: those of the connections that ended, or whose server was seen for the first time:
    unanswered calls on them mean something else now.
    """

    associations: Mapping[str, str]
    newly_closed_connections: frozenset[str]


def find_ongoing(
    connections: Iterable[RpcConnection], before: Mapping[str, RpcConnection | None]
) -> OngoingAssociations:
    """Return which associations of one server are ongoing.

    ``connections`` are all of some groups; ``before`` has the changed ones as they were, None for new ones, and the
    deleted ones.
    """
    now = {connection.connection_id: connection for connection in connections}
    was = {name: connection for name, connection in {**now, **before}.items() if connection is not None}
    members, members_were = _members(now), _members(was)
    found: dict[str, str] = {}
    for association, names in members.items():
        old = {name for name in names if name in was}
        unchanged = association in members_were and members_were[association] == old
        if unchanged and association.ended_at is None and all(_is_unchanged(was[name], now[name]) for name in old):
            gaps = any(now[name].missing_bytes for name in names)
            if gaps == any(was[name].missing_bytes for name in old):
                found |= dict.fromkeys(names, association.name)
    newly_closed = {name for name in found if name in was and _is_newly_closed(was[name], now[name])}
    return OngoingAssociations(found, frozenset(newly_closed))


def _members(connections: Mapping[str, RpcConnection]) -> dict[ClientAssociation, set[str]]:
    found: defaultdict[ClientAssociation, set[str]] = defaultdict(set)
    for name, association in group_into_associations(connections.values()).items():
        found[association].add(name)
    return found


def _is_unchanged(was: RpcConnection, now: RpcConnection) -> bool:
    """Whether a connection is unchanged in what attempts depend on, apart from its end."""
    facts = (
        (
            c.first_packet_at,
            c.association_group_id,
            bool(c.association_joined),
            c.syn_seen,
            bool(c.missing_bytes),
            c.uncaptured_side,
        )
        for c in (was, now)
    )
    return next(facts) == next(facts)


def _is_newly_closed(was: RpcConnection, now: RpcConnection) -> bool:
    return was.closed_at != now.closed_at or bool(was.server_bytes) != bool(now.server_bytes)
