"""Where captures end at another time than before: what waits there may wait longer, or less long. No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ChangedEnds(NamedTuple):
    """The servers whose captures end ``later`` than before, or are new; and those where they end ``earlier``."""

    later: frozenset[str]
    earlier: frozenset[str]


def changed_ends(before: Mapping[str, int], now: Mapping[str, int]) -> ChangedEnds:
    """Compare the ends of captures by server, microseconds."""
    later = frozenset(server for server, at in now.items() if at > before.get(server, at - 1))
    earlier = frozenset(server for server, at in before.items() if at > now.get(server, at - 1))
    return ChangedEnds(later, earlier)
