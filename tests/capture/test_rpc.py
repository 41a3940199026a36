"""RPC on the wire: every PDU type, both byte orders, fragments, contexts, security, and damage."""

from __future__ import annotations

import struct

import pytest

from capture.in_memory import read_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_flow, make_stub
from pcapgen.reading import binds, calls, capture_files_row, read_rows, sort_rows
from pcapgen.scenarios import NTLM_TOKEN, capture_dialogue, remote_read_dialogue
from udfs.capture.capture_reader import read_capture


def check(dialogue: Dialogue, **connection):
    """Compare whole tables, and the list of PDUs with what was sent."""
    file, truth = capture_dialogue(dialogue)
    tables = read_rows(file, all_pdus=True)
    assert calls(tables) == truth.calls()
    assert binds(tables) == truth.binds()
    assert tables["connections"] == [truth.connection(**connection)]
    assert tables["quarantine"] == []
    stream = [dialogue.script.stream(side) for side in (t.CLIENT, t.SERVER)]
    rows = read_capture(file.data)["rpc_calls"].to_pylist()
    for half, side, types in (("request", t.CLIENT, (rpc.REQUEST,)), ("response", t.SERVER, (rpc.RESPONSE, rpc.FAULT))):
        assert spans(rows, half) == sent_spans(dialogue, side, types)
    sent = sorted((side == t.CLIENT, stream[side][begin + 2], end - begin) for side, begin, end in dialogue.pdus)
    assert sorted((row["from_client"], row["ptype"], row["frag_length"]) for row in tables["pdus"]) == sent
    return tables


def spans(rows, half):
    """Return by call id where a half begins in the TCP stream, and how many bytes it spans."""
    return {
        row["call_id"]: (row[f"{half}_sequence"], row[f"{half}_span"])
        for row in rows
        if row[f"{half}_span"] is not None
    }


def sent_spans(dialogue, side, types):
    """Return the same for the PDUs as sent; PDUs of other calls may lie between the first and the last."""
    stream, found = dialogue.script.stream(side), {}
    for at, begin, end in dialogue.pdus:
        if at == side and stream[begin + 2] in types:
            order = "little" if stream[begin + 4] & 0x10 else "big"
            found.setdefault(int.from_bytes(stream[begin + 12 : begin + 16], order), []).append((begin, end))
    first = dialogue.flow.isn[side] + 1
    return {call_id: (first + pdus[0][0], pdus[-1][1] - pdus[0][0]) for call_id, pdus in found.items()}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("interface", "port"),
    [
        (rpc.REMOTE_READ, 2103), (rpc.QM2QM, 2105), (rpc.QMMGMT, 2103), (rpc.QMCOMM, 2103), (rpc.QMCOMM2, 49_999),
        (rpc.EPM, 135),
    ],
)  # fmt: skip
def test_every_interface_in_both_byte_orders_on_any_port(interface, port, order):
    dialogue = Dialogue(flow=make_flow(server_port=port), order=order)
    dialogue.bind(rpc.Context(0, interface, version=3 if interface == rpc.EPM else 1))
    dialogue.call(1, make_stub(1, 24), make_stub(2, 28))
    dialogue.call(3, make_stub(3, 20), make_stub(4, 200), cuts=(8,), answer_cuts=(64, 64))
    check(dialogue)


def test_no_stub_is_an_empty_stub():
    dialogue = Dialogue(flow=make_flow(server_port=2105))
    dialogue.bind(rpc.Context(0, rpc.QM2QM))
    dialogue.call(8, b"", make_stub(8, 4))
    tables = check(dialogue)
    assert tables["rpc_calls"][0]["request_stub"] == b""


@pytest.mark.parametrize("interface", [rpc.WINREG, "12345678-1234-abcd-ef00-0123456789ab"])
def test_other_interfaces_are_not_ours(interface):
    dialogue = Dialogue(flow=make_flow(server_port=2103))
    dialogue.bind(rpc.Context(0, interface))
    dialogue.call(2, make_stub(2, 64), make_stub(3, 20))
    file, _ = capture_dialogue(dialogue)
    tables = read_rows(file, all_pdus=True)
    assert (tables["rpc_calls"], tables["rpc_binds"], tables["quarantine"]) == ([], [], [])
    assert len(tables["pdus"]) == 4
    assert capture_files_row(tables)["packets_used"] == 0


