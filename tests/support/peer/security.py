"""NTLM for the test peer: both sides of the handshake, and protection of PDUs ([MS-NLMP], fact sheet 1.5).

The cryptography is impacket's; this module keeps keys and sequence numbers per direction.
"""

from __future__ import annotations

import hmac
import os
import struct
from dataclasses import dataclass

from Cryptodome.Cipher import ARC4
from impacket import ntlm, spnego

from peer.pdu import Auth, Pdu, header

NONE, CONNECT, CALL, PACKET, INTEGRITY, PRIVACY = range(1, 7)
SPNEGO_TYPE, NTLM_TYPE = 9, 10
TOKEN = 16
NTLM_OID = spnego.TypesMech["NTLMSSP - Microsoft NTLM Security Support Provider"]


class AuthError(Exception):
    """Wrong credentials, or a signature that does not fit."""


@dataclass(frozen=True)
class Account:
    """The account that may log on."""

    user: str
    password: str
    domain: str = ""


class NtlmDirection:
    """Keys and sequence number of one direction."""

    def __init__(self, flags: int, key: bytes, mode: str) -> None:
        self.flags = flags
        self.sign = ntlm.SIGNKEY(flags, key, mode)
        self.sealing = ntlm.SEALKEY(flags, key, mode)
        self.rc4 = ARC4.new(self.sealing).encrypt
        self.sequence = 0

    def token(self, message: bytes) -> bytes:
        """Return the signature of the next message."""
        signature = ntlm.MAC(self.flags, self.rc4, self.sign, self.sequence, message)
        self.sequence += 1
        raw: bytes = signature.getData()
        return raw


class NtlmContext:
    """A security context of one connection: protects what one side sends and checks what it receives."""

    overhead = TOKEN  # octets of a signature

    def __init__(self, flags: int, key: bytes, *, server: bool) -> None:
        ours, theirs = ("Server", "Client") if server else ("Client", "Server")
        self.send = NtlmDirection(flags, key, ours)
        self.receive = NtlmDirection(flags, key, theirs)

    def protect(self, pdu: Pdu, fixed: int, auth: Auth) -> bytes:
        """Return the octets of a fragment, of whose body the first `fixed` octets stay in the clear."""
        pad = -(len(pdu.body) - fixed) % 16
        body = pdu.body + b"\x00" * pad
        sealed = Pdu(pdu.type, pdu.call_id, b"", pdu.flags, Auth(auth.type, auth.level, 0, bytes(TOKEN)), pdu.order)
        trailer = struct.pack(pdu.order + "BBBBI", auth.type, auth.level, pad, 0, auth.context_id)
        head = header(sealed, len(body) + len(trailer) + TOKEN)
        plain = head + body + trailer
        if auth.level == PRIVACY:
            body = body[:fixed] + self.send.rc4(body[fixed:])
        return head + body + trailer + self.send.token(plain)

    def unprotect(self, raw: bytes, pdu: Pdu, fixed: int) -> bytes:
        """Return the plain body of a fragment without its padding; raises AuthError if the signature is wrong."""
        auth = pdu.auth
        if auth is None:
            raise AuthError("a fragment without a signature on a protected connection")
        body = pdu.body
        if auth.level == PRIVACY:
            body = body[:fixed] + self.receive.rc4(body[fixed:])
        end = len(raw) - len(auth.token)
        plain = raw[:16] + body + raw[end - 8 : end]
        if not hmac.compare_digest(self.receive.token(plain), auth.token):
            raise AuthError("wrong signature")
        return body[: len(body) - auth.pad]


def wrap_spnego(token: bytes, *, first: bool = False) -> bytes:
    """Return a token in SPNEGO; the first one offers NTLM only."""
    if first:
        blob = spnego.SPNEGO_NegTokenInit()
        blob["MechTypes"] = [NTLM_OID]
        blob["MechToken"] = token
    else:
        blob = spnego.SPNEGO_NegTokenResp()
        blob["ResponseToken"] = token
    return bytes(blob.getData())


def unwrap_spnego(token: bytes) -> bytes:
    """Return the mechanism token in a SPNEGO token; other tokens unchanged."""
    if token[:1] == b"\x60":
        return bytes(spnego.SPNEGO_NegTokenInit(token)["MechToken"])
    if token[:1] == b"\xa1":
        return bytes(spnego.SPNEGO_NegTokenResp(token)["ResponseToken"])
    return token


