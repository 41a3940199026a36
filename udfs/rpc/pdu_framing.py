"""PDU framing: finds the PDUs in the ordered streams of a block, and resynchronises behind gaps.

Each byte of a direction belongs to a whole PDU, to a PDU damaged by a gap, or to a run of stray bytes, which were
skipped until a PDU was confirmed. Stray bytes become rows of quarantine if the connection carries MSMQ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Ints
from udfs.dcerpc.pdu_headers import CLIENT_PDU_TYPES, PDU_HEADER_BYTES, find_next_pdu, read_frag_length, walk_pdus
from udfs.tcp.connection_tracker import BlockStream, BlockStreams, StreamExtent
from udfs.tcp.connections import (
    GAP_FRAMED_BEFORE,
    GAP_FRAMED_ELSEWHERE,
    MAX_HISTORY_BYTES,
    BufferedSegment,
    ConnectionKind,
    StreamDirection,
    StreamGap,
)

QUARANTINE_SAMPLE_BYTES: Final = 256
MAX_LEADING_BYTES: Final = 0xFFFF  # kept from before the first PDU: the rest of a PDU that began in another capture
MAX_UNRECOGNISED_RUNS: Final = 1 << 12  # of one direction; further ones are added to the last
MAX_STRAYS_PER_DIRECTION: Final = 1 << 14  # of a direction not known to be MSMQ; further ones are added to the last
MAX_TOTAL_HISTORY_BYTES: Final = 64 << 20  # of all directions; the least recently used are dropped first
REASON_CAPTURE_BEGINS: Final = "capture_begins"


@dataclass(slots=True)
class StrayBytes:
    """A contiguous run of bytes of one direction that belongs to no PDU."""

    stream_offset: int
    size: int
    sample: bytes
    reason: str
    time_ns: int
    packet_number: int
    file_offset: int
    provisional: bool = False  # its bytes are in the remainder: another capture may show what they are


class DamagedPdu(NamedTuple):
    """A PDU with missing bytes: its header as far as seen (16 to 40 bytes), its position and times.

    ``time_ns``: of its first byte; ``end_time_ns``: the latest of the packets that carried it.
    ``gaps_before``: number of gaps before it in its direction.
    """

    stream_offset: int
    header: bytes
    frag_length: int
    time_ns: int
    end_time_ns: int
    packet_number: int
    file_offset: int
    acknowledgement: int
    gaps_before: int


@dataclass(slots=True)
class FramingState:
    """Framing state of a direction between blocks."""

    in_sync: bool = False
    out_of_sync_reason: str = REASON_CAPTURE_BEGINS  # quarantine reason of bytes skipped now
    skip_until: int | None = None  # stream offset of the end of a damaged PDU
    damaged_pdu: DamagedPdu | None = None
    open_stray: StrayBytes | None = None  # may still grow
    strays: list[StrayBytes] = field(default_factory=list)
    recognised: bool = False  # at least one PDU was found
    leading_segments: list[BufferedSegment] = field(
        default_factory=list
    )  # bytes before the first PDU, if the SYN is missing
    leading_bytes: int = 0
    unrecognised_runs: list[StrayBytes] = field(
        default_factory=list
    )  # all bytes, for connections that stay unrecognised


@dataclass(slots=True)
class FramedPdus:
    """The PDUs of a block, as arrays with one element per whole PDU.

    ``buffer_start``: offset in the block's buffer; ``stream_index``: in ``BlockStreams.streams``; ``stream_offset``: in
    its direction; ``gaps_before``: number of gaps before it in its direction. ``damaged``: damaged PDUs with stream
    index.
    """

    buffer_start: Ints
    stream_index: Ints
    stream_offset: Ints
    gaps_before: Ints
    damaged: list[tuple[int, DamagedPdu]]


class PduFramer:
    """Finds the PDUs in the streams of one capture, block after block."""

    def __init__(self) -> None:
        self._histories: dict[tuple[int, int], tuple[StreamDirection, int]] = {}  # in order of last use
        self._history_bytes = 0

    def _limit_histories(self, stream: BlockStream) -> None:
        name = (id(stream.connection), stream.side)  # connections exist as long as the capture is read
        direction = stream.connection.directions[stream.side]
        self._history_bytes += len(direction.history) - self._histories.pop(name, (direction, 0))[1]
        self._histories[name] = direction, len(direction.history)
        while self._history_bytes > MAX_TOTAL_HISTORY_BYTES:
            oldest, size = self._histories.pop(next(iter(self._histories)))
            oldest.history = b""
            self._history_bytes -= size

    def frame_block(self, streams: BlockStreams, *, final: bool) -> FramedPdus:
        """Return the PDUs of a block's streams; ``final``: no bytes will follow.

        The bytes of an incomplete PDU at the end of a stream are stored in the direction's ``partial_pdu``.
        """
        starts: list[int] = []
        spans: list[
            tuple[int, int, int, int]
        ] = []  # number of PDUs, stream index, stream offset minus buffer offset, gaps before
        broken: list[tuple[int, DamagedPdu]] = []
        for index, stream in enumerate(streams.streams):
            direction = stream.connection.directions[stream.side]
            if stream.connection.kind is ConnectionKind.OTHER:
                direction.unchecked_repeats, direction.differing_repeats, direction.history = [], [], b""
                continue
            is_framed = direction.framing_state is not None
            if stream.connection.kind is not ConnectionKind.BINARY and (is_framed or stream.has_bytes_or_gap):
                _DirectionFramer(streams, stream, index, starts, spans, broken, final=final).run()
            _update_history(direction, streams, stream)
            self._limit_histories(stream)
        counts = np.array([count for count, *_ in spans], np.int64)
        at = np.array(starts, np.int64)
        columns = np.array(spans, np.int64).reshape(-1, 4)
        return FramedPdus(
            at,
            np.repeat(columns[:, 1], counts),
            at + np.repeat(columns[:, 2], counts),
            np.repeat(columns[:, 3], counts),
            broken,
        )


def _update_history(direction: StreamDirection, streams: BlockStreams, stream: BlockStream) -> None:
    """Compare repeated bytes with the stream, and keep its last bytes for later comparisons."""
    if not stream.extents:
        direction.compare_repeats(b"", 0, direction.history_end)
        return
    last = stream.extents[-1]
    size = last.end - last.start
    end_offset = last.stream_offset + size
    if direction.unchecked_repeats:
        view = memoryview(streams.buffer)
        for extent in stream.extents:
            direction.compare_repeats(
                view[: extent.end], extent.start, extent.stream_offset + extent.end - extent.start
            )
    keep = streams.buffer[max(last.start, last.end - MAX_HISTORY_BYTES) : last.end]
    if len(keep) < MAX_HISTORY_BYTES and direction.history_end >= last.stream_offset:
        # Bytes kept from the previous block are in the history already.
        old = direction.history[: max(0, len(direction.history) - (direction.history_end - last.stream_offset))]
        keep = (old + keep)[-MAX_HISTORY_BYTES:] if old else keep
    direction.history, direction.history_end = keep, end_offset


class _DirectionFramer:
    """Frames the bytes of one direction in a block."""

    def __init__(
        self, streams: BlockStreams, stream: BlockStream, index: int, starts: list[int],
        spans: list[tuple[int, int, int, int]], broken: list[tuple[int, DamagedPdu]], *, final: bool,
    ) -> None:  # fmt: skip
        self._streams = streams
        self._stream = stream
        self._index = index
        self._starts = starts
        self._pdu_spans = spans
        self._damaged = broken
        self._final = final
        self._direction = stream.connection.directions[stream.side]
        state = self._direction.framing_state
        if not isinstance(state, FramingState):
            state = FramingState(in_sync=self._direction.syn_sequence is not None)
            self._direction.framing_state = state
        self._state: FramingState = state
        gaps = (*(extent.gap_before for extent in stream.extents), stream.gap_after)
        self._gaps = self._direction.gap_count - sum(gap is not None and gap.separates_fragments for gap in gaps)

    def run(self) -> None:
        """Find the PDUs in all extents of the stream, in order."""
        extents = self._stream.extents
        for position, extent in enumerate(extents):
            if extent.gap_before is not None:
                self._pass_gap(extent.gap_before)
            if extent.start == extent.end:  # between a gap and bytes that were framed before
                continue
            follows = extents[position + 1].gap_before if position + 1 < len(extents) else self._stream.gap_after
            self._extend_unrecognised_run(extent)
            self._frame_extent(extent.start, extent.end, extent.stream_offset - extent.start, follows)
            if self._stream.connection.kind is ConnectionKind.OTHER:
                return
        if self._stream.gap_after is not None:
            self._pass_gap(self._stream.gap_after)
        if self._final:
            self._close_damaged_pdu()
            self._close_stray()

    def _extend_unrecognised_run(self, extent: StreamExtent) -> None:
        """Record all bytes of the direction as runs, in case the connection stays unrecognised."""
        runs = self._state.unrecognised_runs
        size = extent.end - extent.start
        if runs and runs[-1].stream_offset + runs[-1].size >= extent.stream_offset:
            # Bytes kept from the previous block are repeated.
            run = runs[-1]
            run.size = extent.stream_offset + size - run.stream_offset
            if len(run.sample) < QUARANTINE_SAMPLE_BYTES:
                at = extent.start + run.stream_offset + len(run.sample) - extent.stream_offset
                run.sample += self._streams.buffer[at : min(extent.end, at + QUARANTINE_SAMPLE_BYTES - len(run.sample))]
        elif len(runs) >= MAX_UNRECOGNISED_RUNS:
            runs[-1].size += size
        else:
            runs.append(self._make_stray(extent.start, extent.end, extent.stream_offset, "unrecognised"))

    def _pass_gap(self, gap: StreamGap) -> None:
        """Update the state for a gap: framing stays in sync behind framed bytes, and inside a damaged PDU."""
        state = self._state
        self._gaps += gap.separates_fragments
        if not gap.is_hole:
            self._close_stray()
            self._close_damaged_pdu()
            state.in_sync, state.out_of_sync_reason = (
                gap.cause in (GAP_FRAMED_BEFORE, GAP_FRAMED_ELSEWHERE),
                "not_a_pdu",
            )
            return
        self._close_stray()
        if state.skip_until is not None and gap.end <= state.skip_until:
            if gap.end == state.skip_until:
                self._close_damaged_pdu()  # exactly the rest of the damaged PDU is missing: still in sync
            return
        self._close_damaged_pdu()
        state.in_sync, state.out_of_sync_reason = False, "capture_loss" if gap.cause == "loss" else "truncated"

    def _frame_extent(self, at: int, end: int, shift: int, gap: StreamGap | None) -> None:
        """Find the PDUs in ``buffer[at:end]``. ``shift``: stream minus buffer offset; ``gap``: the one behind."""
        state, data = self._state, self._streams.buffer
        connection = self._stream.connection
        final = self._final or gap is not None
        if state.skip_until is not None:
            stop = min(end, state.skip_until - shift)
            if state.damaged_pdu is not None and stop > at:
                until = max(state.damaged_pdu.end_time_ns, self._streams.latest_time(at, stop))
                state.damaged_pdu = state.damaged_pdu._replace(end_time_ns=until)
            at = stop
            if at + shift < state.skip_until:
                return
            self._close_damaged_pdu()
        while at < end or (at == end and not state.in_sync):
            if state.in_sync:
                begin = len(self._starts)
                at, in_sync = walk_pdus(data, at, end, self._starts)
                count = len(self._starts) - begin
                if count:
                    self._pdu_spans.append((count, self._index, shift, self._gaps))
                    self._mark_recognised(self._starts[begin])
                if not in_sync:
                    if connection.kind is ConnectionKind.UNDECIDED and connection.client_side == self._stream.side:
                        # RPC clients begin with a bind; on a well-known MSMQ port it may be damaged.
                        connection.kind = ConnectionKind.RPC if connection.on_known_port else ConnectionKind.OTHER
                        if connection.kind is ConnectionKind.OTHER:
                            return
                    state.in_sync, state.out_of_sync_reason = False, "not_a_pdu"
                    continue
                if at < end:
                    self._end_with_partial_pdu(at, end, shift, gap, final=final)
                return
            found, keep = find_next_pdu(data, at, end, more=not final)
            if found is None:
                if keep > at:
                    self._add_stray_bytes(at, keep, shift)
                if keep < end:
                    self._keep_partial_pdu(keep, end, shift)
                return
            if found > at:
                self._add_stray_bytes(at, found, shift)
            self._close_stray()
            state.in_sync, at = True, found

    def _end_with_partial_pdu(self, at: int, end: int, shift: int, gap: StreamGap | None, *, final: bool) -> None:
        """Handle an incomplete PDU at the end of an extent: keep it for the next block, or count it as damaged."""
        state, data = self._state, self._streams.buffer
        if not final:
            self._keep_partial_pdu(at, end, shift)
            return
        if end - at < PDU_HEADER_BYTES:
            state.in_sync, state.out_of_sync_reason = False, "damaged_header"
            self._add_stray_bytes(at, end, shift)
            self._close_stray()
            return
        length = read_frag_length(data, at)
        self._mark_recognised(at)
        first = int(np.searchsorted(self._streams.segment_start, at, "right")) - 1
        state.damaged_pdu = DamagedPdu(
            at + shift,
            data[at : min(end, at + 40)],
            length,
            int(self._streams.time_ns[first]),
            self._streams.latest_time(at, end),
            int(self._streams.packet_number[first]),
            int(self._streams.file_offset[first]) + at - int(self._streams.segment_start[first]),
            int(self._streams.acknowledgement[first]),
            self._gaps,
        )
        state.skip_until = at + shift + length
        if gap is None:
            self._close_damaged_pdu()

    def _close_damaged_pdu(self) -> None:
        state = self._state
        if state.damaged_pdu is not None:
            self._damaged.append((self._index, state.damaged_pdu))
        state.damaged_pdu = state.skip_until = None

    def _keep_partial_pdu(self, at: int, end: int, shift: int) -> None:
        self._direction.partial_pdu = self._streams.copy_segments(at, end, at + shift)

    def _mark_recognised(self, at: int) -> None:
        connection = self._stream.connection
        self._state.recognised = True
        if connection.kind is ConnectionKind.UNDECIDED:
            connection.kind = ConnectionKind.RPC
        if connection.client_side is None:
            sent_by_client = self._streams.buffer[at + 2] in CLIENT_PDU_TYPES
            connection.client_side = self._stream.side if sent_by_client else self._stream.side ^ 1

    def _add_stray_bytes(self, at: int, end: int, shift: int) -> None:
        state = self._state
        stray = state.open_stray
        if self._direction.syn_sequence is None and not state.recognised and state.leading_bytes < MAX_LEADING_BYTES:
            stop = min(end, at + MAX_LEADING_BYTES - state.leading_bytes)
            state.leading_segments += self._streams.copy_segments(at, stop, at + shift)
            state.leading_bytes += stop - at
        if stray is not None and stray.stream_offset + stray.size == at + shift:
            room = QUARANTINE_SAMPLE_BYTES - len(stray.sample)
            if room > 0:
                stray.sample += self._streams.buffer[at : min(end, at + room)]
            stray.size += end - at
            return
        self._close_stray()
        state.open_stray = self._make_stray(at, end, at + shift, state.out_of_sync_reason)

    def _make_stray(self, at: int, end: int, offset: int, reason: str) -> StrayBytes:
        first = int(np.searchsorted(self._streams.segment_start, at, "right")) - 1
        return StrayBytes(
            offset,
            end - at,
            self._streams.buffer[at : min(end, at + QUARANTINE_SAMPLE_BYTES)],
            reason,
            int(self._streams.time_ns[first]),
            int(self._streams.packet_number[first]),
            int(self._streams.file_offset[first]) + at - int(self._streams.segment_start[first]),
            self._final or (self._direction.syn_sequence is None and not self._state.recognised),
        )

    def _close_stray(self) -> None:
        if self._state.open_stray is not None:
            if len(self._state.strays) < MAX_STRAYS_PER_DIRECTION:
                self._state.strays.append(self._state.open_stray)
            else:
                self._state.strays[-1].size += self._state.open_stray.size
            self._state.open_stray = None
