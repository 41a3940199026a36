"""Keys for decryption of protected traffic. They stay in memory and never appear in a repr or an exception.

Runs without keys are many: what derives keys or reads them from files is imported where it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NtlmKey:
    """The NT hash (16 octets) of accounts; ``principal`` is a case-insensitive pattern, in which * matches anything."""

    principal: str
    nt_hash: bytes = field(repr=False)

    @staticmethod
    def from_password(principal: str, password: str) -> NtlmKey:
        """Return the key derived from a password (NTOWFv1, [MS-NLMP] 3.3.1)."""
        from impacket.ntlm import compute_nthash  # noqa: PLC0415

        return NtlmKey(principal, bytes(compute_nthash(password)))

    def matches_account(self, domain: str, user: str) -> bool:
        r"""Return whether the pattern matches an account: ``DOMAIN\user``, or also ``user`` if ``domain`` is empty."""
        wanted = ".*".join(map(re.escape, self.principal.casefold().split("*")))
        texts = [f"{domain}\\{user}"] if domain else [f"\\{user}", user]
        return any(re.fullmatch(wanted, text.casefold(), re.DOTALL) for text in texts)


@dataclass(frozen=True, slots=True)
class KerberosKey:
    """A long-term key of a service, as in a keytab: ``principal`` with realm, ``enctype`` as in RFC 3961 8."""

    principal: str
    enctype: int
    version: int
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DecryptionKeys:
    """All NTLM and Kerberos keys of a run."""

    ntlm: tuple[NtlmKey, ...] = field(default=(), repr=False)
    kerberos: tuple[KerberosKey, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        """Return whether there is any key."""
        return bool(self.ntlm or self.kerberos)


class KeytabError(Exception):
    """A file that is not a valid keytab."""


def parse_keytab(data: bytes) -> list[KerberosKey]:
    """Return the keys in a keytab file; raises ``KeytabError``."""
    from impacket.krb5.keytab import Keytab  # noqa: PLC0415

    from udfs.sealed.enctypes import KEY_SIZES  # noqa: PLC0415

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
    except Exception:  # noqa: BLE001 - impacket's parser raises anything; its message may contain key data
        raise KeytabError("damaged") from None
    if any(KEY_SIZES.get(key.enctype, len(key.key)) != len(key.key) for key in found):
        raise KeytabError("damaged")
    return found
