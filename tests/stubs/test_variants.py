"""PROPVARIANT: every type, nested and hostile ones; both decoders and the test peer's codec."""

import json
import struct
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from peer.idl import Variant
from peer.mgmt import queue_properties
from peer.queues import Queue
from stubs.helpers import BY_METHOD, ENCODINGS, column, peer_stub, shown, single

INFO = BY_METHOD["R_QMMgmtGetInfo"]
GUID = UUID("c1d2e3f4-0506-0708-090a-0b0c0d0e0f10")

# Type, what the peer's codec takes, what is read.
TYPES = [
    (0, None, None), (1, None, None), (16, 0xFF, -1), (17, 0xFF, 255), (2, 0x8000, -32768), (18, 0x8000, 32768),
    (11, 0xFFFF, 65535), (3, 0xFFFFFFFE, -2), (19, 0xFFFFFFFE, 0xFFFFFFFE), (20, 2**64 - 3, -3),
    (21, 2**64 - 3, 2**64 - 3), (72, GUID, str(GUID)), (72, None, None), (31, "Größe", "Größe"), (31, "", ""),
    (31, None, None), (65, bytes(range(16)), bytes(range(16))), (65, b"", b""), (0x1011, b"\x01\xff", [1, 255]),
    (0x1012, [1, 65535], [1, 65535]), (0x1003, [1, 0xFFFFFFFF], [1, -1]), (0x1013, [1, 0xFFFFFFFF], [1, 0xFFFFFFFF]),
    (0x1015, [1, 2**64 - 1], [1, 2**64 - 1]), (0x1048, [GUID, GUID], [str(GUID)] * 2), (0x1048, [], []),
    (0x101F, ["a", None, "bc"], ["a", None, "bc"]), (0x101F, [], []), (0x100C, [], []),
    (0x100C, [Variant(0x101F, ["x"]), Variant(19, 7), Variant(0x100C, [Variant(31, "deep"), Variant(65, b"\xab")])],
     [(0x101F, ["x"]), (19, 7), (0x100C, [(31, "deep"), (65, b"\xab")])]),
]  # fmt: skip


def _stub(variants, *, ndr64, order):
    return peer_stub(INFO.name, "response", {"apVar": variants, "return": 0}, ndr64=ndr64, order=order)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_type_alone_and_all_in_one_array_and_in_one_column(encoding):
    ndr64, order = ENCODINGS[encoding]
    arrays = [[kind] for kind in TYPES] + [TYPES, TYPES[::-1], []]
    stubs = [_stub([Variant(vt, value) for vt, value, _ in array], ndr64=ndr64, order=order) for array in arrays]
    expected = [({"values": [shown(vt, read) for vt, _, read in array], "hresult": 0}, []) for array in arrays]
    assert column(INFO, "response", stubs, ndr64=ndr64, big=order == ">") == expected
    for stub, row in zip(stubs, expected, strict=True):
        assert single(INFO, "response", stub, ndr64=ndr64, big=order == ">") == row


NUMBERS = {16: 1, 17: 1, 2: 2, 18: 2, 11: 2, 3: 4, 19: 4, 20: 8, 21: 8}
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
SCALARS = st.one_of(
    st.sampled_from([0, 1]).map(Variant),
    st.sampled_from(sorted(NUMBERS)).flatmap(
        lambda vt: st.integers(0, 2 ** (8 * NUMBERS[vt]) - 1).map(lambda value: Variant(vt, value))
    ),
    TEXT.map(lambda text: Variant(31, text)),
    st.binary(max_size=9).map(lambda octets: Variant(65, octets)),
    st.just(Variant(72, GUID)),
    st.binary(max_size=9).map(lambda octets: Variant(0x1011, octets)),
    st.lists(st.integers(0, 65535), max_size=4).map(lambda items: Variant(0x1012, items)),
    st.lists(st.integers(0, 2**64 - 1), max_size=4).map(lambda items: Variant(0x1015, items)),
    st.lists(st.none() | TEXT, max_size=4).map(lambda items: Variant(0x101F, items)),
)
VARIANTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3).map(lambda items: Variant(0x100C, items)), max_leaves=6
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(VARIANTS, max_size=6), max_size=4), st.sampled_from(sorted(ENCODINGS)), st.data())
def test_any_array_reads_alike_whole_cut_and_changed(arrays, encoding, data):
    ndr64, order = ENCODINGS[encoding]
    stubs = [_stub(array, ndr64=ndr64, order=order) for array in arrays]
    rows = column(INFO, "response", stubs, ndr64=ndr64, big=order == ">")
    for array, stub, (values, errors) in zip(arrays, stubs, rows, strict=True):
        if not errors:
            assert [each["vt"] for each in values["values"]] == [each.vt for each in array]
        assert errors == [] or errors[0][1].endswith(".vt")  # vectors of vectors of vectors ...
        assert single(INFO, "response", stub, ndr64=ndr64, big=order == ">") == (values, errors)
    changed = []
    for stub in stubs:
        octets = bytearray(stub[: data.draw(st.integers(0, len(stub)))])
        for _ in range(data.draw(st.integers(0, 2))):
            if octets:
                octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(
                    st.sampled_from([0, 1, 3, 12, 31, 65, 255])
                )
        changed.append(bytes(octets))
    rows = column(INFO, "response", changed, ndr64=ndr64, big=order == ">")
    assert rows == [single(INFO, "response", stub, ndr64=ndr64, big=order == ">") for stub in changed]


