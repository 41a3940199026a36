"""Undoing what NTLM did to PDUs: RC4 streams whose place must be found, and signatures that say when it was found.

With extended session security each direction has a stream and counts its PDUs in the clear; where some were not
captured, TCP's sequence numbers say how many octets they had, and so nearly how much of the stream they took: what is
left open is tried until a signature fits ([MS-NLMP] 3.4.3, 3.4.4). Without it, the count is sealed too, and products
share one stream between both directions or not: what fits is taken.

PDUs that are signed alone take of the stream what seals their checksum. Nothing leaves that is not signed by the
session's keys.
"""

from __future__ import annotations

import binascii
import hmac
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from udfs.sealed.ciphers import rc4, xor
from udfs.sealed.ntlm import EXTENDED_SECURITY, KEY_EXCHANGE, seal_keys, sign_key
from udfs.sealed.pieces import PACKET, PRIVACY, Cover, Piece, covers

OVERHEAD: Final = 24 + 8 + 16  # octets of a protected PDU that are not sealed: header, security trailer, signature
_TRIES: Final = 30_000  # places of a stream that are tried, for each direction of a connection
_MOST_LOST: Final = 64  # PDUs in a gap, where their number is sealed too
_MOST_CONTRADICTED: Final = 1 << 16  # counts that TCP contradicts: further ones are not looked for
_CHUNK: Final = 1 << 16
_KEPT: Final = 1 << 20
_MASK: Final = 0xFFFFFFFF


class Closed(StrEnum):
    """Why a sealed call stays closed (tables.md, closed_reason)."""

    NO_HANDSHAKE = "no_handshake"
    NO_KEY = "no_key"
    SEQUENCE_LOST = "sequence_lost"
    BAD_SIGNATURE = "bad_signature"


class Sent(NamedTuple):
    """A PDU of one side, with what orders it among those of the other: ``at``, any number that grows with time."""

    from_client: bool
    at: int
    piece: Piece


Opened = bytes | Closed  # a stub without its padding, or why there is none


class Keystream:
    """One RC4 stream: it is gone through from its beginning on, and looked into ahead; going back makes it anew."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._begin()

    def _begin(self) -> None:
        self._run, self._from, self._ahead = rc4(self._key), 0, b""

    def at(self, position: int, size: int) -> bytes:
        """Return octets of the stream from any place on."""
        self._reach(position)
        begin = position - self._from
        lacking = begin + size - len(self._ahead)
        if lacking > 0:
            self._ahead += self._run(bytes(max(lacking, _CHUNK)))
        return self._ahead[begin : begin + size]

    def opened(self, position: int, sealed: bytes, more: int) -> tuple[bytes, bytes]:
        """Return what was sealed at a place, and ``more`` octets of the stream behind it; all before them is let go."""
        size = len(sealed)
        if position == self._from and not self._ahead:
            self._from += size + more
            both = self._run(sealed + bytes(more))
            return both[:size], both[size:]
        stream = self.at(position, size + more)
        end = position + size + more
        self._ahead, self._from = self._ahead[end - self._from :], end
        return xor(sealed, stream[:size]), stream[size:]

    def _reach(self, position: int) -> None:
        """Have the stream begin not far before a place."""
        if position < self._from:
            self._begin()
        while position - self._from > len(self._ahead) + _KEPT:
            self._from += len(self._ahead) + _KEPT
            self._run(bytes(_KEPT))
            self._ahead = b""


def _signed(difference: int) -> int:
    return ((difference + 0x80000000) & _MASK) - 0x80000000


@dataclass(slots=True)
class _Place:
    """Where a direction stands: its next PDU's number, place in the stream, and TCP sequence number."""

    number: int
    position: int
    sequence: int
    tries: int = _TRIES


class NtlmSession:
    """The security context of one handshake. ``begins`` are the TCP sequence numbers behind it: client's, server's."""

    def __init__(self, flags: int, key: bytes, begins: tuple[int, int]) -> None:
        self._flags, self._key, self._begins = flags, key, begins

    def open(self, sent: Sequence[Sent]) -> list[Opened]:
        """Return the stubs of PDUs, in their order, or why they stay closed."""
        if not self._flags & EXTENDED_SECURITY:
            return _Plain(self._flags, self._key, self._begins).open(sent)
        found: list[Opened] = [Closed.BAD_SIGNATURE] * len(sent)
        for client in (True, False):
            rows = [row for row, one in enumerate(sent) if one.from_client == client]
            direction = _Extended(self._flags, self._key, self._begins[0 if client else 1], client=client)
            for row, opened in zip(rows, direction.open([sent[row].piece for row in rows]), strict=True):
                found[row] = opened
        return found


