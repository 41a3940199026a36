"""Alerts by the clock, as ``msmq alerts`` prints them: sources that stopped, alerts without newer evidence, events."""

import json
import shlex
import struct
from datetime import UTC, datetime, timedelta

import pytest

from engines import LOCAL, without_spark
from jobs import alerts as job
from jobs import ingest_captures, publish_dashboards
from pipeline.alerts import update
from pipeline.alerts.by_clock import AlertsByClock, alerts_by_clock
from pipeline.alerts.conditions import Thresholds
from pipeline.lake.lake import Lake
from pipeline.settings import ClockLimits
from queue_states.queue_events import MINUTE, snapshot
from reports.questions.in_memory_lake import history_tables, rows
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, RPC_CALLS

pytestmark = pytest.mark.spark

BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
NINE = int(BEGIN.timestamp()) // 60  # minutes since 1970, as the rows have them
DOWN = "far\\private$\\down"


def at(hour, minute=0):
    return NINE + (hour - 9) * 60 + minute


def capture(hour, minute=0):
    """A capture of half an hour that was read a minute after its last packet."""
    time = at(hour, minute)
    return {"capture_id": str(time), "path": f"/data/ring/{time}.pcap", "first_packet_at": time - 30,
            "last_packet_at": time, "ingested_at": time + 1}  # fmt: skip


def refused(name, hour, minute, read):
    """A receive from an unknown queue whose end was refused, and its call; ``read`` is when a run read it."""
    time = at(hour, minute)
    attempt = {"attempt_key": name, "is_receive": True, "started_at": time, "returned_at": time, "ended_at": time,
               "outcome": "failed", "ack_refused": True, "end_hresult": 0xC00E0005, "lookup_id": 1,
               "server_address": "10.0.0.1", "client_address": "10.0.0.9", "evidence": [name]}  # fmt: skip
    return attempt, {"call_key": name, "request_at": time, "ingested_at": read}


def fill(lake, captures, refusals):
    """Write captures that showed a queue without connection from 12:00 to 14:00, and receives that were refused."""
    waiting = [
        snapshot(at(12, step) * MINUTE, f"down{step}", queue=DOWN, state="WAITING", message_count=3, bytes=300)
        for step in range(0, 121, 5)
    ]
    tables = history_tables(waiting) | {
        CAPTURE_FILES: rows(CAPTURE_FILES, *captures),
        RECEIVE_ATTEMPTS: rows(RECEIVE_ATTEMPTS, *(attempt for attempt, _ in refusals)),
        RPC_CALLS: rows(RPC_CALLS, *(call for _, call in refusals)),
    }
    for table, found in tables.items():
        lake.append(table, found.drop_columns(["event_date"]))


@pytest.fixture(
    scope="module",
    params=["delta-rs", *(pytest.param(store, marks=pytest.mark.long) for store in ("spark", "spark alone"))],
)
def place(spark, tmp_path_factory, request):
    """The lake: captures come every hour until 14:00, an end was refused at 10:10 and one at 13:10."""
    root = str(tmp_path_factory.mktemp(request.param) / "lake")
    refusals = [refused("early", 10, 10, at(11, 1)), refused("late", 13, 10, at(14, 1))]
    fill(Lake(spark, root, store=request.param.partition(" ")[0]), [capture(hour) for hour in range(9, 15)], refusals)
    return root


def alerts(place, capsys, clock, *arguments):
    """Return the exit code, the lines printed and the summary."""
    read_log = "spark" if "alone" in place else "auto"
    given = ["--lake", place, "--as-of", f"2026-03-02T{clock}Z", "--set", f"lake.read_log={read_log}"]
    code = job.main([*given, *arguments])
    *lines, summary = capsys.readouterr().out.splitlines()
    return code, lines, json.loads(summary)


def json_rows(place, capsys, clock, *arguments):
    _, lines, _ = alerts(place, capsys, clock, "--json", "-", *arguments)
    return [json.loads(line) for line in lines]


def test_while_captures_come_all_alerts_are_observed(place, capsys):
    code, lines, summary = alerts(place, capsys, "15:00:00")
    text = "\n".join(lines)
    assert code == 1
    assert (summary["evidence_stopped"], summary["not_observed"]) == (0, 0)
    assert "since 2026-03-02 12:00:00, last seen 2026-03-02 14:00:00" in text
    assert "Not observed" not in text
    assert lines[-1] == "newest evidence 2026-03-02 14:00:00, 1 h ago"


