"""tshark, an independent dissector, reads every sample without complaint and decrypts what is sealed."""

import json
import subprocess
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "data" / "sample"
CAPTURES = sorted(path for path in SAMPLES.iterdir() if ".pcap" in path.name)
AS_RPC = [item for port in (135, 2103, 2105) for item in ("-d", f"tcp.port=={port},dcerpc")]
TYPES = {"0": "request", "2": "response", "3": "fault"}

pytestmark = pytest.mark.tool("tshark")


def tshark(path, *arguments):
    done = subprocess.run(
        ["tshark", "-n", "-r", str(path), *AS_RPC, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_no_pdu_is_malformed_and_frames_fit_the_wire(path):
    assert tshark(path, "-Y", "_ws.malformed") == []
    sizes = [int(line) for line in tshark(path, "-T", "fields", "-e", "frame.len")]
    assert max(sizes) <= 1514


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_pdus_are_those_of_the_truth(path):
    truth = json.loads((Path(__file__).parent / "truth" / f"{path.name.partition('.pcap')[0]}.truth.json").read_text())
    expected = {"request": 0, "response": 0, "fault": 0}
    for call in truth["calls"]:
        expected["request"] += call["request_fragments"]
        expected["fault" if call["fault_status"] is not None else "response"] += call["response_fragments"]
    fields = ["-T", "fields", "-e", "dcerpc.pkt_type", "-E", "occurrence=a", "-E", "aggregator=,"]
    seen = [TYPES[kind] for line in tshark(path, *fields, "-o", "dcerpc.reassemble_dcerpc:FALSE")
            for kind in line.split(",") if kind in TYPES]  # fmt: skip
    assert {name: seen.count(name) for name in expected} == expected


def test_tshark_opens_the_sealed_calls_with_the_password():
    path = next(path for path in CAPTURES if path.name.startswith("05-"))
    opened = tshark(path, "-o", "ntlmssp.nt_password:Passw0rd!", "-o", "dcerpc.reassemble_dcerpc:FALSE",
                    "-Y", "dcerpc.decrypted_stub_data || dcerpc.encrypted_stub_data",
                    "-T", "fields", "-e", "dcerpc.decrypted_stub_data")  # fmt: skip
    assert len(opened) > 10
    # The reader's text of an order is in clear in what tshark opened.
    assert b'{"order": ' in bytes.fromhex("".join(line.replace(",", "") for line in opened))
