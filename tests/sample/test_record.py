"""Recording the sample again gives the same calls (needs the right to make network namespaces)."""

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest

from example_counts import one_in
from peer.record import main
from udfs.capture.capture_reader import read_capture

ROOT = Path(__file__).parents[2]


def _calls(path):
    keys = ("call_id", "interface", "opnum", "syntax", "outcome", "fault_status", "request_fragments")
    return [tuple(call[key] for key in keys) for call in json.loads(path.read_text())["calls"]]


@pytest.mark.network_namespace
@pytest.mark.tool("ip", "tcpdump", "editcap")
@pytest.mark.parametrize(
    "name", one_in(2, ["04-qmmgmt", "12-lookups", "07-faults-cancels-groups", "08-endpoint-mapper"])
)
def test_a_sample_recorded_anew_makes_the_same_calls(tmp_path, name):
    begin = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
    assert main(["--out", str(tmp_path), "--truth", str(tmp_path), "--begin", begin.isoformat(), name]) == 0
    truth = f"{name}.truth.json"
    assert _calls(tmp_path / truth) == _calls(ROOT / "tests" / "sample" / "truth" / truth)
    capture = tmp_path / json.loads((tmp_path / truth).read_text())["capture"]
    (file,) = read_capture(capture)["capture_files"].to_pylist()
    assert abs(file["first_packet_at"] - begin) < dt.timedelta(seconds=30)


def test_the_server_says_what_it_offers():
    environment = {"PYTHONPATH": str(ROOT / "tests" / "support")}
    command = [sys.executable, "-m", "peer.server", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for option in ("--host", "--port", "--qm2qm-port", "--epm-port"):
        assert option in done.stdout
