"""The normal form of every kind of queue name ([MS-MQMQ] 2.1), and that normalizing twice changes nothing."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.queues.normal_form import normalize_queue_name, normalize_queue_names, split_queue_suffix
from udfs.queues.queue_format import QueueFormat, build_format_name

GUID = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
UPPER = GUID.upper()

NAMES = [
    ("DIRECT=OS:Srv1\\PRIVATE$\\Orders", "srv1\\private$\\orders"),
    ("direct=os:srv1.example.com\\Orders;Journal", "srv1.example.com\\orders;journal"),
    ("DIRECT=TCP:10.0.0.1\\private$\\q", "10.0.0.1\\private$\\q"),
    ("DIRECT=TCP:FE80:0:0::1\\q", "fe80::1\\q"),
    ("DIRECT=TCP:[fe80::1]\\q", "fe80::1\\q"),
    ("DIRECT=TCP:010.0.0.1\\q", "010.0.0.1\\q"),
    ("DIRECT=IPX:00000012:00a0234f7500\\q", "00000012:00a0234f7500\\q"),
    ("DIRECT=HTTP://Host:8080/msmq/Private$/Q", "direct=http://host:8080/msmq/private$/q"),
    ("DIRECT=HTTPS://Host/MSMQ\\q", "direct=https://host/msmq\\q"),
    ("https://Host/MSMQ/q", "direct=https://host/msmq/q"),
    ("OS:Host\\q", "host\\q"),
    ("TCP:10.0.0.1\\q;sub", "10.0.0.1\\q;sub"),
    ("DIRECT=OS:H\\SYSTEM$;DEADXACT", "h\\system$;deadxact"),
    ("Srv1\\Orders", "srv1\\orders"),
    ("SRV1\\private$\\Orders;Sub", "srv1\\private$\\orders;sub"),
    (".\\private$\\q", ".\\private$\\q"),
    (f"PUBLIC={UPPER}", f"public={GUID}"),
    (f"PUBLIC={{{UPPER}}};JOURNAL", f"public={GUID};journal"),
    (f"PRIVATE={UPPER}\\9", f"{GUID}\\00000009"),
    (f"PRIVATE={GUID}\\0000ABCD;JOURNAL", f"{GUID}\\0000abcd;journal"),
    (f"{GUID}\\9", f"{GUID}\\00000009"),
    (f"MACHINE={UPPER};DEADLETTER", f"machine={GUID};deadletter"),
    (f"CONNECTOR={UPPER};XACTONLY", f"connector={GUID};xactonly"),
    (f"DL={UPPER}@Corp.Example", f"dl={GUID}@corp.example"),
    ("MULTICAST=224.1.2.3:8001", "multicast=224.1.2.3:8001"),
    (f"DIRECT=OS:h\\a,PRIVATE={UPPER}\\1", f"h\\a,{GUID}\\00000001"),
    ("DIRECT=", None), ("DIRECT=OS:", None), ("PRIVATE=", None), ("", None), ("nonsense", "nonsense"), (None, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "normal"), NAMES)
def test_a_name_has_its_normal_form_and_keeps_it(name, normal):
    assert normalize_queue_name(name) == normal
    assert normalize_queue_name(normal) == normal


def test_whole_columns():
    names, normal = (list(part) for part in zip(*NAMES, strict=True))
    assert normalize_queue_names(pa.array(names * 3, pa.string())).to_pylist() == normal * 3
    assert normalize_queue_names(pa.array(names, pa.string()).slice(3, 4)).to_pylist() == normal[3:7]
    assert normalize_queue_names(pa.array([], pa.string())).to_pylist() == []
    assert normalize_queue_names(pa.nulls(2, pa.string())).to_pylist() == [None, None]


@given(st.text(max_size=40))
def test_any_text_that_names_something_has_a_normal_form(text):
    normal = normalize_queue_name(text)
    assert normal != ""
    assert normal is not None or not text or text.endswith((":", "="))


@given(st.integers(0, 9), st.integers(0, 255), st.integers(0, 2**32 - 1), st.none() | st.text(max_size=9))
def test_any_queue_format_has_a_name_or_none(qft, suffix, number, text):
    name = build_format_name(QueueFormat(qft, suffix, GUID, number, 80, text))
    assert (name is None) == (qft in (0, 9) or (qft in (3, 8) and text is None))
    if qft not in (3, 8):
        assert (normalize_queue_name(name) is None) == (name is None)


@pytest.mark.parametrize(
    ("queue", "base", "suffix"),
    [("h\\q;journal", "h\\q", ";journal"), ("h\\q", "h\\q", ""), (f"machine={GUID};deadxact", f"machine={GUID}",
     ";deadxact"), ("direct=http://h/q;x", "direct=http://h/q;x", ""), ("h\\a;b,h\\c;d", "h\\a;b,h\\c;d", "")],
)  # fmt: skip
def test_a_journal_or_subqueue_has_a_queue_that_it_belongs_to(queue, base, suffix):
    assert split_queue_suffix(queue) == (base, suffix)
