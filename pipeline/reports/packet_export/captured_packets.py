"""Reads the packets of pieces of connections from one capture, once, block by block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.reports.packet_export.pieces import Piece
from pipeline.text import escape_unprintable
from udfs.array_types import Bools, Ints
from udfs.columns.absent import BEFORE_ALL, NONE
from udfs.columns.groups import group_bounds
from udfs.files.capture_file import CaptureFileReader, NotACaptureError, RecordBlock
from udfs.files.file_source import FileSource
from udfs.tcp.packet_decoder import PacketDecoder, TcpSegments

_BLOCK_BYTES: Final = 16 << 20
_MAX_COMMENTS: Final = 3  # on a packet: of the shortest calls and packets that it is in


class CapturedPacket(NamedTuple):
    """A captured packet, its place and a comment on it; they sort by time, which is as in ``RecordBlock``."""

    time_ns: int
    path: str
    packet_number: int
    link_type: int
    original_length: int
    data: bytes
    comment: str


class _ConnectionPieces(NamedTuple):
    """The pieces of one connection by what they say of a packet, most first: their places among all, and times, us."""

    places: Ints
    begins: Ints
    ends: Ints


class PacketFinder:
    """Finds the packets of pieces of one capture.

    ``found``: of which pieces it found some; ``last_us``: the latest time of a packet so far.
    """

    def __init__(self, path: str, pieces: Sequence[Piece]) -> None:
        self._path, self._pieces = path, pieces
        self._shown_path = escape_unprintable(path, len(path))
        self.found: Bools = np.zeros(len(pieces), np.bool_)
        self.last_us = BEFORE_ALL
        self._exported: Bools = np.array([piece.exported for piece in pieces], np.bool_)
        self._begin_us = min(piece.begin_us for piece in pieces)
        self._end_us = max(piece.end_us for piece in pieces)
        places = defaultdict[bytes, list[int]](list)
        for place, piece in enumerate(pieces):
            places[_connection_name(*sorted((piece.client, piece.server)))].append(place)
        self._by_connection = dict[bytes, _ConnectionPieces]()
        for own in places.values():
            own.sort(key=lambda place: (pieces[place].is_connection, pieces[place].end_us - pieces[place].begin_us))
            times = [(pieces[place].begin_us, pieces[place].end_us) for place in own]
            begins, ends = np.array(times, np.int64).T
            found, one = _ConnectionPieces(np.array(own), begins, ends), pieces[own[0]]
            self._by_connection[_connection_name(one.client, one.server)] = found
            self._by_connection[_connection_name(one.server, one.client)] = found

    def read(self, max_expansion: int, max_bytes: int) -> Iterator[CapturedPacket]:
        """Yield the packets in the order of the capture. OSError if it cannot be read."""
        decoder = PacketDecoder()
        with FileSource.from_path(self._path).open_decompressed(max_expansion, max_bytes) as stream:
            try:
                for records in CaptureFileReader(stream, _BLOCK_BYTES).read_blocks():
                    yield from self._packets_of(records, decoder.decode_block(records))
            except NotACaptureError as error:
                raise OSError(str(error)) from error

    def _packets_of(self, records: RecordBlock, segments: TcpSegments) -> Iterator[CapturedPacket]:
        """Yield the packets of a block that belong to pieces."""
        comments = {
            row: " | ".join(dict.fromkeys(self._pieces[place].comment for place in places if place != NONE))
            for rows, found in self._match(segments)
            for row, places in zip(segments.record_index[rows].tolist(), found.tolist(), strict=True)
        }
        rows = sorted(comments)
        chosen = records.take(np.array(rows, np.int64))
        columns = (chosen.time_ns, chosen.packet_number, chosen.link_type, chosen.original_length, chosen.packet_start,
                   chosen.captured_length)  # fmt: skip
        for row, time, number, link, length, start, size in zip(
            rows, *(each.tolist() for each in columns), strict=True
        ):
            self.last_us = max(self.last_us, time // 1000)
            data, comment = bytes(records.buffer[start : start + size]), f"{comments[row]}; {self._shown_path}"
            yield CapturedPacket(time, self._path, number, link, length, data, comment)

    def _match(self, segments: TcpSegments) -> Iterator[tuple[Ints, Ints]]:
        """Yield segments of each connection that are in exported pieces, with the pieces that comment on each."""
        micros = segments.time_ns // 1000
        rows = np.flatnonzero((micros >= self._begin_us) & (micros <= self._end_us))
        names, codes = np.unique(_connection_names(segments, rows), return_inverse=True)
        order = np.lexsort((micros[rows], codes))
        rows, bounds = rows[order], group_bounds(codes[order], len(names)).tolist()
        for name, start, end in zip(names, bounds, bounds[1:], strict=False):
            if (own := self._by_connection.get(name.tobytes())) is not None:
                is_exported, places = self._place(own, micros[rows[start:end]])
                yield rows[start:end][is_exported], places[is_exported]

    def _place(self, own: _ConnectionPieces, micros: Ints) -> tuple[Bools, Ints]:
        """Tell which packets of a connection, whose times ascend, are exported, and which pieces comment on each."""
        begins, ends = np.searchsorted(micros, own.begins, "left"), np.searchsorted(micros, own.ends, "right")
        is_exported, comments = np.zeros(len(micros), np.bool_), np.full((len(micros), _MAX_COMMENTS), NONE, np.int64)
        counts = np.zeros(len(micros), np.int64)
        for each in np.flatnonzero(begins < ends).tolist():
            place, within = own.places[each], slice(begins[each], ends[each])
            is_exported[within] |= self._exported[place]
            self.found[place] = True
            most = 1 if self._pieces[place].is_connection else _MAX_COMMENTS
            free = begins[each] + np.flatnonzero(counts[within] < most)
            comments[free, counts[free]] = place
            counts[free] += 1
        return is_exported, comments


def _connection_name(source: tuple[bytes, int], target: tuple[bytes, int]) -> bytes:
    """Return what packets from one end of a connection to the other have in common, as ``_connection_names`` does."""
    return b"".join(address.ljust(16, b"\0") + port.to_bytes(2, "big") for address, port in (source, target))


def _connection_names(segments: TcpSegments, rows: Ints) -> npt.NDArray[np.void]:
    """Return for segments the bytes of their source and target."""
    parts = [
        part
        for address, port in (
            (segments.source_address, segments.source_port), (segments.target_address, segments.target_port),
        )
        for part in (address[rows], port[rows].astype(">u2").view(np.uint8).reshape(len(rows), 2))
    ]  # fmt: skip
    joined = np.ascontiguousarray(np.concatenate(parts, axis=1))
    names: npt.NDArray[np.void] = joined.view(np.dtype((np.void, joined.shape[1]))).ravel()
    return names
