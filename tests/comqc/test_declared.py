"""Calls whose methods are declared: names, and arguments of calls that are no dispatch calls. Both decoders agree."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comqc.helpers import (
    CLSID,
    IID,
    USER,
    Ndr,
    bstr,
    chdr,
    invoke,
    message,
    method,
    rows_of,
    safearray,
    secd,
    single,
    string,
    value,
    variant,
)
from example_counts import examples
from udfs.comqc.body_decoder import decode_bodies
from udfs.comqc.declared_interfaces import (
    NO_DECLARATIONS,
    PARAMETER_TYPES,
    Declarations,
    DeclaredInterface,
    DeclaredMethod,
    DeclaredParameter,
    argument_names,
)


def declare(*types, name="Place", opnum=3):
    """Declarations of one method, with parameters p0, p1, ... of these types."""
    parameters = tuple(DeclaredParameter(f"p{place}", PARAMETER_TYPES[kind]) for place, kind in enumerate(types))
    return Declarations({str(IID): DeclaredInterface("IOrders", {opnum: DeclaredMethod(name, parameters)})}, {})


def decode(declarations, *bodies):
    """Decode with both decoders, which must agree; the calls of all bodies."""
    decoded = rows_of(decode_bodies(pa.array(bodies, pa.binary()), marshaled=True, declarations=declarations))
    for body, row in zip(bodies, decoded, strict=True):
        assert row["calls"] == single(body, None, declarations)["calls"]
    return [call for row in decoded for call in row["calls"]]


def recorded(*calls):
    return message(chdr(), secd(), *(method(data, iid=IID, opnum=opnum) for opnum, data in calls))


def values(declarations, data):
    """The arguments of one call as (type, value), and its errors."""
    (call,) = decode(declarations, recorded((3, bytes(data))))
    return [(name, text) for _, name, text in call["arguments"]], call["errors"]


def test_parameters_have_their_names_types_and_values():
    ndr = Ndr().put("h", -2).put("I", USER)
    bstr("Orders")(ndr)
    ndr.put("d", 2.5).put("q", -12_3400).put("H", 0xFFFF).put("B", 7)
    declarations = declare("VT_I2", "VT_BSTR", "VT_R8", "VT_CY", "VT_BOOL", "VT_UI1")
    other = recorded((9, b"not declared"), (3, bytes(ndr.out) + b"padding that says nothing"))
    calls = decode(declarations, other, recorded((3, bytes(ndr.out))))
    assert [call["method"] for call in calls] == [None, "Place", "Place"]
    assert {call["interface_name"] for call in calls} == {"IOrders"}
    assert calls[0]["arguments"] is calls[0]["argument_names"] is None
    for call in calls[1:]:
        assert call["argument_names"] == ["p0", "p1", "p2", "p3", "p4", "p5"]
        assert call["arguments"] == [
            (2, "VT_I2", "-2"), (8, "VT_BSTR", "Orders"), (5, "VT_R8", "2.5"), (6, "VT_CY", "-12.3400"),
            (11, "VT_BOOL", "true"), (17, "VT_UI1", "7"),
        ]  # fmt: skip
        assert call["errors"] == []


def test_a_variant_an_array_and_a_decimal():
    ndr = Ndr().put("I", USER)
    variant(ndr, 3, "i", 42).put("I", 0).put("II", USER, USER)
    safearray(3, [1, 2], write=lambda out: out.put("ii", 1, 2), width=4)(ndr)
    ndr.align(8).raw(bytes([0, 0, 2, 0x80]) + bytes(4) + (1234).to_bytes(8, "little"))
    types = ("VT_VARIANT", "VT_BSTR", "VT_ARRAY|VT_I4", "VT_DECIMAL")
    assert values(declare(*types), ndr.out) == (
        [("VT_I4", "42"), ("VT_BSTR", None), ("VT_ARRAY|VT_I4", "[1,2]"), ("VT_DECIMAL", "-12.34")], []
    )  # fmt: skip


def test_what_does_not_fit_is_an_error_at_its_place_and_leaves_what_was_read():
    found, errors = values(declare("VT_I4", "VT_R8"), Ndr().put("i", 5).put("i", 1).out)
    assert found == [("VT_I4", "5"), (None, None)]
    assert errors == [("truncated", "p1", 8)]
    wrong = Ndr().put("i", 5).put("I", USER).put("III", 3, 8, 4).raw(bytes(8))
    found, errors = values(declare("VT_I4", "VT_BSTR", "VT_I4"), wrong.out)
    assert found == [("VT_I4", "5"), (None, None), (None, None)]
    assert errors == [("malformed", "p1.bstr.max_count", 8)]


def test_nothing_says_where_a_persisted_object_ends():
    none = Ndr().put("I", 0).put("i", 7)
    assert values(declare("VT_DISPATCH", "VT_I4"), none.out) == ([("VT_DISPATCH", None), ("VT_I4", "7")], [])
    some = Ndr().put("I", USER).put("III", 0, 32, 1).raw(CLSID.bytes_le).put("I", 0).raw(b"stream").align(4).put("i", 7)
    found, errors = values(declare("VT_DISPATCH", "VT_I4"), some.out)
    assert found == [("VT_DISPATCH", f'{{"clsid":"{CLSID}"}}'), (None, None)]
    assert errors == [("unsupported", "p0.object", 36)]


def test_a_method_without_parameters_has_no_arguments():
    (call,) = decode(declare(), recorded((3, b"padding")))
    assert (call["method"], call["argument_names"], call["arguments"], call["errors"]) == ("Place", [], [], [])


def test_dispatch_calls_are_named_by_class_and_dispatch_id():
    submit = DeclaredMethod("Submit", (DeclaredParameter("order"), DeclaredParameter("quantity")))
    declarations = Declarations({}, {str(CLSID): DeclaredInterface("Orders.Desk", {1: submit})})
    arguments = [value(3, "i", 42), string("Hi")]  # the wire has them in reverse
    known, other = invoke(arguments), invoke(arguments, dispid=2)
    cut = known[:20]
    calls = decode(declarations, message(chdr(), secd(), method(known), method(other), method(cut), method(opnum=5)))
    assert [call["method"] for call in calls] == ["Submit", None, "Submit", None]
    assert [call["argument_names"] for call in calls] == [["order", "quantity"], None, None, None]
    assert calls[0]["arguments"] == [(8, "VT_BSTR", "Hi"), (3, "VT_I4", "42")]
    assert {call["interface_name"] for call in calls} == {"Orders.Desk"}


@pytest.mark.parametrize(
    ("count", "named", "expected"),
    [
        (2, (), ["a", "b"]),
        (4, (), ["a", "b", "c", None]),
        (3, (2, 1), ["a", "b", "c"]),
        (2, (2,), ["a", "c"]),
        (2, (-3,), ["a", "b"]),
        (1, (77,), [None]),
    ],
)
def test_names_of_arguments(count, named, expected):
    parameters = tuple(map(DeclaredParameter, "abc"))
    assert argument_names(DeclaredMethod("m", parameters), count, named) == expected


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=4))
def test_any_bytes_give_an_answer(datas):
    types = ("VT_UI1", "VT_BSTR", "VT_VARIANT", "VT_ARRAY|VT_UI1", "VT_UNKNOWN", "VT_I8")
    for call in decode(declare(*types), *(recorded((3, data)) for data in datas)):
        assert len(call["arguments"]) == len(types)
        assert len(call["errors"]) <= 1


def test_declarations_differ_by_what_they_declare():
    one, other = declare("VT_I2"), declare("VT_I4")
    assert one.fingerprint() == declare("VT_I2").fingerprint() != other.fingerprint()
    assert NO_DECLARATIONS.fingerprint() is None
