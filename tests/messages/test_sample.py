"""Messages of the recorded sample: from captures through stubs and sections to packets, without remainder."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from messages.reading import plain, single
from udfs.capture.capture_reader import read_capture
from udfs.messages.message_decoder import decode_messages
from udfs.stubs.call_decoder import decode_remote_read_calls

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
READS = pa.array(["RemoteRead", "qm2qm"])
CAPTURES = {
    "01-remoteread-ndr.pcap": 10,
    "02-remoteread-ndr64-multiplexed.pcap": 10,
    "03-qm2qm-dependent-client.pcap": 4,
    "09-transactions-and-moves.pcapng": 4,
    "10-many-clients.pcap.gz": 20,
    "11-queued-components.pcap": 27,
    "12-lookups.pcap": 20,
    "13-kinds-of-messages.pcapng": 18,
}


@pytest.mark.parametrize("name", CAPTURES)
def test_every_message_of_the_sample_is_read_to_its_last_byte(name):
    calls = read_capture(str(SAMPLE / name))["rpc_calls"].combine_chunks()
    calls = calls.filter(pc.is_in(calls.column("interface_name"), READS))
    (batch,) = calls.combine_chunks().to_batches()
    stubs = decode_remote_read_calls(batch, packets=True)
    with_message = stubs["packet"].is_valid()
    packets = stubs["packet"].filter(with_message)
    protocols = batch.column("interface_name").filter(with_message)
    parts = {name: stubs[name].filter(with_message) for name in stubs if name.startswith("section_")}
    found = pa.table(decode_messages(packets, protocols, bodies=True, **parts))
    rows = [plain(row) for row in found.to_pylist()]
    assert len(rows) >= CAPTURES[name]
    assert [errors for _, errors in rows if errors] == []
    lists = list(zip(*(column.to_pylist() for column in parts.values()), strict=True))
    for row, packet, protocol, cut in zip(rows, packets.to_pylist(), protocols.to_pylist(), lists, strict=True):
        sections = list(zip(*cut, strict=True)) if cut[0] is not None else None
        assert row == single(packet, protocol, sections)
        values, _ = row
        assert values["destination_queue"].startswith(("srv1\\", "far\\", "direct=http://srv1/"))
        assert values["body_complete"] is (sections is None or sections[0][0] == 0)
        assert sum(values["header_sizes"].values()) == len(packet)
