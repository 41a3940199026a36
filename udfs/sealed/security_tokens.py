"""Security tokens of bind, bind_ack, alter_context and auth3 PDUs, as stored; without keys they are no secrets.

A token belongs to the security context of its ``auth_context_id`` on its connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from udfs.sealed import spnego

AUTH_TYPE_NTLM, AUTH_TYPE_SPNEGO, AUTH_TYPE_KERBEROS = 10, 9, 16  # authentication types ([MS-RPCE] 2.2.1.1.7)
NTLM_NEGOTIATE, NTLM_CHALLENGE, NTLM_AUTHENTICATE = 1, 2, 3  # NTLM message types
_NTLM_SIGNATURE: Final = b"NTLMSSP\0"


@dataclass(frozen=True, slots=True)
class HandshakeToken:
    """A security token and its PDU: ``sequence`` (TCP) and ``size`` in bytes of the PDU, ``flags`` of its header."""

    from_client: bool
    sequence: int
    size: int
    flags: int
    auth_type: int
    auth_level: int
    auth_context_id: int
    token: bytes

    def to_row(self) -> dict[str, Any]:
        """Return the token as a value of the column ``handshake``."""
        return asdict(self)

    @property
    def end(self) -> int:
        """The TCP sequence number behind the PDU."""
        return (self.sequence + self.size) & 0xFFFFFFFF

    @property
    def ntlm_message(self) -> bytes | None:
        """The NTLM message in the token, bare or in SPNEGO; None if there is none."""
        inner = self.token if self.auth_type == AUTH_TYPE_NTLM else spnego.unwrap_mechanism_token(self.token)
        return inner if inner is not None and inner.startswith(_NTLM_SIGNATURE) and len(inner) >= 12 else None

    @property
    def ntlm_message_type(self) -> int | None:
        """The type of the NTLM message in the token: 1, 2 or 3; None if there is none."""
        message = self.ntlm_message
        return None if message is None else int.from_bytes(message[8:12], "little")

    @property
    def kerberos_message(self) -> bytes | None:
        """The Kerberos message (AP-REQ, AP-REP) in the token, without framing; None if there is none."""
        return (
            spnego.unwrap_kerberos_message(self.token)
            if self.auth_type in (AUTH_TYPE_SPNEGO, AUTH_TYPE_KERBEROS)
            else None
        )


def has_usable_handshake(tokens: Sequence[HandshakeToken]) -> bool:
    """Return whether tokens hold a handshake from which session keys can be derived, or an unknown mechanism."""
    ntlm: dict[int, set[int]] = {}
    for token in tokens:
        kind = token.ntlm_message_type
        if kind is not None:
            ntlm.setdefault(token.auth_context_id, set()).add(kind)
        elif token.auth_type not in (AUTH_TYPE_NTLM, AUTH_TYPE_SPNEGO, AUTH_TYPE_KERBEROS) or (
            token.from_client and token.kerberos_message is not None
        ):
            return True
    return any({NTLM_CHALLENGE, NTLM_AUTHENTICATE} <= kinds for kinds in ntlm.values())


def tokens_from_rows(rows: Iterable[dict[str, Any]]) -> list[HandshakeToken]:
    """Return tokens from the rows that ``SecurityToken.to_row`` made."""
    return [HandshakeToken(**row) for row in rows]
