"""Damaged packets: no error of Lua, and a bounded time."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest

from example_counts import seeds
from pcapgen.containers import pcap
from pcapgen.exchanges import recorded, tap
from wireshark.shown import run_tshark

pytestmark = pytest.mark.tool("tshark")

PACKETS = 400  # of one capture, each changed
ALL_CAPTURES = 50  # 20,000 packets
SECONDS = 60  # for one capture
RPC_HEADER = 24  # octets of a request or answer before its stub
BINDS = {11, 12, 14, 15}  # PDU types that say the interface
VALUES = (
    b"\0",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"\x7f\xff\xff\xff",
    b"\x01\0\0\0",
    b"\0\0\0\x80",
)
SAMPLES = (
    "01-remoteread-ndr",
    "03-qm2qm-dependent-client",
    "04-qmmgmt",
    "09-transactions-and-moves",
    "13-kinds-of-messages",
)


@pytest.fixture(scope="module")
def talks(project):
    """Connections of the recordings, with whether they are RPC."""
    found = [(talk, False) for path in sorted((project / "data" / "transfers").iterdir()) for talk in recorded(path)]
    for path in sorted((project / "data" / "sample").iterdir()):
        if path.name.split(".")[0] in SAMPLES:
            found += [(talk, True) for port in (2103, 2105) for talk in recorded(path, port)]
    return [(talk, is_rpc) for talk, is_rpc in found if talk.sends]


def changed(data, rng, is_rpc):
    """Octets of a segment with some replaced; in RPC those of the stub, so that the PDU is still found."""
    first = RPC_HEADER if is_rpc else rng.choice((0, 12, 16, 60))
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if first < len(data):
            value = rng.choice((*VALUES, rng.randbytes(rng.randrange(1, 9))))
            at = rng.randrange(first, len(data))
            out[at : at + len(value)] = value[: len(out) - at]
    return bytes(out)


def mutated_capture(talks, rng):
    """A capture of connections with ``PACKETS`` changed segments."""
    found, count = [], 0
    while count < PACKETS:
        talk, is_rpc = rng.choice(talks)
        sends = []
        for time_ns, side, data in talk.sends[:60]:
            if is_rpc and data[2] in BINDS:
                sends.append((time_ns, side, data))
            else:
                sends.append((time_ns, side, changed(data, rng, is_rpc)))
                count += 1
        flow = replace(talk.flow, client_port=10_000 + len(found))
        found.append(replace(talk, sends=sends, flow=flow))
    return pcap(tap(found).records).data


@pytest.mark.parametrize("seed", seeds(1, ALL_CAPTURES))
def test_changed_packets_raise_no_error_of_lua(talks, tmp_path, seed):
    path = tmp_path / "changed.pcap"
    path.write_bytes(mutated_capture(talks, Random(seed)))
    began = time.monotonic()
    text = run_tshark(path, "-V")
    assert time.monotonic() - began < SECONDS
    assert text.count("Message Queuing (MSMQ)") > PACKETS / 4
    assert any(error in text for error in ("error: malformed", "error: truncated"))
