"""Kerberos for the test peer: tickets, both sides of the handshake, and the protection of PDUs (RFC 4120, 4121, 4757).

The cryptography and ASN.1 are impacket's. Tickets come from a KDC, or are made here with the service's own key.
"""

from __future__ import annotations

import datetime as dt
import os
import struct
from dataclasses import dataclass
from typing import Any

from impacket.krb5 import constants, crypto, gssapi
from impacket.krb5.asn1 import AP_REP, AP_REQ, TGS_REP, Authenticator, EncAPRepPart, EncTicketPart, seq_set
from impacket.krb5.types import KerberosTime, Principal
from impacket.spnego import SPNEGO_NegTokenInit, SPNEGO_NegTokenResp, TypesMech
from pyasn1.codec.der import decoder, encoder
from pyasn1.type.univ import noValue

from peer.pdu import Auth, Pdu, header
from peer.security import PRIVACY, AuthError, spnego_accept_completed, unwrap_spnego
from peer.sha2 import Aes128Sha2, Aes256Sha2

SPNEGO_TYPE, KERBEROS_TYPE = 9, 16
AES128, AES256, AES128_SHA2, AES256_SHA2, RC4 = 17, 18, 19, 20, 23
KEY_SIZES = {AES128: 16, AES256: 32, AES128_SHA2: 16, AES256_SHA2: 32, RC4: 16}
CHECKSUMS = {AES128: crypto._SHA1AES128, AES256: crypto._SHA1AES256, AES128_SHA2: Aes128Sha2, AES256_SHA2: Aes256Sha2}
MIC_SIZES = {RC4: 37} | {kind: 16 + checksum.macsize for kind, checksum in CHECKSUMS.items()}
MUTUAL, DCE_STYLE, CONFIDENTIAL = 0x02, 0x1000, 0x10
SPNEGO_OID = b"\x06\x06\x2b\x06\x01\x05\x05\x02"
FRAME = b"\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"
INITIATOR, ACCEPTOR = 24, 22  # key usages of sealing


def encrypt_with_confounder(key: crypto.Key, usage: int, plain: bytes) -> bytes:
    """Encrypt with a random confounder."""
    return bytes(crypto._enctype_table[key.enctype].encrypt(key, usage, plain, None))


@dataclass(frozen=True)
class ServiceTicket:
    """A service ticket with its session key, as the client has it."""

    client: str
    realm: str
    reply: bytes  # TGS_REP
    key: crypto.Key

    def ticket(self) -> Any:
        """Return the ticket as ASN.1."""
        return decoder.decode(self.reply, asn1Spec=TGS_REP())[0]["ticket"]

    def for_impacket(self) -> dict[str, Any]:
        """Return the ticket as impacket's clients take it."""
        return {"KDC_REP": self.reply, "cipher": crypto._enctype_table[self.key.enctype](), "sessionKey": self.key,
                "oldSessionKey": self.key}  # fmt: skip


def forge_ticket(
    service: str, realm: str, service_key: crypto.Key, client: str = "reader", session_type: int | None = None
) -> ServiceTicket:
    """Return a ticket as a KDC that knows the service's key would grant it; the session key may be of another type."""
    kind = session_type or service_key.enctype
    key = crypto.Key(kind, os.urandom(KEY_SIZES[kind]))
    now = KerberosTime.to_asn1(dt.datetime.now(dt.UTC))
    part = EncTicketPart()
    part["flags"] = constants.encodeFlags([constants.TicketFlags.forwardable.value])
    part["key"] = noValue
    part["key"]["keytype"], part["key"]["keyvalue"] = key.enctype, key.contents
    part["crealm"] = realm
    seq_set(part, "cname", Principal(client, type=1).components_to_asn1)
    part["transited"] = noValue
    part["transited"]["tr-type"], part["transited"]["contents"] = 0, b""
    part["authtime"] = part["endtime"] = now
    reply = TGS_REP()
    reply["pvno"], reply["msg-type"], reply["crealm"] = 5, 13, realm
    seq_set(reply, "cname", Principal(client, type=1).components_to_asn1)
    reply["ticket"] = noValue
    ticket = reply["ticket"]
    ticket["tkt-vno"], ticket["realm"] = 5, realm
    seq_set(ticket, "sname", Principal(service, type=2).components_to_asn1)
    ticket["enc-part"] = noValue
    ticket["enc-part"]["etype"], ticket["enc-part"]["kvno"] = service_key.enctype, 3
    ticket["enc-part"]["cipher"] = encrypt_with_confounder(service_key, 2, encoder.encode(part))
    reply["enc-part"] = noValue
    reply["enc-part"]["etype"], reply["enc-part"]["cipher"] = key.enctype, b"unused"
    return ServiceTicket(client, realm, encoder.encode(reply), key)


