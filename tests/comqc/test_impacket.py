"""Dispatch calls encoded by impacket's [MS-OAUT] classes, those that its dcomexec sends to real servers.

Excluded are the defects of its engine (I1 to I7 of the fact sheet on RPC interfaces): arms of unions that are not 4
bytes, arrays in unions.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from impacket.dcerpc.v5.dcom import oaut
from impacket.dcerpc.v5.ndr import NDRCALL
from impacket.uuid import string_to_bin

from comqc.helpers import call
from example_counts import examples


class Invoke(NDRCALL):
    """IDispatch::Invoke without the ORPCTHIS that precedes it on a connection; COMQC has none."""

    structure = oaut.IDispatch_Invoke.structure


ARMS = {
    3: ("VT_I4", oaut.VARENUM.VT_I4, "lVal"),
    8: ("VT_BSTR", oaut.VARENUM.VT_BSTR, "bstrVal"),
    0x13: ("VT_UI4", oaut.VARENUM.VT_UI4, "ulVal"),
    0x16: ("VT_INT", oaut.VARENUM.VT_INT, "intVal"),
    0x17: ("VT_UINT", oaut.VARENUM.VT_UINT, "uintVal"),
}


def _variant(vt, number):
    variant = oaut.VARIANT(None, False)
    variant["clSize"] = 5
    variant["vt"] = vt
    variant["_varUnion"]["tag"] = vt
    if vt == 8:
        variant["_varUnion"]["bstrVal"]["asData"] = number
    else:
        variant["_varUnion"][ARMS[vt][2]] = number
    return variant


TEXT = st.text(st.characters(max_codepoint=0xD7FF), max_size=12)
ARGUMENT = st.one_of(
    st.tuples(st.sampled_from([3, 0x16]), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.tuples(st.sampled_from([0x13, 0x17]), st.integers(0, (1 << 32) - 1)),
    st.tuples(st.just(8), TEXT),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(ARGUMENT, max_size=16),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.lists(st.integers(0, (1 << 31) - 1), max_size=3),
)
def test_calls_of_another_hand_decode(arguments, dispatch_id, named):
    named = named[: len(arguments)]
    request = Invoke()
    request["dispIdMember"] = dispatch_id
    request["riid"] = string_to_bin("00000000-0000-0000-0000-000000000000")
    request["lcid"] = 0x409
    request["dwFlags"] = oaut.DISPATCH_METHOD
    parameters = request["pDispParams"]
    if named:
        parameters["rgdispidNamedArgs"] = named
    else:
        parameters["rgdispidNamedArgs"] = oaut.NULL
    parameters["cArgs"], parameters["cNamedArgs"] = len(arguments), len(named)
    if not arguments:
        parameters["rgvarg"] = oaut.NULL
    for vt, number in reversed(arguments):
        parameters["rgvarg"].append(_variant(vt, number))
    request["cVarRef"] = 0
    request["rgVarRefIdx"] = []
    request["rgVarRef"] = []
    only = call(request.getData())
    assert only["errors"] == []
    assert (only["dispatch_id"], only["dispatch_flags"], only["named_dispatch_ids"]) == (dispatch_id, 1, named)
    assert only["arguments"] == [(vt, ARMS[vt][0], str(number)) for vt, number in arguments]
