"""Kerberos over real sockets: clients of impacket and of the test peer, the test queue manager, forged tickets.

``test_kdc`` has tickets of a real KDC. Here every form of handshake and token is tested, also on machines without a
KDC.
"""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from impacket.krb5 import crypto

from pcapgen import conversation as t
from peer.client import NDR, Client
from peer.kerberos import (
    AES128,
    AES128_SHA2,
    AES256,
    AES256_SHA2,
    KEY_SIZES,
    RC4,
    KerberosClient,
    KerberosServer,
    forge_ticket,
)
from peer.methods import QMMGMT, REMOTEREAD
from peer.reading import NACK, RemoteReader
from peer.security import PRIVACY
from peer.server import ServerThread
from sealed.impackets_client import open_thrice
from sealed.opened import decrypted_calls, digests, reasons
from sealed.tap import Tap, capture_of
from udfs.sealed import spnego
from udfs.sealed.decryption_keys import DecryptionKeys, KerberosKey

REALM = "CORP.EXAMPLE"
SERVICE = "host/127.0.0.1"
LARGE = "OS:srv1\\private$\\large"
INBOX = "OS:far\\private$\\inbox"
SECRETS = {kind: crypto.Key(kind, bytes(range(size))) for kind, size in KEY_SIZES.items()}


def keytab(*kinds, principal=f"{SERVICE}@{REALM}", secrets=SECRETS):
    return DecryptionKeys((), tuple(KerberosKey(principal, kind, 3, secrets[kind].contents) for kind in kinds))


def recorded(work, *, headers=False, secrets=SECRETS):
    """Return the capture of ``work`` against a server that accepts Kerberos, and the digests of its plain stubs."""
    with ServerThread() as server:
        server.server.service.kerberos = lambda: KerberosServer(secrets, headers=headers)
        with Tap(server.ports["remoteread"]) as tap:
            work(tap.port)
        told = server.do(lambda manager: manager.ledger.describe("", ""))
    true = [tuple(call[half]["sha256"] for half in ("request", "response")) for call in told["calls"]]
    return tap, true


def read(granted, **options):
    def work(port):
        async def play():
            client = KerberosClient(granted, **options)
            async with Client("127.0.0.1", port, kerberos=client, level=PRIVACY, verification=True) as rpc:
                await rpc.bind(REMOTEREAD, (NDR,))
                reader = await RemoteReader(rpc).open(LARGE)
                await reader.receive(NACK)
                await rpc.bind(QMMGMT, (NDR,))
                await reader.close()

        asyncio.run(play())

    return work


KINDS = {"aes128": AES128, "aes256": AES256, "rc4": RC4}
ALL_KINDS = KINDS | {"aes128 with sha256": AES128_SHA2, "aes256 with sha384": AES256_SHA2}


@pytest.mark.parametrize("kind", ALL_KINDS.values(), ids=ALL_KINDS)
@pytest.mark.parametrize(
    ("mutual", "subkey", "around"),
    [(True, False, True), (True, True, False), (False, True, True), (False, False, False)],
    ids=["mutual in SPNEGO", "mutual with two subkeys", "one way in SPNEGO", "one way without a subkey"],
)
def test_every_shape_of_handshake(kind, mutual, subkey, around):
    granted = forge_ticket(SERVICE, REALM, SECRETS[kind])
    tap, true = recorded(read(granted, mutual=mutual, spnego=around, subkey=subkey))
    rows = decrypted_calls([tap.capture()], keytab(kind))
    assert digests(rows) == true
    assert {(row["opened_by"], row["outcome"], row["sealed"]) for row in rows} == {("reader@CORP.EXAMPLE", "ok", True)}


@pytest.mark.parametrize(("kind", "session"), [(AES256, RC4), (RC4, AES128), (AES256_SHA2, AES256)])
def test_a_session_key_of_another_type_and_a_keytab_of_another_version(kind, session):
    granted = forge_ticket(SERVICE, REALM, SECRETS[kind], session_type=session)
    tap, true = recorded(read(granted, mutual=True, spnego=True, subkey=True))
    keys = DecryptionKeys((), (KerberosKey(f"{SERVICE}@{REALM}", kind, 9, SECRETS[kind].contents),))
    assert digests(decrypted_calls([tap.capture()], keys)) == true


