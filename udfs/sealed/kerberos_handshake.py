"""Kerberos handshakes: session keys from AP-REQ, AP-REP and the long-term key of the service (RFC 4120 5.5).

Of the ASN.1 only the needed fields are read, by their tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from udfs.sealed.claimed_identity import TAG_SEQUENCE, TAG_TEXT, kerberos_text, principal_name, ticket_service
from udfs.sealed.decryption_keys import DecryptionKeys
from udfs.sealed.enctypes import KEY_SIZES, decrypt_and_verify
from udfs.sealed.kerberos_session import KerberosSession, KerberosSessionKey
from udfs.sealed.protected_pdu import DecryptionFailure
from udfs.sealed.security_tokens import AUTH_TYPE_KERBEROS, AUTH_TYPE_NTLM, AUTH_TYPE_SPNEGO, HandshakeToken
from udfs.sealed.spnego import AP_REP, AP_REQ, nested_contents

SUPPORTED_AUTH_TYPES: Final = (AUTH_TYPE_NTLM, AUTH_TYPE_SPNEGO, AUTH_TYPE_KERBEROS)
_USAGE_TICKET, _USAGE_AUTHENTICATOR, _USAGE_AP_REP_PART = 2, 11, 12  # key usages (RFC 4120 7.5.1)
_TAG_INTEGER, _TAG_OCTETS = 0x02, 0x04


def is_ap_request(token: HandshakeToken) -> bool:
    """Return whether a token carries an AP-REQ, the first message of a Kerberos handshake."""
    message = token.kerberos_message
    return message is not None and message[0] == AP_REQ


@dataclass(frozen=True, slots=True)
class _ApRequest:
    """An AP-REQ: the service name in the clear, and its two encrypted parts as (encryption type, octets)."""

    service: str
    ticket: tuple[int, bytes]
    authenticator: tuple[int, bytes]


def open_kerberos_context(
    tokens: Sequence[HandshakeToken], keys: DecryptionKeys
) -> tuple[str | None, DecryptionFailure | None, KerberosSession | None]:
    """Return client principal, failure and session of a Kerberos handshake; either failure or session is None.

    ``tokens`` are those of one handshake.
    """
    messages = [(token, token.kerberos_message) for token in tokens]
    request = next((m for token, m in messages if token.from_client and m and m[0] == AP_REQ), None)
    ap_request = None if request is None else _parse_ap_request(request)
    if ap_request is None:
        return None, DecryptionFailure.NO_HANDSHAKE, None
    has_service_key = False
    for key in keys.kerberos:
        fits_service = key.principal.casefold() == ap_request.service.casefold()
        has_service_key |= fits_service
        # A service has many names and one key: try each key of the ticket's type, whatever its name.
        decrypted = _decrypt(key.enctype, key.key, _USAGE_TICKET, ap_request.ticket)
        part = None if decrypted is None else nested_contents(decrypted, 0x63, TAG_SEQUENCE)
        if part is None:
            continue
        base = _encryption_key(part, 0xA1)
        if base is None:
            continue
        ap_reps = [m for token, m in messages if not token.from_client and m and m[0] == AP_REP]
        return _client_principal(part), None, KerberosSession(tuple(_session_keys(base, ap_request, ap_reps)))
    return None, DecryptionFailure.BAD_SIGNATURE if has_service_key else DecryptionFailure.NO_KEY, None


def _session_keys(
    base: KerberosSessionKey, ap_request: _ApRequest, ap_reps: Sequence[bytes]
) -> Iterator[KerberosSessionKey]:
    """Yield acceptor subkey, initiator subkey and session key of the ticket, as far as present (RFC 4121 2)."""
    for answer in ap_reps:
        part = _decrypt(
            base.enctype,
            base.key,
            _USAGE_AP_REP_PART,
            _encrypted_data(nested_contents(answer, AP_REP, TAG_SEQUENCE, 0xA2)),
        )
        subkey = _encryption_key(nested_contents(part or b"", 0x7B, TAG_SEQUENCE) or b"", 0xA2)
        if subkey is not None:
            yield subkey
    part = _decrypt(base.enctype, base.key, _USAGE_AUTHENTICATOR, ap_request.authenticator)
    subkey = _encryption_key(nested_contents(part or b"", 0x62, TAG_SEQUENCE) or b"", 0xA6)
    if subkey is not None:
        yield subkey
    yield base


def _parse_ap_request(request: bytes) -> _ApRequest | None:
    body = nested_contents(request, AP_REQ, TAG_SEQUENCE)
    ticket = nested_contents(body or b"", 0xA3, 0x61, TAG_SEQUENCE)
    sealed = _encrypted_data(nested_contents(ticket or b"", 0xA3))
    authenticator = _encrypted_data(nested_contents(body or b"", 0xA4))
    service = ticket_service(ticket or b"")
    if sealed is None or authenticator is None or service is None:
        return None
    return _ApRequest(service, sealed, authenticator)


def _client_principal(part: bytes) -> str:
    """Return the client principal of an EncTicketPart: name@REALM."""
    names, realm = nested_contents(part, 0xA3, TAG_SEQUENCE) or b"", nested_contents(part, 0xA2, TAG_TEXT) or b""
    return f"{principal_name(names)}@{kerberos_text(realm)}"


def _encrypted_data(data: bytes | None) -> tuple[int, bytes] | None:
    """Return encryption type and octets of an EncryptedData structure."""
    body = nested_contents(data or b"", TAG_SEQUENCE)
    kind, octets = nested_contents(body or b"", 0xA0, _TAG_INTEGER), nested_contents(body or b"", 0xA2, _TAG_OCTETS)
    return None if kind is None or octets is None else (int.from_bytes(kind, "big", signed=True), octets)


def _encryption_key(part: bytes, tag: int) -> KerberosSessionKey | None:
    """Return the EncryptionKey in the field ``tag``; None if its type is unknown."""
    body = nested_contents(part, tag, TAG_SEQUENCE)
    kind, octets = nested_contents(body or b"", 0xA0, _TAG_INTEGER), nested_contents(body or b"", 0xA1, _TAG_OCTETS)
    if kind is None or octets is None:
        return None
    enctype = int.from_bytes(kind, "big", signed=True)
    return KerberosSessionKey(enctype, octets) if KEY_SIZES.get(enctype) == len(octets) else None


def _decrypt(enctype: int, key: bytes, usage: int, sealed: tuple[int, bytes] | None) -> bytes | None:
    """Decrypt an EncryptedData; None if it was not encrypted with this key."""
    if sealed is None or sealed[0] != enctype:
        return None
    return decrypt_and_verify(enctype, key, usage, sealed[1])
