"""Calls that are signed but not sealed: verified with a key, damaged if they were modified."""

import asyncio
import struct

import pytest

from pcapgen import conversation as t
from peer.client import NDR, NDR64, Client
from peer.kerberos import AES128, AES256, AES256_SHA2, RC4, KerberosClient, KerberosServer, forge_ticket
from peer.methods import QMMGMT, REMOTEREAD
from peer.reading import NACK, RemoteReader, open_arguments
from peer.security import INTEGRITY, PACKET
from peer.server import ACCOUNT, ServerThread
from peer.world import Impacket
from sealed.impackets_client import open_thrice
from sealed.opened import decrypted_calls, digests, password
from sealed.tap import Tap, capture_of
from sealed.test_kerberos import LARGE, REALM, SECRETS, SERVICE, keytab
from udfs.sealed.decryption_keys import DecryptionKeys
from udfs.sealed.ntlm_handshake import FLAG_EXTENDED_SECURITY, FLAG_KEY_128, FLAG_KEY_EXCHANGE

KEYS = password(ACCOUNT.password)
ORDERS = "OS:srv1\\private$\\orders"
READER = "TESTDOM\\reader"


def recorded(work, accept=None):
    """Return the tap in front of a server during ``work``, and the digests of its stubs."""
    with ServerThread() as server:
        server.server.service.kerberos = accept
        with Tap(server.ports["remoteread"]) as tap:
            work(tap.port)
        told = server.do(lambda manager: manager.ledger.describe("", ""))
    return tap, [tuple(call[half]["sha256"] for half in ("request", "response")) for call in told["calls"]]


def read(queue, **options):
    def work(port):
        async def play():
            async with Client("127.0.0.1", port, verification=True, **options) as rpc:
                await rpc.bind(REMOTEREAD, (NDR, NDR64))
                reader = await RemoteReader(rpc).open(queue)
                await reader.receive(NACK)
                await rpc.bind(QMMGMT, (NDR,))
                await reader.close()

        asyncio.run(play())

    return work


def outcomes(rows):
    return {(row["outcome"], row["closed_reason"], row["verified_by"], row["opened_by"]) for row in rows}


STRENGTHS = {
    "128": 0,
    "no key exchange": FLAG_KEY_EXCHANGE,
    "no extended security": FLAG_EXTENDED_SECURITY,
    "weakest": FLAG_EXTENDED_SECURITY | FLAG_KEY_128 | FLAG_KEY_EXCHANGE,
}


@pytest.mark.parametrize("level", [PACKET, INTEGRITY])
@pytest.mark.parametrize("without", STRENGTHS.values(), ids=STRENGTHS)
def test_ntlm_of_every_strength(level, without):
    tap, true = recorded(read(ORDERS, account=ACCOUNT, level=level, without=without, fragment=1432))
    rows = decrypted_calls([tap.capture()], KEYS)
    assert digests(rows) == true
    assert outcomes(rows) == {("ok", None, READER, None)}
    assert all(row["request_signed_bytes"] is None and not row["sealed"] for row in rows)
    for keys in (DecryptionKeys(), password("wrong"), password(ACCOUNT.password, "OTHER\\*")):
        rows = decrypted_calls([tap.capture()], keys)
        assert digests(rows) == true
        assert outcomes(rows) == {("ok", None, None, None)}
        assert all(row["request_signed_bytes"] for row in rows)


KINDS = {"aes128": AES128, "aes256": AES256, "rc4": RC4}


@pytest.mark.parametrize("headers", [False, True], ids=["stubs", "headers too"])
@pytest.mark.parametrize("kind", [*KINDS.values(), AES256_SHA2], ids=[*KINDS, "aes256 with sha384"])
def test_kerberos(kind, headers):
    granted = forge_ticket(SERVICE, REALM, SECRETS[kind])
    client = KerberosClient(granted, mutual=kind != AES128, spnego=True, subkey=kind == RC4, headers=headers)
    tap, true = recorded(
        read(ORDERS, kerberos=client, level=INTEGRITY), lambda: KerberosServer(SECRETS, headers=headers)
    )
    rows = decrypted_calls([tap.capture()], keytab(kind))
    assert digests(rows) == true
    assert outcomes(rows) == {("ok", None, "reader@CORP.EXAMPLE", None)}
    assert outcomes(decrypted_calls([tap.capture()], KEYS)) == {("ok", None, None, None)}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_impackets_client_with_kerberos(kind):
    granted = forge_ticket(SERVICE, REALM, SECRETS[kind])
    tap, true = recorded(
        lambda port: open_thrice(port, REALM, granted.for_impacket(), ORDERS, INTEGRITY),
        lambda: KerberosServer(SECRETS),
    )
    rows = decrypted_calls([tap.capture()], keytab(kind))
    assert digests(rows) == true
    assert outcomes(rows) == {("ok", None, "reader@CORP.EXAMPLE", None)}


