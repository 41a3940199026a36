"""Unwrap mechanism tokens from SPNEGO and GSS-API framing (RFC 4178 4.2, RFC 2743 3.1, RFC 4121 4.1).

Only the outermost tags are read; every length is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_KERBEROS_OIDS: Final = (  # RFC 4121 1, and Microsoft's with one bit missing ([MS-SPNG] 1.9)
    bytes.fromhex("06092a864886f712010202"),
    bytes.fromhex("06092a864882f712010202"),
)
_SPNEGO_OID: Final = bytes.fromhex("06062b0601050502")
_APPLICATION, _INIT, _RESPONSE, _SEQUENCE, _OCTETS = 0x60, 0xA0, 0xA1, 0x30, 0x04
_TOKEN_FIELD: Final = 0xA2  # mechToken of NegTokenInit, responseToken of NegTokenResp
AP_REQ, AP_REP = 0x6E, 0x6F  # tags of Kerberos' messages (RFC 4120 5.5)


def der_elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and contents of consecutive DER elements, up to the first damaged one."""
    at = 0
    while at + 2 <= len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4 or at + count > len(data):
                return
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data):
            return
        yield tag, data[at : at + size]
        at += size


def nested_contents(data: bytes, *tags: int) -> bytes | None:
    """Return the contents of a nested DER element, following ``tags`` from the outside; None if one is missing."""
    for tag in tags:
        found = next((contents for each, contents in der_elements(data) if each == tag), None)
        if found is None:
            return None
        data = found
    return data


def unwrap_mechanism_token(token: bytes) -> bytes | None:
    """Return the mechanism token inside a SPNEGO token; other tokens are returned unchanged."""
    if not token:
        return None
    if token[0] == _APPLICATION:
        contents = nested_contents(token, _APPLICATION)
        if contents is None or not contents.startswith(_SPNEGO_OID):
            return token
        token = contents[len(_SPNEGO_OID) :]
    if token[:1] not in (bytes([_INIT]), bytes([_RESPONSE])):
        return token
    return nested_contents(token, token[0], _SEQUENCE, _TOKEN_FIELD, _OCTETS)


def unwrap_kerberos_message(token: bytes) -> bytes | None:
    """Return the AP-REQ or AP-REP in a token, bare (DCE style) or framed by GSS-API, with or without SPNEGO."""
    message = unwrap_mechanism_token(token)
    if not message:
        return None
    if message[0] == _APPLICATION:
        contents = nested_contents(message, _APPLICATION) or b""
        oid = next((each for each in _KERBEROS_OIDS if contents.startswith(each)), None)
        if oid is None:
            return None
        message = contents[len(oid) :]
        if message[:2] not in (b"\x01\0", b"\x02\0"):  # TOK_ID of AP-REQ, AP-REP
            return None
        message = message[2:]
    return message if message[:1] in (bytes([AP_REQ]), bytes([AP_REP])) else None
