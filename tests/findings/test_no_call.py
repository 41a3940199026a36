"""A capture that ends behind a bind: there is a connection to judge, and no call."""

import json
import struct

from jobs import run_all
from schemas.bronze import RPC_BINDS, RPC_CALLS
from schemas.findings import FINDINGS

_FILE_HEADER, _RECORD_HEADER = 24, 16


def first_packets(data, count):
    """The first packets of a pcap file."""
    end = _FILE_HEADER
    for _ in range(count):
        end += _RECORD_HEADER + struct.unpack_from("<I", data, end + 8)[0]
    return data[:end]


def test_a_bind_without_any_call_is_judged(project, tmp_path, capsys):
    capture = tmp_path / "bound.pcap"
    capture.write_bytes(first_packets((project / "data/sample/01-remoteread-ndr.pcap").read_bytes(), 7))
    arguments = ["--captures", str(capture), "--lake", str(tmp_path / "lake"), "--set", "run.engine=local"]
    assert run_all.main(arguments) == 0
    tables = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    written = [tables[str(table)]["rows_out"] for table in (RPC_BINDS, RPC_CALLS, FINDINGS)]
    assert written == [1, 0, 0]
