"""Captures of mirrors through a run: the settings, the ledger, and what is said of packets that are not read."""

import json

import pytest

from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import frames, tunnels
from pcapgen.scenarios import remote_read_dialogue
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS

pytestmark = pytest.mark.spark


def capture(port, count=None, *, vni=77):
    dialogue = remote_read_dialogue(t.Flow(client_port=49000 + vni))
    wrap = lambda packet: frames.ethernet(tunnels.vxlan(packet, vni, port=port))  # noqa: E731
    return t.records(dialogue.flow, t.segments(dialogue.script), link=wrap)[:count]


def test_tunnels_and_what_is_not_read(spark, tmp_path, capsys):
    lake = Lake(spark, str(tmp_path / "lake"))
    folder = tmp_path / "captures"
    folder.mkdir()
    mirror, strange = folder / "mirror.pcap", folder / "strange.pcap"
    records = [*capture(4000, 9), *capture(4789, 3, vni=5)]
    mirror.write_bytes(c.pcap(records).data)
    strange.write_bytes(c.pcap(capture(4789), link=249).data)
    settings = ["--set", "capture.tunnel_ports=[{port: 4000, kind: vxlan}]"]

    def run():
        assert ingest_captures.main(["--lake", lake.root, "--captures", str(folder), *settings]) == 0
        printed = capsys.readouterr()
        return json.loads(printed.out.splitlines()[-1]), printed.err

    count = len(capture(4789))
    summary, log = run()
    assert summary["packets_not_read"] == {"link type 249": count}
    assert f"warning: {count} packets are not read: link type 249" in log
    ledger = {row["path"].rsplit("/", 1)[1]: row for row in lake.read(CAPTURE_FILES).toArrow().to_pylist()}
    assert {each["identifier"] for each in ledger["mirror.pcap"]["tunnels"]} == {5, 77}
    assert ledger["strange.pcap"]["packets_not_read"] == [{"what": "link type 249", "packets": count}]
    # The file grows, by packets of the first tunnel and of another.
    mirror.write_bytes(c.pcap([*records, *capture(4000)[9:], *capture(4789, 3, vni=9)]).data)
    assert "packets_not_read" not in run()[0]
    (row,) = lake.read(CAPTURE_FILES).where("path LIKE '%mirror%'").collect()
    assert [each["identifier"] for each in row["tunnels"]] == [5, 9, 77]
    assert lake.read(CONNECTIONS).where("calls > 0").select("tunnel_identifier").collect() == [(77,)]
    assert lake.read(RPC_CALLS).where("tunnel_identifier = 77").count() == len(remote_read_dialogue().calls)
