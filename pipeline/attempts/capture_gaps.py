"""Until when other readers of a server can have done something unseen: what it rests on that nobody took a message.

A message that was given back, and that nobody was seen to read again, is still there only if no other reader's call
was missed. One can have been missed at a server

* while a connection to it goes on of which bytes are in no capture, and until the end of a capture of it whose machine
  says that it lost packets, which may have been all of a connection (``capture_loss``);
* until the last read there that is sealed: which message that brought, if any, nobody can tell (``sealed``).

A connection of which nothing was captured, by a machine that does not say that it lost anything, leaves no trace. Plain
values; no Spark.

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

Unseen = Mapping[str, Mapping[str, int]]
"""By the code of what is missing, and by server: until when."""

NOTHING: Final[Unseen] = {}


def latest(times: Iterable[tuple[str | None, int | None]]) -> dict[str, int]:
    """Return the latest of the times of each server."""
    found: dict[str, int] = {}
    for server, at in times:
        if server is not None and at is not None:
            found[server] = max(at, found.get(server, at))
    return found


def lost(
    connections: Iterable[tuple[str | None, int | None, int | None]],
    captures: Iterable[tuple[Iterable[str], int | None, int | None]],
) -> dict[str, int]:
    """Return until when calls at each server can have been lost.

    ``connections`` are (server, last packet, bytes missing), ``captures`` (servers, last packet, packets dropped).
    """
    theirs = [(server, at) for server, at, missing in connections if missing]
    theirs += [(server, at) for servers, at, dropped in captures if dropped for server in servers]
    return latest(theirs)


def hidden(unseen: Unseen, servers: Iterable[str | None], since: int) -> set[str]:
    """Return the codes of what can have hidden a call at one of some servers after a time."""
    places = {server for server in servers if server is not None}
    return {code for code, until in unseen.items() if any(until.get(server, since) > since for server in places)}


def changed_since(before: Unseen, now: Unseen) -> int | None:
    """Return the earliest time since which ``hidden`` can answer otherwise than before; None where it does not."""
    times = []
    for code in before.keys() | now.keys():
        was, is_now = before.get(code, {}), now.get(code, {})
        differ = [server for server in was.keys() | is_now.keys() if was.get(server) != is_now.get(server)]
        times += [min(was.get(server, 0), is_now.get(server, 0)) for server in differ]
    return min(times, default=None)
