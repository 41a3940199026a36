"""Handshakes of every kind on one connection: several contexts, repeated, lost, anonymous, signed by SPNEGO."""

import struct

import pytest
from Cryptodome.Cipher import ARC4
from impacket import ntlm

from pcapgen import conversation as t
from peer import pdu as wire
from peer.methods import REMOTEREAD
from peer.pdu import NDR, Auth, Pdu, PduType
from peer.security import (
    INTEGRITY,
    NTLM_TYPE,
    PRIVACY,
    SPNEGO_TYPE,
    Account,
    NtlmClient,
    NtlmContext,
    NtlmServer,
    wrap_spnego,
)
from sealed.opened import decrypted_calls, password
from sealed.tap import RelayedConnection, capture_of
from udfs.sealed.decryption_keys import DecryptionKeys
from udfs.sealed.ntlm_handshake import FLAG_EXTENDED_SECURITY, FLAG_KEY_56, FLAG_KEY_128, FLAG_KEY_EXCHANGE

READER, WRITER = Account("reader", "first"), Account("writer", "second", "CORP")
BY_READER, BY_WRITER = "reader", "CORP\\writer"
KEYS = DecryptionKeys((*password("first", "reader").ntlm, *password("second", "corp\\writer").ntlm))


class GeneratedConnection:
    """A generated connection: handshakes and protected calls; the test peer makes the PDUs of both sides."""

    def __init__(self):
        self.sends, self.calls, self.number = [], [], 0

    def send(self, side, octets):
        self.sends.append((side, octets, t.START_NS + 1_000_000 * (len(self.sends) + 1)))

    def handshake(self, ident, account=READER, level=PRIVACY, *, without=0, challenge_seen=True, spnego=False):
        """Send bind, or alter_context after the first; returns the sessions of both sides and the ids for trailers."""
        first, kind = not self.sends, SPNEGO_TYPE if spnego else NTLM_TYPE
        client, server = NtlmClient(account, without), NtlmServer([account])
        body = wire.Bind(contexts=[wire.Context(0, REMOTEREAD, [NDR])]).pack()
        auth = Auth(kind, level, ident, client.negotiate())
        self.send(t.CLIENT, Pdu(PduType.BIND if first else PduType.ALTER_CONTEXT, 1, body, auth=auth).pack())
        challenge = server.challenge_for(client.negotiate())
        ack = wire.BindAck(5840, 5840, 7, "2103" if first else "", [wire.Result(0, 0, NDR)]).pack()
        answer = PduType.BIND_ACK if first else PduType.ALTER_CONTEXT_RESP
        if challenge_seen:
            self.send(t.SERVER, Pdu(answer, 1, ack, auth=Auth(kind, level, ident, challenge)).pack())
        token, asking = client.authenticate(challenge)
        self.send(t.CLIENT, Pdu(PduType.AUTH3, 1, bytes(4), auth=Auth(kind, level, ident, token)).pack())
        return asking, server.accept(token)[1], Auth(kind, level, ident)

    def call(self, sessions, size=40):
        asking, answering, auth = sessions
        self.number += 1
        stubs = [bytes([self.number, side]) * (size // 2) for side in (0, 1)]
        asked = Pdu(PduType.REQUEST, self.number, wire.request_body(0, 7, stubs[0], size, None, "<"))
        self.send(t.CLIENT, asking.protect(asked, 8, auth))
        reply = Pdu(PduType.RESPONSE, self.number, wire.response_body(0, stubs[1], size))
        self.send(t.SERVER, answering.protect(reply, 8, auth))
        self.calls.append(tuple(stubs))

    def rows(self, keys=KEYS, drop=()):
        heard = RelayedConnection(0, [send for index, send in enumerate(self.sends) if index not in drop])
        return decrypted_calls([capture_of([(heard.flow, part) for part in heard.segments()])], keys)


def told(rows):
    return [(row["outcome"], row["opened_by"] or row["verified_by"], row["closed_reason"]) for row in rows]


def stubs(rows):
    return [(row["request_stub"], row["response_stub"]) for row in rows]


def test_several_security_contexts_side_by_side():
    talk = GeneratedConnection()
    one, two = talk.handshake(7), talk.handshake(9, WRITER)
    three = talk.handshake(11, WRITER, INTEGRITY)
    for sessions in (one, two, three, two, one, three):
        talk.call(sessions)
    rows = talk.rows()
    assert stubs(rows) == talk.calls
    order = [BY_READER, BY_WRITER, BY_WRITER, BY_WRITER, BY_READER, BY_WRITER]
    assert told(rows) == [("ok", by, None) for by in order]
    assert [row["sealed"] for row in rows] == [True, True, False, True, True, False]
    rows = talk.rows(password("first", "reader"))
    assert [reason for _, _, reason in told(rows)] == [None, "no_key", None, "no_key", None, None]
    assert [by for _, by, _ in told(rows)] == [BY_READER, None, None, None, BY_READER, None]


def test_one_context_authenticated_again():
    """The same auth_context_id: later PDUs belong to the later handshake."""
    talk = GeneratedConnection()
    for account in (READER, WRITER, READER):
        sessions = talk.handshake(7, account)
        talk.call(sessions)
        talk.call(sessions)
    rows = talk.rows()
    assert stubs(rows) == talk.calls
    assert [by for _, by, _ in told(rows)] == [BY_READER] * 2 + [BY_WRITER] * 2 + [BY_READER] * 2


def test_one_of_several_handshakes_without_its_challenge():
    talk = GeneratedConnection()
    sessions = talk.handshake(7)
    talk.call(sessions)
    talk.call(sessions)
    lost = talk.handshake(7, challenge_seen=False)
    talk.call(lost)
    rows = talk.rows()
    assert told(rows) == [("ok", BY_READER, None)] * 2 + [("encrypted", None, "no_handshake")]
    assert stubs(rows)[:2] == talk.calls[:2]


def test_sealed_and_signed_calls_in_one_context():
    """Both advance the RC4 stream."""
    talk = GeneratedConnection()
    asking, answering, sealed = talk.handshake(7)
    signed = Auth(sealed.type, INTEGRITY, sealed.context_id)
    for auth in (sealed, signed, signed, sealed, signed):
        talk.call((asking, answering, auth))
    rows = talk.rows()
    assert stubs(rows) == talk.calls
    assert [row["opened_by"] for row in rows] == [BY_READER, None, None, BY_READER, None]
    assert [row["verified_by"] for row in rows] == [None, BY_READER, BY_READER, None, BY_READER]
    rows = talk.rows(drop=(5, 6))  # a request and the one answer before it
    assert {by for _, by, _ in told(rows)} == {BY_READER}


STRENGTHS = {
    "128": 0,
    "56": FLAG_KEY_128,
    "40": FLAG_KEY_128 | FLAG_KEY_56,
    "40, without key exchange": FLAG_KEY_128 | FLAG_KEY_56 | FLAG_KEY_EXCHANGE,
    "nothing": FLAG_KEY_128 | FLAG_KEY_56 | FLAG_KEY_EXCHANGE | FLAG_EXTENDED_SECURITY,
}


@pytest.mark.parametrize("level", [INTEGRITY, PRIVACY])
@pytest.mark.parametrize("without", STRENGTHS.values(), ids=STRENGTHS)
def test_every_strength(without, level):
    talk = GeneratedConnection()
    sessions = talk.handshake(7, level=level, without=without)
    for size in (0, 2, 16, 1000):
        talk.call(sessions, size)
    rows = talk.rows()
    assert stubs(rows) == talk.calls
    assert {by for _, by, _ in told(rows)} == {BY_READER}


@pytest.mark.parametrize("without", [0, FLAG_EXTENDED_SECURITY], ids=["extended", "plain"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_changed_pdu_closes_its_call_alone(without, side):
    talk = GeneratedConnection()
    sessions = talk.handshake(7, without=without)
    for _ in range(4):
        talk.call(sessions)
    index = 3 + 2 + side
    _, octets, at = talk.sends[index]
    talk.sends[index] = (side, octets[:30] + bytes([octets[30] ^ 1]) + octets[31:], at)
    rows = talk.rows()
    by = ("ok", BY_READER, None)
    assert told(rows) == [by, ("encrypted", None, "bad_signature"), by, by]


@pytest.mark.parametrize("spent", ["nothing", "a number", "a number and eight octets"])
@pytest.mark.parametrize("level", [INTEGRITY, PRIVACY])
def test_a_mechlistmic_before_the_first_pdu(spent, level):
    """SPNEGO signs its mechanism list with the context; after that products continue the stream or restart it."""
    talk = GeneratedConnection()
    asking, answering, auth = talk.handshake(7, level=level, spnego=True)
    for session in (asking, answering):
        if spent != "nothing":
            session.send.sequence = 1
        if spent == "a number and eight octets":
            session.send.rc4(bytes(8))
    for _ in range(3):
        talk.call((asking, answering, auth))
    rows = talk.rows()
    assert stubs(rows) == talk.calls
    assert {by for _, by, _ in told(rows)} == {BY_READER}


def test_ntlm_in_spnego_with_frames():
    talk = GeneratedConnection()
    assert wrap_spnego(b"NTLMSSP\0").startswith(b"\xa1")
    sessions = talk.handshake(7)
    talk.call(sessions)
    for index in (0, 1, 2):
        side, octets, at = talk.sends[index]
        pdu = wire.parse(octets)
        auth = Auth(SPNEGO_TYPE, PRIVACY, 7, wrap_spnego(pdu.auth.token, first=index == 0))
        body = pdu.body[: len(pdu.body) - pdu.auth.pad]
        talk.sends[index] = (side, Pdu(pdu.type, pdu.call_id, body, pdu.flags, auth).pack(), at)
    assert stubs(talk.rows()) == talk.calls


def test_a_session_of_nobody():
    """Anonymous: session keys depend on no secret, so any key file decrypts it, and the principal is empty."""
    talk = GeneratedConnection()
    talk.handshake(7)
    side, _, at = talk.sends[2]
    exported = bytes(range(16))
    flags = int(NtlmClient(READER)._negotiate["flags"]) | 0x800
    fields = [(b"\0", 64), (b"", 65), (b"", 65), (b"", 65), (b"", 65), (ARC4.new(bytes(16)).encrypt(exported), 65)]
    packed = b"".join(struct.pack("<HHI", len(value), len(value), place) for value, place in fields)
    token = b"NTLMSSP\0" + struct.pack("<I", 3) + packed + struct.pack("<I", flags) + b"\0" + fields[-1][0]
    talk.sends[2] = (side, Pdu(PduType.AUTH3, 1, bytes(4), auth=Auth(NTLM_TYPE, PRIVACY, 7, token)).pack(), at)
    sessions = tuple(NtlmContext(flags, exported, server=server) for server in (False, True))
    talk.call((*sessions, Auth(NTLM_TYPE, PRIVACY, 7)))
    rows = talk.rows()
    assert stubs(rows) == talk.calls
    assert told(rows) == [("ok", "\\", None)]


def test_a_count_that_cannot_be_is_not_looked_for():
    """A hostile count claims 4 billion preceding PDUs: no keystream is generated for them."""
    talk = GeneratedConnection()
    sessions = talk.handshake(7)
    talk.call(sessions)
    talk.call(sessions)
    side, octets, at = talk.sends[3]
    talk.sends[3] = (side, octets[:-4] + b"\xff\xff\xff\xff", at)
    assert told(talk.rows()) == [("encrypted", None, "bad_signature"), ("ok", BY_READER, None)]


def test_the_test_peer_keeps_ntlms_flags():
    """Flags that a weaker strength removes are not offered."""
    assert not int(NtlmClient(READER, FLAG_KEY_128)._negotiate["flags"]) & ntlm.NTLMSSP_NEGOTIATE_128