def _array(*elements):
    return struct.pack("<I4x", len(elements)) + b"".join(elements) + bytes(4)


def _element(vt, tag=None, arm=bytes(6)):
    return struct.pack("<HBBIH", vt, 0, 0, 0, vt if tag is None else tag) + arm


@pytest.mark.parametrize(
    ("stub", "error"),
    [
        (_array(_element(1, 2)), ("malformed", "apVar[0].tag", 16)),
        (_array(_element(1), _element(99)), ("malformed", "apVar[1].vt", 24)),
        (_array(_element(31, arm=struct.pack("<2xI", 4))), ("truncated", "apVar[0].offset", 28)),
        (_array(_element(0x1013, arm=struct.pack("<2xII", 3, 0))), ("malformed", "apVar[0].pElems", 28)),
        (_array(_element(65, arm=struct.pack("<2xIII", 3, 4, 2))), ("malformed", "apVar[0].max_count", 28)),
        (_array(_element(65, arm=struct.pack("<2xIII", 99, 4, 99))), ("truncated", "apVar[0]", 32)),
        (_array(_element(0x101F, arm=struct.pack("<2xIII", 1 << 30, 4, 1 << 30))), ("truncated", "apVar[0]", 32)),
        (_array(_element(0x100C, arm=struct.pack("<2xIII", 1 << 30, 4, 1 << 30))),
         ("truncated", "apVar[0][0].wReserved1", 34)),
        (struct.pack("<I", 3) + bytes(8), ("truncated", "apVar[0].wReserved1", 10)),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_told_with_its_place(stub, error):
    assert column(INFO, "response", [stub])[0] == single(INFO, "response", stub)
    assert column(INFO, "response", [stub])[0] == ({}, [error])


def test_vectors_nested_without_end_stop():
    """A megabyte of nested vectors: no recursion error, and time linear in the size."""
    level = struct.pack("<I4xHBBIH2xII", 1, 0x100C, 0, 0, 0, 0x100C, 1, 4)
    stub = struct.pack("<I4xHBBIH2xII", 1, 0x100C, 0, 0, 0, 0x100C, 1, 4) + (b"\0" * 4 + level) * 30000
    values, errors = column(INFO, "response", [stub])[0]
    assert values == {}
    assert errors[0][0] in ("malformed", "truncated")
    assert single(INFO, "response", stub) == (values, errors)


def test_what_the_peer_answers_about_an_outgoing_queue():
    """The properties of [MS-MQMQ] 2.3.12, including nested ones."""
    queue = Queue("DIRECT=OS:far\\private$\\q", "DIRECT=OS:far\\private$\\q", transactional=True, outgoing=True)
    answered = queue_properties(queue)
    stub = _stub([answered[number] for number in sorted(answered)], ndr64=False, order="<")
    values, errors = column(INFO, "response", [stub])[0]
    assert errors == []
    by_number = dict(zip(sorted(answered), values["values"], strict=True))
    assert by_number[18]["value_binary"] == answered[18].value
    assert [part["vt"] for part in json.loads(by_number[25]["value_json"])] == [0x1013, 0x1003, 0x1003, 0x100C]
    assert single(INFO, "response", stub) == (values, errors)
