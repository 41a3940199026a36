"""PDUs, halves and calls of a block as columns: what the assembly of calls works on and returns."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from udfs.array_types import Bools, Ints

REQUEST_HALF, CANCEL_HALF, ORPHANED_HALF, RESPONSE_HALF = 0, 1, 2, 3  # PduColumns.half_kind; fault PDUs are responses


@dataclass(slots=True)
class PduColumns:
    """Request, response, fault, cancel and orphaned PDUs as columns, with one element per PDU.

    ``stream_offset``: in its own direction; ``client_position``: of its half, in the client's stream;
    ``acknowledged_offset``: how far the sender had acknowledged the other direction; ``gaps_before``: in its direction.
    ``stub_start``: from the PDU's start, at most where its security trailer or the PDU itself ends; ``time_ns``: of its
    first byte; ``end_time_ns``: when it was complete. ``body_index``: index of its kept bytes; -1 if they are in the
    block's buffer, at ``buffer_start``. Unknown ids, opnums and statuses are -1, also those that the PDU is too short
    for.
    """

    connection_index: Ints
    call_id: Ints
    half_kind: Ints
    stream_offset: Ints
    client_position: Ints
    acknowledged_offset: Ints
    gaps_before: Ints
    pfc_flags: Ints
    pdu_type: Ints
    context_id: Ints
    opnum: Ints
    alloc_hint: Ints
    fault_status: Ints
    stub_start: Ints
    stub_size: Ints
    frag_length: Ints
    auth_type: Ints
    auth_level: Ints
    big_endian: Ints
    is_whole: Ints
    time_ns: Ints
    end_time_ns: Ints
    packet_number: Ints
    file_offset: Ints
    buffer_start: Ints
    body_index: Ints

    def select(self, index: Ints | Bools | slice) -> PduColumns:
        """Return the rows selected by an index, a mask or a slice."""
        return PduColumns(*(getattr(self, column.name)[index] for column in fields(self)))

    @staticmethod
    def concat(parts: list[PduColumns]) -> PduColumns:
        """Concatenate the rows of several tables."""
        if len(parts) == 1:
            return parts[0]
        return PduColumns(*(np.concatenate([getattr(p, column.name) for p in parts]) for column in fields(PduColumns)))


@dataclass(slots=True)
class CallHalves:
    """Requests, responses, cancels and orphaned PDUs as columns; ``first_pdu``, ``last_pdu`` index ``PduColumns``.

    ``has_last``: the last PDU is flagged LAST, so that no further PDU can follow.
    """

    first_pdu: Ints
    last_pdu: Ints
    pdu_count: Ints
    is_whole: Bools
    has_last: Bools


@dataclass(slots=True)
class AssembledCalls:
    """Finished calls as columns: index of the request and of the response in ``halves`` (-1: not seen), event times.

    ``call_of_half``: index of the call of each half, -1 if unfinished. ``unpaired_halves``: cancels and orphaned PDUs
    without a call. ``buffer`` and ``kept_bodies`` hold the bytes of the PDUs.
    """

    pdus: PduColumns
    halves: CallHalves
    request_half: Ints
    response_half: Ints
    cancelled_ns: Ints  # or NEVER_NS
    orphaned_ns: Ints
    call_of_half: Ints
    unpaired_halves: Ints
    buffer: bytes
    kept_bodies: list[bytes]

    def pdu_bytes(self, index: int) -> memoryview:
        """Return the bytes of one PDU, as far as they are known."""
        start, size = int(self.pdus.buffer_start[index]), int(self.pdus.frag_length[index])
        body = int(self.pdus.body_index[index])
        return memoryview(self.buffer)[start : start + size] if body < 0 else memoryview(self.kept_bodies[body])
