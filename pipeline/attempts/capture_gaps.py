"""Possible loss: until when calls at a server may have been missed by the captures.

A message that was given back, and that no reader was seen to read again, is still in the queue only if no other
reader's call was missed. A call may have been missed at a server

* while a connection to it lasts of which bytes are missing, and until the end of a capture whose machine reports
  dropped packets, which may have been a whole connection (``capture_loss``);
* until the last encrypted read there: which message that brought, if any, is not known (``sealed``).

A connection of which nothing was captured, by a machine that reports no loss, leaves no trace. Times are microseconds
since the epoch, UTC. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

PossibleLoss = Mapping[str, Mapping[str, int]]
"""By the code of what is missing, and by server: until when."""

NO_LOSS: Final[PossibleLoss] = {}


def latest_by_server(times: Iterable[tuple[str | None, int | None]]) -> dict[str, int]:
    """Return the latest time of each server."""
    found: dict[str, int] = {}
    for server, at in times:
        if server is not None and at is not None:
            found[server] = max(at, found.get(server, at))
    return found


def gap_codes_after(unseen: PossibleLoss, servers: Iterable[str | None], since: int) -> set[str]:
    """Return the codes of what may have hidden a call at one of some servers after a time."""
    places = {server for server in servers if server is not None}
    return {code for code, until in unseen.items() if any(until.get(server, since) > since for server in places)}


def loss_changed_since(before: PossibleLoss, now: PossibleLoss) -> int | None:
    """Return since when ``gap_codes_after`` may answer otherwise than before; None where it never does."""
    times = []
    for code in before.keys() | now.keys():
        was, is_now = before.get(code, {}), now.get(code, {})
        differ = [server for server in was.keys() | is_now.keys() if was.get(server) != is_now.get(server)]
        times += [min(was.get(server, 0), is_now.get(server, 0)) for server in differ]
    return min(times, default=None)
