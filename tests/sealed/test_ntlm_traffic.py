"""Traffic recorded over real sockets with NTLM: every level and strength, with loss, truncation and wrong keys.

The expected stub contents come from the test queue manager, which decrypts with impacket.
"""

import asyncio
import datetime as dt
from contextlib import contextmanager

import pytest

from pcapgen import conversation as t
from peer.client import NDR, NDR64, Client
from peer.methods import QMMGMT, REMOTEREAD
from peer.reading import ACK, NACK, RemoteReader, open_arguments
from peer.security import CONNECT, INTEGRITY, PACKET, PRIVACY
from peer.server import ACCOUNT, ServerThread
from peer.world import Impacket
from sealed.opened import decrypted_calls, digests, password, reasons
from sealed.tap import Tap, capture_of
from udfs.capture.call_sightings import merge_sightings
from udfs.sealed.decryption_keys import DecryptionKeys, NtlmKey
from udfs.sealed.ntlm_handshake import FLAG_EXTENDED_SECURITY, FLAG_KEY_128, FLAG_KEY_EXCHANGE

KEYS = password(ACCOUNT.password)
LARGE = "OS:srv1\\private$\\large"
TIMES = ("request_at", "request_done_at", "response_at", "response_done_at")
ORDERS = "OS:srv1\\private$\\orders"


@contextmanager
def recorded(port="remoteread"):
    """Run a server behind a tap; yields the tap and a list that receives the ground truth at the end."""
    told = []
    with ServerThread() as server:
        with Tap(server.ports[port]) as tap:
            yield tap, told
        told.append(server.do(lambda manager: manager.ledger.describe("", "")))


def truth_of(told):
    """Return the digests of both stubs of each call, as the server saw them in the clear."""
    return [
        tuple(call[half].get("sha256") if half == "request" or call["fault_status"] is None else None
              for half in ("request", "response"))
        for call in told[0]["calls"]
    ]  # fmt: skip


def read(port, **options):
    async def play():
        async with Client("127.0.0.1", port, account=ACCOUNT, verification=True, **options) as rpc:
            await rpc.bind(REMOTEREAD, (NDR, NDR64))
            reader = await RemoteReader(rpc).open(LARGE)
            await reader.receive(NACK)
            await rpc.bind(QMMGMT, (NDR,))  # an alter_context between sealed calls
            await reader.receive(ACK)
            await reader.close()

    asyncio.run(play())


STRENGTHS = {
    "128": 0,
    "56": FLAG_KEY_128,
    "no key exchange": FLAG_KEY_EXCHANGE,
    "no extended security": FLAG_EXTENDED_SECURITY,
    "weakest": FLAG_EXTENDED_SECURITY | FLAG_KEY_128 | FLAG_KEY_EXCHANGE,
}


@pytest.mark.parametrize("without", STRENGTHS.values(), ids=STRENGTHS)
@pytest.mark.parametrize("fragment", [1432, 5840])
def test_every_strength(without, fragment):
    with recorded() as (tap, told):
        read(tap.port, level=PRIVACY, without=without, fragment=fragment)
    rows = decrypted_calls([tap.capture()], KEYS)
    assert digests(rows) == truth_of(told)
    assert {(row["opened_by"], row["outcome"], row["sealed"]) for row in rows} == {("TESTDOM\\reader", "ok", True)}
    assert all(row["request_signed_bytes"] is None and row["closed_reason"] is None for row in rows)
    assert max(row["response_fragments"] for row in rows) > 50


@pytest.mark.parametrize("level", [CONNECT, PACKET, INTEGRITY, PRIVACY])
def test_every_level_of_impackets_client(level):
    with recorded() as (tap, told):
        rpc = Impacket("127.0.0.1", tap.port, ACCOUNT, level).connect(REMOTEREAD)
        for size in (5840, 40):
            rpc.fragment(size)
            rpc.call("R_OpenQueue", **open_arguments(ORDERS))
        rpc.close()
    rows = decrypted_calls([tap.capture()], KEYS)
    assert digests(rows) == truth_of(told)
    by = "TESTDOM\\reader"
    told = {PRIVACY: (by, None), CONNECT: (None, None)}.get(level, (None, by))
    assert {(row["outcome"], row["opened_by"], row["verified_by"]) for row in rows} == {("ok", *told)}


