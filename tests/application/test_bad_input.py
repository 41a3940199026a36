"""Whatever bytes come, the readers raise nothing, use bounded memory and time, and say what is wrong."""

import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

import framework_messages as written
from example_counts import examples
from fuzz.harnesses import HARNESSES, application_harnesses
from udfs.application import nservicebus
from udfs.application.application_message import MAX_BYTES, NativeFacts
from udfs.application.message_reader import read_application_message

NAMES = sorted(application_harnesses())
MEGABYTE = 1 << 20


def read(extension, body=b"", body_type=0):
    return read_application_message(extension, body, body_type, NativeFacts())


def errors(message):
    return [(code, field) for code, field, _ in message.application_errors]


@pytest.mark.parametrize("name", NAMES)
def test_prefixes_and_changed_bytes(name):
    for number, seed in enumerate(sorted({*HARNESSES[name].seeds()})):
        for place in range(number % 7, len(seed), max(len(seed) // 40, 1)):
            HARNESSES[name].run(seed[:place])
            HARNESSES[name].run(seed[:place] + bytes([seed[place] ^ 0x81]) + seed[place + 1 :])


@options(max_examples=examples(400), deadline=None)
@given(data=st.data())
def test_any_bytes(data):
    name = data.draw(st.sampled_from(NAMES))
    seeds = sorted({*HARNESSES[name].seeds()})
    seed = data.draw(st.sampled_from(seeds))
    at = data.draw(st.integers(0, len(seed)))
    HARNESSES[name].run(seed[:at] + data.draw(st.binary(max_size=40)) + seed[at + data.draw(st.integers(0, 20)) :])


# Texts of headers: all characters that an extension of NServiceBus can hold, and those around its own syntax.
TEXTS = st.text(st.sampled_from("aZ09 .<>&'\"\r\n\t]]>\0\x1f\x85\xa0é漢\ufdd0\ufffd😀"), max_size=8)


@options(max_examples=examples(1000), deadline=None)
@given(
    headers=st.dictionaries(TEXTS, TEXTS, max_size=5),
    indent=st.sampled_from(["", "\r\n  ", "\x85", "x"]),
    root=st.sampled_from(["", " xmlns:xsi='urn:a'", ' xmlns:xsi="a" xmlns:xsi="b"', ' a="<"']),
    change=st.tuples(st.integers(0, 400), st.sampled_from([b"", b"<", b"\0", b"&", b"\xff", b" ", b"]]>"])),
)
def test_plain_documents_are_read_as_the_parser_reads_them(headers, indent, root, change):
    """The quick way for documents without anything escaped gives what the parser gives, or nothing."""
    extension = written.nservicebus(headers, indent=indent).replace(
        b"<ArrayOfHeaderInfo", b"<ArrayOfHeaderInfo" + root.encode()
    )
    extension = extension[: change[0]] + change[1] + extension[change[0] :]
    end = extension.rfind(b"</ArrayOfHeaderInfo>")
    plain = nservicebus.read_plain_headers(extension[:end]) if end >= 0 else None
    if plain is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nservicebus, "read_plain_headers", lambda _document: None)
            assert nservicebus.read_headers(extension) == (plain, None)


def test_the_usual_document_is_read_the_quick_way():
    extension = written.nservicebus(written.NSB_HEADERS)
    assert nservicebus.read_plain_headers(extension[: extension.rfind(b"</Arr")]) == written.NSB_HEADERS


ENTITIES = (
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;&x;">]><a>&y;</a>',
    b'<?xml version="1.0"?><!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
)


@pytest.mark.parametrize("document", ENTITIES)
def test_document_types_are_refused(document):
    message = read(None, document)
    assert (message.framework, errors(message)) == (None, [("malformed", "body.DOCTYPE")])
    extension = document.replace(b"<a", b"<ArrayOfHeaderInfo").replace(b" a ", b" ArrayOfHeaderInfo ")
    assert read(extension).application_headers is None


MANY = b"".join(b"<HeaderInfo><Key>%d</Key></HeaderInfo>" % number for number in range(9999))
PREFIXES = b"".join(b"\x09" + written.prefixed(str(number)) + b"\0" for number in range(99999))
ATTRIBUTES = b" ".join(b"a%d=''" % number for number in range(99999))
BOOLEANS = written.class_record(1, "a", dict.fromkeys(map(str, range(999)), (0, b"\1", b"\0")))
ENDLESS = written.int32(1) + written.int32(2**31 - 1) + b"\x0a" * MEGABYTE
NAMES_OF_MEMBERS = written.int32(1) + b"\1a" + written.int32(2**31 - 1) + bytes(MEGABYTE)
LARGE = {
    "deep elements": (None, b"<a>" * (MEGABYTE // 3), 0),
    "deep lists": (None, b"[" * MEGABYTE, 0),
    "deep objects": (b'{"rbs2-a":"", "b":' + b'{"a":' * (MEGABYTE // 5), b"", 0),
    "deep headers": (b"<ArrayOfHeaderInfo>" + b"<a>" * (MEGABYTE // 3), b"", 0),
    "white space": (b"<ArrayOfHeaderInfo>" + b" " * MEGABYTE + b"</ArrayOfHeaderInfo>", b"", 0),
    "many headers": (b"<ArrayOfHeaderInfo>" + MANY, b"", 0),
    "large body": (None, b"<a>" + b"x" * (4 * MEGABYTE) + b"</a>", 0),
    "large text": (None, b"x" * (4 * MEGABYTE), 0),
    "references": (b"<ArrayOfHeaderInfo>" + b"&#x1;" * (MEGABYTE // 5), b"", 0),
    "prefixes": (None, written.datagram(7, b"\x40\1a" + PREFIXES), 0),
    "attributes": (None, b"<a " + ATTRIBUTES + b"/>", 0),
    "deep records": (None, written.datagram(7, b"\x40\1a" * (MEGABYTE // 3)), 0),
    "envelopes": (None, written.sessiongram(8, *[b"\0"] * 300_000), 0),
    "class": (None, written.stream_header() + BOOLEANS + b"\1\2\0\0\0\1\0\0\0" * 50_000, 0x300),
    "array": (None, written.stream_header() + b"\x10" + ENDLESS, 0x300),
    "members": (None, written.stream_header() + b"\5" + NAMES_OF_MEMBERS, 0x300),
    "documents": (written.mass_transit("bson"), b"\xff\xff\xff\x7f\3a\0" * (MEGABYTE // 7), 0),
    "classes": (written.json_extension({"rbs2-error-details": "a+" * 2048}), b"", 0),
    "exceptions": (written.json_extension({"rbs2-error-details": "a." * (MEGABYTE // 3)}), b"", 0),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_and_deep_ones_take_bounded_time(name):
    extension, body, body_type = LARGE[name]
    begin = time.process_time()
    message = read(extension, body, body_type)
    assert time.process_time() - begin < 2
    if name not in ("white space", "large text", "exceptions", "classes", "attributes", "deep lists"):
        assert message.application_errors != []


def test_what_is_too_large_says_so():
    body = b"<a>" + b"x" * (4 * MEGABYTE) + b"</a>"
    message = read(None, body)
    assert (message.body_format, message.application_errors) == ("xml", [("too_large", "body", MAX_BYTES)])
    many = read(LARGE["many headers"][0])
    assert (len(many.application_headers), errors(many)) == (1000, [("too_large", "extension.HeaderInfo")])


def test_bodies_that_a_capture_cut_are_read_as_far_as_they_go():
    for whole, cut in (
        (partial(read, None, written.BODY_XML), partial(read, None, written.BODY_XML[:-20])),
        (partial(read, None, b'{"a":1,"b":[1,2,3],"c":0}'), partial(read, None, b'{"a":1,"b":[1,2,3],"c"')),
        (partial(read, None, written.order_stream(), 0x300), partial(read, None, written.order_stream()[:-9], 0x300)),
    ):
        assert whole().application_errors == []
        message = cut()
        assert [code for code, _ in errors(message)] == ["truncated"]
        assert message.body_format == whole().body_format
    assert cut().body_root == whole().body_root
