"""Dispatch calls to typed arguments, [MS-OAUT] 3.1.4.4: the example of the fact sheet, and every type."""

import json
import struct

import pytest

from comqc.helpers import (
    CLSID,
    RECORD_LIBRARY,
    RECORD_TYPE,
    USER,
    Ndr,
    brecord,
    bstr,
    call,
    invoke,
    numbers_of,
    persisted_object,
    pointed,
    safearray,
    string,
    value,
    variant,
)

# message-packets.md 6.9: Invoke(dispid 1, method, lcid 0x409, f("Hi", 42)), checked there with another NDR decoder.
ILLUSTRATION = bytes.fromhex(
    "01000000" + 16 * "00" + "0904000001000000"
    "00000200000000000200000000000000"
    "020000005573657255736572"
    "03000000000000000300000000000000030000002A000000"
    "050000000000000008000000000000000800000055736572"
    "02000000040000000200000048006900"
    "000000000000000000000000"
)  # fmt: skip


def _arguments(*values, **options):
    """Decode a call with these arguments, given in the order of the method's parameters."""
    only = call(invoke(values[::-1], **options))
    assert only["errors"] == []
    return only["arguments"]


def test_the_illustration_of_the_fact_sheet():
    assert len(ILLUSTRATION) == 132
    only = call(ILLUSTRATION)
    assert (only["dispatch_id"], only["dispatch_flags"], only["named_dispatch_ids"]) == (1, 1, [])
    assert only["arguments"] == [(8, "VT_BSTR", "Hi"), (3, "VT_I4", "42")]
    assert call(ILLUSTRATION + b"\xff" * 99)["arguments"] == only["arguments"]  # 2.2.6.1.4


SCALARS = [
    (0, "VT_EMPTY", None, (), None),
    (1, "VT_NULL", None, (), None),
    (2, "VT_I2", "h", (-2,), "-2"),
    (3, "VT_I4", "i", (-(1 << 31),), "-2147483648"),
    (4, "VT_R4", "f", (0.1,), "0.1"),
    (5, "VT_R8", "d", (-1.5e300,), "-1.5e+300"),
    (5, "VT_R8", "d", (float("nan"),), "nan"),
    (6, "VT_CY", "q", (-123456,), "-12.3456"),
    (6, "VT_CY", "q", (5,), "0.0005"),
    (7, "VT_DATE", "d", (5.25,), "1900-01-04T06:00:00"),  # the example of [MS-OAUT] 2.2.25
    (7, "VT_DATE", "d", (-1.25,), "1899-12-29T06:00:00"),
    (7, "VT_DATE", "d", (2958465.9999999999,), "2958466.0"),
    (7, "VT_DATE", "d", (2958465.999999999,), "9999-12-31T23:59:59.999"),
    (7, "VT_DATE", "d", (-657434.0,), "0100-01-01T00:00:00"),
    (7, "VT_DATE", "d", (float("inf"),), "inf"),
    (0x0A, "VT_ERROR", "I", (0x80020004,), "0x80020004"),
    (0x0B, "VT_BOOL", "H", (0xFFFF,), "true"),
    (0x0B, "VT_BOOL", "H", (0,), "false"),
    (0x0E, "VT_DECIMAL", "QQ", (2 << 16 | 0x80 << 24, 12345), "-123.45"),
    (0x0E, "VT_DECIMAL", "QQ", (1 << 32, 0), "18446744073709551616"),
    (0x0E, "VT_DECIMAL", "QQ", (3 << 16, 7), "0.007"),
    (0x10, "VT_I1", "b", (-1,), "-1"),
    (0x11, "VT_UI1", "B", (255,), "255"),
    (0x12, "VT_UI2", "H", (65535,), "65535"),
    (0x13, "VT_UI4", "I", (4294967295,), "4294967295"),
    (0x14, "VT_I8", "q", (-(1 << 63),), "-9223372036854775808"),
    (0x15, "VT_UI8", "Q", (18446744073709551615,), "18446744073709551615"),
    (0x16, "VT_INT", "i", (-7,), "-7"),
    (0x17, "VT_UINT", "I", (7,), "7"),
]