def test_ndr64_and_feature_negotiation():
    dialogue = Dialogue()
    dialogue.bind(
        rpc.Context(0, rpc.REMOTE_READ, (rpc.NDR,)).rejected(),
        rpc.Context(1, rpc.REMOTE_READ, (rpc.NDR64,)),
        rpc.Context(2, rpc.REMOTE_READ, (rpc.FEATURES,), result=3, reason=3),
    )
    dialogue.call(7, make_stub(7, 56), make_stub(8, 36), context=1)
    check(dialogue)


def test_a_context_that_offers_two_syntaxes_has_the_accepted_one():
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(5, rpc.QMCOMM, (rpc.NDR, rpc.NDR64)))
    dialogue.call(20, make_stub(7, 20), make_stub(8, 24), context=5)
    check(dialogue)


def test_alter_context_adds_an_interface():
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ), rpc.Context(1, rpc.QMCOMM))
    dialogue.call(0, b"", make_stub(1, 4))
    dialogue.next_id += 1
    dialogue.bind(rpc.Context(2, rpc.QM2QM), alter=True, address=b"", asked_group=0x1234)
    dialogue.call(7, make_stub(7, 4), make_stub(8, 4), context=2)
    dialogue.call(31, make_stub(9, 4), make_stub(8, 4), context=1)
    check(dialogue)


def test_a_mixed_connection_keeps_only_our_calls():
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.WINREG), rpc.Context(1, rpc.REMOTE_READ))
    dialogue.call(0, make_stub(3, 12), make_stub(1, 4), context=0)
    dialogue.call(0, b"", make_stub(1, 4), context=1)
    file, truth = capture_dialogue(dialogue)
    tables = read_rows(file)
    assert calls(tables) == [truth.calls()[1]]
    assert binds(tables) == truth.binds()
    assert tables["quarantine"] == []


def test_rejected_and_unanswered_binds():
    refused = Dialogue()
    refused.bind(rpc.Context(0, rpc.REMOTE_READ).rejected(1))
    check(refused)
    silent = Dialogue()
    silent.bind(rpc.Context(0, rpc.REMOTE_READ), answer=False)
    check(silent)
    nak = Dialogue()
    nak.bind(rpc.Context(0, rpc.REMOTE_READ), nak=8)
    check(nak)


@pytest.mark.parametrize("nak", [None, 4])
def test_a_call_on_a_refused_context_has_no_interface(nak):
    """Its bind was seen: the interface that was asked for is not what the server speaks there, and none is guessed."""
    dialogue = Dialogue()
    if nak is None:
        dialogue.bind(rpc.Context(0, rpc.REMOTE_READ).rejected(), rpc.Context(1, rpc.QMMGMT))
        dialogue.call(1, make_stub(7, 56), make_stub(8, 4), context=1)
    else:
        dialogue.bind(rpc.Context(0, rpc.REMOTE_READ), nak=nak)
    dialogue.call(7, make_stub(7, 56), make_stub(8, 36), context=0)
    dialogue.fail(dialogue.start(9, make_stub(9, 28), context=0), 0x1C010003)
    tables = check(dialogue)
    refused = [row for row in calls(tables) if row["context_id"] == 0]
    assert [(row["interface_name"], row["transfer_syntax"], row["bind_seen"]) for row in refused] == [
        (None, None, True)
    ] * 2
    assert [row["outcome"] for row in refused] == ["ok", "fault"]


def test_a_context_that_was_refused_and_then_accepted_has_each_meaning_in_its_time():
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ).rejected(), rpc.Context(1, rpc.QM2QM))
    refused = dialogue.call(7, make_stub(7, 56), make_stub(8, 36), context=0)
    refused.changes = dict.fromkeys(("interface_name", "interface_uuid", "transfer_syntax"))
    dialogue.next_id += 1
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ), alter=True, address=b"", asked_group=0x1234)
    dialogue.call(7, make_stub(7, 56), make_stub(8, 36), context=0)
    dialogue.next_id += 1
    dialogue.bind(rpc.Context(0, rpc.QMMGMT).rejected(), alter=True, address=b"", asked_group=0x1234)
    dialogue.call(9, make_stub(7, 28), make_stub(8, 4), context=0)
    check(dialogue)


