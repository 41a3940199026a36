"""Captures of mirrors through a run: the settings, the ledger, and what is said of packets that are not read."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import frames, tunnels
from pcapgen.scenarios import remote_read_dialogue
from pipeline.lake.lake import Lake
from pipeline.quality import coverage
from pipeline.quality.check import CheckOptions, check_suites
from pipeline.quality.suites import read_suites
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.coverage import COVERAGE

pytestmark = pytest.mark.spark


def capture(port, count=None, *, vni=77):
    dialogue = remote_read_dialogue(t.Flow(client_port=49000 + vni))
    wrap = lambda packet: frames.ethernet(tunnels.vxlan(packet, vni, port=port))  # noqa: E731
    return t.records(dialogue.flow, t.segments(dialogue.script), link=wrap)[:count]


def test_few_packets_of_unknown_protocols_are_counted_and_many_are_warned_of(spark, project, tmp_path, capsys):
    """Of MACsec nothing inside is seen; of another tag TCP stands behind it."""
    lake = Lake(spark, str(tmp_path / "lake"))
    plain = remote_read_dialogue()
    parts = t.segments(plain.script)
    sealed = bytes(12) + b"\x88\xe5" + bytes(46)
    strange = t.records(plain.flow, parts, link=lambda packet: frames.tagged(packet, 0x9999, bytes(2)))[0].frame

    def run(name, records):
        path = tmp_path / name
        path.write_bytes(c.pcap(records).data)
        assert ingest_captures.main(["--lake", lake.root, "--captures", str(path)]) == 0
        printed = capsys.readouterr()
        return json.loads(printed.out.splitlines()[-1]).get("packets_not_read"), "warning" in printed.err

    ours = [replace(record, time_ns=parts[0].time_ns) for record in t.records(plain.flow, parts) * 9]
    few = [c.Record(parts[0].time_ns, sealed)]
    assert run("few.pcap", ours + few) == ({"EtherType 0x88e5": 1}, False)
    assert run("many.pcap", ours[:50] + few) == ({"EtherType 0x88e5": 1}, True)
    seen = [c.Record(parts[0].time_ns, strange)]
    assert run("tcp.pcap", ours + seen) == ({"EtherType 0x9999, with TCP behind it": 1}, True)
    coverage.update(lake)
    counted = lake.read(COVERAGE).where("measure = 'packets_not_read'").groupBy().sum("value").collect()
    assert counted == [(3,)]
    now = datetime.now(UTC)
    suites = [suite for suite in read_suites(project / "conf" / "quality") if suite.name == "capture_files"]
    checked = check_suites(lake, suites, CheckOptions("check", now, now, all_rows=True))
    assert [(row["expectation"], row["unexpected"], row["evaluated"]) for row in checked.failed_rows()] == [
        ("packets_read", 2, 3)
    ]


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
