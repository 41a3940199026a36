"""Security tokens of binds, their answers and auth3 PDUs, as they are kept; they are no secrets without keys.

A token belongs to the security context that its ``context_id`` (auth_context_id) names on its connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from udfs.sealed import spnego

TOKEN: Final = pa.struct(
    [
        ("from_client", pa.bool_()),
        ("sequence", pa.int64()),
        ("size", pa.int64()),
        ("flags", pa.int32()),
        ("auth_type", pa.int32()),
        ("auth_level", pa.int32()),
        ("auth_context_id", pa.int64()),
        ("token", pa.binary()),
    ]
)
NTLM, SPNEGO, KERBEROS = 10, 9, 16  # authentication types ([MS-RPCE] 2.2.1.1.7)
NEGOTIATE, CHALLENGE, AUTHENTICATE = 1, 2, 3  # NTLM's messages
_NTLM: Final = b"NTLMSSP\0"


@dataclass(frozen=True, slots=True)
class Token:
    """One token with its PDU: ``sequence`` (TCP) and ``size`` of the PDU, ``flags`` of its header."""

    from_client: bool
    sequence: int
    size: int
    flags: int
    auth_type: int
    auth_level: int
    auth_context_id: int
    token: bytes

    def row(self) -> dict[str, Any]:
        """Return the token as a value of the column ``handshake``."""
        return {field.name: getattr(self, field.name) for field in TOKEN}

    @property
    def end(self) -> int:
        """TCP sequence number behind the PDU."""
        return (self.sequence + self.size) & 0xFFFFFFFF

    @property
    def ntlm(self) -> bytes | None:
        """The NTLM message that it carries, bare or in SPNEGO; None if there is none."""
        inner = self.token if self.auth_type == NTLM else spnego.mechanism_token(self.token)
        return inner if inner is not None and inner.startswith(_NTLM) and len(inner) >= 12 else None

    @property
    def ntlm_type(self) -> int | None:
        """Which NTLM message it carries: 1, 2 or 3; None if there is none."""
        message = self.ntlm
        return None if message is None else int.from_bytes(message[8:12], "little")

    @property
    def kerberos(self) -> bytes | None:
        """The Kerberos message (AP-REQ, AP-REP) that it carries, without any frame; None if there is none."""
        return spnego.kerberos_message(self.token) if self.auth_type in (SPNEGO, KERBEROS) else None


def shown(tokens: Sequence[Token]) -> bool:
    """Tell whether tokens hold a handshake that keys could make session keys of; of unknown mechanisms, any token."""
    ntlm: dict[int, set[int]] = {}
    for token in tokens:
        kind = token.ntlm_type
        if kind is not None:
            ntlm.setdefault(token.auth_context_id, set()).add(kind)
        elif token.auth_type not in (NTLM, SPNEGO, KERBEROS) or (token.from_client and token.kerberos is not None):
            return True
    return any({CHALLENGE, AUTHENTICATE} <= kinds for kinds in ntlm.values())


def of_rows(rows: Iterable[dict[str, Any]]) -> list[Token]:
    """Return what ``Token.row`` made."""
    return [Token(**row) for row in rows]