def test_a_source_that_stopped_is_an_error_and_open_alerts_stand_apart(place, capsys):
    code, lines, summary = alerts(place, capsys, "18:00:00")
    assert code == 1
    assert (summary["evidence_stopped"], summary["not_observed"], summary["evidence_age_s"]) == (1, 1, 4 * 3600)
    heading = lines.index("Not observed any more, as they were last seen:")
    first = lines.index("error   evidence_stopped  captures in /data/ring")
    assert first < heading
    assert lines[first + 1].startswith("        since 2026-03-02 15:01:00")
    apart = "\n".join(lines[heading:])
    assert f"queue_disconnected  queue {DOWN}" in apart
    assert "since 2026-03-02 12:00:00, not observed since 2026-03-02 14:00:00" in apart
    assert lines[-1] == "newest evidence 2026-03-02 14:00:00, 4 h ago"


@pytest.mark.parametrize(("condition", "level", "code"), [
    ("evidence_stopped", "error", 1), ("queue_disconnected", "error", 1), ("queue_disconnected", "never", 0),
    ("clocks_differ", "info", 0),
])  # fmt: skip
def test_both_count_for_the_exit_code(place, capsys, condition, level, code):
    assert alerts(place, capsys, "18:00:00", "--condition", condition, "--fail-on", level)[0] == code


def test_the_setting_says_how_long_a_source_may_be_silent(place, capsys):
    for limit, stopped in (("50m", 1), ("2h", 0)):
        _, _, summary = alerts(place, capsys, "15:00:00", "--set", f"alerts.silence_after={limit}")
        assert (summary["evidence_stopped"], summary["not_observed"]) == (stopped, stopped)


def test_an_event_that_ended_is_told_in_the_call_after_the_run_that_read_it(place, capsys):
    code, lines, summary = alerts(place, capsys, "15:00:00", "--condition", "ends_refused")
    assert (code, summary["first_read"], summary["ended"]) == (1, 1, 2)
    assert "last seen 2026-03-02 13:10:00, ended 2026-03-02 14:10:00" in lines[1]
    assert [line for line in lines if "10:10:00" in line] == []  # an earlier run read that one
    told = {row["evidence"][0]: row["first_read"] for row in json_rows(place, capsys, "15:00:00")
            if row["condition"] == "ends_refused"}  # fmt: skip
    assert told == {"early": False, "late": True}


def test_who_remembers_what_was_told_gets_all_recent_events(spark, place):
    clock = BEGIN.replace(hour=15)
    lake = Lake(spark, place)
    found = {
        hold: alerts_by_clock(lake, Thresholds(), ClockLimits(event_hold=hold), clock, clock)
        for hold in (timedelta(days=1), timedelta(hours=2))
    }
    recent = [
        sorted(row["evidence"][0] for row in each.every if row["alert_key"] in each.recent_events)
        for each in found.values()
    ]
    assert recent == [["early", "late"], ["late"]]


def test_the_time_of_the_newest_evidence_is_asked_once_where_alerts_are_computed(spark, place, monkeypatch):
    monkeypatch.setattr(update, "newest_event_time_us", lambda _: pytest.fail("asked twice"))
    found = alerts_by_clock(Lake(spark, place), Thresholds(), ClockLimits(), BEGIN.replace(hour=15))
    assert found.newest_at == BEGIN.replace(hour=14)
    assert found.rows


def test_an_entry_is_observed_if_one_of_its_alerts_is():
    def alert(condition, key):
        return {"alert_key": key, "condition": condition, "severity": "error", "queue": "q", "since": BEGIN,
                "from_machine": None, "to_machine": None}  # fmt: skip

    rows = [alert("receives_not_ended", "a"), alert("queue_stuck", "b"), alert("calls_failing", "c")]
    found = AlertsByClock(BEGIN, None, tuple(rows), (), frozenset("ac"), frozenset(), frozenset())
    observed, unobserved = found.entries(rows)
    assert [[row["alert_key"] for row in entry.alerts] for entry in observed] == [["a", "b"]]
    assert [[row["alert_key"] for row in entry.alerts] for entry in unobserved] == [["c"]]


def test_an_event_that_is_older_than_the_setting_is_not_told(place, capsys):
    arguments = ("--condition", "ends_refused", "--set", "alerts.event_hold=1h")
    assert alerts(place, capsys, "14:10:00", *arguments)[0] == 1
    assert alerts(place, capsys, "14:11:00", *arguments)[0] == 0


