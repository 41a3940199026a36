"""The examples of [MS-NLMP] 4.2, and streams of PDUs sealed with impacket's functions, with any of them lost."""

import struct

import pytest
from Cryptodome.Cipher import ARC4
from hypothesis import given, settings
from hypothesis import strategies as st
from impacket import ntlm

from example_counts import examples
from udfs.sealed.decryption_keys import NtlmKey
from udfs.sealed.ntlm_handshake import (
    FLAG_EXTENDED_SECURITY,
    FLAG_KEY_56,
    FLAG_KEY_128,
    FLAG_KEY_EXCHANGE,
    MalformedNtlmMessageError,
    NtlmHandshake,
    sealing_keys,
    signing_key,
)
from udfs.sealed.ntlm_session import NtlmSession
from udfs.sealed.protected_pdu import (
    DecryptionFailure,
    MalformedPduRecordsError,
    ProtectedPdu,
    SentPdu,
    pack_pdu,
    unpack_pdus,
)

PLAIN = "Plaintext".encode("utf-16le")
CHALLENGE_V1 = (
    "4e544c4d53535000020000000c000c0038000000338202e20123456789abcdef0000000000000000000000000000000006007017"
    "0000000f530065007200760065007200"
)
CHALLENGE_V2 = (
    "4e544c4d53535000020000000c000c003800000033828ae20123456789abcdef0000000000000000240024004400000006007017"
    "0000000f53006500720076006500720002000c0044006f006d00610069006e0001000c0053006500720076006500720000000000"
)
NAMES = "44006f006d00610069006e00550073006500720043004f004d0050005500540045005200"
AUTHENTICATE = {
    "4.2.2": "4e544c4d5353500003000000180018006c00000018001800840000000c000c00480000000800080054000000100010005c000000"
    f"100010009c000000358280e20501280a0000000f{NAMES}98def7b87f88aa5dafe2df779688a172def11c7d5ccdef1367c43011f302"
    "98a2ad35ece64f16331c44bdbed927841f94518822b1b3f350c8958682ecbb3e3cb7",
    "4.2.3": "4e544c4d5353500003000000180018006c00000018001800840000000c000c00480000000800080054000000100010005c000000"
    f"000000009c000000358208820501280a0000000f{NAMES}aaaaaaaaaaaaaaaa000000000000000000000000000000007537f803ae36"
    "7128ca458204bde7caf81e97ed2683267232",
    "4.2.4": "4e544c4d5353500003000000180018006c00000054005400840000000c000c00480000000800080054000000100010005c000000"
    f"10001000d8000000358288e20501280a0000000f{NAMES}86c35097ac9cec102554764a57cccc19aaaaaaaaaaaaaaaa68cd0ab851e5"
    "1c96aabc927bebef6a1c01010000000000000000000000000000aaaaaaaaaaaaaaaa0000000002000c0044006f006d00610069006e00"
    "01000c005300650072007600650072000000000000000000c5dad2544fc9799094ce1ce90bc9d03e",
}
WRAPPED = {  # data and signature of GSS_WrapEx: 4.2.2.4, 4.2.3.4, 4.2.4.4
    "4.2.2": ("56fe04d861f9319af0d7238a2e3b4d457fb8", "0100000045c844e509dcd1df2e459d36"),
    "4.2.3": ("a02372f6530273f3aa1eb90190ce5200c99d", "01000000ff2aeb52f681793a00000000"),
    "4.2.4": ("54e50165bf1936dc996020c1811b0f06fb5f", "010000007fb38ec5c55d497600000000"),
}
EXPORTED = {"4.2.2": "55" * 16, "4.2.3": "eb93429a8bd952f8b89c55b87f475edc", "4.2.4": "55" * 16}
KEY = NtlmKey.from_password("domain\\USER", "Password")


def handshake(section):
    challenge = CHALLENGE_V2 if section == "4.2.4" else CHALLENGE_V1
    return NtlmHandshake.parse(bytes.fromhex(challenge), bytes.fromhex(AUTHENTICATE[section]))


def piece(body, token, level=6, sequence=0, pad=0):
    head = struct.pack("<BBBB4sHHIIHH", 5, 0, 0, 3, b"\x10\0\0\0", 40 + len(body) + len(token), len(token), 1, 0, 0, 7)
    return ProtectedPdu(sequence, head, body, len(body) - pad, struct.pack("<BBBBI", 10, level, pad, 0, 7), token)


def test_the_nt_hash_is_that_of_4_2_2_1_2():
    assert KEY.nt_hash.hex() == "a4f49c406510bdcab6824ee7c30fd852"


