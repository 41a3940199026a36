"""A file that is copied over itself is short for a while: what was read of it before is there again afterwards."""

from __future__ import annotations

import os

import pytest

from bronze.test_capture_parts import TABLES, ingest
from capture.merge.comparing import OF_THE_RUN, differences
from capture.merge.cutting import cut, evenly, plain
from example_counts import one_in


@pytest.mark.parametrize("share", one_in(3, [0.5, 0.1, 0.9]))
@pytest.mark.parametrize("name", ["sample/10-many-clients.pcap.gz", "transfers/01-handshakes.pcap"])
def test_of_two_captures_one_is_short_for_a_run(project, tmp_path, name, share):
    capture = plain(project / "data" / name)
    one, two = cut(capture, evenly(capture, 2))
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "one.pcap").write_bytes(one)
    later = folder / "two.pcap"
    later.write_bytes(two)
    modified = later.stat().st_mtime_ns
    tables = (*TABLES, "pending")
    expected = ingest(tmp_path / "lake", folder, tables)
    later.write_bytes(two[: int(len(two) * share)])
    ingest(tmp_path / "lake", folder)
    later.write_bytes(two)
    os.utime(later, ns=(modified, modified + 10**9))
    found = differences(ingest(tmp_path / "lake", folder, tables), expected, left_out=OF_THE_RUN | {"modified_at"})
    assert not found, "\n" + "\n".join(found)
