"""Decrypt and verify PDUs protected by NTLM, even if some PDUs of the connection were not captured.

With extended session security each direction has its own RC4 stream and counts its PDUs in the clear. After missing
PDUs, TCP sequence numbers show how many octets they had, and so roughly how much of the RC4 stream they used: candidate
stream positions are tried until a signature fits ([MS-NLMP] 3.4.3, 3.4.4). Without extended session security (*legacy*
here) the count is sealed too, and both directions share one stream or not, depending on the product: all variants are
tried.

A signed PDU uses only the octets of the stream that seal its checksum. A stub is returned only if its signature fits.
"""

from __future__ import annotations

import binascii
import hmac
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from udfs.sealed.ciphers import rc4_keystream, xor_bytes
from udfs.sealed.ntlm_handshake import FLAG_EXTENDED_SECURITY, FLAG_KEY_EXCHANGE, sealing_keys, signing_key
from udfs.sealed.protected_pdu import (
    AUTH_LEVEL_PACKET,
    AUTH_LEVEL_PRIVACY,
    DecryptedStub,
    DecryptionFailure,
    ProtectedPdu,
    SentPdu,
    SignatureCoverage,
    possible_coverages,
)

CLEAR_HEADER_BYTES: Final = 24 + 8 + 16  # of a protected PDU: header, security trailer, signature
_MAX_TRIES: Final = 30_000  # stream positions tried for each direction of a connection
_MAX_LOST_PDUS: Final = 64  # lost PDUs tried in a gap, where their count is sealed too
_MAX_CONTRADICTED_LOSS: Final = 1 << 16  # lost PDUs tried although TCP sequence numbers contradict their count
_CHUNK_BYTES: Final = 1 << 16
_MAX_KEPT_BYTES: Final = 1 << 20
_SEQUENCE_MASK: Final = 0xFFFFFFFF