class GssSession:
    """A security context: AES with Windows' rotation (EC + RRC), or RC4."""

    def __init__(self, key: crypto.Key, *, server: bool, subkey: bool, headers: bool = False) -> None:
        self.key, self.server, self.subkey, self.headers = key, server, subkey, headers
        self.sequence = self.received = 0
        self.overhead = 45 if key.enctype == RC4 else 64 + CHECKSUMS[key.enctype].macsize

    def protect(self, pdu: Pdu, fixed: int, auth: Auth) -> bytes:
        """Return the octets of a fragment, of whose body the first `fixed` octets stay in the clear."""
        pad = -(len(pdu.body) - fixed) % 16
        body = pdu.body + b"\x00" * pad
        empty = bytes(self.overhead if auth.level == PRIVACY else MIC_SIZES[self.key.enctype])
        head = header(Pdu(pdu.type, pdu.call_id, b"", pdu.flags, Auth(auth.type, auth.level, 0, empty), pdu.order),
                      len(body) + 8 + len(empty))  # fmt: skip
        trailer = struct.pack(pdu.order + "BBBBI", auth.type, auth.level, pad, 0, auth.context_id)
        if auth.level != PRIVACY:
            number, self.sequence = self.sequence, self.sequence + 1
            signed = head + body + trailer if self.headers else body[fixed:]
            return head + body + trailer + self._mic(signed, number, server=self.server)
        sealed, token = self._wrap(body[fixed:], head + body[:fixed], trailer)
        assert len(token) == self.overhead
        return head + body[:fixed] + sealed + trailer + token

    def _wrap(self, data: bytes, head: bytes, trailer: bytes) -> tuple[bytes, bytes]:
        number, self.sequence = self.sequence, self.sequence + 1
        if self.key.enctype == RC4:
            sealed, token = gssapi.GSSAPI_RC4().GSS_Wrap(self.key, data, number, "accept" if self.server else "init")
            return bytes(sealed), bytes(token)
        flags = 2 | (1 if self.server else 0) | (4 if self.subkey else 0)
        start = struct.pack(">HBBHHQ", 0x0504, flags, 0xFF, 16, 0, number)
        kind = crypto._enctype_table[self.key.enctype]
        usage = ACCEPTOR if self.server else INITIATOR
        plain = data + b"\xff" * 16 + start
        if self.headers:  # what is signed is more than what is sealed
            confounder = os.urandom(16)
            sealed = kind.basic_encrypt(kind.derive(self.key, struct.pack(">IB", usage, 0xAA)), confounder + plain)
            mac = gssapi.HMAC.new(kind.derive(self.key, struct.pack(">IB", usage, 0x55)).contents,
                                  confounder + head + data + trailer + plain[len(data):], kind.hashmod)  # fmt: skip
            cipher = bytes(sealed) + mac.digest()[:12]
        else:
            cipher = encrypt_with_confounder(self.key, usage, plain)
        behind = 16 + CHECKSUMS[self.key.enctype].macsize  # RRC: the token's own copy and its checksum
        rotated = cipher[-16 - behind :] + cipher[: -16 - behind]  # by EC + RRC
        start = start[:6] + struct.pack(">H", behind) + start[8:]
        return rotated[32 + behind :], start + rotated[: 32 + behind]

    def _mic(self, signed: bytes, number: int, *, server: bool) -> bytes:
        if self.key.enctype == RC4:
            token = gssapi.GSSAPI_RC4().GSS_GetMIC(self.key, signed, number, "accept" if server else "init")
            return bytes(token)
        flags = (1 if server else 0) | (4 if self.subkey else 0)
        return self._signed(signed, struct.pack(">HB5sQ", 0x0404, flags, b"\xff" * 5, number), server=server)

    def _signed(self, signed: bytes, start: bytes, *, server: bool) -> bytes:
        usage = 23 if server else 25
        return start + bytes(CHECKSUMS[self.key.enctype].checksum(self.key, usage, signed + start))

    def unprotect(self, raw: bytes, pdu: Pdu, fixed: int) -> bytes:
        """Return the plain body of a fragment without its padding; raises AuthError if the signature is wrong."""
        auth = pdu.auth
        if auth is None:
            return pdu.body
        if auth.level != PRIVACY:
            number, self.received = self.received, self.received + 1
            signed = raw[: -len(auth.token)] if self.headers else pdu.body[fixed:]
            if self.key.enctype == RC4:
                expected = self._mic(signed, number, server=not self.server)
            else:
                expected = self._signed(signed, auth.token[:16], server=not self.server)
            if expected != auth.token:
                raise AuthError("wrong signature")
            return pdu.body[: len(pdu.body) - auth.pad]
        sealed = pdu.body[fixed:]
        if self.key.enctype == RC4:
            plain = gssapi.GSSAPI_RC4().GSS_Unwrap(self.key, sealed, 0, authData=bytes(8) + auth.token)[0][
                : len(sealed)
            ]
        else:
            filler, rotation = struct.unpack_from(">HH", auth.token, 4)
            rotated = auth.token[16:] + sealed
            left = (filler + rotation) % len(rotated)
            usage = INITIATOR if self.server else ACCEPTOR
            if self.headers:
                return self._plain(rotated[left:] + rotated[:left], usage, pdu, fixed, len(sealed))
            plain = crypto.decrypt(self.key, usage, rotated[left:] + rotated[:left])[: len(sealed)]
        body = pdu.body[:fixed] + plain
        return body[: len(body) - auth.pad]

    def _plain(self, cipher: bytes, usage: int, pdu: Pdu, fixed: int, size: int) -> bytes:
        kind = crypto._enctype_table[self.key.enctype]
        plain = kind.basic_decrypt(kind.derive(self.key, struct.pack(">IB", usage, 0xAA)), cipher[:-12])
        body = pdu.body[:fixed] + bytes(plain[16 : 16 + size])
        return body[: len(body) - (pdu.auth.pad if pdu.auth else 0)]


