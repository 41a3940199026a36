"""A file that is copied over itself is short for a while: what was read of it before is there again afterwards."""

from __future__ import annotations

import gzip
import os

import pytest
from deltalake import DeltaTable

from capture.merge.comparing import OF_THE_RUN, differences
from jobs import ingest_captures

TABLES = ("capture_files", "connections", "rpc_binds", "rpc_calls", "session_packets", "pings", "quarantine", "pending")


def ingest(lake, folder):
    """Return the tables of bronze after a run over a folder."""
    assert ingest_captures.main(["--lake", str(lake), "--captures", str(folder)]) == 0
    folders = {name: lake / "bronze" / name for name in TABLES}
    return {name: DeltaTable(str(path)).to_pyarrow_table() for name, path in folders.items() if path.exists()}


def first_half(capture):
    """Return how many bytes of a pcap file the first half of its records takes, its header with them."""
    ends = [24]
    while ends[-1] < len(capture):
        ends.append(ends[-1] + 16 + int.from_bytes(capture[ends[-1] + 8 : ends[-1] + 12], "little"))
    return ends[len(ends) // 2]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", ["sample/10-many-clients.pcap.gz", "transfers/01-handshakes.pcap"])
def test_of_two_captures_one_is_short_for_a_run(project, tmp_path, name, share):
    stored = (project / "data" / name).read_bytes()
    capture = gzip.decompress(stored) if name.endswith(".gz") else stored
    folder, half = tmp_path / "captures", first_half(capture)
    folder.mkdir()
    (folder / "one.pcap").write_bytes(capture[:half])
    later, whole = folder / "two.pcap", capture[:24] + capture[half:]
    later.write_bytes(whole)
    modified = later.stat().st_mtime_ns
    expected = ingest(tmp_path / "lake", folder)
    later.write_bytes(whole[: int(len(whole) * share)])
    ingest(tmp_path / "lake", folder)
    later.write_bytes(whole)
    os.utime(later, ns=(modified, modified + 10**9))
    found = differences(ingest(tmp_path / "lake", folder), expected, left_out=OF_THE_RUN | {"modified_at"})
    assert not found, "\n" + "\n".join(found)