class Rc4Keystream:
    """One RC4 keystream with look-ahead; moving backwards restarts it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._restart()

    def _restart(self) -> None:
        self._run, self._from, self._ahead = rc4_keystream(self._key), 0, b""

    def peek(self, position: int, size: int) -> bytes:
        """Return octets of the keystream from a position."""
        self._seek(position)
        begin = position - self._from
        lacking = begin + size - len(self._ahead)
        if lacking > 0:
            self._ahead += self._run(bytes(max(lacking, _CHUNK_BYTES)))
        return self._ahead[begin : begin + size]

    def decrypt_and_advance(self, position: int, sealed: bytes, more: int) -> tuple[bytes, bytes]:
        """Decrypt ``sealed`` at a position; returns the plaintext and ``more`` keystream octets behind it.

        The stream moves behind these octets.
        """
        size = len(sealed)
        if position == self._from and not self._ahead:
            self._from += size + more
            both = self._run(sealed + bytes(more))
            return both[:size], both[size:]
        stream = self.peek(position, size + more)
        end = position + size + more
        self._ahead, self._from = self._ahead[end - self._from :], end
        return xor_bytes(sealed, stream[:size]), stream[size:]

    def _seek(self, position: int) -> None:
        """Move so that the buffered keystream reaches close to a position."""
        if position < self._from:
            self._restart()
        while position - self._from > len(self._ahead) + _MAX_KEPT_BYTES:
            self._from += len(self._ahead) + _MAX_KEPT_BYTES
            self._run(bytes(_MAX_KEPT_BYTES))
            self._ahead = b""


def _signed_difference(difference: int) -> int:
    return ((difference + 0x80000000) & _SEQUENCE_MASK) - 0x80000000


@dataclass(slots=True)
class _StreamPosition:
    """The state of one direction: sequence number, stream position and TCP sequence number of its next PDU."""

    number: int
    position: int
    sequence: int
    tries: int = _MAX_TRIES


class NtlmSession:
    """An NTLM security context; ``begins`` are the TCP sequence numbers behind its handshake, client and server."""

    def __init__(self, flags: int, key: bytes, begins: tuple[int, int]) -> None:
        self._flags, self._key, self._begins = flags, key, begins

    def decrypt(self, sent: Sequence[SentPdu]) -> list[DecryptedStub]:
        """Return for each PDU its stub in the clear, or why it cannot be decrypted."""
        if not self._flags & FLAG_EXTENDED_SECURITY:
            return _LegacySession(self._flags, self._key, self._begins).decrypt(sent)
        found: list[DecryptedStub] = [DecryptionFailure.BAD_SIGNATURE] * len(sent)
        for client in (True, False):
            rows = [row for row, one in enumerate(sent) if one.from_client == client]
            direction = _ExtendedSecurityDirection(
                self._flags, self._key, self._begins[0 if client else 1], client=client
            )
            for row, decrypted in zip(rows, direction.decrypt([sent[row].pdu for row in rows]), strict=True):
                found[row] = decrypted
        return found


class _ExtendedSecurityDirection:
    """One direction of an NTLM context with extended session security."""

    def __init__(self, flags: int, key: bytes, begins: int, *, client: bool) -> None:
        self._stream = Rc4Keystream(next(sealing_keys(flags, key, client=client)))
        self._mac = hmac.new(signing_key(flags, key, client=client), digestmod="md5")
        self._sealed_checksum = 8 if flags & FLAG_KEY_EXCHANGE else 0
        self._coverage = SignatureCoverage.WHOLE
        self._place = _StreamPosition(0, 0, begins)

    def decrypt(self, pdus: Sequence[ProtectedPdu]) -> list[DecryptedStub]:
        """Return for each PDU its stub in the clear, or why it cannot be decrypted."""
        found: list[DecryptedStub] = [DecryptionFailure.BAD_SIGNATURE] * len(pdus)
        numbers = [int.from_bytes(pdu.token[12:16], "little") for pdu in pdus]
        begins = self._place.sequence
        order = [(number, _signed_difference(pdu.sequence - begins)) for number, pdu in zip(numbers, pdus, strict=True)]
        for row in sorted(range(len(pdus)), key=order.__getitem__):
            pdu, number = pdus[row], numbers[row]
            if len(pdu.token) == 16:
                lost = number - self._place.number
                if not lost:
                    found[row] = self._decrypt_next(pdu, number)
                elif lost > 0:
                    found[row] = self._decrypt_after_gap(pdu, number, lost)
        return found

    def _decrypt_next(self, pdu: ProtectedPdu, number: int) -> DecryptedStub:
        """Decrypt the next PDU in sequence: its stream position is known."""
        place, plain, checksum = self._place, pdu.body, b""
        if pdu.auth_level == AUTH_LEVEL_PRIVACY:
            plain, checksum = self._stream.decrypt_and_advance(place.position, plain, self._sealed_checksum)
            place.position += len(plain)
        elif self._sealed_checksum:
            _, checksum = self._stream.decrypt_and_advance(place.position, b"", self._sealed_checksum)
        # Advance even if the PDU is damaged.
        place.number, place.position, place.sequence = number + 1, place.position + self._sealed_checksum, pdu.end
        return plain[: pdu.stub_size] if self._verify(pdu, number, plain, checksum) else DecryptionFailure.BAD_SIGNATURE

    def _decrypt_after_gap(self, pdu: ProtectedPdu, number: int, lost: int) -> DecryptedStub:
        """Decrypt a PDU behind ``lost`` PDUs that were not captured."""
        place = self._place
        sealed = len(pdu.body) if pdu.auth_level == AUTH_LEVEL_PRIVACY else 0
        gap = max(_signed_difference(pdu.sequence - place.sequence), 0)
        contradicted = lost * CLEAR_HEADER_BYTES > gap  # no room for so many PDUs: the count may be damaged
        if contradicted and lost > _MAX_CONTRADICTED_LOSS:
            return DecryptionFailure.BAD_SIGNATURE
        for position in self._candidate_positions(lost, gap, sealed=bool(sealed)):
            place.tries -= 1
            stream = self._stream.peek(position, sealed + self._sealed_checksum)
            plain = xor_bytes(pdu.body, stream[:sealed]) if sealed else pdu.body
            if self._verify(pdu, number, plain, stream[sealed:]):
                break
            if place.tries <= 0:
                return DecryptionFailure.SEQUENCE_LOST
        else:
            return DecryptionFailure.BAD_SIGNATURE if contradicted and not sealed else DecryptionFailure.SEQUENCE_LOST
        if sealed + self._sealed_checksum:  # else the PDU uses no keystream, and any position fits
            end = position + sealed + self._sealed_checksum
            self._place = _StreamPosition(number + 1, end, pdu.end, place.tries)
        return plain[: pdu.stub_size]

    def _candidate_positions(self, lost: int, gap: int, *, sealed: bool) -> Iterator[int]:
        """Yield the possible stream positions of a PDU behind ``lost`` missing PDUs in ``gap`` octets, likeliest first.

        Headers, object UUIDs and PDUs without a signature (binds, cancels) use no keystream. Their share of the gap is
        unknown, so it is tried.
        """
        here, each = self._place.position, self._sealed_checksum
        least, most = here + each * lost, here + gap - (CLEAR_HEADER_BYTES - each) * lost
        if not sealed:  # behind signed PDUs, if this one is signed only
            yield least
        likely = itertools.chain((0,), range(8, 4096, 8), range(1, 4096), range(4096, 1 << 16, 4))
        yield from (most - more for more in likely if most - more >= least)
        yield from (least, here)  # SPNEGO's mechListMIC counts, but belongs to no PDU; it may restart the stream or not

    def _verify(self, pdu: ProtectedPdu, number: int, plain: bytes, stream: bytes) -> bool:
        """Return whether the signature fits the plaintext; ``stream`` is the keystream that seals its checksum."""
        checksum = pdu.token[4:12]
        if stream:
            checksum = (int.from_bytes(checksum, "little") ^ int.from_bytes(stream, "little")).to_bytes(8, "little")
        count = number.to_bytes(4, "little")
        for coverage in possible_coverages(pdu, self._coverage):
            mac = self._mac.copy()
            mac.update(b"".join((count, *coverage.covered_octets(pdu, plain))))
            if mac.digest()[:8] == checksum:
                self._coverage = coverage
                return True
        return False


@dataclass(slots=True)
class _LegacyVariant:
    """One way in which products do legacy session security: streams, positions (client, server), signature coverage.

    If both directions share one stream, client and server have the same objects.
    """

    stream: tuple[Rc4Keystream, Rc4Keystream]
    places: tuple[_StreamPosition, _StreamPosition]
    coverage: SignatureCoverage
    shared: bool


@dataclass(slots=True)
class _LegacySession:
    """An NTLM context without extended session security: sealed counts, CRC-32 instead of a keyed signature."""

    flags: int
    key: bytes = field(repr=False)
    begins: tuple[int, int] = (0, 0)

    def decrypt(self, sent: Sequence[SentPdu]) -> list[DecryptedStub]:
        """Return for each PDU its stub in the clear or the failure, by the variant that decrypts most PDUs."""
        best: list[DecryptedStub] | None = None
        possible = [SignatureCoverage.BODY, SignatureCoverage.WHOLE]
        if any(one.pdu.auth_level <= AUTH_LEVEL_PACKET for one in sent):
            possible.append(SignatureCoverage.NOTHING)
        for key in sealing_keys(self.flags, self.key, client=True):
            for shared, coverage in itertools.product((True, False), possible):
                client, server = Rc4Keystream(key), Rc4Keystream(key)
                first, second = _StreamPosition(0, 0, self.begins[0]), _StreamPosition(0, 0, self.begins[1])
                variant = _LegacyVariant(
                    (client, client if shared else server), (first, first if shared else second), coverage, shared
                )
                found = _decrypt_with_variant(variant, sent, self.begins)
                count = sum(isinstance(one, bytes) for one in found)
                if count == len(sent):
                    return found
                if best is None or count > sum(isinstance(one, bytes) for one in best):
                    best = found
        return best or []


def _decrypt_with_variant(
    variant: _LegacyVariant, sent: Sequence[SentPdu], begins: tuple[int, int]
) -> list[DecryptedStub]:
    """Decrypt PDUs by one variant: those of a side in TCP order, between the sides in order of time, or as it fits."""
    found: list[DecryptedStub] = [DecryptionFailure.BAD_SIGNATURE] * len(sent)
    waiting: list[list[int]] = []
    for side, client in enumerate((True, False)):
        rows = [row for row, one in enumerate(sent) if one.from_client == client]
        waiting.append(sorted(rows, key=lambda row: _signed_difference(sent[row].pdu.sequence - begins[side])))
    reached = list(begins)
    fitted = 0
    while any(waiting):
        heads = sorted((side for side in (0, 1) if waiting[side]), key=lambda side: sent[waiting[side][0]].at)
        for lost, side in ((False, heads[0]), *((False, side) for side in heads[1:]), *((True, s) for s in heads)):
            pdu = sent[waiting[side][0]].pdu
            gaps = [_signed_difference(pdu.sequence - reached[side])]
            if variant.shared and waiting[1 - side]:
                gaps.append(_signed_difference(sent[waiting[1 - side][0]].pdu.sequence - reached[1 - side]))
            gap = sum(max(each, 0) for each in gaps)
            decrypted = (
                _decrypt_after_loss(variant, side, pdu, gap) if lost else _try_position(variant, side, pdu, 0, 0)
            )
            if decrypted is not None:
                found[waiting[side][0]] = decrypted
                fitted += 1
                break
        else:
            here = next((each for each in heads if _skip_damaged(variant, each, sent[waiting[each][0]].pdu)), -1)
            side = heads[0] if here < 0 else here
            if here >= 0:  # in sequence, but damaged
                found[waiting[side][0]] = DecryptionFailure.BAD_SIGNATURE
            else:
                lost_some = fitted or sent[waiting[side][0]].pdu.sequence != begins[side]
                found[waiting[side][0]] = (
                    DecryptionFailure.SEQUENCE_LOST if lost_some else DecryptionFailure.BAD_SIGNATURE
                )
                if not fitted:  # the first PDU does not fit: wrong variant or key
                    return found
        reached[side] = sent[waiting[side][0]].pdu.end
        waiting[side].pop(0)
    return found


def _skip_damaged(variant: _LegacyVariant, side: int, pdu: ProtectedPdu) -> bool:
    """Advance behind a PDU that has the next count, whatever its checksum; returns whether it has."""
    if len(pdu.token) != 16:
        return False
    place = variant.places[side]
    end = place.position + (len(pdu.body) if pdu.auth_level == AUTH_LEVEL_PRIVACY else 0) + 12
    stream = variant.stream[side].peek(end - 4, 4)
    if int.from_bytes(xor_bytes(pdu.token[12:], stream), "little") != place.number:
        return False
    place.number, place.position = place.number + 1, end
    return True


def _decrypt_after_loss(variant: _LegacyVariant, side: int, pdu: ProtectedPdu, gap: int) -> bytes | None:
    """Try the possible positions of a PDU behind PDUs that were not captured; returns its stub or None."""
    place = variant.places[side]
    for lost in range(1, _MAX_LOST_PDUS + 1):
        most = gap - CLEAR_HEADER_BYTES * lost
        likely = [most - more for more in range(0, 512, 8) if most - more >= 0]
        if pdu.auth_level != AUTH_LEVEL_PRIVACY and most >= 0:  # signed only, like probably those before it
            likely.insert(0, 0)
        for skipped in likely:
            place.tries -= 1
            if place.tries <= 0:
                return None
            decrypted = _try_position(variant, side, pdu, lost, skipped)
            if decrypted is not None:
                return decrypted
    return None


def _try_position(variant: _LegacyVariant, side: int, pdu: ProtectedPdu, lost: int, skipped: int) -> bytes | None:
    """Return the stub if count and CRC fit behind ``lost`` PDUs with ``skipped`` sealed octets ([MS-NLMP] 3.4.4.1)."""
    if len(pdu.token) != 16:
        return None
    place = variant.places[side]
    position = place.position + skipped + 12 * lost
    sealed = len(pdu.body) if pdu.auth_level == AUTH_LEVEL_PRIVACY else 0
    stream = variant.stream[side].peek(position, sealed + 12)
    _, checksum, count = struct.unpack("<III", xor_bytes(pdu.token[4:16], stream[sealed:]))
    if count != place.number + lost:
        return None
    plain = xor_bytes(pdu.body, stream[:sealed]) if sealed else pdu.body
    if binascii.crc32(b"".join(variant.coverage.covered_octets(pdu, plain))) != checksum:
        return None
    place.number, place.position = place.number + lost + 1, position + sealed + 12
    return plain[: pdu.stub_size]
