"""What cannot be known is said: lakes that hold one kind of evidence, and one whose evidence is a day old."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from jobs import ask, run_all
from pcapgen import containers as c
from pcapgen import conversation as t
from pipeline.reports.views.catalog import VIEWS_BY_NAME

OF_READS = {"oldest_unread", "read_twice", "receive_times", "receives_not_ended", "reader_load", "receives_waiting"}
OF_CALLS = {"administrator_actions", "response_times", "failures", "sharing_violations"}
OF_SESSIONS = {
    "gaps_on_the_wire",
    "delivered_twice",
    "transfer_latency",
    "resent_messages",
    "message_hops",
    "estate_hours",
    "estate_queue_coverage",
}
OF_QUEUES = {"outgoing_not_connected", "time_in_state", "depth_over_time", "depth_growth", "stuck_queues"}
OF_TRANSFER_REPORTS = {
    "outgoing_backlog", "transfer_stalls", "sequence_gaps", "ends_that_disagree", "resends", "dead_letter_growth",
    "journal_growth",
}  # fmt: skip
OF_SNAPSHOTS = OF_QUEUES | OF_TRANSFER_REPORTS | {"machines"}
OF_READS_OR_SESSIONS = {
    "clock_differences", "comqc_methods", "comqc_paths", "negative_acknowledgements", "acknowledgements_missing",
    "dead_letters", "dead_letter_messages", "failed_messages", "message_type_flows", "estate_flows",
}  # fmt: skip
NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)  # days after the recordings


def web_traffic(at):
    """A capture of a web server's traffic."""
    flow, script = t.Flow(server_port=80), t.Script()
    for number in range(3):
        script.send(0, b"GET /%d HTTP/1.1\r\nHost: example\r\n\r\n" % number)
        script.send(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    return c.pcap(t.records(flow, t.segments(script, start_ns=round(at.timestamp()) * 10**9))).data


@pytest.fixture(scope="module")
def lakes(project, tmp_path_factory):
    """The folders of the lakes by name, and what their runs said."""
    root = tmp_path_factory.mktemp("evidence")
    web, snapshots = root / "web.pcap", root / "snapshots"
    web.write_bytes(web_traffic(NOW))
    shutil.copytree(project / "data" / "estate" / "snapshots", snapshots)
    reads, sessions = project / "data/sample/01-remoteread-ndr.pcap", project / "data/transfers/05-resends.pcap"
    given = {
        "http": ["--captures", web],
        "rpc": ["--captures", reads],
        "1801": ["--captures", sessions],
        "snapshots": ["--snapshots", snapshots],
        "all, long ago": ["--captures", reads, sessions, web, "--snapshots", snapshots],
    }
    for name, arguments in given.items():
        assert run_all.main(["--lake", str(root / name), "--set", "run.engine=local", *map(str, arguments)]) == 0
    return root


def asked(capsys, folder, *questions, arguments=()):
    """Return the text of answers, and the job's summary."""
    assert ask.main(["--lake", str(folder), *questions, *arguments]) == 0
    answers, _, summary = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    return answers, json.loads(summary)


@pytest.mark.parametrize(
    ("lake", "unknown"),
    [
        ("http", set(VIEWS_BY_NAME) - {"not_known", "estate_coverage"}),
        # A queue that was read has a row in time_in_state: its state is UNKNOWN.
        ("rpc", (OF_SESSIONS | OF_SNAPSHOTS | {"never_acknowledged"}) - {"time_in_state"}),
        ("1801", OF_READS | OF_CALLS | OF_SNAPSHOTS),
        (
            "snapshots",
            OF_READS
            | OF_CALLS
            | OF_SESSIONS
            | OF_READS_OR_SESSIONS
            | {"retransmitted", "dead_letter_growth", "estate_coverage"},
        ),
        ("all, long ago", {"depth_growth", "dead_letter_growth"}),
    ],
)
def test_what_was_not_seen_cannot_be_known(lakes, capsys, lake, unknown):
    said, summary = asked(capsys, lakes / lake, *VIEWS_BY_NAME)
    assert set(summary["cannot_be_known"]) == unknown
    assert said.count("Cannot be known from what was captured: nothing was seen of ") == len(unknown)
    empty = {name for name, count in summary["rows"].items() if count == 0}
    assert said.count("\n(no row)") == len(empty)


def test_an_empty_answer_says_of_what_from_which_and_until_when(lakes, capsys):
    said, summary = asked(capsys, lakes / "1801", "gaps_on_the_wire", "never_acknowledged")
    assert summary["rows"] == {"gaps_on_the_wire": 0, "never_acknowledged": 0}
    seen = "Seen of TCP 1801: 5 connections at 2 servers, from 2026-11-21 11:00:00 until 2026-11-21 11:00:59."
    assert said.count(seen) == 2
    unseen = ["reports of outgoing transfers", "reports of incoming sequences"]
    assert said.count(f"More cannot be known: nothing was seen of {', '.join(unseen)}.") == 1
    assert summary["not_seen"] == {"never_acknowledged": unseen}


def test_rows_are_shown_with_what_is_not_known_beside_them(lakes, capsys):
    said, summary = asked(capsys, lakes / "snapshots", "stuck_queues")
    assert summary["rows"]["stuck_queues"] > 0
    assert "More cannot be known: nothing was seen of remote reads that can be read, TCP 1801." in said


def test_what_was_seen_after_the_time_asked_for_does_not_count(lakes, capsys):
    before = ["--as-of", f"{NOW - timedelta(days=3650):%Y-%m-%dT%H:%M:%SZ}"]
    _, summary = asked(capsys, lakes / "all, long ago", "delivered_twice", "gaps_on_the_wire", arguments=before)
    assert summary["cannot_be_known"] == ["delivered_twice", "gaps_on_the_wire"]


def test_a_run_says_that_a_capture_holds_no_msmq(project, tmp_path, capsys):
    web, other = tmp_path / "web.pcap", tmp_path / "other.pcap"
    web.write_bytes(web_traffic(NOW))
    other.write_bytes(web_traffic(NOW + timedelta(hours=1)))

    def run(*captures):
        arguments = ["--set", "run.engine=local", "--captures", *map(str, captures)]
        assert run_all.main(["--lake", str(tmp_path / "lake"), *arguments]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if "no MSMQ" in line]

    (line,) = run(web, project / "data/sample/01-remoteread-ndr.pcap")
    assert line.endswith(f"the capture {web} holds no MSMQ (wrong interface or ports?)")
    assert not run(web)  # it is not read again
    (line,) = run(other, web)
    assert str(other) in line
    # A capture that grows by other traffic holds MSMQ all the same.
    sample = (project / "data/sample/01-remoteread-ndr.pcap").read_bytes()
    grows = tmp_path / "grows.pcap"
    grows.write_bytes(sample)
    assert not run(grows)
    grows.write_bytes(sample + web_traffic(NOW)[24:])
    assert not run(grows)