def test_spnego_around_it_with_the_last_leg_in_an_alter_context():
    with recorded() as (tap, told):
        read(tap.port, level=PRIVACY, spnego=True)
    rows = decrypted_calls([tap.capture()], KEYS)
    assert digests(rows) == truth_of(told)
    assert {(row["opened_by"], row["auth_type"]) for row in rows} == {("TESTDOM\\reader", 9)}


def test_a_big_endian_client_and_an_nt_hash_for_any_account():
    with recorded() as (tap, told):
        read(tap.port, level=PRIVACY, order=">")
    (key,) = KEYS.ntlm
    rows = decrypted_calls([tap.capture()], DecryptionKeys((NtlmKey("testdom\\*", key.nt_hash),)))
    assert digests(rows) == truth_of(told)


def test_many_connections_and_calls_at_once():
    async def play(port):
        async def one(number):
            async with Client("127.0.0.1", port, account=ACCOUNT, level=PRIVACY) as rpc:
                await rpc.bind(REMOTEREAD, (NDR,))
                readers = [await RemoteReader(rpc).open(ORDERS) for _ in range(2)]
                await asyncio.gather(*(reader.receive(NACK) for reader in readers))

        await asyncio.gather(*(one(number) for number in range(5)))

    with recorded() as (tap, told):
        asyncio.run(play(tap.port))
    rows = decrypted_calls([tap.capture()], KEYS)
    assert sorted(digests(rows), key=repr) == sorted(truth_of(told), key=repr)
    assert len({row["connection_id"] for row in rows}) == 5


@pytest.fixture(scope="module")
def story():
    """Return the segments of one conversation, and the digests of its stubs."""
    with recorded() as (tap, told):
        read(tap.port, level=PRIVACY)
    return tap.segments(), truth_of(told)


def without_segments(story, lost):
    return capture_of([pair for index, pair in enumerate(story[0]) if index not in lost])


def data(story, side):
    return [index for index, (_, part) in enumerate(story[0]) if part.payload and part.side == side]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("length", [1, 30])
def test_what_comes_after_a_loss_is_opened(story, share, length):
    """Some PDUs of large responses are missing: these calls are damaged, the others are decrypted."""
    server = data(story, t.SERVER)
    begin = 3 + int(share * (len(server) - 40))
    rows = decrypted_calls([without_segments(story, set(server[begin : begin + length]))], KEYS)
    assert {"ok", "damaged"} <= {row["outcome"] for row in rows} <= {"ok", "damaged", "no_response"}
    for mine, true, row in zip(digests(rows), story[1], rows, strict=True):
        assert mine == (true if row["outcome"] == "ok" else (true[0], None))
        assert row["opened_by"] == "TESTDOM\\reader"


def test_lost_requests_are_bridged(story):
    client = data(story, t.CLIENT)
    for index in client[3:-1]:
        rows = decrypted_calls([without_segments(story, {index})], KEYS)
        assert {row["opened_by"] for row in rows if row["sealed"]} == {"TESTDOM\\reader"}
        true = {half for halves in story[1] for half in halves if half}
        assert {half for halves in digests(rows) for half in halves if half} <= true


def test_repeated_segments_change_nothing(story):
    parts = [pair for pair in story[0] for _ in range(2)]
    assert digests(decrypted_calls([capture_of(parts)], KEYS)) == story[1]


@pytest.mark.parametrize("order", [1, -1])
def test_a_handshake_in_one_file_opens_calls_in_the_others(story, order):
    size = len(story[0]) // 5
    files = [capture_of(story[0][begin : begin + size]) for begin in range(0, len(story[0]), size)][::order]
    assert digests(decrypted_calls(files, KEYS)) == story[1]
    assert digests(decrypted_calls([files], KEYS)) == story[1]


@pytest.mark.parametrize("place", [2, 3, 4, 5, 6, 7])
def test_a_handshake_cut_by_files(story, place):
    """The first file ends with the SYN, the bind, the bind_ack, the auth3, or the first call."""
    files = [capture_of(story[0][:place]), capture_of(story[0][place:])]
    assert digests(decrypted_calls(files, KEYS)) == story[1]
    assert digests(decrypted_calls(files[::-1], KEYS)) == story[1]


