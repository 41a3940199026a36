"""Keys for decryption of protected traffic. They stay in memory and never appear in a repr or an exception."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from impacket.ntlm import compute_nthash


@dataclass(frozen=True, slots=True)
class NtlmKey:
    """The NT hash (16 octets) of accounts; ``principal`` is a case-insensitive pattern, in which * matches anything."""

    principal: str
    nt_hash: bytes = field(repr=False)

    @staticmethod
    def from_password(principal: str, password: str) -> NtlmKey:
        """Return the key derived from a password (NTOWFv1, [MS-NLMP] 3.3.1)."""
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
