"""Hostile and damaged stubs give a row with an error, never an exception; both decoders agree."""

import cProfile
import struct
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from peer.idl import QueueFormat
from stubs.helpers import BY_METHOD, OTHER_VECTORS, VECTORS, column, peer_stub, single
from stubs.test_methods import GUID, TAIL

ALL = [(method, direction) for method in BY_METHOD.values() for direction in ("request", "response")]
START, QM2QM_START = BY_METHOD["R_StartReceive"], BY_METHOD["RemoteQMStartReceive"]


def _agree(method, direction, stubs, *, ndr64, big):
    rows = column(method, direction, stubs, ndr64=ndr64, big=big)
    for stub, row in zip(stubs, rows, strict=True):
        values, errors = single(method, direction, stub, ndr64=ndr64, big=big)
        if errors:  # how much of a broken packet was seen is not a value
            values.pop("packet", None)
            row[0].pop("packet", None)
        assert row == (values, errors)
        assert len(errors) <= 1
        assert all(code in ("truncated", "malformed") for code, _, _ in errors)


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(ALL), st.lists(st.binary(max_size=160), max_size=8), st.booleans(), st.booleans())
def test_any_bytes_give_rows_and_both_readers_agree(which, stubs, ndr64, big):
    _agree(*which, stubs, ndr64=ndr64, big=big)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_stub_with_bytes_changed_gives_rows_and_both_readers_agree(data):
    vector = data.draw(st.sampled_from([*VECTORS, *OTHER_VECTORS]))
    stubs = []
    for _ in range(4):
        stub = bytearray.fromhex(vector["hex"])
        for _ in range(data.draw(st.integers(0, 3))):
            if stub:
                place = data.draw(st.integers(0, len(stub) - 1))
                stub[place] = data.draw(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 0x20, 0x7F, 0x80, 0xFF]))
        stubs.append(bytes(stub[: data.draw(st.integers(0, len(stub)))] if data.draw(st.booleans()) else stub))
    _agree(
        BY_METHOD[vector["method"]], vector["direction"], stubs, ndr64=vector["syntax"] == "NDR64",
        big=data.draw(st.booleans()),
    )  # fmt: skip


def _response(sections, *, count=None, tail=b"\0\0\0\0"):
    """Encode an R_StartReceive response in NDR, [MS-MQRR] 3.1.4.7, from (type, allocated, size, max_count, octets)."""
    stub = bytearray(struct.pack("<IIQII", 1, 0, 2, len(sections), 0x20000))
    stub += struct.pack("<I", len(sections) if count is None else count)
    for kind, allocated, size, _, octets in sections:
        stub += struct.pack("<HHIII", kind, 0xFFFF, allocated, size, 0 if octets is None else 0x20004)
    for _, _, _, most, octets in sections:
        if octets is not None:
            stub += bytes(-len(stub) % 4) + struct.pack("<I", most) + octets
    return bytes(stub + bytes(-len(stub) % 4) + tail)


def test_sections_of_every_number_decode():
    stubs = [
        _response([(place, 9, 3, 3, b"abc") if place % 3 else (place, 5, 7, 0, None) for place in range(count)])
        for count in (0, 1, 2, 3, 4, 5, 6, 40)
    ]
    rows = column(START, "response", stubs)
    assert [len(values["section_types"]) for values, _ in rows] == [0, 1, 2, 3, 4, 5, 6, 40]
    assert rows[7][0]["section_types"] == list(range(40))
    assert rows[7][0]["packet"] == b"abc" * 26
    assert [errors for _, errors in rows] == [[]] * 8
    _agree(START, "response", stubs, ndr64=False, big=False)


@pytest.mark.parametrize(
    ("stub", "error"),
    [
        (_response([(0, 3, 3, 3, b"abc")], count=2), ("malformed", "ppPacketSections.max_count", 24)),
        (_response([(0, 3, 3, 3, b"abc")])[:50], ("truncated", "ppPacketSections.pSectionBuffer", 48)),
        (
            struct.pack("<IIQIII", 1, 0, 2, 0xFFFFFFFF, 1, 0xFFFFFFFF) + bytes(64),
            ("truncated", "ppPacketSections.SectionBufferType", 28),
        ),
        (_response([(0, 0, 0xFFFFFFFF, 0xFFFFFFFF, b"")]), ("truncated", "ppPacketSections.pSectionBuffer", 48)),
    ],
)
def test_no_length_is_believed(stub, error):
    values, errors = column(START, "response", [stub])[0]
    assert (values, errors) == ({"arrive_time": 1, "sequence_id": 2}, [error])
    assert single(START, "response", stub) == (values, errors)


@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize(("most", "there", "kept"), [(4, b"abcd", b"abc"), (2, b"ab", b"ab")])
def test_a_section_is_read_though_its_counts_differ(before, most, there, kept):
    """max_count says how many octets are there, SectionSize how many are the section's: nothing behind it is lost."""
    stub = _response([(0, 1, 1, 1, b"x")] * before + [(0, 3, 3, most, there), (2, 1, 1, 1, b"z")])
    values, errors = column(START, "response", [stub])[0]
    assert (values["packet"], values["hresult"]) == (b"x" * before + kept + b"z", 0)
    assert [(code, field) for code, field, _ in errors] == [("malformed", "ppPacketSections.pSectionBuffer.max_count")]
    assert single(START, "response", stub) == (values, errors)