@pytest.mark.parametrize("kind", [AES128, AES256])
def test_signatures_that_cover_headers(kind):
    granted = forge_ticket(SERVICE, REALM, SECRETS[kind])
    options = {"mutual": True, "spnego": True, "subkey": False, "headers": True}
    tap, true = recorded(read(granted, **options), headers=True)
    rows = decrypted_calls([tap.capture()], keytab(kind))
    assert digests(rows) == true


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_impackets_client(kind):
    """DCE style with mutual authentication and impacket's own rotation; the stub length needs no padding for RC4."""
    granted = forge_ticket(SERVICE, REALM, SECRETS[kind])

    def work(port):
        answers = open_thrice(port, REALM, granted.for_impacket(), INBOX)
        assert all("pphContext" in answer for answer in answers)

    tap, true = recorded(work)
    rows = decrypted_calls([tap.capture()], keytab(kind))
    assert digests(rows) == true
    assert {row["opened_by"] for row in rows} == {"reader@CORP.EXAMPLE"}


@pytest.fixture(scope="module")
def story():
    granted = forge_ticket(SERVICE, REALM, SECRETS[AES256])
    tap, true = recorded(read(granted, mutual=True, spnego=True, subkey=False))
    return tap.segments(), true


def test_lost_pdus_do_no_harm_to_others(story):
    server = [index for index, (_, part) in enumerate(story[0]) if part.payload and part.side == t.SERVER]
    for index in server[3:60:7]:
        rows = decrypted_calls([capture_of([*story[0][:index], *story[0][index + 1 :]])], keytab(AES256))
        assert {row["opened_by"] for row in rows} == {"reader@CORP.EXAMPLE"}
        for mine, true, row in zip(digests(rows), story[1], rows, strict=True):
            assert mine == (true if row["outcome"] == "ok" else (true[0], None))


def test_files_in_any_order(story):
    size = len(story[0]) // 4
    files = [capture_of(story[0][begin : begin + size]) for begin in range(0, len(story[0]), size)]
    assert digests(decrypted_calls(files, keytab(AES256))) == story[1]
    assert digests(decrypted_calls(files[::-1], keytab(AES256))) == story[1]


def test_keys_that_do_not_fit_leave_calls_as_captured(story):
    capture = capture_of(story[0])
    closed = digests(decrypted_calls([capture], DecryptionKeys()))
    wrong = KerberosKey(f"{SERVICE}@{REALM.lower()}", AES256, 3, bytes(32))
    for keys, reason in (
        (DecryptionKeys(), "no_key"),
        (DecryptionKeys((), (wrong,)), "bad_signature"),
        (DecryptionKeys((), (KerberosKey("other@CORP.EXAMPLE", AES256, 3, bytes(32)),)), "no_key"),
        (keytab(RC4, principal="other@CORP.EXAMPLE"), "no_key"),
    ):
        rows = decrypted_calls([capture], keys)
        assert reasons(rows) == {reason}
        assert digests(rows) == closed


def test_a_service_of_many_names_has_one_key(story):
    """The keytab has the machine account, the ticket one of its service names."""
    rows = decrypted_calls([capture_of(story[0])], keytab(AES256, principal="SRV1$@CORP.EXAMPLE"))
    assert digests(rows) == story[1]


def test_a_pdu_that_was_tampered_with_is_no_garbage(story):
    index = [index for index, (_, part) in enumerate(story[0]) if part.payload and part.side == t.SERVER][8]
    flow, part = story[0][index]
    payload = bytearray(part.payload)
    payload[700] ^= 1
    changed = [*story[0][:index], (flow, t.replace(part, payload=bytes(payload))), *story[0][index + 1 :]]
    rows = decrypted_calls([capture_of(changed)], keytab(AES256))
    assert sorted(row["closed_reason"] or "" for row in rows).count("bad_signature") == 1
    assert all(
        mine == true or row["closed_reason"] for mine, true, row in zip(digests(rows), story[1], rows, strict=True)
    )


def test_a_handshake_without_the_request(story):
    rows = decrypted_calls([capture_of(story[0][4:])], keytab(AES256))
    assert {row["closed_reason"] for row in rows if row["outcome"] == "encrypted"} == {"no_handshake"}


@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\x60", b"\xa1", b"\x6e", b"\x60\x0d\x06\x06\x2b\x06\x01\x05\x05\x02"]),
)
def test_hostile_tokens_are_no_handshake(data, lead):
    token = lead + data
    spnego.unwrap_mechanism_token(token)
    found = spnego.unwrap_kerberos_message(token)
    assert found is None or found in token