@pytest.mark.parametrize(("vt", "name", "form", "numbers", "text"), SCALARS)
def test_a_value_of_fixed_size(vt, name, form, numbers, text):
    assert _arguments(value(vt, form, *numbers)) == [(vt, name, text)]
    odd = value(0x11, "B", 1)  # what follows is aligned anew
    assert _arguments(odd, value(vt, form, *numbers), odd)[1] == (vt, name, text)


@pytest.mark.parametrize(("vt", "name", "form", "numbers", "text"), [each for each in SCALARS if each[2]])
def test_a_value_by_reference_stands_at_its_argument(vt, name, form, numbers, text):
    """rgVarRef and rgVarRefIdx, [MS-OAUT] 3.1.4.4.2; both are reversed."""
    by_reference = value(vt | 0x4000, form, *numbers, pointers=1)
    arguments = _arguments(
        string("first"), value(0), value(3, "i", 9), value(0),
        references=[(0, by_reference), (2, string("out", vt=0x4008, pointers=2))],
    )  # fmt: skip
    assert arguments == [
        (8, "VT_BSTR", "first"), (0x4008, "VT_BYREF|VT_BSTR", "out"), (3, "VT_I4", "9"),
        (vt | 0x4000, f"VT_BYREF|{name}", text),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", ""), ("Hi", "Hi"), ("odd", "odd"), ("Grüße 😀", "Grüße 😀"), ("a\0b", "a\0b"), (None, None),
     (b"abc", "616263"), (b"\x00\xd8", "\ufffd"), ("x" * 5000, "x" * 5000)],
)  # fmt: skip
def test_a_string(text, shown):
    assert _arguments(string(text), value(3, "i", 1)) == [(8, "VT_BSTR", shown), (3, "VT_I4", "1")]


def test_pointers_to_nothing_are_no_value():
    arguments = _arguments(
        value(8, "I", 0), value(0x4003, "I", 0), value(9, "I", 0), value(0x2003, "I", 0), value(0x24, "I", 0),
        value(0x400C, "I", 0), value(0x4008, "II", USER, 0),
    )  # fmt: skip
    assert [shown for _, _, shown in arguments] == [None] * 7
    assert [vt for vt, _, _ in arguments] == [8, 0x4003, 9, 0x2003, 0x24, 0x400C, 0x4008]


def test_named_arguments_and_a_property_put():
    only = call(invoke([string("new")], dispid=-4, flags=4, named=(-3,)))
    assert (only["dispatch_id"], only["dispatch_flags"], only["named_dispatch_ids"]) == (-4, 4, [-3])
    assert only["arguments"] == [(8, "VT_BSTR", "new")]
    only = call(invoke([value(3, "i", n) for n in range(40)], named=range(7, 10)))  # read alone
    assert only["named_dispatch_ids"] == [7, 8, 9]
    assert [int(shown) for _, _, shown in only["arguments"]] == list(range(40))[::-1]


def test_a_call_without_arguments():
    assert _arguments() == []


@pytest.mark.parametrize(
    ("vt", "kind", "features", "element", "form", "numbers", "shown"),
    [
        (0x2003, 3, 0, 0, "i", (1, -2, 3), "[1,-2,3]"),
        (0x2011, 0x10, 0x80, 0x11, "B", (0, 255), "[0,255]"),
        (0x2010, 0x10, 0x80, 0x10, "b", (-1,), "[-1]"),
        (0x2002, 2, 0x80, 2, "h", (-2, 2), "[-2,2]"),
        (0x200B, 2, 0x80, 0xB, "H", (0xFFFF, 0), "[true,false]"),
        (0x2004, 3, 0, 0, "f", (1.5, float("nan")), '[1.5,"nan"]'),
        (0x2005, 0x14, 0x80, 5, "d", (2.25,), "[2.25]"),
        (0x2006, 0x14, 0x80, 6, "q", (10001,), '["1.0001"]'),
        (0x2007, 0x14, 0x80, 7, "d", (5.25,), '["1900-01-04T06:00:00"]'),
        (0x2014, 0x14, 0x80, 0x14, "q", (-(1 << 63),), "[-9223372036854775808]"),
        (0x200A, 3, 0x80, 0xA, "I", (0x80020004,), '["0x80020004"]'),
        (0x2003, 3, 0x80, 3, "i", (), "[]"),
    ],
)
def test_an_array_of_numbers(vt, kind, features, element, form, numbers, shown):
    body = safearray(kind, numbers, features=features, element=element, write=numbers_of(form, *numbers))
    arguments = _arguments(string("before"), value(vt, body=body, pointers=2), value(2, "h", 5))
    assert arguments[1][2] == shown
    assert (arguments[0][2], arguments[2][2]) == ("before", "5")
    by_reference = value(vt | 0x4000, body=body, pointers=3)
    assert _arguments(value(0), references=[(0, by_reference)])[0][2] == shown


