"""Pseudonyms have the form of the name, are the same for the same name, and hold nothing of it."""

import ipaddress
import json
import re
import string

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.columns.arrays import over_distinct
from udfs.pseudonyms import (
    KIND_ADDRESSES,
    KIND_HOSTS,
    KIND_LABELS,
    KIND_QUEUES,
    PSEUDONYM_KINDS,
    Pseudonymizer,
)
from udfs.queues.format_name_parser import parse_format_name, to_format_name
from udfs.queues.normal_form import normalize_queue_name

KEY = bytes(range(32))
ALL = Pseudonymizer(PSEUDONYM_KINDS, KEY)
GUID = "0e1b7d1c-1111-2222-3333-444455556666"

word = st.text(string.ascii_letters + string.digits + "-_äé ", min_size=1, max_size=12).map(str.strip).filter(bool)
address = st.ip_addresses().map(str)
host = st.one_of(word, st.tuples(word, word, word).map(".".join), address)
path = st.tuples(st.sampled_from(["", "private$\\"]), word, st.sampled_from(["", ";journal", ";Deadletter"])).map(
    "".join
)
direct = st.tuples(st.sampled_from(["DIRECT=OS:", "os:", ""]), word, path).map(lambda t: f"{t[0]}{t[1]}\\{t[2]}")
tcp = st.tuples(st.sampled_from(["DIRECT=TCP:", "tcp:"]), address, path).map(lambda t: f"{t[0]}{t[1]}\\{t[2]}")
web = st.tuples(host.filter(lambda text: ":" not in text), word).map(
    lambda t: f"DIRECT=https://{t[0]}:443/msmq/private$/{t[1]}"
)
by_guid = st.sampled_from([f"PUBLIC={GUID}", f"PRIVATE={GUID}\\0000000A", f"MACHINE={GUID};DEADXACT", f"{GUID}\\a"])
one_name = st.one_of(direct, tcp, web, by_guid, st.just("MULTICAST=225.2.3.4:8001"))


@given(one_name)
def test_names_have_one_pseudonym_however_they_are_written(name):
    """The normal form of a name's pseudonym is the pseudonym of its normal form: rows of gold still join."""
    assert normalize_queue_name(ALL.queue_name(name)) == normalize_queue_name(
        ALL.queue_name(normalize_queue_name(name))
    )
    assert normalize_queue_name(ALL.queue_name(name.upper())) == normalize_queue_name(ALL.queue_name(name))


@given(one_name)
def test_the_pseudonym_of_a_format_name_is_one(name):
    told = ALL.queue_name(name)
    if "=" in name.partition("\\")[0] and "https" not in name:
        assert parse_format_name(told).qft == parse_format_name(name).qft
    assert parse_format_name(to_format_name(told)) is not None or "=" not in told


@given(
    st.lists(
        st.one_of(direct.filter(lambda text: text.startswith("DIRECT")), by_guid.filter(lambda t: "=" in t)), min_size=2
    )
)
def test_of_several_elements_each_is_replaced(names):
    assert ALL.queue_name(",".join(names)) == ",".join(map(ALL.queue_name, names))


@given(host)
def test_nothing_of_a_name_is_left(text):
    told = ALL.host_name(text)
    assert text.lower() in ("localhost", ".", "*") or told.lower() != text.lower()
    assert told == ALL.host_name(text.upper())


@given(address)
def test_an_address_becomes_a_local_one(text):
    told = ipaddress.ip_address(ALL.address(text))
    assert told.version == 6
    assert told in ipaddress.ip_network("fd00::/8")


def test_an_address_is_one_however_it_is_spelt():
    assert ALL.address("2001:DB8:0:0::1") == ALL.address("2001:db8::1")
    assert ALL.queue_name("DIRECT=TCP:10.1.2.3\\q").partition(":")[2] == ALL.queue_name("10.1.2.3\\q")


def test_a_machine_is_found_with_its_domain_and_without():
    assert ALL.host_name("srv1.example.com").partition(".")[0] == ALL.host_name("SRV1") == ALL.host_name("\\\\srv1")


@pytest.mark.parametrize(
    "text",
    [f"PUBLIC={GUID};JOURNAL", f"PRIVATE={GUID}\\0000000a", f"{GUID}\\0000000a", f"MACHINE={GUID};DEADXACT",
     ".\\private$\\order_queue$", ""],
)  # fmt: skip
def test_what_names_nobody_stays(text):
    assert ALL.queue_name(text) == text


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (KIND_QUEUES, r"DIRECT=OS:srv1\private$\queue-#;queue-#"),
        (KIND_HOSTS, r"DIRECT=OS:host-#\private$\orders;poisoned"),
        (KIND_ADDRESSES, r"DIRECT=OS:srv1\private$\orders;poisoned"),
        (KIND_LABELS, r"DIRECT=OS:srv1\private$\orders;poisoned"),
    ],
)
def test_only_the_kinds_asked_for_are_replaced(kind, told):
    text = Pseudonymizer([kind], KEY).queue_name(r"DIRECT=OS:srv1\private$\orders;poisoned")
    assert re.sub("-[0-9a-f]{12}", "-#", text) == told