@pytest.mark.parametrize("section", WRAPPED)
def test_examples(section):
    shaken = handshake(section)
    assert (shaken.names.principal, shaken.names.workstation) == ("Domain\\User", "COMPUTER")
    assert KEY.matches_account(shaken.names.domain, shaken.names.user)
    exported = shaken.exported_key(KEY)
    assert exported is not None
    assert exported.hex() == EXPORTED[section]
    assert shaken.exported_key(NtlmKey.from_password("*", "password")) is None
    data, signature = map(bytes.fromhex, WRAPPED[section])
    session = NtlmSession(shaken.flags, exported, (0, 0))
    assert session.decrypt([SentPdu(True, 0, piece(data, signature))]) == [PLAIN]
    assert session.decrypt([SentPdu(False, 0, piece(data, signature))]) == (
        [DecryptionFailure.BAD_SIGNATURE] if section != "4.2.2" else [PLAIN]  # one key for both directions
    )
    bent = piece(data, signature[:8] + bytes([signature[8] ^ 1]) + signature[9:])
    assert session.decrypt([SentPdu(True, 0, bent)]) == [DecryptionFailure.BAD_SIGNATURE]


def test_keys_of_4_2_3_4_and_4_2_4_4():
    assert next(
        sealing_keys(FLAG_EXTENDED_SECURITY | FLAG_KEY_56, bytes.fromhex(EXPORTED["4.2.3"]), client=True)
    ).hex() == ("04dd7f014d8504d265a25cc86a3a7c06")
    assert signing_key(FLAG_EXTENDED_SECURITY, bytes.fromhex(EXPORTED["4.2.3"]), client=True).hex() == (
        "60e799be5c72fc92922ae8ebe961fb8d"
    )
    assert signing_key(FLAG_EXTENDED_SECURITY, b"\x55" * 16, client=True).hex() == "4788dc861b4782f35d43fd98fe1a2d39"


def test_principals_compare_without_case_and_may_hold_stars():
    def names(principal, domain, user):
        return NtlmKey(principal, bytes(16)).matches_account(domain, user)

    assert names("corp\\SVC", "CORP", "svc")
    assert names("*\\svc-*", "CORP", "svc-read")
    assert names("*", "", "")
    assert names("svc", "", "svc")
    assert names("\\svc", "", "svc")
    assert not names("svc", "CORP", "svc")
    assert not names("corp\\s?c", "CORP", "svc")
    assert not names("corp\\svc", "CORP", "svc2")
    assert names("corp\\a.b[c]", "corp", "A.B[C]")


class Sender:
    """One direction, sealed with impacket's functions; the signature covers the whole PDU or only its stub."""

    def __init__(self, flags, key, mode, *, whole=True, rc4=None):
        self.flags, self.sign, self.whole = flags, ntlm.SIGNKEY(flags, key, mode), whole
        self.rc4 = rc4 or ARC4.new(ntlm.SEALKEY(flags, key, mode)).encrypt
        self.number = 0

    def send(self, plain, sequence, number=None):
        model = piece(plain, bytes(16), sequence=sequence)
        message = model.head + plain + model.trailer if self.whole else plain
        count = self.number if number is None else number
        body, token = ntlm.SEAL(self.flags, self.sign, b"", message, plain, count, self.rc4)
        self.number += 1
        return piece(bytes(body), token.getData(), sequence=sequence)


FLAGS = [
    FLAG_EXTENDED_SECURITY | a | b for a in (0, FLAG_KEY_EXCHANGE) for b in (0, FLAG_KEY_56, FLAG_KEY_56 | FLAG_KEY_128)
]
SESSION_KEY = bytes(range(16))
STUBS = st.lists(st.binary(min_size=0, max_size=300).map(lambda each: each + bytes(-len(each) % 4)), max_size=12)


@settings(deadline=None, max_examples=examples(60))
@given(stubs=STUBS, flags=st.sampled_from(FLAGS), lost=st.sets(st.integers(0, 11)), extra=st.lists(
    st.integers(0, 40), min_size=12, max_size=12), begin=st.integers(0, 0xFFFFFFFF), whole=st.booleans())  # fmt: skip
def test_whatever_is_lost_the_rest_is_opened(stubs, flags, lost, extra, begin, whole):
    """``extra`` octets of PDUs without a signature are between those of the stream; sequence numbers wrap anywhere."""
    sender, pieces, at = Sender(flags, SESSION_KEY, "Client", whole=whole), [], begin
    for stub, more in zip(stubs, extra, strict=False):
        pieces.append(sender.send(stub, at))
        at = (at + pieces[-1].size + more) & 0xFFFFFFFF
    sent = [SentPdu(True, number, one) for number, one in enumerate(pieces) if number not in lost]
    found = NtlmSession(flags, SESSION_KEY, (begin, 0)).decrypt(sent[::-1])
    assert found == [stub for number, stub in enumerate(stubs) if number not in lost][::-1]