def big_endian_and_fragments(port):
    read(LARGE, account=ACCOUNT, level=INTEGRITY, order=">", fragment=1432)(port)


@pytest.fixture(scope="module")
def story():
    tap, true = recorded(big_endian_and_fragments)
    return tap.segments(), true


def test_a_big_endian_client_with_large_answers(story):
    rows = decrypted_calls([capture_of(story[0])], KEYS)
    assert digests(rows) == story[1]
    assert outcomes(rows) == {("ok", None, READER, None)}
    assert max(row["response_fragments"] for row in rows) > 50


@pytest.mark.parametrize("side", [t.CLIENT, t.SERVER])
@pytest.mark.parametrize("place", [30, -3], ids=["stub", "signature"])
def test_what_was_changed_is_damaged(story, side, place):
    """One bit is flipped: that call is damaged, those around it are verified; without keys this is unknown."""
    index = [index for index, (_, part) in enumerate(story[0]) if part.payload and part.side == side][3]
    flow, part = story[0][index]
    payload = bytearray(part.payload)
    payload[place] ^= 1
    changed = [*story[0][:index], (flow, t.replace(part, payload=bytes(payload))), *story[0][index + 1 :]]
    rows = decrypted_calls([capture_of(changed)], KEYS)
    bad = [row for row in rows if row["verified_by"] is None]
    assert outcomes(bad) == {("damaged", "bad_signature", None, None)}
    assert len(bad) == 1
    assert bad[0]["request_signed_bytes"] or bad[0]["response_signed_bytes"]
    for keys in (DecryptionKeys(), password("wrong")):
        assert outcomes(decrypted_calls([capture_of(changed)], keys)) == {("ok", None, None, None)}


def test_what_comes_after_a_loss_is_verified(story):
    server = [index for index, (_, part) in enumerate(story[0]) if part.payload and part.side == t.SERVER]
    for begin in range(3, len(server), len(server) // 3):
        lost = set(server[begin : begin + 7])
        rows = decrypted_calls([capture_of([pair for index, pair in enumerate(story[0]) if index not in lost])], KEYS)
        assert {row["verified_by"] for row in rows} == {READER}
        assert {row["closed_reason"] for row in rows} == {None}


def test_a_handshake_that_was_not_captured_says_nothing_of_signed_calls(story):
    rows = decrypted_calls([capture_of(story[0][6:])], KEYS)
    assert {row["verified_by"] for row in rows} == {None}
    assert {row["closed_reason"] for row in rows} == {None}


def test_impackets_client_without_extended_security_and_a_changed_answer():
    def work(port):
        rpc = Impacket("127.0.0.1", port, ACCOUNT, INTEGRITY).connect(REMOTEREAD)
        for _ in range(4):
            rpc.call("R_OpenQueue", **open_arguments(ORDERS))
        rpc.close()

    tap, true = recorded(work)
    parts = tap.segments()
    index = [index for index, (_, part) in enumerate(parts) if part.payload and part.side == t.SERVER][2]
    flow, part = parts[index]
    assert struct.unpack_from("<B", part.payload, 2) == (2,)
    changed = part.payload[:24] + bytes([part.payload[24] ^ 1]) + part.payload[25:]
    rows = decrypted_calls(
        [capture_of([*parts[:index], (flow, t.replace(part, payload=changed)), *parts[index + 1 :]])], KEYS
    )
    assert [row["closed_reason"] for row in rows] == [None, "bad_signature", None, None]
    assert [row["verified_by"] for row in rows] == [READER, None, READER, READER]
    assert digests(rows)[0] == true[0]