@pytest.mark.parametrize(
    ("kind", "element", "form"), [(0x10, 0x10, "b"), (2, 0x12, "H"), (3, 3, "i"), (0x14, 0x15, "Q")]
)
def test_a_long_array_of_numbers(kind, element, form):
    numbers = [number % 251 - (100 if form.islower() else 0) for number in range(5000)]
    numbers = [number - 26 if form == "b" else number for number in numbers]
    body = safearray(kind, numbers, features=0x80, element=element, write=numbers_of(form, *numbers))
    shown = _arguments(value(0x2000 | element, body=body, pointers=2))[0][2]
    assert json.loads(shown) == numbers


def test_an_array_of_more_dimensions_or_another_first_index():
    """[MS-OAUT] 2.2.30.10: bounds are in reverse order; the sizes of [0:5][0:2][0:10] are 6, 3, 11."""
    bounds = [(11, 0), (3, 0), (6, 0)]
    body = safearray(0x10, bytes(198), features=0x80, element=0x11, bounds=bounds, write=numbers_of("B", *bytes(198)))
    elements = ",".join(["0"] * 198)
    assert _arguments(value(0x2011, body=body, pointers=2))[0][2] == (
        f'{{"sizes":[6,3,11],"lower_bounds":[0,0,0],"elements":[{elements}]}}'
    )
    body = safearray(3, (1, 2), bounds=[(2, -1)], write=numbers_of("i", 1, 2))
    assert _arguments(value(0x2003, body=body, pointers=2))[0][2] == (
        '{"sizes":[2],"lower_bounds":[-1],"elements":[1,2]}'
    )


def test_an_empty_array_of_numbers_may_stand_behind_a_null_pointer():
    """pData of 2.2.30.8 is a unique pointer; pointers to strings and VARIANTs are [ref], and a max_count follows."""

    def empty(kind, *, follows):
        def put(ndr):
            ndr.put("IHHIII", 1, 1, 0, 0, 7, kind).put("II", 0, 0).put("Ii", 0, 0)
            if follows:
                ndr.put("I", 0)

        return put

    numbers = [value(0x2000 | vt, body=empty(kind, follows=False), pointers=2)
               for vt, kind in ((0x11, 0x10), (2, 2), (3, 3), (5, 0x14))]  # fmt: skip
    texts = value(0x2008, body=empty(8, follows=True), pointers=2)
    shown = [each[2] for each in _arguments(*numbers, texts, value(3, "i", 7))]
    assert shown == ["[]"] * 5 + ["7"]


def test_an_array_of_strings():
    items = [bstr("a"), None, bstr('quote " and ü'), bstr(None)]
    body = safearray(8, items, features=0x100, write=pointed(*items))
    assert _arguments(value(0x2008, body=body, pointers=2))[0] == (
        0x2008, "VT_ARRAY|VT_BSTR", '["a",null,"quote \\" and ü",null]',
    )  # fmt: skip


