"""Streams -> PDUs: cuts the joined bytes of a block, direction by direction, across holes and back into step.

Every byte of a direction is attributed: to a whole PDU, to a PDU that a hole damaged, or to a stray run (what was
skipped until a PDU could be proven), which becomes a row of quarantine if the connection turns out to be ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from udfs.dcerpc.pdu import FROM_CLIENT, HEADER, frag_length, hunt, walk
from udfs.files.container import Ints
from udfs.tcp.flows import ELSEWHERE, HISTORY_BYTES, SETTLED, Direction, Gap, Kind, Piece
from udfs.tcp.tracker import Extent, Stream, Streams

SAMPLE_BYTES: Final = 256
EDGE_BYTES: Final = 0xFFFF  # what a capture's edge may have cut off a PDU: all of it is needed to join it
MAX_RUNS: Final = 1 << 12  # of a direction that stays unrecognised; more are added to the last
MAX_STRAYS: Final = 1 << 14  # of a direction not known to be ours yet; more are added to the last
HISTORY_BUDGET: Final = 64 << 20  # bytes of all directions' histories; the longest untouched go first
CAPTURE_BEGINS: Final = "capture_begins"


@dataclass(slots=True)
class Stray:
    """A contiguous run of bytes of one direction that belongs to no PDU."""

    offset: int  # in the stream
    size: int
    sample: bytes
    reason: str
    time: int
    number: int
    file_offset: int
    provisional: bool = False  # its bytes stand in the remainder: other captures may show what they are


class Broken(NamedTuple):
    """A PDU of which a hole took a part: its header as far as it was seen (16 to 40 octets), where and when."""

    offset: int
    header: bytes
    length: int
    time: int
    last_time: int
    number: int
    file_offset: int
    acknowledgement: int
    holes: int  # in its direction before it


@dataclass(slots=True)
class CutState:
    """What the cutter knows of a direction between blocks."""

    in_step: bool = False
    reason: str = CAPTURE_BEGINS  # why it is out of step
    skip_to: int | None = None  # the stream offset where a damaged PDU ends
    broken: Broken | None = None
    stray: Stray | None = None  # still growing
    strays: list[Stray] = field(default_factory=list)
    recognised: bool = False  # at least one PDU was cut
    head: list[Piece] = field(default_factory=list)  # what the capture's beginning cut, before the first PDU
    head_bytes: int = 0
    runs: list[Stray] = field(default_factory=list)  # all its bytes, for connections that stay unrecognised


@dataclass(slots=True)
class Cuts:
    """The PDUs of a block.

    ``start`` in the joined buffer, ``stream`` (index in ``Streams.streams``), ``offset`` in the direction, and
    ``holes``, the number of holes in that direction before it. ``broken`` lists damaged ones with their stream.
    """

    start: Ints
    stream: Ints
    offset: Ints
    holes: Ints
    broken: list[tuple[int, Broken]]


class Cutter:
    """Cuts the streams of one capture, block after block."""

    def __init__(self) -> None:
        self._histories: dict[tuple[int, int], tuple[Direction, int]] = {}  # in the order of their last use
        self._history_bytes = 0

    def _bound_histories(self, stream: Stream) -> None:
        name = (id(stream.connection), stream.side)  # connections live as long as the capture is read
        direction = stream.connection.sides[stream.side]
        self._history_bytes += len(direction.history) - self._histories.pop(name, (direction, 0))[1]
        self._histories[name] = direction, len(direction.history)
        while self._history_bytes > HISTORY_BUDGET:
            oldest, size = self._histories.pop(next(iter(self._histories)))
            oldest.history = b""
            self._history_bytes -= size

    def cut(self, streams: Streams, *, final: bool) -> Cuts:
        """Return the PDUs of a block's streams; ``final``: no bytes will follow.

        What is not whole yet is put back into its direction's ``tail``.
        """
        starts: list[int] = []
        spans: list[tuple[int, int, int, int]] = []  # number of PDUs, stream, offset minus start, holes
        broken: list[tuple[int, Broken]] = []
        for index, stream in enumerate(streams.streams):
            direction = stream.connection.sides[stream.side]
            if stream.connection.kind is Kind.OTHER:
                direction.checks, direction.history = [], b""
                continue
            if stream.connection.kind is not Kind.BINARY:
                _Cut(streams, stream, index, starts, spans, broken, final=final).run()
            _remember(direction, streams, stream)
            self._bound_histories(stream)
        counts = np.array([count for count, *_ in spans], np.int64)
        at = np.array(starts, np.int64)
        columns = np.array(spans, np.int64).reshape(-1, 4)
        return Cuts(
            at,
            np.repeat(columns[:, 1], counts),
            at + np.repeat(columns[:, 2], counts),
            np.repeat(columns[:, 3], counts),
            broken,
        )


def _remember(direction: Direction, streams: Streams, stream: Stream) -> None:
    """Compare repeated bytes with the stream, and keep its last bytes for those that repeat them later."""
    if not stream.extents:
        direction.compare(b"", 0, direction.history_end)
        return
    last = stream.extents[-1]
    size = last.end - last.start
    end_offset = last.offset + size
    if direction.checks:
        view = memoryview(streams.joined)
        for extent in stream.extents:
            direction.compare(view[: extent.end], extent.start, extent.offset + extent.end - extent.start)
    keep = streams.joined[max(last.start, last.end - HISTORY_BYTES) : last.end]
    if len(keep) < HISTORY_BYTES and direction.history_end >= last.offset:
        # A tail that was joined again is in the history already.
        old = direction.history[: max(0, len(direction.history) - (direction.history_end - last.offset))]
        keep = (old + keep)[-HISTORY_BYTES:] if old else keep
    direction.history, direction.history_end = keep, end_offset


class _Cut:
    """One direction's part of a block."""

    def __init__(
        self, streams: Streams, stream: Stream, index: int, starts: list[int],
        spans: list[tuple[int, int, int, int]], broken: list[tuple[int, Broken]], *, final: bool,
    ) -> None:  # fmt: skip
        self._streams = streams
        self._stream = stream
        self._index = index
        self._starts = starts
        self._spans = spans
        self._broken = broken
        self._final = final
        self._direction = stream.connection.sides[stream.side]
        state = self._direction.cutter
        if not isinstance(state, CutState):
            state = CutState(in_step=self._direction.syn is not None)
            self._direction.cutter = state
        self._state: CutState = state
        gaps = (*(extent.before for extent in stream.extents), stream.after)
        self._holes = self._direction.holes - sum(gap is not None and gap.breaks for gap in gaps)

    def run(self) -> None:
        extents = self._stream.extents
        for position, extent in enumerate(extents):
            if extent.before is not None:
                self._hole(extent.before)
            if extent.start == extent.end:  # between a hole and bytes that were cut before
                continue
            follows = extents[position + 1].before if position + 1 < len(extents) else self._stream.after
            self._note_run(extent)
            self._extent(extent.start, extent.end, extent.offset - extent.start, follows)
            if self._stream.connection.kind is Kind.OTHER:
                return
        if self._stream.after is not None:
            self._hole(self._stream.after)
        if self._final:
            self._end_broken()
            self._end_stray()

    def _note_run(self, extent: Extent) -> None:
        runs = self._state.runs
        size = extent.end - extent.start
        if runs and runs[-1].offset + runs[-1].size >= extent.offset:  # bytes kept from before are there again
            run = runs[-1]
            run.size = extent.offset + size - run.offset
            if len(run.sample) < SAMPLE_BYTES:
                at = extent.start + run.offset + len(run.sample) - extent.offset
                run.sample += self._streams.joined[at : min(extent.end, at + SAMPLE_BYTES - len(run.sample))]
        elif len(runs) >= MAX_RUNS:
            runs[-1].size += size
        else:
            runs.append(self._stray(extent.start, extent.end, extent.offset, "unrecognised"))

    def _hole(self, gap: Gap) -> None:
        state = self._state
        self._holes += gap.breaks
        if not gap.hole:
            self._end_stray()
            self._end_broken()
            state.in_step, state.reason = gap.cause in (SETTLED, ELSEWHERE), "not_a_pdu"
            return
        self._end_stray()
        if state.skip_to is not None and gap.end <= state.skip_to:
            if gap.end == state.skip_to:
                self._end_broken()  # exactly the rest of the damaged PDU: still in step
            return
        self._end_broken()
        state.in_step, state.reason = False, "capture_loss" if gap.cause == "loss" else "truncated"

    def _extent(self, at: int, end: int, shift: int, gap: Gap | None) -> None:
        state, data = self._state, self._streams.joined
        connection = self._stream.connection
        final = self._final or gap is not None
        if state.skip_to is not None:
            stop = min(end, state.skip_to - shift)
            if state.broken is not None and stop > at:
                state.broken = state.broken._replace(last_time=self._time(stop - 1))
            at = stop
            if at + shift < state.skip_to:
                return
            self._end_broken()
        while at < end or (at == end and not state.in_step):
            if state.in_step:
                begin = len(self._starts)
                at, in_step = walk(data, at, end, self._starts)
                count = len(self._starts) - begin
                if count:
                    self._spans.append((count, self._index, shift, self._holes))
                    self._recognise(self._starts[begin])
                if not in_step:
                    if connection.kind is Kind.UNDECIDED and connection.client == self._stream.side:
                        # A client of RPC begins with a bind; on a port of ours it may have been damaged.
                        connection.kind = Kind.RPC if connection.on_known_port else Kind.OTHER
                        if connection.kind is Kind.OTHER:
                            return
                    state.in_step, state.reason = False, "not_a_pdu"
                    continue
                if at < end:
                    self._rest(at, end, shift, gap, final=final)
                return
            found, keep = hunt(data, at, end, more=not final)
            if found is None:
                if keep > at:
                    self._add_stray(at, keep, shift)
                if keep < end:
                    self._keep(keep, end, shift)
                return
            if found > at:
                self._add_stray(at, found, shift)
            self._end_stray()
            state.in_step, at = True, found

    def _rest(self, at: int, end: int, shift: int, gap: Gap | None, *, final: bool) -> None:
        """Deal with the beginning of a PDU that is not whole: wait for the rest, or see it damaged."""
        state, data = self._state, self._streams.joined
        if not final:
            self._keep(at, end, shift)
            return
        if end - at < HEADER:
            state.in_step, state.reason = False, "damaged_header"
            self._add_stray(at, end, shift)
            self._end_stray()
            return
        length = frag_length(data, at)
        self._recognise(at)
        first = int(np.searchsorted(self._streams.piece_start, at, "right")) - 1
        state.broken = Broken(
            at + shift,
            data[at : min(end, at + 40)],
            length,
            int(self._streams.time[first]),
            self._time(end - 1),
            int(self._streams.number[first]),
            int(self._streams.file_offset[first]) + at - int(self._streams.piece_start[first]),
            int(self._streams.acknowledgement[first]),
            self._holes,
        )
        state.skip_to = at + shift + length
        if gap is None:
            self._end_broken()

    def _end_broken(self) -> None:
        state = self._state
        if state.broken is not None:
            self._broken.append((self._index, state.broken))
        state.broken = state.skip_to = None

    def _keep(self, at: int, end: int, shift: int) -> None:
        self._direction.tail = self._streams.pieces(at, end, at + shift)

    def _time(self, at: int) -> int:
        return int(self._streams.time[int(np.searchsorted(self._streams.piece_start, at, "right")) - 1])

    def _recognise(self, at: int) -> None:
        connection = self._stream.connection
        self._state.recognised = True
        if connection.kind is Kind.UNDECIDED:
            connection.kind = Kind.RPC
        if connection.client is None:
            sent_by_client = self._streams.joined[at + 2] in FROM_CLIENT
            connection.client = self._stream.side if sent_by_client else self._stream.side ^ 1

    def _add_stray(self, at: int, end: int, shift: int) -> None:
        state = self._state
        stray = state.stray
        if self._direction.syn is None and not state.recognised and state.head_bytes < EDGE_BYTES:
            stop = min(end, at + EDGE_BYTES - state.head_bytes)
            state.head += self._streams.pieces(at, stop, at + shift)
            state.head_bytes += stop - at
        if stray is not None and stray.offset + stray.size == at + shift:
            room = SAMPLE_BYTES - len(stray.sample)
            if room > 0:
                stray.sample += self._streams.joined[at : min(end, at + room)]
            stray.size += end - at
            return
        self._end_stray()
        state.stray = self._stray(at, end, at + shift, state.reason)

    def _stray(self, at: int, end: int, offset: int, reason: str) -> Stray:
        first = int(np.searchsorted(self._streams.piece_start, at, "right")) - 1
        return Stray(
            offset,
            end - at,
            self._streams.joined[at : min(end, at + SAMPLE_BYTES)],
            reason,
            int(self._streams.time[first]),
            int(self._streams.number[first]),
            int(self._streams.file_offset[first]) + at - int(self._streams.piece_start[first]),
            self._final or (self._direction.syn is None and not self._state.recognised),
        )

    def _end_stray(self) -> None:
        if self._state.stray is not None:
            if len(self._state.strays) < MAX_STRAYS:
                self._state.strays.append(self._state.stray)
            else:
                self._state.strays[-1].size += self._state.stray.size
            self._state.stray = None
