"""The console overview of queues."""

from pipeline.reports.queue_overview import format_queues

NOTHING = dict.fromkeys(
    ("message_count", "journal_message_count", "state", "eod_no_ack_count", "eod_resend_count", "hresult_name")
)


def row(queue, **more):
    return {**NOTHING, "queue": queue, "queue_manager": "srv1", "source": "collector", "n": 8} | more


def test_lines_say_what_is_known():
    rows = [
        row("srv1\\a", message_count=7, journal_message_count=2, state="LOCAL CONNECTION"),
        row("far\\b", message_count=0, state="WAITING", eod_no_ack_count=7, eod_resend_count=3, source="wire", n=1),
        row("srv1\\c", hresult_name="MQ_ERROR_QUEUE_NOT_ACTIVE"),
        row("srv1\\d\x1b[2J", state="ONHOLD"),
        row("srv1\\e"),
    ]
    assert format_queues(rows, max_lines=4) == [
        "queues    last observation, most messages first",
        "  " + "srv1\\a".ljust(40)
        + " 7 messages, 2 in the journal, LOCAL CONNECTION (srv1, collector, 8 observations)",
        "  "
        + "far\\b".ljust(40)
        + " 0 messages, WAITING, 7 not acknowledged, resend count 3 (srv1, wire, 1 observations)",
        "  " + "srv1\\c".ljust(40) + " MQ_ERROR_QUEUE_NOT_ACTIVE (srv1, collector, 8 observations)",
        "  " + "srv1\\d\\x1b[2J".ljust(40) + " ? messages, ONHOLD (srv1, collector, 8 observations)",
        "  ... and more: silver.queue_snapshots",
    ]  # fmt: skip
    assert format_queues([], max_lines=4) == []