@pytest.mark.parametrize("counts", [(5, 9, 0, 5), (7, 5, 0, 5), (5, 5, 1, 5), (4, 5, 0, 5)])
def test_a_packet_is_read_though_the_counts_of_its_buffer_differ(counts):
    """dwSize, max_count, offset and actual_count: the last one says how many octets there are ([MS-MQQP] 2.2.2.1)."""
    size, *three = counts
    stub = b"\1" * 20 + struct.pack("<9IHHI", 8, 0, 0, 0, size, 8, 1, 0, 1, 0, 0, 0x20000)
    stub += struct.pack("<3I", *three) + b"hello" + bytes(3) + bytes(4)
    values, errors = column(QM2QM_START, "response", [stub])[0]
    assert (values["packet"], values["packet_bytes"], values["hresult"]) == (b"hello", 5, 0)
    assert errors == [("malformed", "pRemoteReadDesc.lpBuffer.max_count", 64)]
    assert single(QM2QM_START, "response", stub) == (values, errors)


def test_a_bad_row_does_no_harm_to_its_neighbours():
    good = _response([(0, 3, 3, 3, b"abc")])
    bad = _response([(0, 3, 3, 3, b"abc")], count=2)
    rows = column(START, "response", [good, bad, b"", None, good])
    assert rows[0] == rows[4]
    assert rows[0][0]["packet"] == b"abc"
    assert [errors for _, errors in rows[1:4]] == [
        [("malformed", "ppPacketSections.max_count", 24)], [("truncated", "pdwArriveTime", 0)], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda s: s[:4] + b"\x02" + s[5:], ("malformed", "pQueueFormat.tag", 4)),
        (lambda s: b"\x09" + s[1:4] + b"\x09" + s[5:], ("malformed", "pQueueFormat.m_qft", 0)),
        (lambda s: s[:20] + b"\x05\0\0\0" + s[24:], ("malformed", "pQueueFormat.m_pDirectID.actual_count", 16)),
        (lambda s: s[:20] + b"\0\0\0\0" + s[24:], ("malformed", "pQueueFormat.m_pDirectID.actual_count", 16)),
        (lambda s: s[:16] + b"\1\0\0\0" + s[20:], ("malformed", "pQueueFormat.m_pDirectID.actual_count", 16)),
        (lambda s: s[:12] + b"\xff\xff\xff\xff" + s[16:20] + b"\xff\xff\xff\xff" + s[24:],
         ("truncated", "pQueueFormat.m_pDirectID", 24)),
        (lambda s: s[:30] + b"x\0" + s[32:], ("malformed", "pQueueFormat.m_pDirectID", 24)),
        (lambda s: s[:26] + b"\0\0" + s[28:], ("malformed", "pQueueFormat.m_pDirectID", 24)),
    ],
)  # fmt: skip
def test_a_queue_format_that_contradicts_itself_is_malformed(change, error):
    method = BY_METHOD["R_OpenQueue"]
    stub = peer_stub("R_OpenQueue", "request", {"pQueueFormat": QueueFormat(3, "O:q"), **TAIL}, ndr64=False, order="<")
    values, errors = column(method, "request", [change(stub)])[0]
    assert errors == [error]
    assert values == {"queue_format_type": change(stub)[0]}
    assert single(method, "request", change(stub)) == (values, errors)


def test_ndr64_counts_that_overflow_when_doubled_are_truncated():
    stub = peer_stub("R_OpenQueue", "request", {"pQueueFormat": QueueFormat(3, "O:q"), **TAIL}, ndr64=True, order="<")
    for count in (1 << 63, (1 << 64) - 1, (1 << 63) + 4):
        big = stub[:24] + struct.pack("<QQQ", count, 0, count) + stub[48:]
        assert column(BY_METHOD["R_OpenQueue"], "request", [big], ndr64=True) == [
            ({"queue_format_type": 3}, [("truncated", "pQueueFormat.m_pDirectID", 48)])
        ]


@pytest.mark.parametrize("order", ["<", ">"])
def test_padding_that_a_peer_leaves_out_is_read_leniently_and_flagged(order):
    """Doubt D19: go-msrpc omits the NDR64 padding after a union at the end of a structure."""
    private = QueueFormat(2, {"lineage": GUID_VALUE, "uniquifier": 9})
    stub = peer_stub("R_OpenQueue", "request", {"pQueueFormat": private, **TAIL}, ndr64=True, order=order)
    short = stub[:36] + stub[40:]
    method, big = BY_METHOD["R_OpenQueue"], order == ">"
    full, lenient = column(method, "request", [stub, short], ndr64=True, big=big)
    assert full[1] == []
    assert lenient == (full[0], [("malformed", "pQueueFormat (padding)", 36)])
    assert single(method, "request", short, ndr64=True, big=big) == lenient
    token = {"pTransactionId": bytes(16), "cbPropagationToken": 0, "pbPropagationToken": b"", "pQueueFormat": private}
    stub = peer_stub("R_QMEnlistRemoteTransaction", "request", token, ndr64=True, order=order)
    method = BY_METHOD["R_QMEnlistRemoteTransaction"]
    full, lenient = column(method, "request", [stub, stub[:-4]], ndr64=True, big=big)
    assert full[1] == []
    assert lenient == (full[0], [("malformed", "pQueueFormat (padding)", len(stub) - 4)])


GUID_VALUE = UUID(GUID)


def test_work_grows_with_the_bytes_and_not_faster():
    """65536 sections in one megabyte: work is measured in function calls and memory, which are reproducible."""

    def work(stubs):
        profile = cProfile.Profile()
        tracemalloc.start()
        profile.enable()
        rows = column(START, "response", stubs)
        profile.disable()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert all(not errors for _, errors in rows)
        return sum(entry.callcount for entry in profile.getstats()), peak

    section = (0, 1, 1, 1, b"x")
    work([_response([section])])
    small_calls, small_peak = work([_response([section] * 4096)])
    large_calls, large_peak = work([_response([section] * 65536)])
    assert large_calls < small_calls * 16 * 2
    assert large_peak < small_peak * 16 * 2
