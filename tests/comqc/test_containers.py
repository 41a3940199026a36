"""Messages of COM+ queued components that a server accepts or must reject, [MC-COMQC] 2.2 and 3.1.5."""

import struct

import pyarrow as pa
import pytest

from comqc.helpers import (
    CLSID,
    IDISPATCH,
    IID,
    MARKER,
    PARTITION,
    both,
    chdr,
    column,
    message,
    method,
    part,
    secd,
    secr,
)
from udfs.comqc import container_layout
from udfs.comqc.body_decoder import CALL_STRUCT, decode_bodies, explode_calls, is_comqc_extension

HEAD, SEC = chdr(), secd()
ONE = method(b"12345678", iid=IID, opnum=3)
GOOD = message(HEAD, SEC, ONE)


def _calls(*headers):
    (row,) = both(message(*headers))
    assert (row["comqc_rejected"], row["rejected_offset"], row["errors"]) == (None, None, [])
    return row["calls"]


def test_the_marker_is_the_extension_and_nothing_else():
    extensions = pa.array([MARKER, MARKER + b"\0", MARKER[:15], b"", None, MARKER[::-1]], pa.binary())
    assert is_comqc_extension(extensions).to_pylist() == [True, False, False, False, False, False]
    assert is_comqc_extension(extensions.cast(pa.large_binary())).to_pylist()[:2] == [True, False]


def test_bodies_without_the_marker_stay_untouched():
    rows = column([GOOD, GOOD, b"x", None, GOOD], extensions=[MARKER, None, b"other", MARKER, MARKER])
    assert [row["calls"] is None for row in rows] == [False, True, True, True, False]
    assert [row["comqc_rejected"] for row in rows] == [None] * 5
    assert rows[0] == rows[4]


def test_a_call_has_what_its_message_and_its_header_say():
    (call,) = _calls(HEAD, part(), SEC, ONE)
    assert call == {
        "call_index": 0, "header_offset": 200 + 24 + 24, "header": "METH", "target_clsid": str(CLSID),
        "target_text": f"{{{CLSID}}}", "partition_id": str(PARTITION), "interface_id": str(IID),
        "interface_name": None, "method": None, "argument_names": None, "is_dispatch": False,
        "opnum": 3, "data_representation": 0x10, "flags": 0x1000, "marshaled_bytes": 8, "marshaled": b"12345678",
        "security_offset": 224, "security_index": 0, "security_bytes": 8, "security_data": b"\1\0\1\0\0\0\0\0",
        "caller_sid": None, "caller_name": None, "callers": [], "minimum_authentication_level": None,
        "dispatch_id": None, "dispatch_flags": None, "named_dispatch_ids": None, "arguments": None,
        "errors": [],
    }  # fmt: skip


def test_a_short_method_has_the_interface_of_the_last_full_one_and_security_stays_till_the_next():
    """Figures 3 to 6: every kind of group."""
    first, second = 200, 200 + 24 + len(ONE) + len(method(b"s", iid=None))
    calls = _calls(
        HEAD, SEC, ONE, method(b"s", iid=None), secd(b"other"), method(b"", iid=PARTITION), secr(first),
        method(b"", iid=None, opnum=9), secr(second), method(b"", iid=None), method(b"", iid=IID), secr(first),
        method(b"", iid=IDISPATCH, opnum=7),
    )  # fmt: skip
    assert [call["interface_id"] for call in calls] == [
        str(IID), str(IID), str(PARTITION), str(PARTITION), str(PARTITION), str(IID),
        "00020400-0000-0000-c000-000000000046",
    ]  # fmt: skip
    assert [call["header"] for call in calls] == ["METH", "SMTH", "METH", "SMTH", "SMTH", "METH", "METH"]
    assert [call["security_offset"] for call in calls] == [first, first, second, first, second, second, first]
    assert [call["security_index"] for call in calls] == [0, 0, 1, 0, 1, 1, 0]
    assert [call["call_index"] for call in calls] == list(range(7))
    assert [call["is_dispatch"] for call in calls] == [False] * 6 + [True]
    assert calls[6]["arguments"] is None  # no other operation of IDispatch makes sense one way (D36)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\0", ""), (f"{CLSID}\0", str(CLSID)), (f"{{{CLSID}}}\0".upper(), f"{{{CLSID}}}".upper())],
)
def test_the_target_string_is_nothing_or_a_uuid(text, shown):
    (call,) = _calls(chdr(text=text), SEC, ONE)
    assert (call["target_text"], call["target_clsid"]) == (shown, str(CLSID))


