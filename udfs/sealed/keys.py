"""The keys that open sealed traffic. They are held in memory alone and never shown: by no repr, in no exception."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from impacket.ntlm import compute_nthash


@dataclass(frozen=True, slots=True)
class NtlmKey:
    """The NT hash (16 octets) of the accounts that ``principal`` names: text without case, in which * is anything."""

    principal: str
    nt_hash: bytes = field(repr=False)

    @staticmethod
    def of_password(principal: str, password: str) -> NtlmKey:
        """Return the key of a password (NTOWFv1, [MS-NLMP] 3.3.1)."""
        return NtlmKey(principal, bytes(compute_nthash(password)))

    def names(self, domain: str, user: str) -> bool:
        r"""Tell whether it is meant for an account: ``DOMAIN\user``, or ``user`` alone where no domain was given."""
        wanted = ".*".join(map(re.escape, self.principal.casefold().split("*")))
        texts = [f"{domain}\\{user}"] if domain else [f"\\{user}", user]
        return any(re.fullmatch(wanted, text.casefold(), re.DOTALL) for text in texts)


@dataclass(frozen=True, slots=True)
class KerberosKey:
    """A long-term key of a service, an entry of a keytab: ``enctype`` as in RFC 3961 8, ``principal`` and realm."""

    principal: str
    enctype: int
    version: int
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of a run."""

    ntlm: tuple[NtlmKey, ...] = field(default=(), repr=False)
    kerberos: tuple[KerberosKey, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        """Whether there is any key."""
        return bool(self.ntlm or self.kerberos)
