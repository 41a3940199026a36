"""The examples of docs/decoders.md and docs/comqc.md run as they stand: as plain functions, and in Spark."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench.stubs import info_response, open_request
from comqc.helpers import chdr, message, method, secd
from messages.building import Packet
from udfs.capture.reader import read_capture
from udfs.comqc.layout import MARKER
from udfs.queues.normal_form import normal_form
from udfs.stubs.calls import decode_management_calls

BODY = message(chdr(), secd(), method(b"x", iid=bytes(16), opnum=3))
PACKET = Packet(label="hello").bytes()


def examples(project):
    out = {}
    for name in ("decoders", "comqc"):
        text = (project / "docs" / f"{name}.md").read_text(encoding="utf-8")
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
            out[f"{name} {number}"] = code
    return out


def management_calls(project):
    """Rows of silver.management_calls of a recorded capture."""
    calls = read_capture(str(project / "data" / "sample" / "04-qmmgmt.pcapng"))["rpc_calls"]
    calls = calls.filter(pc.equal(calls.column("interface_name"), "qmmgmt"))
    (batch,) = calls.append_column("responded_at", calls.column("response_at")).combine_chunks().to_batches()
    return pa.table({name: batch.column(name) for name in batch.schema.names} | decode_management_calls(batch))


def run(code, given):
    names = dict(given)
    *statements, last = re.split(r"\n(?=\S)", code.strip())
    exec("\n".join(statements), names)
    try:
        return names, eval(re.sub(r"\s+#.*", "", last), names)
    except SyntaxError:  # an assignment
        exec(last, names)
        return names, None


def test_the_plain_examples(project):
    given = {
        "stub": open_request(1), "packet": PACKET, "answer": info_response(1), "bodies": pa.array([BODY], pa.binary()),
        "extensions": pa.array([MARKER], pa.binary()), "body_bytes": pa.array([len(BODY)], pa.int64()),
    }  # fmt: skip
    calls = read_capture(str(project / "data" / "sample" / "01-remoteread-ndr.pcap"))["rpc_calls"]
    calls = calls.append_column("run_id", pa.nulls(calls.num_rows, pa.string()))
    (given["batch"],) = calls.combine_chunks().to_batches()
    given["management_calls"] = management_calls(project)
    seen = {}
    for name, code in examples(project).items():
        if "pyspark" not in code:
            seen[name] = run(code, given)
    every = {key: value for names, _ in seen.values() for key, value in names.items()}
    assert every["opened"].field("queue").to_pylist() == ["srv1\\private$\\orders1"]
    assert every["found"]["label"].to_pylist() == ["hello"]
    assert every["queues"].to_pylist() == ["srv1\\private$\\orders", None]
    assert [value["vt"] for value in every["values"][0].as_py()] == [31, *[19] * 10, 0x101F]
    assert every["rows"].num_rows > every["snapshots"].num_rows > 0
    assert every["decoded"].column("comqc_rejected").to_pylist() == [None]
    assert every["calls"].num_rows == 1
    assert every["tables"]["silver.messages"].num_rows > 0
    assert len(seen) == 7


@pytest.mark.spark
def test_the_examples_in_spark(project, spark):
    frames = {
        "calls": spark.createDataFrame([(open_request(3),), (None,)], "request_stub binary"),
        "packets": spark.createDataFrame([(PACKET,), (b"",)], "packet binary"),
        "named": spark.createDataFrame([("OS:H\\Q",), (None,)], "name string"),
        "answered": spark.createDataFrame([(info_response(1),)], "response_stub binary"),
        "frame": spark.createDataFrame([("key", BODY)], "message_key string, body binary"),
    }
    found = {}
    for name, code in examples(project).items():
        if "pyspark" in code:
            _, frame = run(code, frames)
            found[name] = frame.collect()
    opened, queue, texts, message_, comqc = found.values()
    assert [row.opened.queue for row in opened] == ["srv3\\private$\\orders3", None]
    assert [row.message.label for row in message_] == ["hello", None]
    assert [row.queue for row in queue] == normal_form(pa.array(["h\\q", None])).to_pylist()
    assert texts[0].texts == ["CONNECTED", *[None] * 11]
    assert (comqc[0].message_key, comqc[0].opnum) == ("key", 3)