def test_padding_says_nothing():
    """2.2.6.1.4: padding of any size and content, in Marshaled Data and behind it; and all reserved fields."""
    (call,) = _calls(chdr(extra=16), secd(b"x", pad=32), method(b"abc", iid=IID, pad=b"\xff" * 77), part())
    assert (call["marshaled"], call["partition_id"]) == (b"abc", str(PARTITION))
    assert call["header_offset"] == 216 + 16 + 40


def _patched(body, offset, number):
    return body[:offset] + struct.pack("<I", number) + body[offset + 4 :]


AT = len(HEAD) + len(SEC)  # of the first method
REJECTED = [
    ("2.2.2: no container header at the start", 0, b""),
    ("2.2.2: no container header at the start", 0, b"CHDR"),
    ("2.2.2: no container header at the start", 0, message(SEC, ONE)),
    ("2.2.2: container header shorter than its fields", 4, message(_patched(HEAD, 4, 80), SEC, ONE)),
    ("2.2.1: Size is not a multiple of 8", 4, message(_patched(HEAD, 4, 201), SEC, ONE)),
    ("2.2.1: header goes beyond the message", 4, GOOD[:120]),
    ("2.2.2: Message Signature is another GUID", 8, message(chdr(signature=MARKER), SEC, ONE)),
    ("2.2.2: Maximum Version or Minimum Version is not 1", 24, message(chdr(versions=(2, 1)), SEC, ONE)),
    ("2.2.2: Maximum Version or Minimum Version is not 1", 24, message(chdr(versions=(1, 0)), SEC, ONE)),
    ("2.2.2: Message Size is not the size of the body", 32, GOOD[:-8]),
    ("2.2.2: Message Size is not the size of the body", 32, GOOD + bytes(8)),
    ("2.2.2: Message Size is not the size of the body", 32, message(chdr(total=0xFFFFFFFF), SEC, ONE)),
    ("2.2.2: Call Target Identifier Size does not fit the container header", 68, message(chdr(size=112), SEC, ONE)),
    ("2.2.2: Call Target Identifier Size does not fit the container header", 68, message(chdr(size=114), SEC, ONE)),
    ("2.2.2.1: Structure ID is another GUID", 80, message(chdr(identifier=bytes(16)), SEC, ONE)),
    ("2.2.2.1: Target ID String is no UUID ended by a NUL", 116, message(chdr(text=f"{{{CLSID}}}"), SEC, ONE)),
    ("2.2.2.1: Target ID String is no UUID ended by a NUL", 116, message(chdr(text=f"{{{CLSID}\0"), SEC, ONE)),
    ("2.2.2.1: Target ID String is no UUID ended by a NUL", 116, message(chdr(text="queue:\0"), SEC, ONE)),
    ("2.2.2.1: Target ID String is no UUID ended by a NUL", 116, message(chdr(text=""), SEC, ONE)),
    ("2.2.2.1: Target ID String is no UUID ended by a NUL", 112, message(_patched(HEAD, 112, 0xFFFFFFFE), SEC, ONE)),
    ("2.2.2: more than one container header", 224, message(HEAD, SEC, HEAD, ONE)),
    ("2.2.1: bytes left over that hold no header", AT + len(ONE), message(HEAD, SEC, ONE, b"METH")),
    ("2.2: unknown Header Signature", AT, message(HEAD, SEC, b"meth" + ONE[4:])),
    ("2.2.1: Size is not a multiple of 8", AT, message(HEAD, SEC, _patched(ONE, 4, len(ONE) - 1))),
    ("2.2.1: header goes beyond the message", AT, message(HEAD, SEC, _patched(ONE, 4, len(ONE) + 8))),
    ("2.2.1: header goes beyond the message", AT, message(HEAD, SEC, _patched(ONE, 4, 0xFFFFFFF8))),
    ("2.2.1: Size is smaller than the header's fields", AT, message(HEAD, SEC, _patched(ONE, 4, 40))),
    ("2.2.1: Size is smaller than the header's fields", AT, message(HEAD, SEC, _patched(ONE, 4, 0))),
    ("2.2: header out of order", 224, message(HEAD, part(), part(), SEC, ONE)),
    ("2.2: header out of order", 224, message(HEAD, SEC, SEC, ONE)),
    ("2.2: header out of order", 224, message(HEAD, SEC, part(), ONE)),
    ("2.2: header out of order", AT + len(ONE) + 24, message(HEAD, SEC, ONE, part(), ONE)),
    ("2.2: header out of order", AT + len(ONE) + 24, message(HEAD, SEC, ONE, part(), part())),
    ("2.2.4: no security header before the first method call", 200, message(HEAD, ONE)),
    ("2.2.4: no security header before the first method call", 200, message(HEAD, secr(200), ONE)),
    ("2.2: no method call", 200, message(HEAD)),
    ("2.2: no method call", 224, message(HEAD, SEC)),
    ("2.2: no method call", 224, message(HEAD, part())),
    ("2.2: security header without a method header behind it", AT + len(ONE) + 24, message(HEAD, SEC, ONE, SEC)),
    ("2.2: security header without a method header behind it", AT + len(ONE) + 16, message(HEAD, SEC, ONE, secr(200))),
    ("2.2.3: Size of the partition identifier header is not 0x18", 200,
     message(HEAD, _patched(part(), 4, 32) + bytes(8), SEC, ONE)),
    ("2.2.4: Security Data Size does not fit the security header", 200, message(HEAD, _patched(SEC, 8, 9), ONE)),
    ("2.2.5: Size of the security reference header is not 0x10", AT + len(ONE),
     message(HEAD, SEC, ONE, _patched(secr(200), 4, 24) + bytes(8), ONE)),
    ("2.2.5: Security Header Offset is not that of an earlier security header", AT + len(ONE),
     message(HEAD, SEC, ONE, secr(AT), ONE)),
    ("2.2.5: Security Header Offset is not that of an earlier security header", AT + len(ONE),
     message(HEAD, SEC, ONE, secr(AT + 2 * len(ONE) + 16), ONE, SEC, ONE)),
    ("2.2.5: Security Header Offset is not that of an earlier security header", AT + len(ONE),
     message(HEAD, SEC, ONE, secr(0xFFFFFFFF), ONE)),
    ("2.2.6: first method header has no Interface ID", AT, message(HEAD, SEC, method(iid=None), ONE)),
    ("2.2.6: Marshaled Data Size does not fit the method header", AT, message(HEAD, SEC, method(b"x", size=9))),
    ("2.2.6: Marshaled Data Size does not fit the method header", AT,
     message(HEAD, SEC, method(b"x", size=0xFFFFFFFF))),
    ("2.2.6: Data Representation is not 0x00000010", AT, message(HEAD, SEC, method(representation=0))),
    ("2.2.6: Flags are not 0x00001000", AT, message(HEAD, SEC, method(flags=0))),
    ("2.2.6: Reserved is not 0x00000001", AT, message(HEAD, SEC, method(reserved=0))),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "offset", "body"), REJECTED, ids=lambda part: part if isinstance(part, str) else "")