class _Extended:
    """One direction with extended session security."""

    def __init__(self, flags: int, key: bytes, begins: int, *, client: bool) -> None:
        self._stream = Keystream(next(seal_keys(flags, key, client=client)))
        self._mac = hmac.new(sign_key(flags, key, client=client), digestmod="md5")
        self._sealed_checksum = 8 if flags & KEY_EXCHANGE else 0
        self._cover = Cover.WHOLE
        self._place = _Place(0, 0, begins)

    def open(self, pieces: Sequence[Piece]) -> list[Opened]:
        """Return the stubs of PDUs, in their order, or why they stay closed."""
        found: list[Opened] = [Closed.BAD_SIGNATURE] * len(pieces)
        numbers = [int.from_bytes(piece.token[12:16], "little") for piece in pieces]
        begins = self._place.sequence
        order = [(number, _signed(piece.sequence - begins)) for number, piece in zip(numbers, pieces, strict=True)]
        for row in sorted(range(len(pieces)), key=order.__getitem__):
            piece, number = pieces[row], numbers[row]
            if len(piece.token) == 16:
                lost = number - self._place.number
                if not lost:
                    found[row] = self._here(piece, number)
                elif lost > 0:
                    found[row] = self._behind(piece, number, lost)
        return found

    def _here(self, piece: Piece, number: int) -> Opened:
        """Open the next PDU: its place in the stream is known."""
        place, plain, checksum = self._place, piece.body, b""
        if piece.auth_level == PRIVACY:
            plain, checksum = self._stream.opened(place.position, plain, self._sealed_checksum)
            place.position += len(plain)
        elif self._sealed_checksum:
            _, checksum = self._stream.opened(place.position, b"", self._sealed_checksum)
        # It was here even if it is damaged.
        place.number, place.position, place.sequence = number + 1, place.position + self._sealed_checksum, piece.end
        return plain[: piece.stub_size] if self._verified(piece, number, plain, checksum) else Closed.BAD_SIGNATURE

    def _behind(self, piece: Piece, number: int, lost: int) -> Opened:
        """Open a PDU before which some were not seen."""
        place = self._place
        sealed = len(piece.body) if piece.auth_level == PRIVACY else 0
        gap = max(_signed(piece.sequence - place.sequence), 0)
        contradicted = lost * OVERHEAD > gap  # so many PDUs have no place there: the count is not what was signed
        if contradicted and lost > _MOST_CONTRADICTED:
            return Closed.BAD_SIGNATURE
        for position in self._candidates(lost, gap, sealed=bool(sealed)):
            place.tries -= 1
            stream = self._stream.at(position, sealed + self._sealed_checksum)
            plain = xor(piece.body, stream[:sealed]) if sealed else piece.body
            if self._verified(piece, number, plain, stream[sealed:]):
                break
            if place.tries <= 0:
                return Closed.SEQUENCE_LOST
        else:
            return Closed.BAD_SIGNATURE if contradicted and not sealed else Closed.SEQUENCE_LOST
        if sealed + self._sealed_checksum:  # else it takes nothing of the stream: any place fits
            end = position + sealed + self._sealed_checksum
            self._place = _Place(number + 1, end, piece.end, place.tries)
        return plain[: piece.stub_size]

    def _candidates(self, lost: int, gap: int, *, sealed: bool) -> Iterator[int]:
        """Places where a PDU may stand in the stream, the likeliest first.

        ``lost`` PDUs before it were not seen, ``gap`` octets between. Of these nothing is in the stream of headers,
        object UUIDs, and PDUs without a signature (binds, cancels): how much that is, is what is tried.
        """
        here, each = self._place.position, self._sealed_checksum
        least, most = here + each * lost, here + gap - (OVERHEAD - each) * lost
        if not sealed:  # where this one is signed alone, those before it are likely to have been
            yield least
        likely = itertools.chain((0,), range(8, 4096, 8), range(1, 4096), range(4096, 1 << 16, 4))
        yield from (most - more for more in likely if most - more >= least)
        yield from (least, here)  # signed, of no PDU: SPNEGO's mechListMIC, after which the stream begins anew or not

    def _verified(self, piece: Piece, number: int, plain: bytes, stream: bytes) -> bool:
        """Tell whether the signature fits the body in the clear; ``stream`` is what its checksum is sealed with."""
        checksum = piece.token[4:12]
        if stream:
            checksum = (int.from_bytes(checksum, "little") ^ int.from_bytes(stream, "little")).to_bytes(8, "little")
        count = number.to_bytes(4, "little")
        for cover in covers(piece, self._cover):
            mac = self._mac.copy()
            mac.update(b"".join((count, *cover.of(piece, plain))))
            if mac.digest()[:8] == checksum:
                self._cover = cover
                return True
        return False


@dataclass(slots=True)
class _Manner:
    """How a peer without extended session security goes about it: ``places`` of the client's and the server's stream.

    Both are the same object where one stream serves both directions.
    """

    stream: tuple[Keystream, Keystream]
    places: tuple[_Place, _Place]
    cover: Cover
    shared: bool


