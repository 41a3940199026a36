"""Capture files -> blocks of records: pcap in all its dialects and pcapng, a bounded piece of the file at a time.

A file is read in blocks of about ``block_bytes``; a record cut by a block's edge opens the next one. Only the walk from
record to record is a loop (each length is known only after the one before); everything else is gathered from numpy
arrays. What follows a damaged length cannot be found again, so reading stops there and says where.

Sources: the pcap and pcapng Internet-Drafts of the IETF opsawg ("PCAP Capture File Format", "PCAP Next Generation").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from udfs.keys import key

PAD: Final = 128  # zero bytes behind a block, so that headers can be gathered without running off its end
MAX_RECORD: Final = 16 << 20  # no link has larger packets; a larger length is damage, not data
MAX_BLOCK: Final = 64 << 20  # of pcapng blocks that hold no packet (names, secrets)
NO_TIME: Final = np.iinfo(np.int64).min  # of records without a time (simple packet blocks)
UNKNOWN_LINK: Final = -1  # of packets whose record contradicts itself
TAIL_BYTES: Final = 64 << 10  # before a capture's end: what tells whether another one goes on from there
STATE_VERSION: Final = 1  # of what ``Container.state`` returns
MAX_STATE_INTERFACES: Final = 256  # of a section; with more, a state would not be small, and the file is read anew

Ints = npt.NDArray[np.int64]
Columns = tuple[Ints, Ints, Ints, Ints, Ints]  # start, captured, original, time, link


class Readable(Protocol):
    """What a capture is read from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer as far as bytes are at hand; 0 at the end."""

    def __enter__(self) -> Readable: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@dataclass(slots=True)
class Records:
    """The records of one block of a capture.

    ``data`` holds the block's bytes and ``PAD`` zeros; ``base`` is its first byte's offset in the decompressed file.
    Per record: ``start`` (of the packet's bytes in ``data``), ``captured`` and ``original`` lengths in bytes, ``time``
    (nanoseconds since 1970, ``NO_TIME`` if none) and ``link`` (LINKTYPE). ``first_number`` is the number of the first
    record, counted from 1 as people see it in Wireshark.
    """

    data: bytearray
    base: int
    first_number: int
    start: Ints
    captured: Ints
    original: Ints
    time: Ints
    link: Ints


@dataclass(slots=True)
class Damage:
    """Where and why reading stopped before the end: ``cut_short`` (the last record is not whole) or ``damaged``."""

    kind: str
    message: str


class NotACaptureError(Exception):
    """The first bytes are of no capture format that is known."""


State = dict[str, Any]  # where a reading ended, as JSON can hold it; made and understood by Container alone


def lead_in(state: Mapping[str, Any]) -> int:
    """Return where a stream has to stand for a reading that goes on from a state: an offset in decompressed bytes.

    It is up to ``TAIL_BYTES`` before the first byte not yet read, so that the capture's last bytes can be told even
    when few were added.
    """
    return max(0, int(state["offset"]) - TAIL_BYTES)


@dataclass(slots=True)
class _Interface:
    link: int
    snaplen: int
    base: int = 10  # a second has base ** exponent ticks
    exponent: int = 6
    offset_s: int = 0
    dropped: int | None = None


@dataclass(slots=True)
class Container:
    """A capture being read: iterate ``blocks()``; the facts are complete when it ends.

    With ``resume``, the ``state()`` of an earlier reading of the same bytes, it reads on from there: the stream stands
    at ``lead_in(resume)``, and numbers, offsets and times go on as if the file were read in one piece.
    """

    stream: Readable
    block_bytes: int  # read at once; no more than the file has is worth a buffer
    format: str | None = None
    damage: Damage | None = None
    first_record_end: int = 0  # bytes up to the end of the first packet's record or block
    walked: int = 0  # bytes of the file that the blocks so far cover
    interfaces: list[_Interface] = field(default_factory=list)  # of all sections
    packet_drops: int | None = None  # added up from options of packet blocks
    resume: Mapping[str, Any] | None = None
    packets: int = 0  # records so far, those before ``resume`` included
    _earlier_drops: int | None = None  # of interfaces of sections before the one that is read on
    _walk: _Walker | None = None
    _seen: int = 0  # decompressed bytes that came, up to now
    _tail: bytearray = field(default_factory=bytearray)  # the last of them, TAIL_BYTES at least
    _ended: bool = False

    def blocks(self) -> Iterator[Records]:
        """Yield the records block by block.

        Raises ``NotACaptureError`` when the file is of no known format, and ``ValueError`` for a ``resume`` that is
        not a state, or of a longer file.
        """
        walk, base, kept = self._begin() if self.resume is None else self._go_on(self.resume)
        self._walk = walk
        number, want = self.packets + 1, self.block_bytes
        while True:
            want = max(want, len(kept) + 1)
            data, size = self._fill(kept, want)
            at_end = size < want
            used = walk.take(data, size, at_end=at_end)
            starts, captured, original, time, link = walk.columns(data)
            if number == 1 and len(starts):
                self.first_record_end = base + walk.first_end
            self.walked = base + used
            self.packets += len(starts)
            self._ended = at_end and (self.damage is None or self.damage.kind == "cut_short")
            yield Records(data, base, number, starts, captured, original, time, link)
            number += len(starts)
            if at_end or self.damage:
                return
            base += used
            kept, want = bytes(memoryview(data)[used:size]), max(self.block_bytes, walk.need)

    def _begin(self) -> tuple[_Walker, int, bytes]:
        """Return the walker of the file's format, the offset 0 and the first bytes."""
        data, size = self._fill(b"", 24)
        head = bytes(data[:4])
        dialect = _PCAP_MAGIC.get(head)
        if dialect is not None:
            self.format = "pcap"
            return _PcapWalker(dialect, self), 0, bytes(data[:size])
        if head == _SHB:
            self.format = "pcapng"
            return _PcapngWalker(self), 0, bytes(data[:size])
        raise NotACaptureError(f"no capture format begins with {head.hex(' ')}" if size else "the file is empty")

    def _go_on(self, state: Mapping[str, Any]) -> tuple[_Walker, int, bytes]:
        """Return a walker as it was when ``state`` was taken, the offset that it goes on from, and no bytes."""
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"a state of version {state['version']}")
            self.format = state["format"]
            base, self.packets = int(state["offset"]), int(state["packets"])
            self.first_record_end = int(state["first_record_end"])
            walk: _Walker
            if self.format == "pcap":
                walk = _PcapWalker(_PCAP_MAGIC[bytes.fromhex(state["magic"])], self, base, int(state["link"]))
            else:
                self.interfaces = [_Interface(*fields) for fields in state["interfaces"]]
                self.packet_drops, self._earlier_drops = state["packet_drops"], state["earlier_drops"]
                walk = _PcapngWalker(self, base, _Chunk(state["order"], [*self.interfaces]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a capture: {error!r}") from error
        self._seen = lead_in(state)
        before = base - self._seen
        if self._fill(b"", before)[1] < before:
            raise ValueError(f"the capture ends at byte {self._seen}, before the {base} that were read of it")
        self.walked = base
        return walk, base, b""

    def state(self) -> State | None:
        """Return where a reading of a longer file can go on: after the last whole record or block so far.

        A small dict for JSON. None when nothing can follow: no packet yet (the file's identity is still open),
        damage inside, or so many interfaces that the state would be large.
        """
        if self._walk is None or not self.packets or (self.damage is not None and self.damage.kind != "cut_short"):
            return None
        particular = self._walk.state()
        if particular is None:
            return None
        return {
            "version": STATE_VERSION,
            "format": self.format,
            "offset": self.walked,
            "packets": self.packets,
            "first_record_end": self.first_record_end,
            **particular,
        }

    @property
    def content_bytes(self) -> int | None:
        """Decompressed bytes of the capture, a last record cut short included; None unless all were read."""
        return self._seen if self._ended else None

    @property
    def tail_key(self) -> str | None:
        """The key of the last ``TAIL_BYTES`` of them, or of all when they are fewer; None unless all were read."""
        return key(bytes(self._tail[-TAIL_BYTES:])) if self._ended else None

    def _fill(self, kept: bytes, want: int) -> tuple[bytearray, int]:
        """Return a buffer that begins with ``kept`` and is filled up to ``want`` bytes, and how many it has."""
        data = bytearray(want + PAD)
        size = len(kept)
        data[:size] = kept
        view = memoryview(data)
        while size < want:
            got = self.stream.readinto(view[size:want])
            if not got:
                break
            size += got
        if size < want:
            data[size:want] = bytes(want - size)
        self._seen += size - len(kept)
        self._tail += view[max(len(kept), size - TAIL_BYTES) : size]
        if len(self._tail) > 4 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        return data, size

    @property
    def dropped(self) -> int | None:
        """Packets that the capturing machine says it lost; None when it does not say."""
        counts = (self._earlier_drops, *(interface.dropped for interface in self.interfaces))
        said = [count for count in counts if count is not None]
        return sum(said) if said else self.packet_drops

    def drops_before(self, section: int) -> int | None:
        """Return what interfaces lost that are not among the last ``section`` ones; None when none of them says."""
        before = self.interfaces[: len(self.interfaces) - section]
        said = [c for c in (self._earlier_drops, *(interface.dropped for interface in before)) if c is not None]
        return sum(said) if said else None


class _Walker(Protocol):
    """Finds the records in a buffer: ``take`` walks them and says how many bytes it used, ``columns`` gathers them."""

    need: int  # bytes that the next record needs, when it did not fit
    first_end: int  # end of the first record in the buffer walked last

    def take(self, data: bytearray, size: int, *, at_end: bool) -> int: ...

    def columns(self, data: bytearray) -> Columns: ...

    def state(self) -> State | None: ...  # what ``Container.state`` adds for the format


@dataclass(frozen=True, slots=True)
class _Dialect:
    order: str
    ticks: int  # per second
    header: int = 16  # bytes before the packet; 24 in the format that Alexey Kuznetzov's libpcap patch wrote


_PCAP_MAGIC: Final = {
    b"\xd4\xc3\xb2\xa1": _Dialect("<", 1_000_000),
    b"\xa1\xb2\xc3\xd4": _Dialect(">", 1_000_000),
    b"\x4d\x3c\xb2\xa1": _Dialect("<", 1_000_000_000),
    b"\xa1\xb2\x3c\x4d": _Dialect(">", 1_000_000_000),
    b"\x34\xcd\xb2\xa1": _Dialect("<", 1_000_000, 24),
    b"\xa1\xb2\xcd\x34": _Dialect(">", 1_000_000, 24),
}


def gather(data: bytearray, at: Ints, dtype: str) -> Ints:
    """Return the integers of type ``dtype`` that stand at the byte offsets ``at``."""
    kind = np.dtype(dtype)
    # One integer for each byte of the buffer, overlapping: no copy is made of what is not asked for.
    everywhere: npt.NDArray[Any] = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, strides=(1,))
    return everywhere[at].astype(np.int64)


class _PcapWalker:
    def __init__(self, dialect: _Dialect, container: Container, base: int = 0, link: int = UNKNOWN_LINK) -> None:
        self.need = 0
        self.first_end = 0
        self._dialect = dialect
        self._container = container
        self._base = base  # of the buffer walked next, in the file
        self._link = link
        self._offsets: list[int] = []

    def state(self) -> State | None:
        """Return the dialect, as its magic number, and the link type."""
        magic = next(magic for magic, dialect in _PCAP_MAGIC.items() if dialect == self._dialect)
        return {"magic": magic.hex(), "link": self._link}

    def take(self, data: bytearray, size: int, *, at_end: bool) -> int:
        dialect, container = self._dialect, self._container
        position = 0
        offsets: list[int] = []
        self._offsets = offsets
        if not self._base:
            if size < 24:
                if at_end:
                    container.damage = Damage("cut_short", f"the file header ends at byte {size} of 24")
                return 0
            # The upper bits of the network field hold the FCS length.
            self._link = struct.unpack_from(dialect.order + "I", data, 20)[0] & 0xFFFF
            position = 24
        read = struct.Struct(dialect.order + "I").unpack_from
        header = dialect.header
        append = offsets.append
        last = size - header
        self.need = 0
        while position <= last:
            (length,) = read(data, position + 8)
            if length > MAX_RECORD:
                container.damage = Damage("damaged", f"record at byte {self._base + position} claims {length} bytes")
                break
            end = position + header + length
            if end > size:
                self.need = header + length
                break
            append(position)
            position = end
        if at_end and position < size and container.damage is None:
            container.damage = Damage("cut_short", f"the record at byte {self._base + position} is not whole")
        self._base += position
        return position

    def columns(self, data: bytearray) -> Columns:
        at = np.array(self._offsets, np.int64)
        if not len(at):
            return at, at, at, at, at
        order = self._dialect.order
        seconds, fraction = gather(data, at, order + "u4"), gather(data, at + 4, order + "u4")
        captured, original = gather(data, at + 8, order + "u4"), gather(data, at + 12, order + "u4")
        time = seconds * 1_000_000_000 + fraction * (1_000_000_000 // self._dialect.ticks)
        start = at + self._dialect.header
        self.first_end = int(start[0] + captured[0])
        return start, captured, np.maximum(original, captured), time, np.full(len(at), self._link, np.int64)


_SHB: Final = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDER: Final = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _PACKET, _SIMPLE, _STATISTICS, _ENHANCED = 1, 2, 3, 5, 6  # block types; 2 is obsolete, yet met
_LEAST: Final = {_PACKET: 32, _SIMPLE: 16, _ENHANCED: 32}  # octets of a packet block without a packet
_IF_TSRESOL, _IF_TSOFFSET, _ISB_IFDROP, _ISB_OSDROP, _EPB_DROPCOUNT = 9, 14, 5, 7, 4


@dataclass(slots=True)
class _Chunk:
    """Packet blocks of one section in a buffer.

    ``interfaces`` are the section's, shared between its chunks; ``described`` where the buffer holds each (-1: before
    it), since a packet may only use what was described before. One chunk for each change of interfaces would let a
    hostile file ask for memory by the square of its size.
    """

    order: str
    interfaces: list[_Interface] = field(default_factory=list)
    described: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class _PcapngWalker:
    """Blocks of pcapng. Sections may change the byte order; interfaces are numbered within their section."""

    def __init__(self, container: Container, base: int = 0, chunk: _Chunk | None = None) -> None:
        self.need = 0
        self.first_end = 0
        self._container = container
        self._base = base
        self._chunks = [chunk or _Chunk("<")]

    def state(self) -> State | None:
        """Return byte order and interfaces of the section, and the drops that were counted before it."""
        chunk = self._chunks[-1]
        if len(chunk.interfaces) > MAX_STATE_INTERFACES:
            return None
        return {
            "order": chunk.order,
            "interfaces": [list(astuple(interface)) for interface in chunk.interfaces],
            "packet_drops": self._container.packet_drops,
            "earlier_drops": self._container.drops_before(len(chunk.interfaces)),
        }

    def take(self, data: bytearray, size: int, *, at_end: bool) -> int:
        container = self._container
        position = 0
        last = self._chunks[-1]
        chunk = _Chunk(last.order, last.interfaces, [-1] * len(last.interfaces))
        self._chunks = [chunk]
        self.need = 0
        while position + 12 <= size:
            if data[position : position + 4] == _SHB:
                order = _BYTE_ORDER.get(bytes(data[position + 8 : position + 12]))
                if order is None:
                    self._damaged(position, "section header without byte-order magic")
                    break
                if chunk.positions:
                    self._chunks.append(_Chunk(order))
                else:
                    self._chunks[-1] = _Chunk(order)
                chunk = self._chunks[-1]
            kind, length = struct.unpack_from(chunk.order + "II", data, position)
            if length < 12 or length % 4 or length > MAX_BLOCK:
                self._damaged(position, f"block claims {length} bytes")
                break
            end = position + length
            if end > size:
                self.need = length
                break
            if struct.unpack_from(chunk.order + "I", data, end - 4)[0] != length:
                self._damaged(position, "the block's two lengths differ")
                break
            if kind in _LEAST:
                if length < _LEAST[kind]:
                    self._damaged(position, f"block of type {kind} has {length} bytes")
                    break
                chunk.kinds.append(kind)
                chunk.positions.append(position)
            elif kind == _INTERFACE and length >= 20:
                interface = _interface(data, position, end, chunk.order)
                container.interfaces.append(interface)
                chunk.interfaces.append(interface)
                chunk.described.append(position)
            elif kind == _STATISTICS and length >= 24:
                _note_drops(data, position, end, chunk)
            position = end
        if at_end and position < size and container.damage is None:
            container.damage = Damage("cut_short", f"the block at byte {self._base + position} is not whole")
        self._base += position
        return position

    def _damaged(self, position: int, why: str) -> None:
        self._container.damage = Damage("damaged", f"block at byte {self._base + position}: {why}")

    def columns(self, data: bytearray) -> Columns:
        parts: list[Columns] = []
        for chunk in self._chunks:
            if not chunk.positions:
                continue
            if not parts:
                first = chunk.positions[0]
                self.first_end = first + int(struct.unpack_from(chunk.order + "I", data, first + 4)[0])
            parts.append(self._chunk_columns(data, chunk))
        if not parts:
            none = np.zeros(0, np.int64)
            return none, none, none, none, none
        start, captured, original, time, link = (np.concatenate(column) for column in zip(*parts, strict=True))
        return start, captured, original, time, link

    def _chunk_columns(self, data: bytearray, chunk: _Chunk) -> Columns:
        """The chunk's packets; one whose interface or length cannot be right has no known link, and is damaged."""
        at, kind, order = np.array(chunk.positions, np.int64), np.array(chunk.kinds), chunk.order
        length = gather(data, at + 4, order + "u4")
        simple = kind == _SIMPLE
        fields = np.where(simple, 0, at)  # simple blocks lack these; any bytes will do
        number = np.where(kind == _PACKET, gather(data, at + 8, order + "u2"), gather(data, at + 8, order + "u4"))
        number[simple] = 0
        high, low = gather(data, fields + 12, order + "u4"), gather(data, fields + 16, order + "u4")
        captured, original = gather(data, fields + 20, order + "u4"), gather(data, fields + 24, order + "u4")
        start = at + np.where(simple, 12, 28)
        count = len(chunk.interfaces)
        known = number < count
        which = np.where(known, number, 0)
        snaplen, link = length.copy(), np.full(len(at), UNKNOWN_LINK, np.int64)
        time = np.full(len(at), NO_TIME, np.int64)
        if count:
            described = np.array(chunk.described, np.int64)
            known &= described[which] < at
            which[~known] = 0  # whose time and snaplen are as good as any
            rows = np.nonzero(described[which] < at)[0]
            snaplen[rows] = np.array([i.snaplen or MAX_BLOCK for i in chunk.interfaces], np.int64)[which[rows]]
            link[rows] = np.array([i.link for i in chunk.interfaces], np.int64)[which[rows]]
            time[rows] = _times(high[rows], low[rows], which[rows], chunk.interfaces)
        room = at + length - 4 - start
        original[simple] = gather(data, at[simple] + 8, order + "u4")
        captured[simple] = np.minimum(np.minimum(original, room), snaplen)[simple]
        time[simple] = NO_TIME
        good = known & (captured <= room)
        self._note_options(data, at[~simple & good], length[~simple & good], captured[~simple & good], order)
        captured, link = np.minimum(captured, room), np.where(good, link, UNKNOWN_LINK)
        return start, captured, np.maximum(original, captured), time, link

    def _note_options(self, data: bytearray, at: Ints, length: Ints, captured: Ints, order: str) -> None:
        options = at + 28 + captured + (-captured % 4)
        end = at + length - 4
        for begin, stop in zip(options[options + 8 <= end].tolist(), end[options + 8 <= end].tolist(), strict=True):
            drops = _options(data, begin, stop, order).get(_EPB_DROPCOUNT, b"")
            if len(drops) == 8:
                container = self._container
                container.packet_drops = (container.packet_drops or 0) + struct.unpack(order + "Q", drops)[0]


def _interface(data: bytearray, at: int, end: int, order: str) -> _Interface:
    link, _reserved, snaplen = struct.unpack_from(order + "HHI", data, at + 8)
    interface = _Interface(link, snaplen)
    options = _options(data, at + 16, end - 4, order)
    if len(resolution := options.get(_IF_TSRESOL, b"")) == 1:
        interface.base, interface.exponent = (2 if resolution[0] & 0x80 else 10), resolution[0] & 0x7F
    if len(offset := options.get(_IF_TSOFFSET, b"")) == 8:
        interface.offset_s = struct.unpack(order + "q", offset)[0]
    return interface


def _note_drops(data: bytearray, at: int, end: int, chunk: _Chunk) -> None:
    (number,) = struct.unpack_from(chunk.order + "I", data, at + 8)
    options = _options(data, at + 20, end - 4, chunk.order)
    counts = [options[code] for code in (_ISB_IFDROP, _ISB_OSDROP) if len(options.get(code, b"")) == 8]
    if counts and number < len(chunk.interfaces):
        # Counted since the capture began: the last block of an interface holds.
        total = sum(struct.unpack(chunk.order + "Q", count)[0] for count in counts)
        chunk.interfaces[number].dropped = total


def _times(high: Ints, low: Ints, which: Ints, interfaces: Sequence[_Interface]) -> Ints:
    """Return nanoseconds since 1970 of 64-bit tick counts, floored; ``NO_TIME`` where 64 bits cannot hold them."""
    time = np.full(len(high), NO_TIME, np.int64)
    by_interface = np.argsort(which, kind="stable") if which.any() else np.arange(len(which))
    numbers, begins = np.unique(which[by_interface], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(by_interface, begins[1:]), strict=False):
        interface = interfaces[number]
        offset = interface.offset_s * 1_000_000_000
        # Exact 64-bit arithmetic where it fits, which is always but for invented resolutions.
        plain = interface.base == 10 and interface.exponent <= 9 and abs(interface.offset_s) < 1 << 32
        limit = (1 << 62) // 10 ** (9 - interface.exponent) if plain else 0
        ticks = (high[rows] << 32) | low[rows]
        easy = plain & (high[rows] < 1 << 31) & (ticks < limit)
        time[rows[easy]] = ticks[easy] * 10 ** max(9 - interface.exponent, 0) + offset
        for row in rows[~easy].tolist():
            count = (int(high[row]) << 32) | int(low[row])
            value = count * 1_000_000_000 // interface.base**interface.exponent + offset
            if -(1 << 62) < value < 1 << 62:
                time[row] = value
    return time


def _options(data: bytearray, at: int, end: int, order: str) -> dict[int, bytes]:
    """Return a block's options by code, the last of each; stops at the first that does not fit."""
    found: dict[int, bytes] = {}
    while at + 4 <= end:
        code, length = struct.unpack_from(order + "HH", data, at)
        if code == 0 or at + 4 + length > end:
            break
        found[code] = bytes(data[at + 4 : at + 4 + length])
        at += 4 + length + (-length % 4)
    return found
