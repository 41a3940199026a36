"""Reader of capture files: pcap in all dialects and pcapng, as blocks of packet records in bounded memory.

A file is read in blocks of about ``block_bytes`` bytes. A record that does not fit into a block is read with the next
one. Only the walk from record to record is a Python loop, because each length gives the position of the next record;
all other fields are gathered as NumPy arrays. Behind a damaged length no record can be found, so reading stops there.

Sources: the pcap and pcapng Internet-Drafts of the IETF opsawg ("PCAP Capture File Format", "PCAP Next Generation").
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from udfs.array_types import Ints
from udfs.columns.absent import NO_TIME
from udfs.keys import key

BUFFER_PADDING_BYTES: Final = 128  # zeros behind each buffer, so that gathering headers never reads beyond its end
MAX_RECORD_BYTES: Final = 16 << 20  # no link type has larger packets; a larger length is damage
MAX_ZERO_BYTES: Final = 1 << 20  # where a record should begin; more zeros are not looked through for another record
MAX_PCAPNG_BLOCK_BYTES: Final = 64 << 20  # of pcapng blocks without a packet too (names, secrets)
UNKNOWN_LINK_TYPE: Final = -1  # of packets whose record is inconsistent
TAIL_BYTES: Final = 64 << 10  # at the end of a capture: hashed to recognise a longer copy of it
RESUME_STATE_VERSION: Final = 1  # of what ``CaptureFileReader.resume_state`` returns
MAX_RESUMABLE_CAPTURE_INTERFACES: Final = 256  # of a section; with more there is no resume state
MAX_HOST_NAMES: Final = 1000  # of a capture

RecordColumns = tuple[
    Ints, Ints, Ints, Ints, Ints
]  # packet start, captured length, original length, time in ns, link type


class ReadableStream(Protocol):
    """The stream that a capture file is read from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read into the buffer and return the number of bytes; 0 at the end."""

    def __enter__(self) -> ReadableStream: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@dataclass(slots=True)
class RecordBlock:
    """The packet records of one block of a capture file; the arrays have one element per record.

    ``buffer``: the block's bytes and ``BUFFER_PADDING_BYTES`` zeros. ``packet_start``: offset of the packet's bytes in
    ``buffer``; ``captured_length`` and ``original_length``: bytes; ``time_ns``: since 1970, ``NO_TIME`` if none;
    ``link_type``: LINKTYPE; ``packet_number``: from 1 as in Wireshark; ``packet_offset``: of the packet's bytes in the
    decompressed file.
    """

    buffer: bytearray
    packet_start: Ints
    captured_length: Ints
    original_length: Ints
    time_ns: Ints
    link_type: Ints
    packet_number: Ints
    packet_offset: Ints

    def take(self, rows: Ints) -> RecordBlock:
        """Return some of the records, with the same buffer."""
        return RecordBlock(self.buffer, *(getattr(self, name)[rows] for name in self.__slots__ if name != "buffer"))


class HostName(NamedTuple):
    """A name that a capture file has for an IP address."""

    address: str
    name: str


@dataclass(slots=True)
class FileDamage:
    """Where and why reading stopped early.

    ``kind``: ``cut_short`` (the last record is incomplete), ``zero_tail`` (zero bytes follow up to the end, as in a
    file whose space was reserved before it was written), or ``damaged``.
    """

    kind: str
    message: str


class NotACaptureError(Exception):
    """The file does not begin like any known capture format. ``kind``: as in bronze.capture_files, column damage."""

    def __init__(self, message: str, kind: str = "not_a_capture") -> None:
        super().__init__(message)
        self.kind = kind


ResumeState = dict[str, Any]  # where reading stopped, JSON-compatible; see CaptureFileReader.resume_state


def resume_read_offset(state: Mapping[str, Any]) -> int:
    """Return the decompressed offset at which the stream must be opened to resume from a state.

    It is up to ``TAIL_BYTES`` before the first unread byte, so that the tail key can be computed even if few bytes were
    added.
    """
    return max(0, int(state["offset"]) - TAIL_BYTES)


@dataclass(slots=True)
class _CaptureInterface:
    link: int
    snaplen: int
    base: int = 10  # ticks per second: base ** exponent
    exponent: int = 6
    offset_s: int = 0
    dropped: int | None = None


@dataclass(slots=True)
class CaptureFileReader:
    """Reads one capture file with ``read_blocks()``; its attributes are final when the iteration ends.

    ``resume_from``, the ``resume_state()`` of an earlier read of the same bytes, resumes from there: the stream must be
    at ``resume_read_offset(resume_from)``. Packet numbers and offsets continue as if the file were read in one go.
    ``end_offset``: reading ends there as at the end of the file, in decompressed bytes; None: at its end.
    """

    stream: ReadableStream
    block_bytes: int  # read at once
    format: str | None = None
    damage: FileDamage | None = None
    first_record_end: int = 0  # offset of the end of the first packet's record or block
    bytes_parsed: int = 0  # decompressed bytes covered by whole records or blocks so far
    block_offset: int = 0  # of the first byte of the last block, in the decompressed file
    interfaces: list[_CaptureInterface] = field(default_factory=list)  # of all sections
    drops_in_packet_blocks: int | None = None  # sum of the drop counts of packets; None if there are none
    host_names: set[HostName] = field(default_factory=set)  # of name resolution blocks, MAX_HOST_NAMES or a few more
    resume_from: Mapping[str, Any] | None = None
    end_offset: int | None = None
    packet_count: int = 0  # records so far, including those before ``resume_from``
    _earlier_drops: int | None = None  # of interfaces in sections before the one that is resumed
    _parser: _RecordParser | None = None
    _bytes_read: int = 0  # decompressed bytes read so far
    _tail: bytearray = field(default_factory=bytearray)  # the last of them, at least TAIL_BYTES
    _ended: bool = False

    def read_blocks(self) -> Iterator[RecordBlock]:
        """Yield the records block by block.

        Raises ``NotACaptureError`` if the format is unknown, and ``ValueError`` if ``resume_from`` is not a valid state
        or belongs to a longer file.
        """
        parser, base, kept = self._detect_format() if self.resume_from is None else self._resume(self.resume_from)
        self._parser = parser
        number, want = self.packet_count + 1, self.block_bytes
        while True:
            want = max(want, len(kept) + 1)
            data, size = self._fill_buffer(kept, want)
            at_end = size < want
            used = parser.parse(data, size, at_end=at_end)
            starts, captured, original, time, link = parser.record_columns(data)
            if number == 1 and len(starts):
                self.first_record_end = base + parser.first_record_end
            self.bytes_parsed = base + used
            self.packet_count += len(starts)
            self._ended = at_end and (self.damage is None or self.damage.kind == "cut_short")
            self.block_offset = base
            numbers = np.arange(number, number + len(starts))
            yield RecordBlock(data, starts, captured, original, time, link, numbers, base + starts)
            number += len(starts)
            if at_end or self.damage:
                return
            base += used
            kept, want = bytes(memoryview(data)[used:size]), max(self.block_bytes, parser.bytes_needed)

    def _detect_format(self) -> tuple[_RecordParser, int, bytes]:
        """Return the parser for the file's format, offset 0, and the first bytes."""
        data, size = self._fill_buffer(b"", 24)
        head = bytes(data[:4])
        dialect = _PCAP_DIALECTS.get(head)
        if dialect is not None:
            self.format = "pcap"
            return _PcapParser(dialect, self), 0, bytes(data[:size])
        if head == _SECTION_HEADER:
            self.format = "pcapng"
            return _PcapngParser(self), 0, bytes(data[:size])
        if not size:
            raise NotACaptureError("the file has 0 bytes so far", "empty")
        if not any(data[:size]):
            raise NotACaptureError(f"its first {size} bytes are zero: nothing was written to it so far", "zero_tail")
        data, size = self._fill_buffer(bytes(data[:size]), _ETL_MARK_OFFSET + 4)
        found = "an ETL trace" if bytes(data[_ETL_MARK_OFFSET:size]) in _ETL_MARKS else None
        found = found or next((name for mark, name in _OTHER_FORMATS.items() if data.startswith(mark)), None)
        if found is not None:
            raise NotACaptureError(f"{found}: {_CONVERSIONS[found]}")
        raise NotACaptureError(f"no capture format begins with {head.hex(' ')}")

    def _resume(self, state: Mapping[str, Any]) -> tuple[_RecordParser, int, bytes]:
        """Return the parser as of ``state``, the offset at which it continues, and no bytes."""
        try:
            if state["version"] != RESUME_STATE_VERSION:
                raise ValueError(f"a state of version {state['version']}")
            self.format = state["format"]
            base, self.packet_count = int(state["offset"]), int(state["packets"])
            self.first_record_end = int(state["first_record_end"])
            parser: _RecordParser
            if self.format == "pcap":
                parser = _PcapParser(_PCAP_DIALECTS[bytes.fromhex(state["magic"])], self, base, int(state["link"]))
            else:
                self.interfaces = [_CaptureInterface(*fields) for fields in state["interfaces"]]
                self.drops_in_packet_blocks, self._earlier_drops = state["packet_drops"], state["earlier_drops"]
                parser = _PcapngParser(self, base, _SectionBlocks(state["order"], [*self.interfaces]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a capture: {error!r}") from error
        self._bytes_read = resume_read_offset(state)
        before = base - self._bytes_read
        if self._fill_buffer(b"", before)[1] < before:
            raise ValueError(f"the capture ends at byte {self._bytes_read}, before the {base} that were read of it")
        self.bytes_parsed = base
        return parser, base, b""

    def resume_state(self) -> ResumeState | None:
        """Return the state from which a later read of the grown file can resume: behind the last whole record.

        It is a small JSON-compatible dict. None if reading cannot resume: no packet yet (the capture's key is not
        known), damage inside the file, or more than ``MAX_RESUMABLE_INTERFACES`` interfaces.
        """
        if (
            self._parser is None
            or not self.packet_count
            or (self.damage is not None and self.damage.kind != "cut_short")
        ):
            return None
        format_state = self._parser.format_state()
        if format_state is None:
            return None
        return {
            "version": RESUME_STATE_VERSION,
            "format": self.format,
            "offset": self.bytes_parsed,
            "packets": self.packet_count,
            "first_record_end": self.first_record_end,
            **format_state,
        }

    def add_host_names(self, names: Iterable[HostName]) -> None:
        """Add names of addresses; of more than ``MAX_HOST_NAMES`` the first in their order stay."""
        for each in names:
            self.host_names.add(each)
            if len(self.host_names) >= 2 * MAX_HOST_NAMES:
                self.host_names = set(sorted(self.host_names)[:MAX_HOST_NAMES])

    @property
    def content_bytes(self) -> int | None:
        """Decompressed bytes of the file, including an incomplete last record; None unless all were read.

        Zero bytes up to the end are no content.
        """
        if self.damage is not None and self.damage.kind == "zero_tail":
            return self.bytes_parsed
        return self._bytes_read if self._ended else None

    @property
    def tail_key(self) -> str | None:
        """The key of the last ``TAIL_BYTES`` of the content, of all if there are fewer; None unless all were read."""
        return key(bytes(self._tail[-TAIL_BYTES:])) if self._ended else None

    def _fill_buffer(self, kept: bytes, want: int) -> tuple[bytearray, int]:
        """Return a buffer of ``kept`` and bytes of the stream, up to ``want`` bytes, and how many it holds."""
        data = bytearray(want + BUFFER_PADDING_BYTES)
        size = len(kept)
        data[:size] = kept
        view = memoryview(data)
        most = want if self.end_offset is None else min(want, size + self.end_offset - self._bytes_read)
        while size < most:
            got = self.stream.readinto(view[size:most])
            if not got:
                break
            size += got
        if size < want:
            data[size:want] = bytes(want - size)
        self._bytes_read += size - len(kept)
        self._tail += view[max(len(kept), size - TAIL_BYTES) : size]
        if len(self._tail) > 4 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        return data, size

    @property
    def dropped_packets(self) -> int | None:
        """Packets that the capturing machine reports as dropped; None if it reports nothing."""
        counts = (self._earlier_drops, *(interface.dropped for interface in self.interfaces))
        reported = [count for count in counts if count is not None]
        return sum(reported) if reported else self.drops_in_packet_blocks

    def drops_before_section(self, section_interfaces: int) -> int | None:
        """Return the drops of all interfaces but the last ``section_interfaces`` ones; None if none reports any."""
        before = self.interfaces[: len(self.interfaces) - section_interfaces]
        reported = [c for c in (self._earlier_drops, *(interface.dropped for interface in before)) if c is not None]
        return sum(reported) if reported else None


class _RecordParser(Protocol):
    """Finds records in a buffer: ``parse`` walks them and returns the bytes used, ``record_columns`` gathers them."""

    bytes_needed: int  # of the next record, or of zeros in its place, if they did not fit
    first_record_end: int  # end of the first record in the buffer parsed last

    def parse(self, data: bytearray, size: int, *, at_end: bool) -> int: ...

    def record_columns(self, data: bytearray) -> RecordColumns: ...

    def format_state(self) -> ResumeState | None: ...  # the part of the resume state that depends on the format


@dataclass(frozen=True, slots=True)
class _PcapDialect:
    order: str
    ticks: int  # per second
    header: int = 16  # record header in bytes; 24 in the format of Alexey Kuznetzov's libpcap patch


_PCAP_DIALECTS: Final = {
    b"\xd4\xc3\xb2\xa1": _PcapDialect("<", 1_000_000),
    b"\xa1\xb2\xc3\xd4": _PcapDialect(">", 1_000_000),
    b"\x4d\x3c\xb2\xa1": _PcapDialect("<", 1_000_000_000),
    b"\xa1\xb2\x3c\x4d": _PcapDialect(">", 1_000_000_000),
    b"\x34\xcd\xb2\xa1": _PcapDialect("<", 1_000_000, 24),
    b"\xa1\xb2\xcd\x34": _PcapDialect(">", 1_000_000, 24),
}


def read_integers(data: bytearray, at: Ints, dtype: str) -> Ints:
    """Return the integers of type ``dtype`` at the byte offsets ``at``."""
    kind = np.dtype(dtype)
    # A view with one overlapping integer per byte of the buffer: only the selected ones are copied.
    everywhere: npt.NDArray[Any] = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, strides=(1,))
    return everywhere[at].astype(np.int64)


_NONZERO: Final = re.compile(rb"[^\0]").search


class _BlockParser:
    """What the parsers of both formats share."""

    def __init__(self, container: CaptureFileReader, base: int) -> None:
        self.bytes_needed = 0
        self.first_record_end = 0
        self._container = container
        self._base = base  # file offset of the buffer parsed next

    def _stop_at_zeros(self, position: int, begin: int, size: int, *, at_end: bool) -> None:
        """Stop at a record, because all bytes of the buffer from ``begin`` on are zero.

        That is damage if they reach the end or are too many. Else more bytes are needed to decide it.
        """
        if at_end or size - begin >= MAX_ZERO_BYTES:
            offset = self._base + position
            message = f"zero bytes from the record at byte {offset} on: not written so far, or lost"
            self._container.damage = FileDamage("zero_tail", message)
        else:
            self.bytes_needed = begin - position + MAX_ZERO_BYTES


class _PcapParser(_BlockParser):
    def __init__(
        self, dialect: _PcapDialect, container: CaptureFileReader, base: int = 0, link: int = UNKNOWN_LINK_TYPE
    ) -> None:
        super().__init__(container, base)
        self._dialect = dialect
        self._link = link
        self._offsets: list[int] = []

    def format_state(self) -> ResumeState | None:
        """Return the magic number of the dialect and the link type."""
        magic = next(magic for magic, dialect in _PCAP_DIALECTS.items() if dialect == self._dialect)
        return {"magic": magic.hex(), "link": self._link}

    def parse(self, data: bytearray, size: int, *, at_end: bool) -> int:
        dialect, container = self._dialect, self._container
        position = 0
        offsets: list[int] = []
        self._offsets = offsets
        if not self._base:
            if size < 24:
                if at_end:
                    container.damage = FileDamage("cut_short", f"the file header ends at byte {size} of 24")
                return 0
            # The upper 16 bits of the network field hold the FCS length.
            self._link = struct.unpack_from(dialect.order + "I", data, 20)[0] & 0xFFFF
            position = 24
        read = struct.Struct(dialect.order + "I").unpack_from
        header = dialect.header
        append = offsets.append
        last = size - header
        nonzero = -1  # offset of a byte that is not zero: records before it do not end the file
        self.bytes_needed = 0
        while position <= last:
            (length,) = read(data, position + 8)
            if length > MAX_RECORD_BYTES:
                container.damage = FileDamage(
                    "damaged", f"record at byte {self._base + position} claims {length} bytes"
                )
                break
            end = position + header + length
            if end > size:
                self.bytes_needed = header + length
                break
            if not length and position > nonzero:
                if (found := _NONZERO(data, position, size)) is None:
                    self._stop_at_zeros(position, position, size, at_end=at_end)
                    break
                nonzero = found.start()
            append(position)
            position = end
        if at_end and position < size and container.damage is None:
            container.damage = FileDamage("cut_short", f"the record at byte {self._base + position} is not whole")
        self._base += position
        return position

    def record_columns(self, data: bytearray) -> RecordColumns:
        at = np.array(self._offsets, np.int64)
        if not len(at):
            return at, at, at, at, at
        order = self._dialect.order
        seconds, fraction = read_integers(data, at, order + "u4"), read_integers(data, at + 4, order + "u4")
        captured, original = read_integers(data, at + 8, order + "u4"), read_integers(data, at + 12, order + "u4")
        time = seconds * 1_000_000_000 + fraction * (1_000_000_000 // self._dialect.ticks)
        start = at + self._dialect.header
        self.first_record_end = int(start[0] + captured[0])
        return start, captured, np.maximum(original, captured), time, np.full(len(at), self._link, np.int64)


# Formats that are recognised and not read: their first bytes, and what to do.
_OTHER_FORMATS: Final = {
    b"PK\x03\x04": "a zip archive", b"PK\x05\x06": "a zip archive", b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"GMBU": "a Network Monitor capture", b"RTSS": "a Network Monitor capture", b"snoop\0\0\0": "a snoop capture",
    b"\x1c\0\x01\xac": "an IXIA capture", b"\xac\x01\0\x1c": "an IXIA capture",
    b"\x1c\0\x01\xab": "an IXIA capture", b"\xab\x01\0\x1c": "an IXIA capture",
}  # fmt: skip
# Of an event trace log: the marker of its first event, 32 or 64 bits, behind the header of its first buffer.
_ETL_MARKS: Final = (b"\x02\0\x01\xc0", b"\x02\0\x02\xc0")
_ETL_MARK_OFFSET: Final = 0x48
_UNPACK, _EDITCAP = "unpack it first", "convert it with editcap -F pcapng IN OUT (part of Wireshark)"
_CONVERSIONS: Final = {
    "an ETL trace": "convert it with etl2pcapng IN OUT, or with pktmon etl2pcap IN",
    "a zip archive": _UNPACK, "a 7-Zip archive": _UNPACK,
    "a Network Monitor capture": _EDITCAP, "a snoop capture": _EDITCAP, "an IXIA capture": _EDITCAP,
}  # fmt: skip

_SECTION_HEADER: Final = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDER_BY_MAGIC: Final = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _PACKET, _SIMPLE, _NAMES, _STATISTICS, _ENHANCED = 1, 2, 3, 4, 5, 6  # 2 is obsolete but still in use
_MIN_PACKET_BLOCK_BYTES: Final = {
    _PACKET: 32,
    _SIMPLE: 16,
    _ENHANCED: 32,
}  # length in bytes of a packet block without packet data
_DROPS_NOT_KNOWN: Final = 0xFFFF  # drops_count of a Packet Block
_ADDRESS_BYTES: Final = {1: 4, 2: 16}  # by the type of a record in a name resolution block
_MAX_HOST_NAME_BYTES: Final = 255
_IF_TSRESOL, _IF_TSOFFSET, _ISB_IFDROP, _ISB_OSDROP, _EPB_DROPCOUNT = 9, 14, 5, 7, 4


@dataclass(slots=True)
class _SectionBlocks:
    """The packet blocks of one section in a buffer: block types and positions.

    ``interfaces`` belong to the section and are shared by its buffers. ``described`` holds the position of each
    interface's description in this buffer, -1 if it came earlier: a packet may only use interfaces described before it.
    (One object per new interface instead would let a hostile file use memory quadratic in its size.)
    """

    order: str
    interfaces: list[_CaptureInterface] = field(default_factory=list)
    described: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class _PcapngParser(_BlockParser):
    """Parser of pcapng blocks. Each section has its own byte order and interface numbers."""

    def __init__(self, container: CaptureFileReader, base: int = 0, chunk: _SectionBlocks | None = None) -> None:
        super().__init__(container, base)
        self._sections = [chunk or _SectionBlocks("<")]

    def format_state(self) -> ResumeState | None:
        """Return the byte order and the interfaces of the section, and the drops counted before it."""
        chunk = self._sections[-1]
        if len(chunk.interfaces) > MAX_RESUMABLE_CAPTURE_INTERFACES:
            return None
        return {
            "order": chunk.order,
            "interfaces": [list(astuple(interface)) for interface in chunk.interfaces],
            "packet_drops": self._container.drops_in_packet_blocks,
            "earlier_drops": self._container.drops_before_section(len(chunk.interfaces)),
        }

    def parse(self, data: bytearray, size: int, *, at_end: bool) -> int:
        container = self._container
        position = 0
        last = self._sections[-1]
        chunk = _SectionBlocks(last.order, last.interfaces, [-1] * len(last.interfaces))
        self._sections = [chunk]
        self.bytes_needed = 0
        while position + 12 <= size:
            if data[position : position + 4] == _SECTION_HEADER:
                order = _BYTE_ORDER_BY_MAGIC.get(bytes(data[position + 8 : position + 12]))
                if order is None:
                    self._set_damaged(position, "section header without byte-order magic")
                    break
                if chunk.positions:
                    self._sections.append(_SectionBlocks(order))
                else:
                    self._sections[-1] = _SectionBlocks(order)
                chunk = self._sections[-1]
            kind, length = struct.unpack_from(chunk.order + "II", data, position)
            if not length and _NONZERO(data, position, size) is None:
                self._stop_at_zeros(position, position, size, at_end=at_end)
                break
            if length < 12 or length % 4 or length > MAX_PCAPNG_BLOCK_BYTES:
                self._set_damaged(position, f"block claims {length} bytes")
                break
            end = position + length
            if end > size:
                self.bytes_needed = length
                break
            if struct.unpack_from(chunk.order + "I", data, end - 4)[0] != length:
                if _NONZERO(data, end - 4, size) is None:  # written in part, in space that was reserved
                    self._stop_at_zeros(position, end - 4, size, at_end=at_end)
                else:
                    self._set_damaged(position, "the block's two lengths differ")
                break
            if kind in _MIN_PACKET_BLOCK_BYTES:
                if length < _MIN_PACKET_BLOCK_BYTES[kind]:
                    self._set_damaged(position, f"block of type {kind} has {length} bytes")
                    break
                chunk.kinds.append(kind)
                chunk.positions.append(position)
            else:
                self._read_other_block(kind, data, position, end)
            position = end
        if at_end and position < size and container.damage is None:
            container.damage = FileDamage("cut_short", f"the block at byte {self._base + position} is not whole")
        self._base += position
        return position

    def _read_other_block(self, kind: int, data: bytearray, position: int, end: int) -> None:
        """Read a block without a packet, if it is of a kind that is read."""
        container, chunk = self._container, self._sections[-1]
        if kind == _INTERFACE and end - position >= 20:
            interface = _parse_interface(data, position, end, chunk.order)
            container.interfaces.append(interface)
            chunk.interfaces.append(interface)
            chunk.described.append(position)
        elif kind == _STATISTICS and end - position >= 24:
            _set_interface_drops(data, position, end, chunk)
        elif kind == _NAMES:
            container.add_host_names(_parse_host_names(data, position + 8, end - 4, chunk.order))

    def _set_damaged(self, position: int, why: str) -> None:
        self._container.damage = FileDamage("damaged", f"block at byte {self._base + position}: {why}")

    def record_columns(self, data: bytearray) -> RecordColumns:
        parts: list[RecordColumns] = []
        for chunk in self._sections:
            if not chunk.positions:
                continue
            if not parts:
                first = chunk.positions[0]
                self.first_record_end = first + int(struct.unpack_from(chunk.order + "I", data, first + 4)[0])
            parts.append(self._section_columns(data, chunk))
        if not parts:
            none = np.zeros(0, np.int64)
            return none, none, none, none, none
        start, captured, original, time, link = (np.concatenate(column) for column in zip(*parts, strict=True))
        return start, captured, original, time, link

    def _section_columns(self, data: bytearray, chunk: _SectionBlocks) -> RecordColumns:
        """Return the packets of one section; with an invalid interface or length they have ``UNKNOWN_LINK_TYPE``."""
        at, kind, order = np.array(chunk.positions, np.int64), np.array(chunk.kinds), chunk.order
        length = read_integers(data, at + 4, order + "u4")
        simple = kind == _SIMPLE
        fields = np.where(simple, 0, at)  # simple blocks lack these fields; position 0 is a placeholder
        number = np.where(
            kind == _PACKET, read_integers(data, at + 8, order + "u2"), read_integers(data, at + 8, order + "u4")
        )
        number[simple] = 0
        high, low = read_integers(data, fields + 12, order + "u4"), read_integers(data, fields + 16, order + "u4")
        captured, original = (
            read_integers(data, fields + 20, order + "u4"),
            read_integers(data, fields + 24, order + "u4"),
        )
        start = at + np.where(simple, 12, 28)
        count = len(chunk.interfaces)
        known = number < count
        which = np.where(known, number, 0)
        snaplen, link = length.copy(), np.full(len(at), UNKNOWN_LINK_TYPE, np.int64)
        time = np.full(len(at), NO_TIME, np.int64)
        if count:
            described = np.array(chunk.described, np.int64)
            known &= described[which] < at
            which[~known] = 0  # placeholder for packets with an invalid interface
            rows = np.nonzero(described[which] < at)[0]
            snaplen[rows] = np.array([i.snaplen or MAX_PCAPNG_BLOCK_BYTES for i in chunk.interfaces], np.int64)[
                which[rows]
            ]
            link[rows] = np.array([i.link for i in chunk.interfaces], np.int64)[which[rows]]
            time[rows] = _ticks_to_ns(high[rows], low[rows], which[rows], chunk.interfaces)
        room = at + length - 4 - start
        original[simple] = read_integers(data, at[simple] + 8, order + "u4")
        captured[simple] = np.minimum(np.minimum(original, room), snaplen)[simple]
        time[simple] = NO_TIME
        good = known & (captured <= room)
        self._add_packet_drops(data, at[~simple & good], length[~simple & good], captured[~simple & good], order)
        captured, link = np.minimum(captured, room), np.where(good, link, UNKNOWN_LINK_TYPE)
        return start, captured, np.maximum(original, captured), time, link

    def _add_packet_drops(self, data: bytearray, at: Ints, length: Ints, captured: Ints, order: str) -> None:
        """Add the drop counts of packets: of Packet Blocks, which are obsolete, a field; of enhanced ones an option."""
        options = at + 28 + captured + (-captured % 4)
        end = at + length - 4
        for begin, stop in zip(options[options + 8 <= end].tolist(), end[options + 8 <= end].tolist(), strict=True):
            drops = _parse_options(data, begin, stop, order).get(_EPB_DROPCOUNT, b"")
            if len(drops) == 8:
                self._add_drops(struct.unpack(order + "Q", drops)[0])
        obsolete = at[read_integers(data, at, order + "u4") == _PACKET]
        if len(obsolete):
            counts = read_integers(data, obsolete + 10, order + "u2")
            known = counts[counts != _DROPS_NOT_KNOWN]
            if len(known):
                self._add_drops(int(known.sum()))

    def _add_drops(self, count: int) -> None:
        container = self._container
        container.drops_in_packet_blocks = (container.drops_in_packet_blocks or 0) + count


def _parse_interface(data: bytearray, at: int, end: int, order: str) -> _CaptureInterface:
    link, _reserved, snaplen = struct.unpack_from(order + "HHI", data, at + 8)
    interface = _CaptureInterface(link, snaplen)
    options = _parse_options(data, at + 16, end - 4, order)
    if len(resolution := options.get(_IF_TSRESOL, b"")) == 1:
        interface.base, interface.exponent = (2 if resolution[0] & 0x80 else 10), resolution[0] & 0x7F
    if len(offset := options.get(_IF_TSOFFSET, b"")) == 8:
        interface.offset_s = struct.unpack(order + "q", offset)[0]
    return interface


def _parse_host_names(data: bytearray, at: int, end: int, order: str) -> Iterator[HostName]:
    """Yield the names in the records of a block; stops at a record that does not fit."""
    while at + 4 <= end:
        kind, length = struct.unpack_from(order + "HH", data, at)
        if kind == 0 or at + 4 + length > end:
            return
        value = bytes(data[at + 4 : at + 4 + length])
        size = _ADDRESS_BYTES.get(kind)
        if size is not None and length > size:
            address = str(ipaddress.ip_address(value[:size]))
            for name in value[size:].split(b"\0"):
                if 0 < len(name) <= _MAX_HOST_NAME_BYTES:
                    yield HostName(address, name.decode("utf-8", "replace"))
        at += 4 + length + (-length % 4)


def _set_interface_drops(data: bytearray, at: int, end: int, chunk: _SectionBlocks) -> None:
    (number,) = struct.unpack_from(chunk.order + "I", data, at + 8)
    options = _parse_options(data, at + 20, end - 4, chunk.order)
    counts = [options[code] for code in (_ISB_IFDROP, _ISB_OSDROP) if len(options.get(code, b"")) == 8]
    if counts and number < len(chunk.interfaces):
        # The counts are cumulative: the last block of an interface holds the total.
        total = sum(struct.unpack(chunk.order + "Q", count)[0] for count in counts)
        chunk.interfaces[number].dropped = total


def _ticks_to_ns(high: Ints, low: Ints, which: Ints, interfaces: Sequence[_CaptureInterface]) -> Ints:
    """Convert 64-bit tick counts to nanoseconds since 1970, rounded down; ``NO_TIME`` if out of range."""
    time = np.full(len(high), NO_TIME, np.int64)
    by_interface = np.argsort(which, kind="stable") if which.any() else np.arange(len(which))
    numbers, begins = np.unique(which[by_interface], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(by_interface, begins[1:]), strict=False):
        interface = interfaces[number]
        offset = interface.offset_s * 1_000_000_000
        # Exact 64-bit arithmetic where it cannot overflow; only unusual resolutions need Python integers.
        plain = interface.base == 10 and interface.exponent <= 9 and abs(interface.offset_s) < 1 << 32
        limit = (1 << 62) // 10 ** (9 - interface.exponent) if plain else 0
        ticks = (high[rows] << 32) | low[rows]
        easy = plain & (high[rows] < 1 << 31) & (ticks < limit)
        if plain:
            time[rows[easy]] = ticks[easy] * 10 ** (9 - interface.exponent) + offset
        for row in rows[~easy].tolist():
            count = (int(high[row]) << 32) | int(low[row])
            value = count * 1_000_000_000 // interface.base**interface.exponent + offset
            if -(1 << 62) < value < 1 << 62:
                time[row] = value
    return time


def _parse_options(data: bytearray, at: int, end: int, order: str) -> dict[int, bytes]:
    """Return the options of a block by code, the last of each code; stops at an option that does not fit."""
    found: dict[int, bytes] = {}
    while at + 4 <= end:
        code, length = struct.unpack_from(order + "HH", data, at)
        if code == 0 or at + 4 + length > end:
            break
        found[code] = bytes(data[at + 4 : at + 4 + length])
        at += 4 + length + (-length % 4)
    return found