def test_a_handshake_that_was_not_captured(story):
    """Bind and auth3 are missing, or only the third leg, or only the challenge."""
    third, challenge = data(story, t.CLIENT)[1], data(story, t.SERVER)[0]
    for keys in (KEYS, DecryptionKeys()):
        for capture in (
            capture_of(story[0][6:]),
            without_segments(story, {third}),
            without_segments(story, {challenge}),
        ):
            rows = decrypted_calls([capture], keys)
            assert reasons([row for row in rows if row["outcome"] == "encrypted"]) == {"no_handshake"}
            assert {row["opened_by"] for row in rows} == {None}


def test_a_request_without_its_answer_is_opened_too(story):
    (row,) = decrypted_calls([capture_of(story[0][:6])], KEYS)
    assert (row["outcome"], row["opened_by"], row["closed_reason"]) == ("no_response", "TESTDOM\\reader", None)
    assert digests([row]) == [(story[1][0][0], None)]
    (row,) = decrypted_calls([capture_of(story[0][:6])], DecryptionKeys())
    assert (row["outcome"], row["opened_by"], row["closed_reason"]) == ("no_response", None, None)


def test_what_was_opened_stays_open_when_another_capture_shows_it_closed(story):
    capture = capture_of(story[0])
    later = dt.timedelta(milliseconds=3)
    other = [
        {name: value + later if name in TIMES else "other" if name.endswith("capture_id") else value
         for name, value in row.items()}
        for row in decrypted_calls([capture], DecryptionKeys())
    ]  # fmt: skip
    rows = merge_sightings(decrypted_calls([capture], KEYS), other, {})
    assert sorted(digests(rows), key=repr) == sorted(story[1], key=repr)
    assert {(row["opened_by"], row["outcome"], row["observations"]) for row in rows} == {("TESTDOM\\reader", "ok", 2)}
    assert all(row["request_signed_bytes"] is None for row in rows)


def test_keys_that_do_not_fit_leave_calls_as_captured(story):
    capture = capture_of(story[0])
    closed = decrypted_calls([capture], DecryptionKeys())
    for keys, reason in (
        (DecryptionKeys(), "no_key"),
        (password("wrong"), "bad_signature"),
        (password(ACCOUNT.password, "OTHER\\*"), "no_key"),
        (password(ACCOUNT.password, "TESTDOM\\read"), "no_key"),
    ):
        rows = decrypted_calls([capture], keys)
        assert {(row["outcome"], row["opened_by"], row["closed_reason"]) for row in rows} == {
            ("encrypted", None, reason)
        }
        assert digests(rows) == digests(closed)
        assert all(row["request_signed_bytes"] for row in rows)


def test_the_entry_that_fits_is_found_among_several(story):
    keys = DecryptionKeys((*password("wrong", "*").ntlm, *password("WRONG", "testdom\\READER").ntlm, *KEYS.ntlm))
    assert digests(decrypted_calls([capture_of(story[0])], keys)) == story[1]


@pytest.mark.parametrize("side", [t.CLIENT, t.SERVER])
def test_a_pdu_that_was_tampered_with_is_no_garbage(story, side):
    """One bit of a sealed stub is flipped: its call stays as captured, all others are decrypted."""
    index = data(story, side)[3]  # R_EndReceive; a fragment of the large answer
    flow, part = story[0][index]
    payload = bytearray(part.payload)
    payload[40] ^= 1
    changed = [*story[0][:index], (flow, t.replace(part, payload=bytes(payload))), *story[0][index + 1 :]]
    rows = decrypted_calls([capture_of(changed)], KEYS)
    bad = [number for number, row in enumerate(rows) if row["closed_reason"] is not None]
    assert len(bad) == 1
    assert rows[bad[0]]["closed_reason"] == "bad_signature"
    assert rows[bad[0]]["outcome"] == "encrypted"
    found = digests(rows)
    assert all(found[number] == story[1][number] for number in range(len(rows)) if number not in bad)