def test_what_must_be_rejected_is_rejected_with_the_rule(reason, offset, body):
    expected = {
        "comqc_rejected": f"[MC-COMQC] {reason}", "rejected_offset": offset, "comqc_deviations": None, "errors": [],
        "calls": [],
    }  # fmt: skip
    assert both(body) == [expected]
    rows = both(GOOD, body, GOOD)  # and its neighbours are not
    assert rows[1] == expected
    assert rows[0] == rows[2]
    assert len(rows[0]["calls"]) == 1


def test_every_rule_has_its_message():
    assert {f"[MC-COMQC] {reason}" for reason, _, _ in REJECTED} == set(container_layout.REJECTION_TEXTS[1:])


def test_the_first_breach_in_the_order_of_bytes_is_told():
    body = message(HEAD, SEC, method(flags=0), method(representation=0), b"junkjunk")
    assert both(body)[0]["comqc_rejected"] == "[MC-COMQC] 2.2.6: Flags are not 0x00001000"


def test_a_body_cut_by_its_reader_is_told_from_damage():
    """Every prefix, with the declared size of the body: complete calls are returned, nothing is a violation."""
    body = message(HEAD, part(), SEC, ONE, method(b"s", iid=None), secr(224), ONE)
    whole = both(body)[0]["calls"]
    prefixes = [body[:size] for size in range(len(body))]
    rows = both(*prefixes, body_bytes=[len(body)] * len(prefixes))
    for size, row in enumerate(rows):
        assert row["comqc_rejected"] is None
        assert [(code, field) for code, field, _ in row["errors"]] == [("truncated", "body")]
        assert (
            row["calls"]
            == [call for call in whole if call["header_offset"] + call["marshaled_bytes"] < size][: len(row["calls"])]
        )
    assert len(rows[-1]["calls"]) == 2
    undeclared = both(*prefixes)
    assert all(row["comqc_rejected"] for row in undeclared)