@settings(deadline=None, max_examples=examples(30))
@given(stubs=STUBS, turns=st.lists(st.booleans(), min_size=12, max_size=12), flags=st.sampled_from([0, FLAG_KEY_56]),
       shared=st.booleans(), weak=st.booleans(), whole=st.booleans())  # fmt: skip
def test_without_extended_security_either_manner_is_found(stubs, turns, flags, shared, weak, whole):
    """One stream and count for both directions, or one for each; the full or the weakened key."""
    key = ntlm.SEALKEY(flags, SESSION_KEY) if weak else SESSION_KEY
    client = Sender(flags, SESSION_KEY, "Client", whole=whole, rc4=ARC4.new(key).encrypt)
    server = client if shared else Sender(flags, SESSION_KEY, "Server", whole=whole, rc4=ARC4.new(key).encrypt)
    sent, at = [], [5, 0xFFFFFF80]
    for number, (stub, turn) in enumerate(zip(stubs, turns, strict=False)):
        one = (client if turn else server).send(stub, at[not turn])
        at[not turn] = one.end
        sent.append(SentPdu(turn, number, one))
    assert NtlmSession(flags, SESSION_KEY, (5, 0xFFFFFF80)).decrypt(sent) == stubs[: len(sent)]
    wrong = NtlmSession(flags, bytes(16), (5, 0xFFFFFF80)).decrypt(sent)
    assert all(isinstance(one, DecryptionFailure) for one in wrong)


@settings(deadline=None, max_examples=examples(30))
@given(shared=st.booleans(), lost=st.integers(1, 3), data=st.data())
def test_without_extended_security_a_gap_is_bridged(shared, lost, data):
    client = Sender(0, SESSION_KEY, "Client", whole=not shared, rc4=ARC4.new(SESSION_KEY).encrypt)
    server = client if shared else Sender(0, SESSION_KEY, "Server", rc4=ARC4.new(SESSION_KEY).encrypt)
    stubs = [data.draw(st.binary(min_size=4, max_size=64)) for _ in range(8)]
    sent, at = [], [0, 0]
    for number, stub in enumerate(stubs):
        side = number % 2
        one = (server if side else client).send(stub, at[side])
        at[side] = one.end
        sent.append(SentPdu(not side, number, one))
    left = [*sent[:2], *sent[2 + lost :]]
    found = NtlmSession(0, SESSION_KEY, (0, 0)).decrypt(left)
    assert found == [*stubs[:2], *stubs[2 + lost :]]


def test_a_gap_that_cannot_be_bridged_is_lost_sequence():
    sender = Sender(FLAGS[-1], SESSION_KEY, "Client")
    first, _, third = (sender.send(bytes(8), at) for at in (0, 100, 200))
    moved = ProtectedPdu(
        first.end, third.head, third.body, third.stub_size, third.trailer, third.token
    )  # no room for it
    assert NtlmSession(FLAGS[-1], SESSION_KEY, (0, 0)).decrypt([SentPdu(True, 0, first), SentPdu(True, 1, moved)]) == [
        bytes(8),
        DecryptionFailure.SEQUENCE_LOST,
    ]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_hostile_messages_are_no_handshake(challenge, authenticate):
    for one, two in ((challenge, authenticate), (bytes.fromhex(CHALLENGE_V2), b"NTLMSSP\0\3\0\0\0" + authenticate)):
        try:
            shaken = NtlmHandshake.parse(one, two)
        except MalformedNtlmMessageError:
            continue
        assert shaken.exported_key(KEY) is None or not shaken.names.user


@given(st.lists(st.tuples(st.binary(max_size=30), st.integers(0, 15)), min_size=1, max_size=4))
def test_pieces_are_what_was_packed(stubs):
    records, expected = b"", []
    for number, (stub, pad) in enumerate(stubs):
        one = piece(stub + bytes(pad), bytes(16), sequence=number, pad=pad)
        expected.append(one)
        records += b"".join(pack_pdu(number, one.head, len(stub), bytes(pad) + one.trailer + one.token))
    whole = b"".join(stub for stub, _ in stubs)
    assert unpack_pdus(records, whole) == expected
    for bad in (records[:-1], records + b"\0"):
        with pytest.raises(MalformedPduRecordsError):
            unpack_pdus(bad, whole)
    with pytest.raises(MalformedPduRecordsError):
        unpack_pdus(records, whole + b"\0")
