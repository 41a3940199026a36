"""What the collector asks, byte for byte against the sheet's vectors and the peer's codec, and what it reads."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.idl import Variant
from peer.methods import BY_NAME
from pipeline.collector.get_info import AnswerError, get_info, read_answer, value_json
from udfs.queues.format_name_parser import FormatNameError, format_name_of, queue_format
from udfs.queues.format_names import format_name
from udfs.queues.normal_form import normal_text

GUID = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
SHEET = json.loads((Path(__file__).parents[1] / "sample" / "vectors.json").read_text())
METHOD = BY_NAME["R_QMMgmtGetInfo"]


def test_requests_are_the_sheets_vectors():
    vectors = [v["hex"] for v in SHEET if v["method"] == METHOD.name and v["direction"] == "request"]
    ours = [get_info(None, [2, 3]), get_info("DIRECT=OS:srv1\\private$\\orders", [11, 7, 8])]
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


@settings(max_examples=200, deadline=None)
@given(name=NAMES, numbers=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=128))
def test_the_peer_reads_what_was_asked(name, numbers):
    asked = METHOD.parse_request(get_info(name, numbers), ndr64=False)
    assert (asked["cp"], list(asked["aProp"])) == (len(numbers), numbers)
    assert {value.vt for value in asked["apVar"]} == {1}
    got = asked["pObjectFormat"]["queue"]
    parsed = queue_format(name)
    assert (got.kind, got.suffix) == (parsed.qft, parsed.suffix)
    # and back: the text of what was read is the name asked for
    assert normal_text(format_name(parsed)) == normal_text(name)
    # the peer's codec writes the same bytes, referents apart
    ours, theirs = get_info(name, numbers), METHOD.request(asked, ndr64=False)
    assert len(ours) == len(theirs)
    apart = [at for at in range(len(ours)) if ours[at] != theirs[at]]
    assert [at for at in apart if not (4 <= at < 8 or 16 <= at < 40)] == []


@pytest.mark.parametrize("count", [0, 129])
def test_a_question_has_1_to_128_properties(count):
    with pytest.raises(ValueError, match="1 to 128"):
        get_info(None, range(count))


@pytest.mark.parametrize(
    "name",
    ["", "x", "DIRECT=", "DIRECT=;JOURNAL", "PUBLIC=x", f"PRIVATE={GUID}", f"PRIVATE={GUID}\\g", f"MACHINE={GUID};X",
     "MULTICAST=224.1.2.3", "WRONG=1", "DIRECT=OS:a\0b", "DIRECT=OS:" + "x" * 40_000],
)  # fmt: skip
def test_what_is_no_format_name_is_refused(name):
    with pytest.raises(FormatNameError, match="not a format name"):
        queue_format(name)


def test_path_names_are_asked_by_their_direct_name():
    assert format_name_of("srv1\\private$\\a=b") == "DIRECT=OS:srv1\\private$\\a=b"
    assert format_name_of("PUBLIC=" + GUID) == "PUBLIC=" + GUID


def answer(*variants, hresult=0):
    return METHOD.response({"apVar": list(variants), "return": hresult}, ndr64=False)


def test_answers_keep_their_types_and_values():
    nested = Variant(0x100C, [Variant(0x101F, ["a", "b"]), Variant(0x1013, [1, 2])])
    stub = answer(Variant(31, "x"), Variant(1), Variant(65, b"\1\2"), Variant(21, 2**64 - 1), nested)
    hresult, values = read_answer(stub, 5, big_endian=False)
    assert hresult == 0
    assert [(vt, value_json(value)) for vt, value in values] == [
        (31, '"x"'), (1, None), (65, '"0102"'), (21, str(2**64 - 1)),
        (0x100C, '[{"vt":4127,"value":["a","b"]},{"vt":4115,"value":[1,2]}]'),
    ]  # fmt: skip


def test_a_failing_answer_keeps_its_hresult():
    assert read_answer(answer(Variant(1), hresult=0xC00E0003), 1, big_endian=False)[0] == 0xC00E0003


@pytest.mark.parametrize(
    "stub",
    [b"", b"\1", answer(Variant(31, "abc"))[:-8], answer(Variant(19, 1), Variant(19, 2)),
     struct.pack("<I4xH6xH2xII", 1, 77, 77, 0, 0)],
)  # fmt: skip
def test_an_answer_that_lies_is_an_error(stub):
    with pytest.raises(AnswerError):
        read_answer(stub, 1, big_endian=False)
