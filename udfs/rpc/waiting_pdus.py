"""The PDUs of unfinished calls, which wait for the rest of their call in a later block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from udfs.array_types import Ints
from udfs.rpc.pdu_columns import AssembledCalls, PduColumns

MAX_WAITING_PDUS: Final = 200_000  # in memory; over the limit all calls are returned unfinished with the next block
MAX_WAITING_BYTES: Final = 64 << 20


class WaitingPdus:
    """PDUs with their bytes, by connection: a block can finish calls only of the connections that it has bytes of."""

    def __init__(self) -> None:
        self._by_connection: dict[int, tuple[PduColumns, list[bytes]]] = {}
        self._pdu_count = 0
        self._byte_count = 0

    @property
    def is_over_limit(self) -> bool:
        """Whether more wait than memory is meant for."""
        return self._pdu_count > MAX_WAITING_PDUS or self._byte_count > MAX_WAITING_BYTES

    def store(self, calls: AssembledCalls, waiting: Ints) -> None:
        """Store the PDUs ``waiting`` of a block's calls, sorted by connection. Nothing of theirs may be stored."""
        if not len(waiting):
            return
        pdus = calls.pdus.select(waiting)
        bodies = [
            calls.kept_bodies[body] if body >= 0 else bytes(calls.pdu_bytes(index)) if whole else b""
            for index, body, whole in zip(
                waiting.tolist(), pdus.body_index.tolist(), pdus.is_whole.tolist(), strict=True
            )
        ]
        pdus.buffer_start = np.zeros(len(bodies), np.int64)
        begins = np.nonzero(np.diff(pdus.connection_index, prepend=-1))[0].tolist()
        for begin, end in zip(begins, [*begins[1:], len(bodies)], strict=True):
            own = pdus.select(slice(begin, end))
            own.body_index = np.arange(end - begin)
            self._by_connection[int(own.connection_index[0])] = own, bodies[begin:end]
        self._count(pdus, 1)

    def take(self, connections: Iterable[int]) -> tuple[list[PduColumns], list[bytes]]:
        """Remove the PDUs of connections; return them and their bytes, which ``body_index`` counts over all parts."""
        parts: list[PduColumns] = []
        bodies: list[bytes] = []
        for index in connections:
            pdus, own = self._by_connection.pop(index, (None, []))
            if pdus is not None:
                self._count(pdus, -1)
                pdus.body_index = pdus.body_index + len(bodies)
                parts.append(pdus)
                bodies += own
        return parts, bodies

    def take_all(self) -> tuple[list[PduColumns], list[bytes]]:
        """Remove the PDUs of all connections; returned as by ``take``."""
        return self.take(list(self._by_connection))

    def of_connections(self) -> Iterable[tuple[PduColumns, list[bytes]]]:
        """Return the PDUs of each connection and their bytes."""
        return self._by_connection.values()

    def _count(self, pdus: PduColumns, sign: int) -> None:
        self._pdu_count += sign * len(pdus.frag_length)
        self._byte_count += sign * int(pdus.frag_length.sum())
