"""Rules on messages of COM+ queued components, on bodies built from [MC-COMQC] and decoded as silver decodes them."""

import pyarrow as pa
import pytest

from comqc.helpers import IID, MARKER, chdr, message, method, secd
from findings.exchanges import Story, rr_start
from messages.building import Packet
from messages.reading import one
from pipeline.findings.evaluate import finding_of_violation
from pipeline.findings.rules.registry import ALL_RULES
from udfs.comqc.body_decoder import decode_bodies

CALL, SHORT = method(b"12345678", iid=IID, opnum=3), method(iid=None, opnum=3)


def findings(body, *, extension=MARKER, **columns):
    """The findings of a read that returned a message with a body, by rule."""
    packet, _ = one(Packet(body=body, extension=extension).bytes(), "RemoteRead")
    names = ("is_comqc", "source_queue_manager", "destination_queue")
    decoded = decode_bodies(pa.array([body], pa.binary()), pa.array([extension], pa.binary())).to_pylist()[0]
    found = {name: decoded[name] for name in ("comqc_rejected", "comqc_deviations")}
    story = Story([rr_start(**{name: packet[name] for name in names} | found | columns)])
    rows = [finding_of_violation(ALL_RULES[check.rule_id], each, "association") for check, each in story.broken()]
    return {row["rule_id"]: row for row in rows if row["rule_id"].startswith("K")}


def test_a_rejected_container_is_an_error_of_the_rule_that_it_breaks():
    (row,) = findings(message(chdr(), secd(), method(flags=1))).values()
    assert (row["rule_id"], row["severity"], row["source"]) == ("K01", "error", "MC-COMQC 2.2.6")
    assert row["actual"] == "Flags are not 0x00001000: the message must be rejected, its calls are lost"
    assert row["subject"].startswith("queue manager ")


@pytest.mark.parametrize(
    ("rule", "source", "body", "places"),
    [
        ("K02", "2.2.4", message(chdr(), secd(), CALL, secd(), SHORT, secd(), SHORT), ", 2 times"),
        ("K03", "2.2.6", message(chdr(), secd(), CALL, CALL), ""),
        ("K04", "2.2.2.1", message(chdr(text=f"{IID}\0"), secd(), CALL, SHORT), ""),
    ],
)
def test_what_should_be_otherwise_is_a_warning(rule, source, body, places):
    (row,) = findings(body).values()
    assert (row["rule_id"], row["severity"], row["source"]) == (rule, "warning", f"MC-COMQC {source}")
    assert f"{places}, first at offset " in row["actual"]


def test_a_conforming_container_and_bodies_of_others_break_nothing():
    assert findings(message(chdr(), secd(), CALL, SHORT, secd(b"other"), SHORT)) == {}
    assert findings(b"no container", extension=b"") == {}


@pytest.mark.parametrize(
    ("destination", "found"),
    [
        ("srv1\\private$\\app", None), ("srv1\\app", None), ("public=11111111-2222-3333-4444-555555555555", None),
        ("11111111-2222-3333-4444-555555555555\\0000000b", None), (".\\private$\\app", None), (None, None),
        ("10.0.0.1\\private$\\app", "an IP address"), ("fe80::1\\private$\\app", "an IP address"),
        ("srv1.example.com\\app", "a fully qualified name"), ("direct=http://srv1/msmq/private$/app", "a URL"),
    ],
)  # fmt: skip
def test_names_of_queues(destination, found):
    rows = findings(message(chdr(), secd(), CALL), destination_queue=destination)
    assert [row["actual"].rsplit(" by ")[1] for row in rows.values()] == ([] if found is None else [found])
    assert findings(b"", extension=b"", destination_queue=destination) == {}
