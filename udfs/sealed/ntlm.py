"""NTLM session security: from the handshake and an NT hash to the keys of both directions ([MS-NLMP] 3.3, 3.4).

Where products depart from the specification, each way is a *manner*: signatures, which
are checked always, tell which of them a connection has.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from Cryptodome.Cipher import ARC4
from impacket.ntlm import ntlmssp_DES_encrypt

from udfs.sealed.keys import NtlmKey

UNICODE, NTLM_KEY, LM_KEY = 0x00000001, 0x00000200, 0x00000080
EXTENDED_SECURITY, KEY_56, KEY_128, KEY_EXCHANGE = 0x00080000, 0x80000000, 0x20000000, 0x40000000
ANONYMOUS: Final = 0x00000800
_MAGIC: Final = "session key to {}-to-{} {} key magic constant\0"


class MalformedMessageError(Exception):
    """An NTLM message whose fields do not fit its length."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """What CHALLENGE and AUTHENTICATE say ([MS-NLMP] 2.2.1.2, 2.2.1.3)."""

    server_challenge: bytes
    flags: int
    domain: str
    user: str
    lm_response: bytes
    nt_response: bytes
    session_key: bytes  # EncryptedRandomSessionKey

    @staticmethod
    def of(challenge: bytes, authenticate: bytes) -> Handshake:
        """Read both messages; raises ``MalformedMessageError``."""
        if len(challenge) < 32 or len(authenticate) < 52:
            raise MalformedMessageError
        flags = int.from_bytes(authenticate[60:64], "little") if len(authenticate) >= 64 else 0
        encoding = "utf-16le" if flags & UNICODE else "cp437"
        return Handshake(
            challenge[24:32],
            flags,
            _field(authenticate, 28).decode(encoding, "replace"),
            _field(authenticate, 36).decode(encoding, "replace"),
            _field(authenticate, 12),
            _field(authenticate, 20),
            _field(authenticate, 52),
        )

    @property
    def principal(self) -> str:
        r"""The account as the handshake shows it: ``DOMAIN\user``, ``user`` without a domain."""
        return f"{self.domain}\\{self.user}" if self.domain or not self.user else self.user

    @property
    def is_anonymous(self) -> bool:
        """Whether nobody logged on: its keys are made of no secret (3.2.5.1.2)."""
        return not self.user and not self.nt_response

    def exported_key(self, key: NtlmKey) -> bytes | None:
        """Return the ExportedSessionKey; None if the key does not fit the answer to the challenge."""
        base = bytes(16) if self.is_anonymous else self._key_exchange_key(key.nt_hash)
        if base is None or not self.flags & KEY_EXCHANGE:
            return base
        return ARC4.new(base).decrypt(self.session_key) if len(self.session_key) == 16 else None

    def _key_exchange_key(self, nt_hash: bytes) -> bytes | None:
        """SessionBaseKey (3.3.1, 3.3.2) and KXKEY (3.4.5.1) of it."""
        response = self.nt_response
        if len(response) > 24:
            owner = _hmac(nt_hash, (self.user.upper() + self.domain).encode("utf-16le"))
            proof = _hmac(owner, self.server_challenge + response[16:])
            return _hmac(owner, proof) if hmac.compare_digest(proof, response[:16]) else None
        if len(response) != 24:
            return None
        extended = bool(self.flags & EXTENDED_SECURITY)
        challenge = self.server_challenge
        if extended:
            challenge = hashlib.md5(challenge + self.lm_response[:8], usedforsecurity=False).digest()[:8]
        if not hmac.compare_digest(bytes(ntlmssp_DES_encrypt(nt_hash, challenge)), response):
            return None
        base = _md4(nt_hash)
        return _hmac(base, self.server_challenge + self.lm_response[:8]) if extended else base


def _field(message: bytes, at: int) -> bytes:
    """Return what a length, a maximum length and an offset point at (2.2.1.3)."""
    if len(message) < at + 8:
        return b""
    size, _, offset = struct.unpack_from("<HHI", message, at)
    if size and offset + size > len(message):
        raise MalformedMessageError
    return message[offset : offset + size]


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "md5")


def _md4(data: bytes) -> bytes:
    from Cryptodome.Hash import MD4  # noqa: PLC0415 - NTLMv1 alone

    return MD4.new(data).digest()  # noqa: S303 - [MS-NLMP] has it


def sign_key(flags: int, key: bytes, *, client: bool) -> bytes:
    """SIGNKEY (3.4.5.2) of one direction; empty without extended session security."""
    if not flags & EXTENDED_SECURITY:
        return b""
    return _md5(key + _magic("signing", client=client))


def seal_keys(flags: int, key: bytes, *, client: bool) -> Iterator[bytes]:
    """SEALKEY (3.4.5.3) of one direction; without extended session security also as products make it.

    The specification weakens the key there for LM_KEY alone. impacket does it always, others never.
    """
    if flags & EXTENDED_SECURITY:
        size = 16 if flags & KEY_128 else 7 if flags & KEY_56 else 5
        yield _md5(key[:size] + _magic("sealing", client=client))
        return
    weak = key[:7] + b"\xa0" if flags & KEY_56 else key[:5] + b"\xe5\x38\xb0"
    yield from (weak, key) if flags & LM_KEY else (key, weak)


def _magic(what: str, *, client: bool) -> bytes:
    ends = ("client", "server") if client else ("server", "client")
    return _MAGIC.format(*ends, what).encode("ascii")


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