def test_a_cut_body_is_rejected_for_what_was_seen():
    body = message(HEAD, SEC, method(flags=0), ONE, ONE)
    (row,) = both(body[:-8], body_bytes=[len(body)])
    assert (row["comqc_rejected"], row["errors"]) == ("[MC-COMQC] 2.2.6: Flags are not 0x00001000", [])


def test_messages_of_any_length_stand_in_one_column():
    bodies = [message(HEAD, SEC, *[ONE, method(b"q", iid=None)] * count) for count in (1, 300, 2, 40, 16, 15, 17)]
    rows = both(*bodies)
    assert [len(row["calls"]) for row in rows] == [2, 600, 4, 80, 32, 30, 34]
    bad = message(HEAD, SEC, *[ONE] * 100, part(), ONE)
    (row,) = both(bad)
    assert row["comqc_rejected"] == "[MC-COMQC] 2.2: header out of order"


def test_explode_gives_a_row_for_each_call_with_the_number_of_its_body():
    bodies = pa.array([None, GOOD, b"bad", message(HEAD, SEC, ONE, ONE), GOOD], pa.large_binary())
    for begin in (0, 1):
        parents, calls = explode_calls(decode_bodies(bodies.slice(begin)))
        assert parents.to_pylist() == [1 - begin, 3 - begin, 3 - begin, 4 - begin]
        assert calls.schema.names == [field.name for field in CALL_STRUCT]
        assert calls.column("call_index").to_pylist() == [0, 0, 1, 0]
        assert calls.column("marshaled").null_count == 4  # not asked for


@pytest.mark.parametrize("bodies", [[], [None], [None, None], [b""]])
def test_columns_without_messages_decode(bodies):
    out = decode_bodies(pa.array(bodies, pa.binary()))
    assert out.num_rows == len(bodies)
    assert explode_calls(out)[1].num_rows == 0


def test_an_opnum_beyond_any_interface_is_an_error_of_its_call():
    (call,) = _calls(HEAD, SEC, method(opnum=0x80000000, iid=IID))
    assert (call["opnum"], call["errors"]) == (None, [("malformed", "Method Number", 0)])


OTHER = secd(b"\1\0\1\0\0\0\0\1")
FIRST_SECD = len(HEAD)
SHORT = method(b"12345678", iid=None, opnum=4)
DEVIATING = {  # headers behind the container header, and the offsets of the headers that deviate
    "2.2.4: security header with the Security Data of an earlier one": (
        (SEC, ONE, SEC, SHORT, OTHER, SHORT, SEC, SHORT),
        (2, 6),
    ),
    "2.2.5: security reference header to the security that applies already": (
        (SEC, ONE, secr(FIRST_SECD), SHORT, OTHER, SHORT, secr(FIRST_SECD), SHORT, secr(FIRST_SECD), SHORT),
        (2, 8),
    ),
    "2.2.6: Interface ID in a method header although it applies already": (
        (SEC, ONE, ONE, method(iid=PARTITION), SHORT, method(iid=PARTITION), ONE),
        (2, 5),
    ),
}


@pytest.mark.parametrize("reason", DEVIATING)
def test_what_a_message_does_not_follow_is_noted_and_its_calls_are_read(reason):
    headers, places = DEVIATING[reason]
    offsets = [len(message(HEAD, *headers[:place])) for place in places]
    rows = both(message(HEAD, *headers), GOOD, message(HEAD, *headers))
    assert rows[0]["comqc_deviations"] == [(f"[MC-COMQC] {reason}", offsets[0], len(offsets))]
    assert (rows[0]["comqc_rejected"], rows[1]["comqc_deviations"], rows[2]) == (None, [], rows[0])
    (cut,) = both(message(HEAD, *headers)[: offsets[1] + 8], body_bytes=[len(message(HEAD, *headers))])
    assert [places for _, _, places in cut["comqc_deviations"]] == [1]


def test_a_target_string_of_another_class_is_noted():
    rows = both(*(message(chdr(text=f"{text}\0"), SEC, ONE) for text in ("", str(CLSID).upper(), f"{{{CLSID}}}", IID)))
    text = "[MC-COMQC] 2.2.2.1: Target ID String is another UUID than Target ID"
    assert [row["comqc_deviations"] for row in rows] == [[], [], [], [(text, 116, 1)]]