class KerberosServer:
    """The accepting side; `keys` are the service's, by encryption type."""

    def __init__(self, keys: dict[int, crypto.Key], *, headers: bool = False) -> None:
        self.keys, self.headers = keys, headers
        self.principal: str | None = None
        self.session: GssSession | None = None

    def take(self, token: bytes) -> bytes | None:
        """Process a token of bind, alter_context or auth3; returns the answer token, None if there is none."""
        in_spnego = SPNEGO_OID in token[:16] or token[:1] == b"\xa1"
        bare = unwrap_spnego(token) if in_spnego else token
        if FRAME in bare[:20]:
            bare = bare[bare.index(FRAME) + len(FRAME) + 2 :]
        if bare[:1] != b"\x6e":
            return spnego_accept_completed() if in_spnego else None  # the third leg
        answer = self.accept(bare)
        if not in_spnego:
            return answer
        if answer is None:
            return spnego_accept_completed()
        reply = SPNEGO_NegTokenResp()
        reply["ResponseToken"] = answer
        return bytes(reply.getData())

    def accept(self, request: bytes) -> bytes | None:
        """Check an AP-REQ; returns the AP-REP if one was requested."""
        asked = decoder.decode(request, asn1Spec=AP_REQ())[0]
        sealed = asked["ticket"]["enc-part"]
        key = self.keys.get(int(sealed["etype"]))
        if key is None:
            raise AuthError("no key of this type")
        part = decoder.decode(crypto.decrypt(key, 2, sealed["cipher"].asOctets()), asn1Spec=EncTicketPart())[0]
        session = crypto.Key(int(part["key"]["keytype"]), part["key"]["keyvalue"].asOctets())
        plain = crypto.decrypt(session, 11, asked["authenticator"]["cipher"].asOctets())
        authenticator = decoder.decode(plain, asn1Spec=Authenticator())[0]
        flags = int.from_bytes(authenticator["cksum"]["checksum"].asOctets()[20:24], "little")
        name = "/".join(str(each) for each in part["cname"]["name-string"])
        self.principal = f"{name}@{part['crealm']}"
        if not flags & MUTUAL:
            own = authenticator["subkey"]
            used = crypto.Key(int(own["keytype"]), own["keyvalue"].asOctets()) if own.hasValue() else session
            self.session = GssSession(used, server=True, subkey=False, headers=self.headers)
            return None
        subkey = crypto.Key(session.enctype, os.urandom(KEY_SIZES[session.enctype]))
        self.session = GssSession(subkey, server=True, subkey=True, headers=self.headers)
        answer = EncAPRepPart()
        answer["ctime"], answer["cusec"] = str(authenticator["ctime"]), int(authenticator["cusec"])
        answer["subkey"] = noValue
        answer["subkey"]["keytype"], answer["subkey"]["keyvalue"] = subkey.enctype, subkey.contents
        answer["seq-number"] = 0
        reply = AP_REP()
        reply["pvno"], reply["msg-type"] = 5, 15
        reply["enc-part"] = noValue
        reply["enc-part"]["etype"] = session.enctype
        reply["enc-part"]["cipher"] = encrypt_with_confounder(session, 12, encoder.encode(answer))
        return bytes(encoder.encode(reply))


