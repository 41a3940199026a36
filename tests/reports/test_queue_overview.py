"""The console overview of queues."""

import pytest

from pipeline.lake.lake import Lake
from pipeline.reports.queue_overview import format_queues, queue_lines
from queue_states.queue_events import FAR_NAME, MINUTE, NAME, QUEUE, US, outgoing, snapshot
from reports.questions.in_memory_lake import history_tables, rows
from schemas.bronze import CAPTURE_FILES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

NOTHING = dict.fromkeys(
    ("message_count", "journal_count", "unacked_count", "resend_count", "known_until", "reported_at")
)  # fmt: skip


def row(queue, **more):
    name = f"DIRECT=OS:{queue}"
    place = {"queue": queue, "queue_manager": "srv1", "queue_format_name": name, "sources": "collector"}
    return NOTHING | place | {"state": "UNKNOWN"} | more


def times(reported, unknown):
    return f"reported 1970-01-01 00:{reported:02}:00, unknown since 1970-01-01 00:{unknown:02}:00"


def test_lines_say_what_is_known():
    found = [
        row("srv1\\a", message_count=7, journal_count=2, state="LOCAL CONNECTION", reported_at=0, known_until=9 * US),
        row("far\\b", message_count=0, state="WAITING", unacked_count=7, resend_count=3, sources="collector, wire"),
        row("srv1\\c", hresult_name="MQ_ERROR_QUEUE_NOT_ACTIVE"),
        row("srv1\\d\x1b[2J", state="ONHOLD"),
        row("srv1\\e"),
    ]
    assert format_queues(found, 9 * US, max_lines=4) == [
        "queues    last report, most messages first",
        "  " + "srv1\\a".ljust(40) + " 7 messages, 2 in the journal, LOCAL CONNECTION, reported 1970-01-01 00:00:00, "
        "unknown since 1970-01-01 00:00:09 (srv1, DIRECT=OS:srv1\\a, collector)",
        "  " + "far\\b".ljust(40) + " 0 messages, WAITING, 7 not acknowledged, resend count 3 (srv1, DIRECT=OS:far\\b, "
        "collector, wire)",
        "  " + "srv1\\c".ljust(40) + " MQ_ERROR_QUEUE_NOT_ACTIVE (srv1, DIRECT=OS:srv1\\c, collector)",
        "  " + "srv1\\d\\x1b[2J".ljust(40) + " ? messages, ONHOLD (srv1, DIRECT=OS:srv1\\d\\x1b[2J, collector)",
        "  ... and more: gold.queue_history",
    ]  # fmt: skip
    assert format_queues([], 0, max_lines=4) == []


@pytest.mark.spark
def test_each_queue_is_one_line_by_its_canonical_name_with_its_last_report(spark, tmp_path):
    """Captures and collector saw both queues; nothing is known of them since an hour."""
    lake = Lake(spark, str(tmp_path))
    assert queue_lines(lake) == []
    seen = []
    for source, late in (("collector", 0), ("wire", 0.1)):
        seen.append(snapshot(late, f"q{source}", source=source, state="LOCAL CONNECTION", message_count=5))
        seen += [outgoing(at + late, 4, 3, key=f"o{source}{at}", source=source) for at in (0, MINUTE)]
    made = history_tables(seen)
    failed = {"observed_at": 0, "hresult": 0xC00E0024, "hresult_name": "MQ_ERROR_QUEUE_NOT_ACTIVE"}
    failed |= {"queue": "srv1\\private$\\off", "queue_manager": "srv1", "queue_format_name": "DIRECT=OS:off"}
    made[QUEUE_SNAPSHOTS] = rows(QUEUE_SNAPSHOTS, failed | {"source": "collector"}, failed | {"source": "wire"})
    made[CAPTURE_FILES] = rows(CAPTURE_FILES, {"capture_id": "c", "last_packet_at": 75})
    for table, content in made.items():
        lake.append(table, spark.createDataFrame(content.drop_columns(["event_date"])))
    lines = [line.split(" (") for line in queue_lines(lake)[1:]]
    assert [(text.split("  ")[1], text.split("   ")[-1].strip(), where) for text, where in lines] == [
        (QUEUE, f"5 messages, LOCAL CONNECTION, {times(0, 15)}",
         f"srv1, {NAME}, collector, wire)"),
        ("far\\private$\\q", f"? messages, CONNECTED, 3 not acknowledged, {times(1, 16)}",
         f"relay, {FAR_NAME}, collector, wire)"),
        ("srv1\\private$\\off", "MQ_ERROR_QUEUE_NOT_ACTIVE", "srv1, DIRECT=OS:off, collector, wire)"),
    ]  # fmt: skip