@dataclass(slots=True)
class _Plain:
    """Both directions without extended session security: sealed counts, CRC-32 instead of a keyed signature."""

    flags: int
    key: bytes = field(repr=False)
    begins: tuple[int, int] = (0, 0)

    def open(self, sent: Sequence[Sent]) -> list[Opened]:
        """Return the stubs of PDUs, in their order, or why they stay closed; the manner that opens most is taken."""
        best: list[Opened] | None = None
        possible = [Cover.BODY, Cover.WHOLE]
        if any(one.piece.auth_level <= PACKET for one in sent):
            possible.append(Cover.NOTHING)
        for key in seal_keys(self.flags, self.key, client=True):
            for shared, cover in itertools.product((True, False), possible):
                client, server = Keystream(key), Keystream(key)
                first, second = _Place(0, 0, self.begins[0]), _Place(0, 0, self.begins[1])
                manner = _Manner(
                    (client, client if shared else server), (first, first if shared else second), cover, shared
                )
                found = _with(manner, sent, self.begins)
                count = sum(isinstance(one, bytes) for one in found)
                if count == len(sent):
                    return found
                if best is None or count > sum(isinstance(one, bytes) for one in best):
                    best = found
        return best or []


def _with(manner: _Manner, sent: Sequence[Sent], begins: tuple[int, int]) -> list[Opened]:
    """Open PDUs in one manner: each side's in TCP's order, between the sides in that of time or what fits."""
    found: list[Opened] = [Closed.BAD_SIGNATURE] * len(sent)
    waiting: list[list[int]] = []
    for side, client in enumerate((True, False)):
        rows = [row for row, one in enumerate(sent) if one.from_client == client]
        waiting.append(sorted(rows, key=lambda row: _signed(sent[row].piece.sequence - begins[side])))
    reached = list(begins)
    fitted = 0
    while any(waiting):
        heads = sorted((side for side in (0, 1) if waiting[side]), key=lambda side: sent[waiting[side][0]].at)
        for lost, side in ((False, heads[0]), *((False, side) for side in heads[1:]), *((True, s) for s in heads)):
            piece = sent[waiting[side][0]].piece
            gaps = [_signed(piece.sequence - reached[side])]
            if manner.shared and waiting[1 - side]:
                gaps.append(_signed(sent[waiting[1 - side][0]].piece.sequence - reached[1 - side]))
            gap = sum(max(each, 0) for each in gaps)
            opened = _plain_next(manner, side, piece, gap) if lost else _plain_try(manner, side, piece, 0, 0)
            if opened is not None:
                found[waiting[side][0]] = opened
                fitted += 1
                break
        else:
            here = next((each for each in heads if _plain_passed(manner, each, sent[waiting[each][0]].piece)), -1)
            side = heads[0] if here < 0 else here
            if here >= 0:  # it stands where it should, and is not what was signed
                found[waiting[side][0]] = Closed.BAD_SIGNATURE
            else:
                lost_some = fitted or sent[waiting[side][0]].piece.sequence != begins[side]
                found[waiting[side][0]] = Closed.SEQUENCE_LOST if lost_some else Closed.BAD_SIGNATURE
                if not fitted:  # the very first does not fit: another manner, or another key
                    return found
        reached[side] = sent[waiting[side][0]].piece.end
        waiting[side].pop(0)
    return found


def _plain_passed(manner: _Manner, side: int, piece: Piece) -> bool:
    """Tell whether a PDU has the next count, whatever its checksum says, and go on behind it then."""
    if len(piece.token) != 16:
        return False
    place = manner.places[side]
    end = place.position + (len(piece.body) if piece.auth_level == PRIVACY else 0) + 12
    stream = manner.stream[side].at(end - 4, 4)
    if int.from_bytes(xor(piece.token[12:], stream), "little") != place.number:
        return False
    place.number, place.position = place.number + 1, end
    return True


def _plain_next(manner: _Manner, side: int, piece: Piece, gap: int) -> bytes | None:
    """Try the places of a PDU before which some were not seen."""
    place = manner.places[side]
    for lost in range(1, _MOST_LOST + 1):
        most = gap - OVERHEAD * lost
        likely = [most - more for more in range(0, 512, 8) if most - more >= 0]
        if piece.auth_level != PRIVACY and most >= 0:  # signed alone, as those before it are likely to have been
            likely.insert(0, 0)
        for skipped in likely:
            place.tries -= 1
            if place.tries <= 0:
                return None
            opened = _plain_try(manner, side, piece, lost, skipped)
            if opened is not None:
                return opened
    return None


def _plain_try(manner: _Manner, side: int, piece: Piece, lost: int, skipped: int) -> bytes | None:
    """Return the stub if count and CRC fit ``skipped`` sealed octets and ``lost`` PDUs further ([MS-NLMP] 3.4.4.1)."""
    if len(piece.token) != 16:
        return None
    place = manner.places[side]
    position = place.position + skipped + 12 * lost
    sealed = len(piece.body) if piece.auth_level == PRIVACY else 0
    stream = manner.stream[side].at(position, sealed + 12)
    _, checksum, count = struct.unpack("<III", xor(piece.token[4:16], stream[sealed:]))
    if count != place.number + lost:
        return None
    plain = xor(piece.body, stream[:sealed]) if sealed else piece.body
    if binascii.crc32(b"".join(manner.cover.of(piece, plain))) != checksum:
        return None
    place.number, place.position = place.number + lost + 1, position + sealed + 12
    return plain[: piece.stub_size]
