"""Hostile and damaged bodies give a row with a reason or an error, never an exception; both decoders agree."""

import cProfile
import struct
import tracemalloc

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from comqc.helpers import (
    IID,
    both,
    bstr,
    chdr,
    column,
    invoke,
    message,
    method,
    numbers_of,
    part,
    persisted_object,
    pointed,
    safearray,
    secd,
    secr,
    string,
    value,
    variant,
)  # fmt: skip
from comqc.test_dispatch import SCALARS, _nested
from example_counts import examples
from udfs.comqc.body_decoder import decode_bodies

ONE = method(b"12345678", iid=IID, opnum=3)
STRINGS = [bstr("a"), None, bstr("bcd")]
ARGUMENTS = [
    *(value(vt, form, *numbers) for vt, _, form, numbers, _ in SCALARS),
    string("Hi"), string(None), string("é"), string(b"abc"), _nested(2),
    value(9, body=persisted_object(), pointers=1),
    value(0x2003, body=safearray(3, (1, 2), write=numbers_of("i", 1, 2)), pointers=2),
    value(0x2008, body=safearray(8, STRINGS, features=0x100, write=pointed(*STRINGS)), pointers=2),
]  # fmt: skip
REFERENCES = [
    value(0x4003, "i", 5, pointers=1), string("out", vt=0x4008, pointers=2), value(0x4005, "d", 1.5, pointers=1),
    value(0x400C, body=lambda ndr: variant(ndr, 3, "i", 5), pointers=2),
]  # fmt: skip
BYTES = [0, 1, 2, 3, 4, 5, 8, 0x0C, 0x10, 0x18, 0x20, 0x40, 0x55, 0x60, 0x7F, 0x80, 0xFF]


@st.composite
def dispatch_calls(draw):
    arguments = draw(st.lists(st.sampled_from(ARGUMENTS), max_size=15))
    references = []
    if arguments and draw(st.booleans()):
        place = draw(st.integers(0, len(arguments) - 1))
        arguments[place] = value(0)
        references.append((place, draw(st.sampled_from(REFERENCES))))
    named = range(draw(st.integers(0, min(2, len(arguments)))))
    return method(invoke(arguments, named=named, references=references, tail=draw(st.binary(max_size=9))))


def headers():
    return st.one_of(
        st.just(ONE), st.just(method(b"x", iid=None)), st.just(method(b"", iid=None, opnum=1)), st.just(secd()),
        st.sampled_from([secr(200), secr(224), secr(248)]), st.just(part()), dispatch_calls(),
    )  # fmt: skip


@st.composite
def messages(draw):
    body = message(chdr(), *draw(st.sampled_from([(secd(),), (part(), secd()), ()])), *draw(st.lists(headers())))
    if draw(st.booleans()):
        body = bytearray(body)
        for _ in range(draw(st.integers(1, 3))):
            body[draw(st.integers(0, len(body) - 1))] = draw(st.sampled_from(BYTES))
        body = bytes(body)
    size = len(body)
    if draw(st.integers(0, 3)) == 0:
        body = body[: draw(st.integers(0, len(body)))]
    return body, size if draw(st.booleans()) else None


def _check(cases):
    for row in both(*(body for body, _ in cases), body_bytes=[size for _, size in cases]):
        assert not (row["comqc_rejected"] and row["calls"])
        for call in row["calls"]:
            assert all(code in ("truncated", "malformed", "unsupported") for code, _, _ in call["errors"])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(messages(), max_size=5))
def test_messages_with_bytes_changed_give_rows_and_both_readers_agree(cases):
    _check(cases)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=200), st.none() | st.integers(-9, 1 << 40)), max_size=6))
def test_any_bytes_give_rows_and_both_readers_agree(cases):
    _check(cases)
    _check([(message(chdr(), secd(), ONE, raw), size) for raw, size in cases])


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.binary(max_size=120), max_size=6))
def test_any_marshaled_data_give_rows_and_both_readers_agree(data):
    """Also behind a plausible beginning, so that more than the counts is tested."""
    head = struct.pack("<i16sIIIIII", 1, bytes(16), 0, 1, 1, 0, 1, 0) + struct.pack("<II", 1, 1)
    _check([(message(chdr(), secd(), *(method(raw) for raw in data)), None)])
    _check([(message(chdr(), secd(), *(method(head + bytes(4) + raw) for raw in data)), None)])


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_dispatch_calls_with_bytes_changed_give_rows_and_both_readers_agree(data):
    bodies = []
    for _ in range(3):
        call = bytearray(data.draw(dispatch_calls()))
        for _ in range(data.draw(st.integers(1, 3))):
            call[data.draw(st.integers(48, len(call) - 1))] = data.draw(st.sampled_from(BYTES))
        bodies.append((message(chdr(), secd(), bytes(call)), None))
    _check(bodies)


def test_a_bad_call_does_no_harm_to_its_neighbours():
    good, bad = method(invoke([string("x"), value(3, "i", 1)])), method(b"\xff" * 60)
    (row,) = both(message(chdr(), secd(), good, bad, good, method(b""), good))
    calls = row["calls"]
    assert [call["arguments"] for call in calls][::2] == [[(3, "VT_I4", "1"), (8, "VT_BSTR", "x")]] * 3
    assert [len(call["errors"]) for call in calls] == [0, 1, 0, 1, 0]


def _work(bodies):
    """Return the number of function calls and the peak memory, which are reproducible."""
    column(bodies[:1])
    array = pa.array(bodies, pa.binary())
    profile = cProfile.Profile()
    tracemalloc.start()
    profile.enable()
    decode_bodies(array)
    profile.disable()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return sum(entry.callcount for entry in profile.getstats()), peak


def _grows_with(make, *, bytes_for_one):
    small, large = make(512), make(8192)
    small_calls, _ = _work([small])
    large_calls, large_peak = _work([large])
    assert large_calls < small_calls * 16 * 2
    assert large_peak < len(large) * bytes_for_one


def test_work_grows_with_the_bytes_and_not_faster():
    _grows_with(lambda n: message(chdr(), secd(), *[ONE] * n), bytes_for_one=20)
    _grows_with(lambda n: message(chdr(), secd(), *[ONE, secr(200)] * n, ONE), bytes_for_one=20)
    _grows_with(lambda n: message(chdr(), secd(), method(invoke([value(3, "i", 1)] * n))), bytes_for_one=20)
    _grows_with(lambda n: message(chdr(), *[secd()] * n, ONE), bytes_for_one=20)
    elements = lambda n: safearray(0x10, bytes(n), features=0x80, element=0x11, write=numbers_of("B", *bytes(n)))  # noqa: E731
    _grows_with(
        lambda n: message(chdr(), secd(), method(invoke([value(0x2011, body=elements(16 * n), pointers=2)]))),
        bytes_for_one=20,
    )


def test_huge_counts_cost_nothing():
    for count in (1 << 20, 1 << 31, 0xFFFFFFFF):
        head = struct.pack("<i16sIII", 1, bytes(16), 0, 1, 0x20000)
        arguments = head + struct.pack("<IIII", 0, count, 0, count)
        references = struct.pack("<i16sIIIIIIII", 1, bytes(16), 0, 1, 0, 0, 0, 0, count, count)
        array = safearray(0x10, (), features=0x80, element=0x11, write=lambda ndr: ndr)
        inner = bytearray(invoke([value(0x2011, body=array, pointers=2)]))
        inner[112:116] = struct.pack("<I", count)
        for data in (arguments, references, bytes(inner)):
            calls, peak = _work([message(chdr(), secd(), method(data))])
            assert calls < 20_000
            assert peak < 1 << 20
