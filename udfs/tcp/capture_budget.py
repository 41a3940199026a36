"""What all connections of one capture may hold together, beside the limits of each: hostile captures have a million."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Final

# What packets are, in ``capture_files.packets_not_read``.
NOT_FOLLOWED: Final = "of connections over the limit"
NOT_RECOGNISED: Final = "that begin like RPC, of connections over the limit of those without a SYN"
NOT_HANDED_ON: Final = "together with other captures, of open connections over the limit"
PINGS_NOT_READ: Final = "pings over their limit"
NOT_KEPT: Final = "with all bytes, of packets of the binary protocol over the limit of unfinished ones"


@dataclass(slots=True)
class CaptureBudget:
    """What is left of each limit. Beyond a limit the outcome has a name; see the table of bounds in limits.md.

    ``connections``: to follow. ``recognitions``: connections without a SYN that may be recognised by a PDU header
    alone. ``open_connections``: to hand on to other captures. ``contexts``: presentation contexts and transfer
    syntaxes that binds propose. ``retained_bytes``: of PDUs, for other captures. ``skipped_bytes``: of segments that
    came before recognition. ``held_bytes``: out of order. ``packet_bytes``: of unfinished packets of the binary
    protocol. ``unread_packets``: beyond the limits of connections, by what
    they are.
    """

    connections: int = 500_000
    recognitions: int = 50_000
    open_connections: int = 100_000
    contexts: int = 1 << 20
    retained_bytes: int = 128 << 20
    skipped_bytes: int = 4 << 20
    held_bytes: int = 128 << 20
    packet_bytes: int = 256 << 20
    unread_packets: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def unlimited() -> CaptureBudget:
        """Return a budget for remainders: their captures had limits."""
        budget = CaptureBudget()
        for each in fields(budget):
            if each.name != "unread_packets":
                setattr(budget, each.name, sys.maxsize)
        return budget