class KerberosClient:
    """The initiating side, for `peer.client.Client`: with mutual authentication or without, in SPNEGO or bare."""

    def __init__(
        self, granted: ServiceTicket, *, mutual: bool, spnego: bool, subkey: bool, headers: bool = False
    ) -> None:
        self.granted, self.mutual, self.spnego, self.headers = granted, mutual, spnego, headers
        self.auth_type = SPNEGO_TYPE if spnego else KERBEROS_TYPE
        size = KEY_SIZES[granted.key.enctype]
        self.subkey = crypto.Key(granted.key.enctype, os.urandom(size)) if subkey else None

    def negotiate(self) -> bytes:
        """Return the first token: AP-REQ."""
        granted = self.granted
        request = AP_REQ()
        request["pvno"], request["msg-type"] = 5, 14
        options = [constants.APOptions.mutual_required.value] if self.mutual else []
        request["ap-options"] = constants.encodeFlags(options)
        ticket = granted.ticket()
        request["ticket"] = noValue
        for name in ("tkt-vno", "realm", "sname", "enc-part"):  # impacket's own Ticket knows fewer encryption types
            request["ticket"][name] = ticket[name]
        now = dt.datetime.now(dt.UTC)
        said = Authenticator()
        said["authenticator-vno"], said["crealm"] = 5, granted.realm
        seq_set(said, "cname", Principal(granted.client, type=1).components_to_asn1)
        said["cusec"], said["ctime"] = now.microsecond, KerberosTime.to_asn1(now)
        flags = CONFIDENTIAL | DCE_STYLE | (MUTUAL if self.mutual else 0)
        said["cksum"] = noValue
        said["cksum"]["cksumtype"], said["cksum"]["checksum"] = 0x8003, struct.pack("<I16xI", 16, flags)
        if self.subkey is not None:
            said["subkey"] = noValue
            said["subkey"]["keytype"], said["subkey"]["keyvalue"] = self.subkey.enctype, self.subkey.contents
        said["seq-number"] = 0
        request["authenticator"] = noValue
        request["authenticator"]["etype"] = granted.key.enctype
        request["authenticator"]["cipher"] = encrypt_with_confounder(granted.key, 11, encoder.encode(said))
        raw = bytes(encoder.encode(request))
        if not self.spnego:
            return raw
        blob = SPNEGO_NegTokenInit()
        blob["MechTypes"] = [TypesMech["KRB5 - Kerberos 5"]]
        blob["MechToken"] = raw
        return bytes(blob.getData())

    def session(self, answer: bytes | None) -> GssSession:
        """Return the session after the server's answer."""
        if self.mutual:
            assert answer is not None
            reply = decoder.decode(unwrap_spnego(answer), asn1Spec=AP_REP())[0]
            plain = crypto.decrypt(self.granted.key, 12, reply["enc-part"]["cipher"].asOctets())
            own = decoder.decode(plain, asn1Spec=EncAPRepPart())[0]["subkey"]
            key = crypto.Key(int(own["keytype"]), own["keyvalue"].asOctets())
        else:
            key = self.subkey or self.granted.key
        return GssSession(key, server=False, subkey=self.mutual, headers=self.headers)
