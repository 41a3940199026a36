"""Agreement with tshark: frame, stream, type, call id, opnum and fragment length of every PDU.

The stored lists (tests/capture/tshark) are from tshark 4.0.17; ``python -m pcapgen.record`` updates them. Where tshark
is installed it is run too, in a plain run on a third of the captures: the stored lists are of the same bytes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from example_counts import one_in
from pcapgen.dissector import difference, recorded, tshark
from pcapgen.reading import capture_files_row, read_rows
from pcapgen.record import KEPT, digest, sample_captures
from pcapgen.scenarios import agreement_captures
from udfs.capture.capture_reader import read_capture

BUILT = agreement_captures()
SAMPLES = {path.name: path for path in sample_captures()}

# What tshark does not see: a PDU of whose header only the first bytes lie in the segment where it begins, and a request
# that was captured after its answer, which it takes for a retransmission.
NOT_SEEN_BY_TSHARK = {
    "OISF+suricata-verify__truncate-applayer-test-01_input.pcap": [(69, 0, 2, 5361, None, 2860)],
    "out-of-order": [(15, 0, 0, 5, 7, 80)],
}
# tshark counts Custom Blocks as packets.
CUSTOM_BLOCKS = {"basic_test017": 4, "basic_test018": 4, "le_advanced_test102": 3, "be_difficult_test202": 3}


def listed(data: bytes):
    """Return the reader's PDUs in the form of tshark's list."""
    return [
        (row["last_packet_number"], row["stream"], row["ptype"], row["call_id"], row["opnum"], row["frag_length"])
        for row in read_rows(data, all_pdus=True)["pdus"]
    ]


@pytest.mark.parametrize("name", BUILT)
def test_built_captures_as_kept(name):
    sha256, theirs = recorded(KEPT / f"built-{name}.json")
    assert digest(BUILT[name].data) == sha256, "run python -m pcapgen.record"
    assert difference(listed(BUILT[name].data), theirs) == (NOT_SEEN_BY_TSHARK.get(name, []), [])


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_captures_as_kept(name):
    data = SAMPLES[name].read_bytes()
    sha256, theirs = recorded(KEPT / f"{name}.json")
    assert digest(data) == sha256, "run python -m pcapgen.record"
    assert difference(listed(data), theirs) == ([], [])


@pytest.mark.tool("tshark")
@pytest.mark.parametrize("name", one_in(3, [*BUILT, *SAMPLES]))
def test_tshark_lists_the_same(name, tmp_path):
    if name in BUILT:
        path, data = tmp_path / name, BUILT[name].data
        path.write_bytes(data)
    else:
        path, data = SAMPLES[name], SAMPLES[name].read_bytes()
    assert difference(listed(data), tshark(path)) == (NOT_SEEN_BY_TSHARK.get(name, []), [])


def counts(folder: Path):
    return json.loads((folder / "tshark-counts.json").read_text())


def test_the_shared_captures_give_no_calls_and_tsharks_counts(captures):
    """97 real and crafted captures without MSMQ: every packet counted, every PDU found, nothing invented."""
    entries = counts(captures)
    assert len(entries) == 97
    wrong = {}
    for entry in entries:
        path = captures / entry["file"]
        tables = read_rows(path.read_bytes(), all_pdus=True)
        row = capture_files_row(tables)
        if path.suffix == ".snoop":
            assert (row["status"], row["packets"]) == ("unreadable", 0)  # another format, and said so
            continue
        extra = len(NOT_SEEN_BY_TSHARK.get(path.name, ()))
        custom = next((count for name, count in CUSTOM_BLOCKS.items() if name in path.name), 0)
        got = (
            row["status"],
            row["packets"],
            len(tables["pdus"]),
            {call["interface_name"] for call in tables["rpc_calls"]} - {"epm"},
        )
        expected = ("complete", entry["tshark"]["packets"] - custom, entry["tshark"]["tcp"] + extra, set())
        if got != expected:
            wrong[entry["file"]] = (got, expected)
    assert wrong == {}


@pytest.mark.tool("tshark")
def test_the_shared_captures_of_rpc_are_listed_alike(captures):
    wrong = {}
    for entry in counts(captures):
        if not entry["tshark"]["tcp"]:
            continue
        path = captures / entry["file"]
        ours, theirs = difference(listed(path.read_bytes()), tshark(path))
        if theirs or ours != NOT_SEEN_BY_TSHARK.get(path.name, []):
            wrong[entry["file"]] = (ours, theirs)
    assert wrong == {}


# A payload length of 0: tshark reads no jumbogram of IPv6 without its option.
NO_TCP_OF_TSHARK = {"the-tcpdump-group+tcpdump__bigtcp-ipv6.pcap"}


@pytest.mark.tool("tshark")
def test_the_shared_captures_have_as_many_segments(captures, request):
    """In tunnels too: some are of GRE, MPLS and VXLAN. A plain run takes all of those, and a third of the others."""
    wrong, kinds, step = {}, set(), 1 if request.config.getoption("--long") else 3
    for number, path in enumerate(captures / entry["file"] for entry in counts(captures)):
        (row,) = read_capture(path)["capture_files"].to_pylist()
        if row["status"] == "unreadable" or path.name in NO_TCP_OF_TSHARK or (not row["tunnels"] and number % step):
            continue
        kinds |= {each["kind"] for each in row["tunnels"] or ()}
        fields = ["-e", "ip.fragment.count", "-e", "ipv6.fragment.count"]
        command = ["tshark", "-n", "-r", str(path), "-Y", "tcp", "-T", "fields", *fields]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        theirs = sum(int("".join(line.split()) or 1) for line in shown)
        if row["packets_tcp"] != theirs:
            wrong[path.name] = (row["packets_tcp"], theirs)
    assert wrong == {}
    assert {"gre", "mpls", "vxlan"} <= kinds
