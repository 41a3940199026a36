"""Hostile packets: truncated anywhere, sizes larger than the data. No exception, and work linear in the input."""

import cProfile
import struct

import pyarrow as pa
import pytest

from messages.building import Packet, sid, trailing, wide
from messages.reading import column, one, single
from udfs.messages.message_decoder import decode_messages

FULL = Packet(
    transaction=(1, 2, 3, 4), transaction_connector=bytes(16), security=(1, (sid(1, 2), b"key", b"sig", b"cert", b"p")),
    connector=bytes(16), debug=bytes(16), envelope="<e/>", compound=(b"POST body", 4, 5), soap=("<h/>", "<b/>"),
    lists=((1, b"\3\0" + wide("OS:a\\b")), (0, b""), (0, b""), b"sign"),
    trailing=trailing(subqueue="s", dead_letter="h\\dead", address=(4, 1, 0, bytes([10, 0, 0, 1]))),
)  # fmt: skip


def test_a_packet_cut_anywhere_says_so_and_keeps_what_is_whole():
    raw = FULL.bytes()
    whole, errors = one(raw, "RemoteRead")
    assert errors == []
    rows = column([raw[:size] for size in range(len(raw))], "RemoteRead")
    for size, (values, errors) in enumerate(rows):
        assert (values, errors) == single(raw[:size], "RemoteRead")
        assert [code for code, _, _ in errors] == ["truncated"] or size == len(raw) - len(FULL.trailing), size
        if size >= len(raw) - len(FULL.trailing):
            assert values["label"] == whole["label"]


@pytest.mark.parametrize("protocol", ["RemoteRead", "qm2qm", "binary_protocol"])
def test_numbers_as_large_as_they_get_are_not_believed(protocol):
    """Every 2 and 4 bytes in turn are set to all ones."""
    raw = FULL.bytes()
    damaged = [raw[:at] + b"\xff" * size + raw[at + size :] for size in (2, 4) for at in range(len(raw) - size)]
    assert column(damaged, protocol) == [single(each, protocol) for each in damaged]


def test_time_and_memory_follow_the_input():
    """A packet of 4 MiB, and ten thousand that claim that size: work is counted in function calls (reproducible)."""
    large = Packet(body=bytes(4 << 20), packet_size=0).bytes()
    promised = bytearray(Packet().bytes())
    at = Packet().body_at() - 56 - len(wide("label")) + 32
    promised[at : at + 4] = struct.pack("<I", 0xFFFF_FFF0)
    for packets in ([large], [bytes(promised)] * 10_000):
        given = pa.array(packets, pa.binary())
        before, profile = pa.total_allocated_bytes(), cProfile.Profile()
        profile.enable()
        found = decode_messages(given, "RemoteRead")
        profile.disable()
        assert sum(entry.callcount for entry in profile.getstats()) < 20_000 + 20 * len(packets)
        assert pa.total_allocated_bytes() - before < 3 * given.nbytes + (1 << 20)
        assert min(found["errors"].value_lengths().to_pylist()) > 0
