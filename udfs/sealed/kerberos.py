"""Kerberos: from AP-REQ and AP-REP and the service's long-term key to the keys of a security context (RFC 4120 5.5).

Only the fields that matter are read of the ASN.1, by their tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from impacket.krb5.keytab import Keytab

from udfs.sealed.enctypes import KEY_SIZES, decrypted
from udfs.sealed.keys import KerberosKey, Keys
from udfs.sealed.session import Closed
from udfs.sealed.spnego import AP_REP, AP_REQ, elements, inner
from udfs.sealed.tokens import KERBEROS, NTLM, SPNEGO, Token
from udfs.sealed.wrap import KerberosSession, SessionKey

KNOWN_TYPES: Final = (NTLM, SPNEGO, KERBEROS)
_TICKET, _AUTHENTICATOR, _AP_REP_PART = 2, 11, 12  # key usages (RFC 4120 7.5.1)
_SEQUENCE, _INTEGER, _OCTETS, _TEXT = 0x30, 0x02, 0x04, 0x1B


class KeytabError(Exception):
    """A file that is no keytab."""


def keytab_keys(data: bytes) -> list[KerberosKey]:
    """Return the keys of a keytab; raises ``KeytabError``."""
    if data[:2] != b"\x05\x02":
        raise KeytabError("not a keytab of version 2")
    try:
        entries = Keytab(data).entries
        found = [
            KerberosKey(
                entry.main_part["principal"].prettyPrint().decode("utf-8", "replace"),
                int(entry.main_part["keyblock"]["keytype"]),
                int(entry.kvno),
                bytes(entry.main_part["keyblock"]["keyvalue"]["data"]),
            )
            for entry in entries if not entry.deleted
        ]  # fmt: skip
    except Exception:  # noqa: BLE001 - impacket's parser raises whatever it meets; its text may hold what it read
        raise KeytabError("damaged") from None
    if any(KEY_SIZES.get(key.enctype, len(key.key)) != len(key.key) for key in found):
        raise KeytabError("damaged")
    return found


def is_request(token: Token) -> bool:
    """Tell whether a token is the first of a Kerberos handshake."""
    message = token.kerberos
    return message is not None and message[0] == AP_REQ


@dataclass(frozen=True, slots=True)
class _Ticket:
    """What an AP-REQ shows without a key, and its two sealed parts: encryption type and octets."""

    service: str
    ticket: tuple[int, bytes]
    authenticator: tuple[int, bytes]


def session(tokens: Sequence[Token], keys: Keys) -> tuple[str | None, Closed | None, KerberosSession | None]:
    """Return the client principal, why the context stays closed, and its session; ``tokens`` of one handshake."""
    messages = [(token, token.kerberos) for token in tokens]
    request = next((m for token, m in messages if token.from_client and m and m[0] == AP_REQ), None)
    asked = None if request is None else _ticket(request)
    if asked is None:
        return None, Closed.NO_HANDSHAKE, None
    named = False
    for key in keys.kerberos:
        is_meant = key.principal.casefold() == asked.service.casefold()
        named |= is_meant
        # A service has many names and one key: every key of the ticket's type is tried, whatever it is called.
        opened = _decrypt(key.enctype, key.key, _TICKET, asked.ticket)
        part = None if opened is None else inner(opened, 0x63, _SEQUENCE)
        if part is None:
            continue
        base = _key(part, 0xA1)
        if base is None:
            continue
        answers = [m for token, m in messages if not token.from_client and m and m[0] == AP_REP]
        return _principal(part), None, KerberosSession(tuple(_session_keys(base, asked, answers)))
    return None, Closed.BAD_SIGNATURE if named else Closed.NO_KEY, None


def _session_keys(base: SessionKey, asked: _Ticket, answers: Sequence[bytes]) -> Iterator[SessionKey]:
    """Yield the acceptor's subkey, the initiator's, the ticket's session key, as far as there are (RFC 4121 2)."""
    for answer in answers:
        part = _decrypt(base.enctype, base.key, _AP_REP_PART, _sealed(inner(answer, AP_REP, _SEQUENCE, 0xA2)))
        subkey = _key(inner(part or b"", 0x7B, _SEQUENCE) or b"", 0xA2)
        if subkey is not None:
            yield subkey
    part = _decrypt(base.enctype, base.key, _AUTHENTICATOR, asked.authenticator)
    subkey = _key(inner(part or b"", 0x62, _SEQUENCE) or b"", 0xA6)
    if subkey is not None:
        yield subkey
    yield base


def _ticket(request: bytes) -> _Ticket | None:
    body = inner(request, AP_REQ, _SEQUENCE)
    ticket = inner(body or b"", 0xA3, 0x61, _SEQUENCE)
    sealed = _sealed(inner(ticket or b"", 0xA3))
    authenticator = _sealed(inner(body or b"", 0xA4))
    realm, names = inner(ticket or b"", 0xA1, _TEXT), inner(ticket or b"", 0xA2, _SEQUENCE)
    if sealed is None or authenticator is None or realm is None or names is None:
        return None
    return _Ticket(f"{_name(names)}@{_text(realm)}", sealed, authenticator)


def _name(principal: bytes) -> str:
    """Return the components of a PrincipalName, joined."""
    parts = inner(principal, 0xA1, _SEQUENCE) or b""
    return "/".join(_text(part) for tag, part in elements(parts) if tag == _TEXT)


def _principal(part: bytes) -> str:
    """Return the client of an EncTicketPart as text: name@REALM."""
    names, realm = inner(part, 0xA3, _SEQUENCE) or b"", inner(part, 0xA2, _TEXT) or b""
    return f"{_name(names)}@{_text(realm)}"


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "replace")


def _sealed(data: bytes | None) -> tuple[int, bytes] | None:
    """Return encryption type and octets of an EncryptedData."""
    body = inner(data or b"", _SEQUENCE)
    kind, octets = inner(body or b"", 0xA0, _INTEGER), inner(body or b"", 0xA2, _OCTETS)
    return None if kind is None or octets is None else (int.from_bytes(kind, "big", signed=True), octets)


def _key(part: bytes, tag: int) -> SessionKey | None:
    """Return the EncryptionKey in a field, if its type is known."""
    body = inner(part, tag, _SEQUENCE)
    kind, octets = inner(body or b"", 0xA0, _INTEGER), inner(body or b"", 0xA1, _OCTETS)
    if kind is None or octets is None:
        return None
    enctype = int.from_bytes(kind, "big", signed=True)
    return SessionKey(enctype, octets) if KEY_SIZES.get(enctype) == len(octets) else None


def _decrypt(enctype: int, key: bytes, usage: int, sealed: tuple[int, bytes] | None) -> bytes | None:
    """Return what was sealed with a key; None if it was not sealed with this one."""
    if sealed is None or sealed[0] != enctype:
        return None
    return decrypted(enctype, key, usage, sealed[1])
