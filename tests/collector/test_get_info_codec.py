"""Requests of the collector against test vectors and the codec of the test queue manager; decoding of responses."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from peer.idl import Variant
from peer.methods import BY_NAME
from pipeline.collector.get_info_codec import ResponseError, decode_response, encode_request, encode_value_json
from udfs.queues.format_name_parser import FormatNameError, parse_format_name, to_format_name
from udfs.queues.normal_form import normalize_queue_name
from udfs.queues.queue_format import build_format_name

GUID = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
SHEET = json.loads((Path(__file__).parents[1] / "sample" / "vectors.json").read_text())
METHOD = BY_NAME["R_QMMgmtGetInfo"]


def test_requests_are_the_sheets_vectors():
    vectors = [v["hex"] for v in SHEET if v["method"] == METHOD.name and v["direction"] == "request"]
    ours = [encode_request(None, [2, 3]), encode_request("DIRECT=OS:srv1\\private$\\orders", [11, 7, 8])]
    assert len(vectors) == 2
    assert sorted(stub.hex() for stub in ours) == sorted(vectors)


TEXT = st.text(st.characters(exclude_characters="\0;", exclude_categories=["Cs"]), min_size=1, max_size=20)
NAMES = st.one_of(
    TEXT.map(lambda text: f"DIRECT=OS:{text}"),
    TEXT.map(lambda text: f"DIRECT=OS:h\\{text};JOURNAL"),
    TEXT.map(lambda text: f"DIRECT=TCP:10.0.0.1\\q;{text}"),
    st.uuids().map(lambda guid: f"PUBLIC={guid}"),
    st.uuids().map(lambda guid: f"MACHINE={guid};DEADLETTER"),
    st.tuples(st.uuids(), st.integers(0, 2**32 - 1)).map(lambda pair: f"PRIVATE={pair[0]}\\{pair[1]:08x};JOURNAL"),
    st.uuids().map(lambda guid: f"DL={guid}@corp"),
    st.integers(0, 65535).map(lambda port: f"MULTICAST=224.1.2.3:{port}"),
)


@settings(max_examples=examples(200), deadline=None)
@given(name=NAMES, numbers=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=128))
def test_the_peer_reads_what_was_asked(name, numbers):
    request = METHOD.parse_request(encode_request(name, numbers), ndr64=False)
    assert (request["cp"], list(request["aProp"])) == (len(numbers), numbers)
    assert {value.vt for value in request["apVar"]} == {1}
    got = request["pObjectFormat"]["queue"]
    parsed = parse_format_name(name)
    assert (got.kind, got.suffix) == (parsed.qft, parsed.suffix)
    # and back: the decoded queue has the requested name
    assert normalize_queue_name(build_format_name(parsed)) == normalize_queue_name(name)
    # the peer's codec writes the same bytes, except for referents
    ours, theirs = encode_request(name, numbers), METHOD.request(request, ndr64=False)
    assert len(ours) == len(theirs)
    apart = [at for at in range(len(ours)) if ours[at] != theirs[at]]
    assert [at for at in apart if not (4 <= at < 8 or 16 <= at < 40)] == []


@pytest.mark.parametrize("count", [0, 129])
def test_a_question_has_1_to_128_properties(count):
    with pytest.raises(ValueError, match="1 to 128"):
        encode_request(None, range(count))


@pytest.mark.parametrize(
    "name",
    ["", "x", "DIRECT=", "DIRECT=;JOURNAL", "PUBLIC=x", f"PRIVATE={GUID}", f"PRIVATE={GUID}\\g", f"MACHINE={GUID};X",
     "MULTICAST=224.1.2.3", "WRONG=1", "DIRECT=OS:a\0b", "DIRECT=OS:" + "x" * 40_000],
)  # fmt: skip
def test_what_is_no_format_name_is_refused(name):
    with pytest.raises(FormatNameError, match="not a format name"):
        parse_format_name(name)


def test_path_names_are_asked_by_their_direct_name():
    assert to_format_name("srv1\\private$\\a=b") == "DIRECT=OS:srv1\\private$\\a=b"
    assert to_format_name("PUBLIC=" + GUID) == "PUBLIC=" + GUID


def answer(*variants, hresult=0):
    return METHOD.response({"apVar": list(variants), "return": hresult}, ndr64=False)


def test_answers_keep_their_types_and_values():
    nested = Variant(0x100C, [Variant(0x101F, ["a", "b"]), Variant(0x1013, [1, 2])])
    stub = answer(Variant(31, "x"), Variant(1), Variant(65, b"\1\2"), Variant(21, 2**64 - 1), nested)
    hresult, values = decode_response(stub, 5, big_endian=False)
    assert hresult == 0
    assert [(vt, encode_value_json(value)) for vt, value in values] == [
        (31, '"x"'), (1, None), (65, '"0102"'), (21, str(2**64 - 1)),
        (0x100C, '[{"vt":4127,"value":["a","b"]},{"vt":4115,"value":[1,2]}]'),
    ]  # fmt: skip


def test_a_failing_answer_keeps_its_hresult():
    assert decode_response(answer(Variant(1), hresult=0xC00E0003), 1, big_endian=False)[0] == 0xC00E0003


@pytest.mark.parametrize(
    "stub",
    [b"", b"\1", answer(Variant(31, "abc"))[:-8], answer(Variant(19, 1), Variant(19, 2)),
     struct.pack("<I4xH6xH2xII", 1, 77, 77, 0, 0)],
)  # fmt: skip
def test_an_answer_that_lies_is_an_error(stub):
    with pytest.raises(ResponseError):
        decode_response(stub, 1, big_endian=False)