def test_an_array_of_variants_says_their_types():
    inner = value(0x2002, body=safearray(2, (1, 2), features=0x80, element=2, write=numbers_of("h", 1, 2)), pointers=2)
    items = [value(3, "i", 1), string("x"), inner, value(6, "q", 5), value(0), None]
    body = safearray(0xC, items, features=0x880, element=0xC, write=pointed(*items))
    assert _arguments(value(0x200C, body=body, pointers=2), value(3, "i", 7)) == [
        (0x200C, "VT_ARRAY|VT_VARIANT",
         '[{"VT_I4":1},{"VT_BSTR":"x"},{"VT_ARRAY|VT_I2":[1,2]},{"VT_CY":"0.0005"},{"VT_EMPTY":null},null]'),
        (3, "VT_I4", "7"),
    ]  # fmt: skip


def test_a_variant_by_reference():
    by_reference = value(0x400C, body=lambda ndr: variant(ndr, 3, "i", 5), pointers=2)
    # The fact sheet has pointer, pointer, VARIANT: VARIANT* pvarVal, and VARIANT is a pointer itself.
    assert _arguments(value(0), references=[(0, by_reference)]) == [(0x400C, "VT_BYREF|VT_VARIANT", '{"VT_I4":5}')]


@pytest.mark.parametrize(("vt", "name"), [(9, "VT_DISPATCH"), (0xD, "VT_UNKNOWN")])
def test_a_persisted_object_is_recognised(vt, name):
    """[MC-COMQC] 2.2.6.1.5; only clSize gives its length (D26)."""
    shown = f'{{"clsid":"{CLSID}","bytes":16}}'
    arguments = _arguments(value(3, "i", 1), value(vt, body=persisted_object(), pointers=1), string("after"))
    assert arguments == [(3, "VT_I4", "1"), (vt, name, shown), (8, "VT_BSTR", "after")]
    by_reference = value(vt | 0x4000, body=persisted_object(), pointers=2)
    # Behind two pointers the header stands at 28: what clSize rounds up to counts as the object's.
    shown = f'{{"clsid":"{CLSID}","bytes":20}}'
    only = call(invoke([value(0)], references=[(0, by_reference)], tail=bytes(16)))
    assert only["arguments"] == [(vt | 0x4000, f"VT_BYREF|{name}", shown)]


@pytest.mark.parametrize("fields", [b"", b"abcde", bytes(range(16))])
def test_a_record_shows_its_type_and_its_fields(fields):
    record = value(0x24, body=brecord(fields), pointers=1)
    shown = {"type": str(RECORD_TYPE), "library": str(RECORD_LIBRARY), "version": "1.2", "fields": fields.hex()}
    persisted = value(0x24, body=brecord(fields, persisted_object()), pointers=1)
    arguments = _arguments(record, persisted, string("after"))
    assert [json.loads(text) for _, _, text in arguments[:2]] == [shown, {"clsid": str(CLSID), "fields": fields.hex()}]
    assert arguments[2] == (8, "VT_BSTR", "after")


def test_a_record_without_fields_and_an_array_of_records():
    def elements(ndr):
        ndr.put("I", USER)
        brecord(b"12345678")(ndr)

    array = safearray(0x24, [0], features=0x20, bounds=[(2, 0)], write=elements)
    arguments = _arguments(
        value(0x24, body=brecord(None), pointers=1), value(0x2024, body=array, pointers=2), string("z")
    )
    texts = [json.loads(text) for _, _, text in arguments[:2]]
    assert [(text["type"], text["fields"]) for text in texts] == [
        (str(RECORD_TYPE), None),
        (str(RECORD_TYPE), b"12345678".hex()),
    ]
    assert (texts[1]["sizes"], arguments[2]) == ([2], (8, "VT_BSTR", "z"))


def test_records_that_are_not_understood_and_arrays_of_objects_stay_bytes():
    record = value(0x24, body=lambda ndr: ndr.put("IIII", 0, 8, USER, USER).raw(bytes(24)), pointers=1)
    objects = value(0x200D, body=safearray(0xD, range(2), features=0x200, write=lambda ndr: ndr.raw(bytes(76))),
                    pointers=2)  # fmt: skip
    arguments = _arguments(record, objects, string("after"))
    assert arguments[0] == (0x24, "VT_RECORD", '{"bytes":40}')
    assert arguments[1][:2] == (0x200D, "VT_ARRAY|VT_UNKNOWN")
    assert arguments[1][2].startswith('{"elements":2,"bytes":')
    assert arguments[2] == (8, "VT_BSTR", "after")


