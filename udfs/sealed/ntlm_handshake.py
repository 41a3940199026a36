"""NTLM handshakes: signing and sealing keys of both directions from the handshake and an NT hash ([MS-NLMP] 3.3, 3.4).

Some products depart from the specification. Then all variants are tried; signatures are always checked and show which
one a connection uses.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from Cryptodome.Cipher import ARC4
from impacket.ntlm import ntlmssp_DES_encrypt

from udfs.sealed.claimed_identity import MalformedNtlmMessageError, NtlmNames, message_field, ntlm_flags
from udfs.sealed.decryption_keys import NtlmKey

FLAG_NTLM_KEY, FLAG_LM_KEY = 0x00000200, 0x00000080
FLAG_EXTENDED_SECURITY, FLAG_KEY_56, FLAG_KEY_128, FLAG_KEY_EXCHANGE = 0x00080000, 0x80000000, 0x20000000, 0x40000000
_MAGIC_CONSTANT: Final = "session key to {}-to-{} {} key magic constant\0"


@dataclass(frozen=True, slots=True)
class NtlmHandshake:
    """The fields of the CHALLENGE and AUTHENTICATE messages of a handshake ([MS-NLMP] 2.2.1.2, 2.2.1.3)."""

    server_challenge: bytes
    flags: int
    names: NtlmNames
    lm_response: bytes
    nt_response: bytes
    session_key: bytes  # EncryptedRandomSessionKey

    @staticmethod
    def parse(challenge: bytes, authenticate: bytes) -> NtlmHandshake:
        """Parse both messages; raises ``MalformedNtlmMessageError``."""
        if len(challenge) < 32:
            raise MalformedNtlmMessageError
        names = NtlmNames.parse(authenticate)
        return NtlmHandshake(
            challenge[24:32],
            ntlm_flags(authenticate),
            names,
            message_field(authenticate, 12),
            message_field(authenticate, 20),
            message_field(authenticate, 52),
        )

    def exported_key(self, key: NtlmKey) -> bytes | None:
        """Return the ExportedSessionKey; None if the response to the challenge was not made with this key."""
        base = bytes(16) if self.names.is_anonymous else self._key_exchange_key(key.nt_hash)
        if base is None or not self.flags & FLAG_KEY_EXCHANGE:
            return base
        return ARC4.new(base).decrypt(self.session_key) if len(self.session_key) == 16 else None

    def _key_exchange_key(self, nt_hash: bytes) -> bytes | None:
        """Return KXKEY (3.4.5.1) of the SessionBaseKey (3.3.1, 3.3.2); None if the response does not fit the hash."""
        response = self.nt_response
        if len(response) > 24:
            owner = _hmac(nt_hash, (self.names.user.upper() + self.names.domain).encode("utf-16le"))
            proof = _hmac(owner, self.server_challenge + response[16:])
            return _hmac(owner, proof) if hmac.compare_digest(proof, response[:16]) else None
        if len(response) != 24:
            return None
        extended = bool(self.flags & FLAG_EXTENDED_SECURITY)
        challenge = self.server_challenge
        if extended:
            challenge = hashlib.md5(challenge + self.lm_response[:8], usedforsecurity=False).digest()[:8]
        if not hmac.compare_digest(bytes(ntlmssp_DES_encrypt(nt_hash, challenge)), response):
            return None
        base = _md4(nt_hash)
        return _hmac(base, self.server_challenge + self.lm_response[:8]) if extended else base


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "md5")


def _md4(data: bytes) -> bytes:
    from Cryptodome.Hash import MD4  # noqa: PLC0415 - needed for NTLMv1 only

    return MD4.new(data).digest()  # noqa: S303 - required by [MS-NLMP]


def signing_key(flags: int, key: bytes, *, client: bool) -> bytes:
    """Return SIGNKEY (3.4.5.2) of one direction; empty without extended session security."""
    if not flags & FLAG_EXTENDED_SECURITY:
        return b""
    return _md5(key + _magic_constant("signing", client=client))


def sealing_keys(flags: int, key: bytes, *, client: bool) -> Iterator[bytes]:
    """Yield SEALKEY (3.4.5.3) of one direction, the likeliest first.

    Without extended session security there are two: the specification weakens the key for LM_KEY only, impacket
    always, other products never.
    """
    if flags & FLAG_EXTENDED_SECURITY:
        size = 16 if flags & FLAG_KEY_128 else 7 if flags & FLAG_KEY_56 else 5
        yield _md5(key[:size] + _magic_constant("sealing", client=client))
        return
    weak = key[:7] + b"\xa0" if flags & FLAG_KEY_56 else key[:5] + b"\xe5\x38\xb0"
    yield from (weak, key) if flags & FLAG_LM_KEY else (key, weak)


def _magic_constant(what: str, *, client: bool) -> bytes:
    ends = ("client", "server") if client else ("server", "client")
    return _MAGIC_CONSTANT.format(*ends, what).encode("ascii")


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
