"""The examples of docs/internals/decoders.md run as they stand."""

import re

import pyarrow as pa
import pyarrow.compute as pc

from bench.stubs import get_info_response, open_remote_queue_request
from comqc.helpers import chdr, message, method, secd
from framework_messages import BODY_XML, NSB_HEADERS, nservicebus
from messages.building import Packet
from udfs.capture.capture_reader import read_capture
from udfs.comqc.container_layout import COMQC_EXTENSION
from udfs.stubs.call_decoder import decode_management_calls

BODY = message(chdr(), secd(), method(b"x", iid=bytes(16), opnum=3))
PACKET = Packet(label="hello").bytes()


def examples(project):
    """The examples of the page, in order; those under "Adding to the decoders" are tests/stubs/test_extending.py's."""
    page = (project / "docs" / "internals" / "decoders.md").read_text(encoding="utf-8")
    uses, heading, _ = page.partition("\n## Adding to the decoders\n")
    assert heading
    return re.findall(r"^```python\n(.*?)^```", uses, re.MULTILINE | re.DOTALL)


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
        "stub": open_remote_queue_request(1),
        "packet": PACKET,
        "answer": get_info_response(1),
        "bodies": pa.array([BODY], pa.binary()),
        "extensions": pa.array([COMQC_EXTENSION], pa.binary()),
        "body_bytes": pa.array([len(BODY)], pa.int64()),
        "extension": nservicebus(NSB_HEADERS),
        "body": BODY_XML,
    }
    calls = read_capture(str(project / "data" / "sample" / "01-remoteread-ndr.pcap"))["rpc_calls"]
    calls = calls.append_column("run_id", pa.nulls(calls.num_rows, pa.string()))
    (given["batch"],) = calls.combine_chunks().to_batches()
    given["management_calls"] = management_calls(project)
    plain = examples(project)
    every = {name: value for code in plain for name, value in run(code, given)[0].items()}
    assert every["opened"].field("queue").to_pylist() == ["srv1\\private$\\orders1"]
    assert every["found"]["label"].to_pylist() == ["hello"]
    assert every["queues"].to_pylist() == ["srv1\\private$\\orders", None]
    assert [value["vt"] for value in every["values"][0].as_py()] == [31, *[19] * 10, 0x101F]
    assert every["rows"].num_rows > every["snapshots"].num_rows > 0
    assert every["decoded"].column("comqc_rejected").to_pylist() == [None]
    assert every["calls"].num_rows == 1
    assert every["tables"]["silver.messages"].num_rows > 0
    assert (every["said"].framework, every["said"].body_root) == ("NServiceBus", "OrderPlaced")
    assert len(plain) == 8
