"""Security Data of COM+ calls ([MS-COM] 2.2.3.2): whose calls they are, written here from the sheet's table."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comqc.helpers import IID, both, chdr, message, method, secd, secr
from comqc.helpers import security_collection as collection
from comqc.helpers import security_data as extension
from comqc.helpers import security_property as prop
from udfs.comqc.security_data import read_security_data

ANNA = bytes.fromhex(
    "010500000000000515000000a065cf7e784b9b5fe77c8770"
)  # cut of S-1-5-21-2127521184-1604012920-1887927527
SID = ANNA + struct.pack("<I", 1001)
SID_TEXT = "S-1-5-21-2127521184-1604012920-1887927527-1001"


CHAIN = collection(0x0A01, prop(0x0B10, 4))
CALLER = collection(
    0x0A02, prop(0x0B01, SID), prop(0x0B02, "CORP\\anna\0".encode("utf-16-le")), prop(0x0B03, 0x0A),
    prop(0x0B04, 6), prop(0x0B05, 3),
)  # fmt: skip
EARLIER = collection(0x0A02, prop(0x0B06, SID), prop(0x0B07, "batch\0".encode("utf-16-le")), prop(0x0B99, 1))
NOBODY = dict.fromkeys(
    ("sid", "name", "authentication_service", "authentication_level", "impersonation_level", "application_sid",
     "application_name")
)  # fmt: skip
ANNA_CALLS = {"sid": SID_TEXT, "name": "CORP\\anna", "authentication_service": 10, "authentication_level": 6,
              "impersonation_level": 3}  # fmt: skip


def test_all_callers_of_the_chain():
    found = read_security_data(extension(CHAIN, CALLER, EARLIER))
    assert found == {
        "caller_sid": SID_TEXT,
        "caller_name": "CORP\\anna",
        "callers": [NOBODY | ANNA_CALLS, NOBODY | {"application_sid": SID_TEXT, "application_name": "batch"}],
        "minimum_authentication_level": 4,
        "errors": [],
    }


@pytest.mark.parametrize("data", [b"", extension(), extension(collection(0x0A01))])
def test_nothing_is_said_of_callers(data):
    found = read_security_data(data)
    assert found == {"caller_sid": None, "caller_name": None, "callers": [], "minimum_authentication_level": None,
                     "errors": []}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\1", ("truncated", "Security Data", 0)),
        (extension(versions=(2, 1)), ("malformed", "Security Data.Version", 0)),
        (extension(CALLER), ("malformed", "Security Data.collectionType", 8)),
        (extension(CHAIN, CHAIN), ("malformed", "Security Data.collectionType", 20)),
        (extension(CHAIN, CALLER)[:-1], ("truncated", "Security Data.Property", 20 + len(CALLER) - 4)),
        (extension(CHAIN, CALLER)[:22], ("truncated", "Security Data", 20)),
        (extension(CHAIN, collection(0x0A02, prop(0x0B01, b"\2" + SID[1:]))),
         ("malformed", "Security Data.Property", 28)),
        (extension(CHAIN, collection(0x0A02, prop(0x0B04, b""))), ("malformed", "Security Data.Property", 28)),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_at_its_place(data, error):
    found = read_security_data(data)
    assert [tuple(each.values()) for each in found["errors"]] == [error]
    if data.startswith(extension(CHAIN, CALLER)[:20]):
        assert found["minimum_authentication_level"] == 4  # read before


@given(st.binary(max_size=120))
def test_any_bytes_give_an_answer(data):
    found = read_security_data(data)
    assert len(found["errors"]) <= 1
    assert read_security_data(extension(CHAIN, CALLER) + data)["caller_sid"] == SID_TEXT


def test_each_call_has_the_callers_of_its_header():
    """The third call refers to the first header; the data of the second one is damaged."""
    first, second = extension(CHAIN, CALLER), extension(CHAIN, EARLIER)[:-3]
    container = chdr()
    body = message(
        container, secd(first), method(b"a", iid=IID, opnum=3), secd(second), method(b"b", iid=None, opnum=4),
        secr(len(container)), method(b"c", iid=IID, opnum=5),
    )  # fmt: skip
    (row,) = both(body)
    assert [call["caller_sid"] for call in row["calls"]] == [SID_TEXT, None, SID_TEXT]
    assert [call["security_bytes"] for call in row["calls"]] == [len(first), len(second), len(first)]
    assert [call["security_data"] for call in row["calls"]] == [first, second, first]
    assert [len(call["callers"]) for call in row["calls"]] == [1, 1, 1]
    assert row["calls"][1]["callers"][0]["application_sid"] == SID_TEXT
    assert [len(call["errors"]) for call in row["calls"]] == [0, 1, 0]
    assert row["calls"][1]["errors"][0][:2] == ("truncated", "Security Data.Property")
