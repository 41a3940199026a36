"""Who a client says it is in a handshake, as far as that is in clear; no keys needed, and nothing proven.

NTLM names account and workstation of the client in its AUTHENTICATE message ([MS-NLMP] 2.2.1.3). Of a Kerberos AP-REQ
only the service that the ticket is for is in clear; the client's name is encrypted in the ticket (RFC 4120 5.3, 5.5.1).
Only the needed fields are read, and every length is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from udfs.sealed.security_tokens import NTLM_AUTHENTICATE, HandshakeToken
from udfs.sealed.spnego import AP_REQ, der_elements, nested_contents

ANONYMOUS: Final = "ANONYMOUS LOGON"
FLAG_UNICODE: Final = 0x00000001
TAG_SEQUENCE, TAG_TEXT = 0x30, 0x1B  # ASN.1 types of Kerberos' messages (RFC 4120 5)


class MalformedNtlmMessageError(Exception):
    """An NTLM message with fields outside its bounds."""


class ClaimedIdentity(NamedTuple):
    """What a handshake shows: the client's ``principal`` and ``workstation``, and the ``service`` it asks for."""

    principal: str | None = None
    workstation: str | None = None
    service: str | None = None


UNKNOWN_IDENTITY: Final = ClaimedIdentity()


def identities_by_context(tokens: Iterable[HandshakeToken]) -> dict[int, ClaimedIdentity]:
    """Return the identity that each security context of a connection shows, by ``auth_context_id``.

    ``tokens`` are all tokens of the connection. Contexts that show none, and damaged messages, are left out.
    """
    found: dict[int, ClaimedIdentity] = {}
    for token in tokens:
        if token.from_client and token.auth_context_id not in found:
            identity = _claimed_identity(token)
            if identity is not None:
                found[token.auth_context_id] = identity
    return found


def _claimed_identity(token: HandshakeToken) -> ClaimedIdentity | None:
    message = token.ntlm_message
    if message is not None and token.ntlm_message_type == NTLM_AUTHENTICATE:
        try:
            names = NtlmNames.parse(message)
        except MalformedNtlmMessageError:
            return None
        principal = ANONYMOUS if names.is_anonymous else names.principal if names.user else None
        return ClaimedIdentity(principal, names.workstation or None)
    request = token.kerberos_message
    if request is None or request[0] != AP_REQ:
        return None
    service = ticket_service(nested_contents(request, AP_REQ, TAG_SEQUENCE, 0xA3, 0x61, TAG_SEQUENCE) or b"")
    return None if service is None else ClaimedIdentity(service=service)


class NtlmNames(NamedTuple):
    """What an AUTHENTICATE message says of the client; empty where it does not say."""

    domain: str
    user: str
    workstation: str
    is_anonymous: bool  # neither a user nor a response (3.2.5.1.2)

    @staticmethod
    def parse(authenticate: bytes) -> NtlmNames:
        """Parse the message ([MS-NLMP] 2.2.1.3); raises ``MalformedNtlmMessageError``.

        No key depends on the workstation: if it is outside the message, only it is left out.
        """
        if len(authenticate) < 52:
            raise MalformedNtlmMessageError
        encoding = "utf-16le" if ntlm_flags(authenticate) & FLAG_UNICODE else "cp437"
        domain, user = (message_field(authenticate, at).decode(encoding, "replace") for at in (28, 36))
        try:
            workstation = message_field(authenticate, 44).decode(encoding, "replace")
        except MalformedNtlmMessageError:
            workstation = ""
        return NtlmNames(domain, user, workstation, not user and not message_field(authenticate, 20))

    @property
    def principal(self) -> str:
        r"""The account: ``DOMAIN\user``, or ``user`` without a domain."""
        return f"{self.domain}\\{self.user}" if self.domain or not self.user else self.user


def ntlm_flags(authenticate: bytes) -> int:
    """Return NegotiateFlags of an AUTHENTICATE message; 0 for those of early versions, which have none."""
    return int.from_bytes(authenticate[60:64], "little") if len(authenticate) >= 64 else 0


def message_field(message: bytes, at: int) -> bytes:
    """Return the payload that a field (length, maximum length, offset) of an NTLM message points to (2.2.1.3)."""
    if len(message) < at + 8:
        return b""
    size, _, offset = struct.unpack_from("<HHI", message, at)
    if size and offset + size > len(message):
        raise MalformedNtlmMessageError
    return message[offset : offset + size]


def ticket_service(ticket: bytes) -> str | None:
    """Return the service that the contents of a Kerberos ticket name in clear: name@REALM; None if damaged."""
    realm, names = nested_contents(ticket, 0xA1, TAG_TEXT), nested_contents(ticket, 0xA2, TAG_SEQUENCE)
    return None if realm is None or names is None else f"{principal_name(names)}@{kerberos_text(realm)}"


def principal_name(principal: bytes) -> str:
    """Return a PrincipalName (RFC 4120 5.2.2) as text, its components joined by slashes."""
    parts = nested_contents(principal, 0xA1, TAG_SEQUENCE) or b""
    return "/".join(kerberos_text(part) for tag, part in der_elements(parts) if tag == TAG_TEXT)


def kerberos_text(octets: bytes) -> str:
    """Return a KerberosString (RFC 4120 5.2.1) as text."""
    return octets.decode("utf-8", "replace")