def spnego_accept_completed() -> bytes:
    """Return the last token of SPNEGO: accept-completed."""
    return bytes.fromhex("a1073005a0030a0100")


class NtlmServer:
    """The accepting side: sends the challenge, then checks the response."""

    def __init__(self, accounts: list[Account], name: str = "SRV1") -> None:
        self.accounts = accounts
        self.name = name
        self.challenge = os.urandom(8)
        self.flags = 0
        self.principal: str | None = None
        self.session: NtlmContext | None = None
        self.refused = False

    def take(self, token: bytes) -> bytes | None:
        """Process a token of bind, alter_context or auth3, in SPNEGO or bare; returns the answer token or None."""
        bare = unwrap_spnego(token)
        if bare.startswith(b"NTLMSSP\x00\x01"):
            answer = self.challenge_for(bare)
            return answer if bare is token else wrap_spnego(answer)
        try:
            self.principal, self.session = self.accept(bare)
        except AuthError:
            self.refused = True
        return None if bare is token else spnego_accept_completed()

    def challenge_for(self, token: bytes) -> bytes:
        """Return the CHALLENGE_MESSAGE for this NEGOTIATE_MESSAGE."""
        asked = ntlm.NTLMAuthNegotiate()
        asked.fromString(token)
        name = self.name.encode("utf-16le")
        pairs = ntlm.AV_PAIRS()
        pairs[ntlm.NTLMSSP_AV_HOSTNAME] = name
        pairs[ntlm.NTLMSSP_AV_DNS_HOSTNAME] = self.name.lower().encode("utf-16le")
        pairs[ntlm.NTLMSSP_AV_DOMAINNAME] = name
        pairs[ntlm.NTLMSSP_AV_DNS_DOMAINNAME] = self.name.lower().encode("utf-16le")
        self.flags = int(asked["flags"]) | ntlm.NTLMSSP_NEGOTIATE_TARGET_INFO | ntlm.NTLMSSP_TARGET_TYPE_SERVER
        info = pairs.getData()
        at = 48
        message = b"NTLMSSP\x00" + struct.pack("<IHHII", 2, len(name), len(name), at, self.flags) + self.challenge
        message += bytes(8) + struct.pack("<HHI", len(info), len(info), at + len(name))
        return bytes(message + name + info)

    def accept(self, token: bytes) -> tuple[str, NtlmContext]:
        """Return principal and session; raises AuthError if the response to the challenge is wrong."""
        answer = ntlm.NTLMAuthChallengeResponse()
        answer.fromString(token)
        length, _, at = struct.unpack_from("<HHI", token, 52)
        encrypted = token[at : at + length]
        user = answer["user_name"].decode("utf-16le")
        domain = answer["domain_name"].decode("utf-16le")
        response = answer["ntlm"]
        for account in self.accounts:
            if (account.user.lower(), account.domain.lower()) != (user.lower(), domain.lower()):
                continue
            key = ntlm.NTOWFv2(user, account.password, domain)
            proof = ntlm.hmac_md5(key, self.challenge + response[16:])
            if not hmac.compare_digest(proof, response[:16]):
                break
            session_key = ntlm.hmac_md5(key, proof)
            flags = int(answer["flags"])
            if flags & ntlm.NTLMSSP_NEGOTIATE_KEY_EXCH:
                session_key = ARC4.new(session_key).encrypt(encrypted)
            return f"{domain}\\{user}", NtlmContext(flags, session_key, server=True)
        raise AuthError(f"logon of {domain}\\{user} refused")


class NtlmClient:
    """The initiating side."""

    def __init__(self, account: Account, without: int = 0) -> None:
        """``without``: flags that are not offered."""
        self.account = account
        self._negotiate = ntlm.getNTLMSSPType1("CLI1", account.domain, signingRequired=True)
        self._negotiate["flags"] &= ~without

    def negotiate(self) -> bytes:
        raw: bytes = self._negotiate.getData()
        return raw

    def authenticate(self, challenge: bytes) -> tuple[bytes, NtlmContext]:
        """Return the AUTHENTICATE_MESSAGE for this challenge, and the session."""
        answer, key = ntlm.getNTLMSSPType3(
            self._negotiate, challenge, self.account.user, self.account.password, self.account.domain
        )
        return bytes(answer.getData()), NtlmContext(int(answer["flags"]), key, server=False)
