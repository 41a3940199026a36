"""The messages of the sample, and the COM+ calls recorded in them, against what their senders said of them."""

import json
from pathlib import Path

import pytest

from sample.reading import silver_of
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES

TRUTH = Path(__file__).parent / "truth"
CAPTURES = ("11-queued-components.pcap", "12-lookups.pcap", "13-kinds-of-messages.pcapng")


@pytest.fixture(scope="module", params=CAPTURES)
def read(request):
    told = json.loads((TRUTH / f"{request.param.partition('.')[0]}.truth.json").read_text())["messages"]
    tables = silver_of(request.param)
    return told, tables[str(MESSAGES)].to_pylist(), tables[str(COMQC_CALLS)].to_pylist()


def test_messages_are_those_that_were_sent(read):
    told, messages, _ = read
    expected = {said["number"]: said for said in told}
    assert {row["message_ordinal"] for row in messages} == set(expected)
    for row in messages:
        said = expected[row["message_ordinal"]]
        assert row["errors"] == []
        for name in ("label", "class", "body_bytes", "signed", "encrypted"):
            assert row[name] == said[name], name
        assert row["is_srmp"] == (said["is_srmp"] and row["seen_in"] == "RemoteRead")  # qm2qm does not tell it
        if row["body_complete"]:
            assert row["body_sha256"] == said["body_sha256"]
        rejected = (row["comqc_rejected"] or "").partition(":")[0]
        assert rejected == said.get("rejected", "")
    assert {(row["message_ordinal"], row["seen_in"]) for row in messages if row["body_complete"]} >= {
        (number, "RemoteRead") for number in expected
    }


def test_recorded_calls_are_those_that_were_made(read):
    told, messages, calls = read
    expected = {said["number"]: said.get("calls", []) for said in told}
    found = {row["sighting_key"]: [] for row in messages}
    for row in calls:
        arguments = row["arguments"] and [[each["vt_name"], each["value"]] for each in row["arguments"]]
        names = ("interface_id", "opnum", "dispatch_id", "caller_name", "partition_id")
        said = {name: row[name] for name in names}
        found[row["sighting_key"]].append(said | {"arguments": arguments, "callers": len(row["callers"])})
        assert row["errors"] == []
    for row in messages:
        assert found[row["sighting_key"]] == expected[row["message_ordinal"]], row["label"]
    if any(expected.values()):
        assert {row["header"] for row in calls} == {"METH", "SMTH"}
        assert {row["seen_in"] for row in messages} == {"RemoteRead", "qm2qm"}