def test_another_key_gives_other_pseudonyms():
    other = Pseudonymizer(PSEUDONYM_KINDS, KEY[::-1])
    for method in ("address", "host_name", "queue_part", "label", "sender_name", "row_key"):
        assert getattr(other, method)("10.0.0.7") != getattr(ALL, method)("10.0.0.7")
    assert other.key_fingerprint() != ALL.key_fingerprint()


@pytest.mark.parametrize(("kinds", "key"), [(["colours"], KEY), (PSEUDONYM_KINDS, b"short")])
def test_what_cannot_be_is_refused(kinds, key):
    with pytest.raises(ValueError, match=r"no such kinds|fewer than 16"):
        Pseudonymizer(kinds, key)


def test_the_key_is_not_shown():
    assert KEY.hex() not in repr(ALL)
    assert str(KEY) not in repr(ALL)


def test_texts_of_unknown_form_in_json():
    value = [{"vt": 4127, "value": ["10.0.0.7", "IP=10.0.0.7:1801", "srv1", r"OS:srv1\q", GUID, None, 7, True]}]
    told = json.loads(ALL.json_text(json.dumps(value)))[0]
    assert told["vt"] == 4127
    assert told["value"][0] == ALL.address("10.0.0.7")
    assert told["value"][1] == f"IP=[{ALL.address('10.0.0.7')}]:1801"
    assert told["value"][2] == ALL.host_name("srv1")
    assert told["value"][3] == ALL.queue_name(r"OS:srv1\q")
    assert told["value"][4:] == [GUID, None, 7, True]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("IPv6=fe80::1", f"IPv6={ALL.address('fe80::1')}"),
        (f"FOREIGN={GUID}", f"FOREIGN={GUID}"),
        (r"\\srv1", rf"\\{ALL.host_name('srv1')}"),
        ("srv1:1801", f"{ALL.host_name('srv1')}:1801"),
        ("2024", ALL.host_name("2024")),
        ("7T1E-4.0Z", ALL.host_name("7T1E-4.0Z")),
    ],
)
def test_next_hops_and_addresses_of_histories(text, told):
    assert ALL.any_text(text) == told


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '"\\ud800"x'])
def test_what_is_no_json_is_nothing(text):
    assert ALL.json_text(text) == "null"


@given(st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))))
def test_arrays_keep_their_nulls_and_places(texts):
    told = over_distinct(pa.array(texts, pa.string()), str.upper, pa.string())
    assert told.to_pylist() == [None if text is None else text.upper() for text in texts]


@pytest.mark.parametrize(
    ("text", "pseudonym"),
    [
        ("Sales", ALL.queue_part("sales")),
        ("sales@SRV1", f"{ALL.queue_part('sales')}@{ALL.host_name('srv1')}"),
        ("sales@10.0.0.7", f"{ALL.queue_part('sales')}@{ALL.address('10.0.0.7')}"),
        ("srv1\\private$\\sales", ALL.queue_name("srv1\\private$\\sales")),
        ("FormatName:DIRECT=OS:srv1\\sales", "FormatName:" + ALL.queue_name("DIRECT=OS:srv1\\sales")),
        ("msmq.formatname:DIRECT=OS:srv1\\q", "msmq.formatname:" + ALL.queue_name("DIRECT=OS:srv1\\q")),
        ("net.msmq://srv1/private/sales", f"net.msmq://{ALL.host_name('srv1')}/private/{ALL.queue_part('sales')}"),
        ("msmq://srv1/sales?tx=true", f"msmq://{ALL.host_name('srv1')}/{ALL.queue_part('sales')}?tx=true"),
        ("http://srv1:80/a", f"http://{ALL.host_name('srv1')}:80/{ALL.queue_part('a')}"),
        ("net.tcp://[fd00::1]:80/a", f"net.tcp://[{ALL.address('fd00::1')}]:80/{ALL.queue_part('a')}"),
    ],
)  # fmt: skip
def test_an_applications_addresses_have_the_pseudonyms_of_their_parts(text, pseudonym):
    assert ALL.application_address(text) == pseudonym


@pytest.mark.parametrize(
    "text", ["msmq://secret:secret@srv/q", "msmq://h/q?secret=1", "secret://h/q", "http://h/#secret"]
)
def test_other_parts_of_addresses_are_replaced_whatever_the_kinds(text):
    assert "secret" not in Pseudonymizer([], KEY).application_address(text)
    assert Pseudonymizer([], KEY).application_address("sales@srv1") == "sales@srv1"


@pytest.mark.parametrize("text", [GUID, GUID.upper(), f"urn:uuid:{GUID}", f"{GUID}\\77", f"{{{GUID}}}"])
def test_ids_that_are_guids_stay_and_others_are_hashed(text):
    assert ALL.application_id(text) == text
    assert ALL.application_id(f"order {text}") == ALL.known_text(f"order {text}", str.isspace) != f"order {text}"


@given(st.text(max_size=40))
def test_any_address_has_a_pseudonym(text):
    assert ALL.application_address(text) == ALL.application_address(text)