def test_after_the_next_run_an_event_is_not_told_again(spark, tmp_path, capsys):
    place, refusals = str(tmp_path / "lake"), [refused("late", 13, 10, at(14, 1))]
    fill(Lake(spark, place), [*(capture(hour) for hour in range(9, 15)), capture(14, 30)], refusals)
    code, lines, summary = alerts(place, capsys, "15:00:00", "--condition", "ends_refused")
    assert (code, summary["first_read"]) == (0, 0)
    assert lines == ["newest evidence 2026-03-02 14:30:00, 30 min ago"]
    code, lines, _ = alerts(place, capsys, "14:05:00", "--condition", "ends_refused")  # it is still active
    assert code == 1


def test_each_entry_has_its_evidence_and_the_next_command(place, capsys):
    _, lines, _ = alerts(place, capsys, "15:00:00")
    assert f"        next: msmq queue --lake {shlex.quote(place)} 'far\\private$\\down'" in lines
    assert "        evidence: down0, down80, down85 and 7 more" in lines
    assert f"        next: msmq export_packets --lake {shlex.quote(place)} --call late --out trouble.pcapng" in lines
    _, lines, _ = alerts(place, capsys, "18:00:00", "--condition", "evidence_stopped")
    assert f"        next: msmq ask --lake {shlex.quote(place)} 25" in lines


def test_json_has_all_of_it(place, capsys):
    found = {row["condition"]: row for row in json_rows(place, capsys, "18:00:00") if row["until"] is None}
    stopped, waiting = found["evidence_stopped"], found["queue_disconnected"]
    assert (stopped["subject"], stopped["not_observed_since"]) == ("captures in /data/ring", None)
    assert stopped["leading_alert"] == stopped["alert_key"]
    assert waiting["not_observed_since"] == "2026-03-02T14:00:00Z"
    assert waiting["next_command"].startswith("msmq queue")
    assert {row["newest_evidence_at"] for row in found.values()} == {"2026-03-02T14:00:00Z"}


def shifted_capture(content, hours):
    """Return a classic pcap, little-endian, with the times of its packets moved."""
    shifted, place = bytearray(content), 24
    while place < len(shifted):
        seconds, _, length, _ = struct.unpack_from("<IIII", shifted, place)
        struct.pack_into("<I", shifted, place, seconds + hours * 3600)
        place += 16 + length
    return bytes(shifted)


def stopped_sources(lake, capsys, clock):
    code = job.main(
        ["--lake", str(lake), "--condition", "evidence_stopped", "--as-of", clock.isoformat(), "--json", "-"]
    )
    *lines, _ = capsys.readouterr().out.splitlines()
    return code, [json.loads(line)["subject"] for line in lines]


def test_runs_that_read_a_folder_five_times_give_it_a_rhythm_and_one_run_does_not(project, tmp_path, capsys):
    content = (project / "data" / "sample" / "01-remoteread-ndr.pcap").read_bytes()
    ring, filled = tmp_path / "ring", tmp_path / "filled"
    for number in range(6):
        for folder in (ring, filled):
            folder.mkdir(exist_ok=True)
            (folder / f"{number}.pcap").write_bytes(shifted_capture(content, number))
        arguments = ["--lake", str(tmp_path / "lake"), *LOCAL, "--captures", str(ring)]
        assert ingest_captures.main(arguments) == 0
    assert ingest_captures.main(["--lake", str(tmp_path / "once"), *LOCAL, "--captures", str(filled)]) == 0
    capsys.readouterr()
    captures = Lake(without_spark(), str(tmp_path / "lake")).select(CAPTURE_FILES, "TRUE", ("last_packet_at",))
    newest = max(captures["last_packet_at"].to_pylist())
    assert stopped_sources(tmp_path / "lake", capsys, newest + timedelta(hours=3)) == (0, [])
    late = newest + timedelta(hours=3, minutes=1)
    assert stopped_sources(tmp_path / "lake", capsys, late) == (1, [f"captures in {ring}"])
    assert stopped_sources(tmp_path / "once", capsys, late) == (0, [])
    assert publish_dashboards.main(["--lake", str(tmp_path / "lake"), *LOCAL, "--out", str(tmp_path / "pages")]) == 0
    metric = f'msmq_source_newest_evidence_timestamp_seconds{{kind="captures",source="{ring}"}} {newest.timestamp()!r}'
    assert metric in (tmp_path / "pages" / "metrics.prom").read_text().splitlines()
