"""Associations that go on: more of their calls came, and all else that answers rest on is as it was.

Of such an association only the attempts are touched that share a name with a call that changed (``bearing``). It is
one that had begun before and has not ended; its connections are those that it had, and perhaps new ones; whether its
beginning was seen, and whether bytes of it are missing, is as before. Plain rows; no Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.attempts.associations import Association, Connection, associations


class GoingOn(NamedTuple):
    """``associations``: the name of the association that goes on, by connection.

    ``woken``: those of the connections that ended, or whose server was heard for the first time: what is unanswered on
    them means something else now.
    """

    associations: Mapping[str, str]
    woken: frozenset[str]


def going_on(connections: Iterable[Connection], before: Mapping[str, Connection | None]) -> GoingOn:
    """Return which associations of one server go on.

    ``connections`` are all of some groups; ``before`` tells of those that changed what they were, None of new ones, and
    of those that went too.
    """
    now = {connection.connection_id: connection for connection in connections}
    was = {name: connection for name, connection in {**now, **before}.items() if connection is not None}
    members, members_were = _members(now), _members(was)
    found: dict[str, str] = {}
    for association, names in members.items():
        old = {name for name in names if name in was}
        goes_on = association in members_were and members_were[association] == old
        if goes_on and association.ended_at is None and all(_stays(was[name], now[name]) for name in old):
            gaps = any(now[name].missing_bytes for name in names)
            if gaps == any(was[name].missing_bytes for name in old):
                found |= dict.fromkeys(names, association.name)
    woken = {name for name in found if name in was and _woke(was[name], now[name])}
    return GoingOn(found, frozenset(woken))


def _members(connections: Mapping[str, Connection]) -> dict[Association, set[str]]:
    found: defaultdict[Association, set[str]] = defaultdict(set)
    for name, association in associations(connections.values()).items():
        found[association].add(name)
    return found


def _stays(was: Connection, now: Connection) -> bool:
    """Tell whether what answers rest on is the same of a connection, apart from its end."""
    facts = ((c.first_packet_at, c.association_group_id, c.syn_seen, bool(c.missing_bytes)) for c in (was, now))
    return next(facts) == next(facts)


def _woke(was: Connection, now: Connection) -> bool:
    return was.closed_at != now.closed_at or bool(was.server_bytes) != bool(now.server_bytes)