def test_an_argument_that_cannot_be_read_leaves_those_read_before():
    """rgvarg is reversed: the arguments read before are the last parameters."""
    only = call(invoke([value(3, "i", 2), value(0x0F, "I", 0), string("never")]))
    assert only["arguments"] == [(None, None, None), (None, None, None), (3, "VT_I4", "2")]
    assert only["errors"] == [("malformed", "rgvarg.vt", 64 + 24 + 16)]
    assert only["dispatch_id"] == 1


def _nested(depth):
    """Return a VARIANT with an array of one VARIANT with an array of one VARIANT, and so on."""
    if not depth:
        return value(3, "i", 1)
    inner = _nested(depth - 1)
    return value(0x200C, body=safearray(0xC, [inner], features=0x880, element=0xC, write=pointed(inner)), pointers=2)


def test_nesting_is_bounded():
    shown = _arguments(_nested(8))[0][2]
    assert shown == '[{"VT_ARRAY|VT_VARIANT":' * 7 + '[{"VT_I4":1}]' + "}]" * 7
    only = call(invoke([_nested(9)]))
    assert only["errors"][0][:2] == ("unsupported", "rgvarg.array" + 8 * ".array")


HEAD = Ndr().put("i", 1).raw(bytes(16)).put("II", 0, 1)


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        (struct.pack("<IIII", 0, 0, 1, 0), ("malformed", "cArgs", 36)),
        (struct.pack("<IIII", USER, 0, 0, 1), ("malformed", "cArgs", 36)),
        (struct.pack("<IIII", USER, 0, 1, 1), ("malformed", "cArgs", 36)),
        (struct.pack("<IIIII", USER, 0, 2, 0, 1), ("malformed", "rgvarg.max_count", 44)),
        (struct.pack("<IIIII", USER, 0, 0xFFFFFFFF, 0, 0xFFFFFFFF), ("truncated", "rgvarg", 48)),
        (struct.pack("<IIIIIII", 0, 0, 0, 0, 2, 2, 0), ("truncated", "rgVarRefIdx", 52)),
        (struct.pack("<IIIIIII", 0, 0, 0, 0, 1, 1, 0), ("malformed", "rgVarRefIdx", 52)),
        (struct.pack("<III", 0, 0, 0), ("truncated", "cNamedArgs", 40)),
    ],
)
def test_no_count_is_believed(tail, error):
    only = call(bytes(HEAD.out) + tail)
    assert only["errors"] == [error]
    assert (only["dispatch_id"], only["dispatch_flags"]) == (1, 1)


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (value(3, "i", 1, tag=4), ("malformed", "rgvarg.tag", 72)),
        (value(0x4000, pointers=1), ("malformed", "rgvarg.vt", 76)),
        (value(8, body=lambda ndr: ndr.put("III", 2, 4, 3), pointers=1), ("malformed", "rgvarg.bstr.max_count", 80)),
        (value(8, body=lambda ndr: ndr.put("III", 1, 0xFFFFFFFF, 1), pointers=1),
         ("malformed", "rgvarg.bstr.max_count", 80)),
        (value(8, body=lambda ndr: ndr.put("III", 1 << 30, 1 << 31, 1 << 30), pointers=1),
         ("truncated", "rgvarg.bstr", 92)),
        (value(0xE, "QQ", 29 << 16, 0), ("malformed", "rgvarg.value", 80)),
        (value(0xE, "QQ", 1 << 24, 0), ("malformed", "rgvarg.value", 80)),
        (value(9, body=persisted_object(size=40), pointers=1), ("malformed", "rgvarg.object.Size", 84)),
        (value(0x2003, body=safearray(0xA, (), write=lambda ndr: ndr), pointers=2),
         ("malformed", "rgvarg.array.sfType", 100)),
    ],
)  # fmt: skip
def test_a_variant_that_contradicts_itself_is_malformed(argument, error):
    assert call(invoke([argument]))["errors"] == [error]