def test_object_uuids():
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.call(3, make_stub(3, 20), make_stub(4, 24), obj="01234567-89ab-cdef-0011-223344556677")
    dialogue.call(3, make_stub(3, 40), make_stub(4, 24), obj="01234567-89ab-cdef-0011-223344556677", cuts=(8, 16))
    check(dialogue)
    big = Dialogue(order=">")
    big.bind()
    big.call(3, make_stub(3, 20), make_stub(4, 24), obj="01234567-89ab-cdef-0011-223344556677")
    check(big)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("level", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", [9, 10, 16])
def test_security_below_privacy_is_read(kind, level, order):
    dialogue = Dialogue(order=order)
    handshake = rpc.Auth(kind, level, b"NTLMSSP\0" + bytes(24))
    dialogue.bind(auth=handshake)
    dialogue.raw(t.CLIENT, rpc.auth3(1, handshake, order))
    if level != 2:  # at CONNECT data PDUs carry no trailer
        dialogue.auth = rpc.Auth(kind, level, NTLM_TOKEN)
    dialogue.call(7, make_stub(7, 56), make_stub(8, 200), answer_cuts=(64, 64))
    dialogue.fail(dialogue.start(9, make_stub(9, 28)), 5)
    check(dialogue)


@pytest.mark.parametrize("align", [4, 16])
def test_privacy_keeps_what_is_sealed(align):
    dialogue = Dialogue()
    dialogue.bind(auth=rpc.Auth(10, 6, b"NTLMSSP\0" + bytes(24)))
    dialogue.auth = rpc.Auth(10, 6, NTLM_TOKEN, align=align)
    dialogue.call(7, make_stub(7, 56), make_stub(8, 200), answer_cuts=(64, 64))
    dialogue.call(9, make_stub(9, 27), make_stub(9, 5))
    file, truth = capture_dialogue(dialogue)
    expected = truth.calls()
    got = calls(read_rows(file))
    assert [{**row, "closed_reason": None} for row in got] == [{**row, "closed_reason": None} for row in expected]


@pytest.mark.parametrize("size", [20, 21, 22, 23, 56])
def test_verification_trailers_are_taken_off(size):
    """The trailer is removed; the padding before it cannot be distinguished from the stub."""
    dialogue = Dialogue()
    dialogue.bind()
    call = dialogue.call(7, make_stub(7, size), make_stub(8, 28), verification=True)
    file, truth = capture_dialogue(dialogue)
    (row,), (expected,) = calls(read_rows(file)), truth.calls()
    assert call.request is not None
    padded = call.request.stub + bytes(-size % 4)
    assert row["request_stub"] in (call.request.stub, padded)
    assert {**row, "request_stub": None} == {**expected, "request_stub": None}


def test_a_verification_trailer_over_two_fragments():
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.call(7, make_stub(7, 56), make_stub(8, 28), verification=True, cuts=(40,))
    check(dialogue)


@pytest.mark.parametrize("flags", [3, 3 | rpc.DID_NOT_EXECUTE])
@pytest.mark.parametrize("status", [0x1C00001A, 0xC00E0003, 5])
def test_faults(status, flags):
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.fail(dialogue.start(7, make_stub(7, 56)), status, flags=flags)
    check(dialogue)


def test_a_cancelled_call_and_an_orphaned_one():
    dialogue = Dialogue()
    dialogue.bind()
    waiting = dialogue.start(7, make_stub(7, 56))
    dialogue.cancel(waiting)
    dialogue.fail(waiting, 0x1C00000D)
    left = dialogue.start(7, make_stub(7, 56))
    dialogue.orphan(left)
    dialogue.call(3, make_stub(3, 20), make_stub(3, 24))
    check(dialogue)


def test_shutdown_is_a_pdu():
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.call(3, make_stub(3, 20), make_stub(3, 24))
    dialogue.raw(t.SERVER, rpc.pdu(rpc.SHUTDOWN, 0))
    check(dialogue)


def test_several_calls_outstanding_answered_in_another_order():
    dialogue = Dialogue()
    dialogue.bind(flags=3 | rpc.MPX)
    waiting = [dialogue.start(7, make_stub(7 + i, 56)) for i in range(4)]
    for index in (2, 0, 3, 1):
        dialogue.answer(waiting[index], make_stub(index, 100 + index * 4))
    check(dialogue)


def test_fragments_of_different_answers_interleave():
    dialogue = Dialogue()
    dialogue.bind()
    first, second = dialogue.start(7, make_stub(1, 56)), dialogue.start(7, make_stub(2, 56))
    one = dialogue.response_pdus(first, make_stub(3, 300), cuts=(100, 100))
    two = dialogue.response_pdus(second, make_stub(4, 200), cuts=(96,))
    for call, data in ((first, one[0]), (second, two[0]), (first, one[1]), (second, two[1]), (first, one[2])):
        dialogue.piece(call, data)
    check(dialogue)


def test_a_call_id_used_again_after_completion():
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.call(3, make_stub(3, 20), make_stub(3, 24))
    dialogue.next_id -= 1
    dialogue.call(9, make_stub(9, 28), make_stub(9, 4))
    file, truth = capture_dialogue(dialogue)
    got = sort_rows(read_rows(file)["rpc_calls"], "request_at")
    assert got == truth.calls()


def test_a_maybe_request_has_no_answer():
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.start(6, make_stub(6, 20), flags=rpc.MAYBE)
    check(dialogue)


def test_a_minor_version_of_1_is_tolerated():
    dialogue = Dialogue()
    dialogue.bind()
    call = dialogue.start(3, make_stub(3, 20))
    (data,) = dialogue.response_pdus(call, make_stub(3, 24))
    dialogue.piece(call, data[:1] + b"\x01" + data[2:])
    check(dialogue)


def test_big_endian_answers_to_little_endian_requests():
    dialogue = Dialogue()
    dialogue.bind()
    call = dialogue.start(3, make_stub(3, 20))
    (data,) = rpc.fragments(rpc.RESPONSE, call.call_id, make_stub(3, 24), order=">")
    dialogue.response_pdus(call, make_stub(3, 24))
    dialogue.piece(call, data)
    file, truth = capture_dialogue(dialogue)
    got = calls(read_rows(file))
    assert [{**row, "byte_order": None} for row in got] == [{**row, "byte_order": None} for row in truth.calls()]


UNBOUND = [
    (rpc.QM2QM, "qm2qm", 2105, 0, 44, 68),
    (rpc.QM2QM, "qm2qm", 2116, 2, 32, 24),
    (rpc.REMOTE_READ, "RemoteRead", 2103, 7, 56, 28),
    (rpc.REMOTE_READ, "RemoteRead", 2114, 14, 34, 4),
    (rpc.QMCOMM, "qmcomm", 2103, 31, 4, 4),
]


@pytest.mark.parametrize(("interface", "name", "port", "opnum", "asked", "answered"), UNBOUND)
def test_calls_without_their_bind_are_known_by_port_and_lengths(interface, name, port, opnum, asked, answered):
    dialogue = Dialogue(flow=make_flow(server_port=port))
    dialogue.next_id = 5
    for _ in range(3):
        dialogue.call(opnum, make_stub(opnum, asked), make_stub(opnum, answered))
    file, _ = capture_dialogue(dialogue, t.segments(dialogue.script, opened=False))
    got = calls(read_rows(file))
    assert [
        (row["interface_uuid"], row["interface_name"], row["outcome"], row["bind_seen"], row["opnum"]) for row in got
    ] == [(interface, name, "unbound", False, opnum)] * 3


def _with_a_stranger_context():
    """Reads, and calls in a context that no bind of the connection proposes."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    for context in (0, 5, 0, 5):
        dialogue.call(7, make_stub(7, 56), make_stub(7, 28), context=context)
    return dialogue


def _contexts(tables):
    return {(row["context_id"], row["interface_name"], row["bind_seen"]) for row in calls(tables)}


def test_a_context_that_no_bind_proposed_has_no_interface():
    """Port and lengths are those of RemoteRead; but all binds were captured, and none of them is its."""
    dialogue = _with_a_stranger_context()
    file, _ = capture_dialogue(dialogue)
    known = (0, "RemoteRead", True)
    assert _contexts(read_rows(file)) == {known, (5, None, False)}
    parts = t.segments(dialogue.script)
    joined = read_captures([[c.pcap(t.records(dialogue.flow, half)).data] for half in (parts[:9], parts[9:])])
    assert {(r["context_id"], r["interface_name"], r["bind_seen"]) for r in joined["rpc_calls"].to_pylist()} == {
        known, (5, None, False),
    }  # fmt: skip
    # Where a packet of the client is lost, it may have been the bind.
    sent = [index for index, part in enumerate(parts) if part.payload and part.side == t.CLIENT]
    lossy, _ = capture_dialogue(dialogue, t.drop_segments(parts, sent[1]))
    assert _contexts(read_rows(lossy)) == {known, (5, "RemoteRead", False)}


def test_lengths_that_fit_no_method_are_not_ours():
    dialogue = Dialogue()
    dialogue.next_id = 5
    dialogue.call(7, make_stub(7, 57), make_stub(7, 29))
    dialogue.call(40, make_stub(7, 56), make_stub(7, 28))
    file, _ = capture_dialogue(dialogue, t.segments(dialogue.script, opened=False))
    tables = read_rows(file)
    assert tables["rpc_calls"] == []


# -- damage inside a connection ------------------------------------------------------------------------------------


def attributed(tables, dialogue):
    """Check that every byte of the connection belongs to a PDU, a gap, or quarantine."""
    (connection,) = tables["connections"]
    quarantined = sum(row["size_bytes"] for row in tables["quarantine"])
    whole = sum(row["frag_length"] for row in tables["pdus"])
    captured_bytes = connection["client_bytes"] + connection["server_bytes"]
    return captured_bytes - whole - quarantined


def test_rubbish_between_pdus_is_quarantined_where_it_lies():
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.call(2, make_stub(2, 64), make_stub(3, 20))
    begin, end = dialogue.script.send(t.SERVER, b"\xde\xad\xbe\xef" * 10)
    dialogue.call(7, make_stub(7, 56), make_stub(8, 28))
    dialogue.call(9, make_stub(9, 28), make_stub(8, 4))
    parts = t.segments(dialogue.script, mss=4000)
    file, truth = capture_dialogue(dialogue, parts)
    tables = read_rows(file, all_pdus=True)
    assert calls(tables) == truth.calls()
    (row,) = tables["quarantine"]
    seen = truth.seen[t.SERVER][begin]
    assert (row["packet_number"], row["byte_offset"], row["size_bytes"], row["sample"], row["seen_at"]) == (
        seen.record + 1, seen.file_offset, end - begin, b"\xde\xad\xbe\xef" * 10, seen.time_ns // 1000,
    )  # fmt: skip
    assert (row["capture_id"], row["connection_id"]) == (truth.capture_id, truth.connection_id)
    assert attributed(tables, dialogue) == 0


@pytest.mark.parametrize("size", [24, 30, 39, 40])
def test_a_request_that_is_too_short_for_the_object_uuid_that_it_announces(size):
    """The call stands, without the UUID, with an empty stub; the next PDU's bytes are not taken for either."""
    dialogue = Dialogue()
    dialogue.bind()
    short = bytearray(rpc.fragments(rpc.REQUEST, 90, bytes(range(16)), opnum=7)[0][:size])
    short[3] |= rpc.OBJECT
    struct.pack_into("<H", short, 8, size)
    dialogue.script.send(t.CLIENT, bytes(short))
    dialogue.call(7, make_stub(7, 56), make_stub(8, 28))
    file, truth = capture_dialogue(dialogue)
    tables = read_rows(file, all_pdus=True)
    known = {row["call_id"]: row for row in calls(tables)}
    assert [known[row["call_id"]] for row in truth.calls()] == truth.calls()
    expected = "03020100-0504-0706-0809-0a0b0c0d0e0f" if size == 40 else None
    assert (known[90]["object_uuid"], known[90]["request_stub"], known[90]["opnum"]) == (expected, b"", 7)
    assert attributed(tables, dialogue) == 0


def test_a_fault_that_is_too_short_for_its_status_has_none():
    dialogue = Dialogue()
    dialogue.bind()
    call = dialogue.start(7, make_stub(7, 56))
    short = bytearray(rpc.fault(call.call_id, 5)[:24])
    struct.pack_into("<H", short, 8, 24)
    dialogue.script.send(t.SERVER, bytes(short))
    dialogue.call(7, make_stub(7, 56), make_stub(8, 28))
    row = {row["call_id"]: row for row in calls(read_rows(capture_dialogue(dialogue)[0]))}[call.call_id]
    assert (row["outcome"], row["fault_status"], row["response_stub"]) == ("fault", None, None)


@pytest.mark.parametrize("length", [0, 15, 16, 23])
def test_a_fragment_length_that_cannot_be(length):
    dialogue = Dialogue()
    dialogue.bind()
    dialogue.call(2, make_stub(2, 64), make_stub(3, 20))
    bad = bytearray(rpc.fragments(rpc.REQUEST, 90, make_stub(1, 40))[0])
    struct.pack_into("<H", bad, 8, length)
    dialogue.script.send(t.CLIENT, bytes(bad))
    dialogue.call(7, make_stub(7, 56), make_stub(8, 28))
    dialogue.call(9, make_stub(9, 28), make_stub(8, 4))
    file, truth = capture_dialogue(dialogue)
    tables = read_rows(file, all_pdus=True)
    known = {row["call_id"]: row for row in calls(tables)}
    for row in truth.calls():
        assert known[row["call_id"]] == row
    assert attributed(tables, dialogue) == 0


def test_an_authentication_length_beyond_the_fragment():
    dialogue = Dialogue()
    dialogue.bind()
    call = dialogue.start(3, make_stub(3, 20))
    (data,) = dialogue.response_pdus(call, make_stub(3, 24))
    bad = bytearray(data)
    struct.pack_into("<H", bad, 10, 60_000)
    dialogue.piece(call, bytes(bad))
    dialogue.call(3, make_stub(4, 20), make_stub(5, 24))
    file, truth = capture_dialogue(dialogue)
    tables = read_rows(file, all_pdus=True)
    assert calls(tables)[-1] == truth.calls()[-1]
    assert attributed(tables, dialogue) == 0


@pytest.mark.parametrize("mss", [200, 536, 1460])
def test_after_any_lost_segment_every_byte_is_attributed(mss):
    dialogue = remote_read_dialogue(size=3000)
    parts = t.segments(dialogue.script, mss=mss)
    for index in t.data_indexes(parts):
        file, _ = capture_dialogue(dialogue, t.drop_segments(parts, index))
        tables = read_rows(file, all_pdus=True)
        got = {row["call_id"]: row["outcome"] for row in calls(tables)}
        assert sum(outcome in ("ok", "fault", "unbound") for outcome in got.values()) >= len(dialogue.calls) - 3, index
        left = attributed(tables, dialogue)
        assert 0 <= left < 6000, index
        (connection,) = tables["connections"]
        assert connection["missing_bytes"] in (0, len(parts[index].payload))


def test_random_bytes_on_an_msmq_port_are_nobodys():
    dialogue = Dialogue()
    dialogue.script.send(t.CLIENT, bytes(range(256)) * 20)
    dialogue.script.send(t.SERVER, bytes(range(255, -1, -1)) * 20)
    file, _ = capture_dialogue(dialogue)
    tables = read_rows(file)
    assert tables["rpc_calls"] == []
    assert capture_files_row(tables)["packets"] == len(file.records)
    assert c.pcap([]).data[:4] == file.data[:4]
