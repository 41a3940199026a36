"""What changed since a time, and ``msmq alerts --since``, which prints it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs import alerts as job
from pipeline.lake.lake import Lake
from pipeline.reports import changes
from pipeline.reports.changes import ReportedChange, alert_changes, format_changes, host_changes, version_changes
from pipeline.silver.machines import Machines
from pipeline.text import format_age
from queue_states.queue_events import MINUTE, snapshot
from reports.questions.in_memory_lake import history_tables, rows
from schemas.bronze import CAPTURE_FILES
from schemas.hosts import HOSTS
from schemas.queue_snapshots import MACHINE_SNAPSHOTS
from schemas.transfers import MESSAGE_TRANSFERS

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
PERIOD = changes._Period(NOON, NOON + timedelta(hours=4))
QUEUES = [f"far\\private$\\{name}" for name in ("down", "emptied", "new", "same", "filled", "back")]


def at(hour, minute=0):
    """A time of 2 March 2026, in minutes since 1970, as the rows have it."""
    return int(NOON.timestamp()) // 60 + (hour - 12) * 60 + minute


def time(hour, minute=0):
    return NOON + timedelta(hours=hour - 12, minutes=minute)


def told(found):
    """The changes without their texts."""
    return [(change.at, change.kind, change.what, change.name) for change in found]


def queue_events():
    """Snapshots every ten minutes from 11:00 to 15:00; what each queue does after 12:00 is in its name."""
    for minute in range(0, 241, 10):
        late, middle = minute >= 120, 90 <= minute <= 120
        states = ("WAITING" if late else "CONNECTED", "CONNECTED", "CONNECTED", "CONNECTED", "CONNECTED",
                  "WAITING" if middle else "CONNECTED")  # fmt: skip
        counts = (3, 0 if late else 5, 1, 2, 4 if late else 0, 0 if middle else 1)
        for queue, state, count in zip(QUEUES, states, counts, strict=True):
            if queue != QUEUES[2] or minute >= 70:
                key = f"{queue}{minute}"
                yield snapshot(at(11, minute) * MINUTE, key, queue=queue, state=state, message_count=count, bytes=1)


def host(name, address, first, last):
    return {"host_key": f"{name}{address}", "host_name": name, "address": address, "source": "message",
            "first_seen_at": first, "last_seen_at": last}  # fmt: skip


def system(name, kind, observed):
    return {"snapshot_id": f"{name}{observed}", "queue_manager": name, "type": kind, "observed_at": observed}


def sent(receiver, first, last):
    return {"transfer_key": f"{receiver}{first}", "sender_address": "10.0.0.1", "receiver_address": receiver,
            "destination_queue": "far\\private$\\in", "first_sent_at": first, "last_sent_at": last}  # fmt: skip


def fill(lake):
    """Write a lake of which much changed between 12:00 and 16:00."""
    capture = {"capture_id": "c", "path": "/d/c", "last_packet_at": at(15), "ingested_at": at(15)}
    tables = history_tables([*queue_events()]) | {
        CAPTURE_FILES: rows(CAPTURE_FILES, capture),
        HOSTS: rows(
            HOSTS, host("srv1", "10.0.0.1", at(9), at(15)), host("srv2", "10.0.0.2", at(9), at(11)),
            host("srv3", "10.0.0.3", at(13), at(15)), host("srv4", "10.0.0.4", at(9), at(15)),
            host("srv4", "10.0.0.5", at(14), at(15)), host("gone", "10.0.0.6", at(2), at(3)),
        ),
        MACHINE_SNAPSHOTS: rows(
            MACHINE_SNAPSHOTS, system("srv1", "MSMQ 5.0", at(11)), system("srv1", "MSMQ 6.3", at(13, 30)),
            system("srv4", "MSMQ 5.0", at(11)), system("srv4", "MSMQ 5.0", at(14)),
        ),
        MESSAGE_TRANSFERS: rows(
            MESSAGE_TRANSFERS, sent("10.0.0.2", at(10), at(11)), sent("10.0.0.3", at(13), at(13, 5)),
            sent("10.0.0.4", at(10), at(10)), sent("10.0.0.4", at(14), at(14)),
        ),
    }  # fmt: skip
    for table, found in tables.items():
        lake.append(table, found.drop_columns(["event_date"]))


EXPECTED = [
    (time(11), "flow", "stopped", "far\\private$\\in"),
    (time(11), "machine", "silent", "srv2"),
    (time(12, 10), "queue", "appeared", f"{QUEUES[2]} at srv1"),
    (time(12, 30), "alert", "began", "info queue_disconnected"),
    (time(13), "alert", "began", "error queue_disconnected"),
    (time(13), "flow", "new", "far\\private$\\in"),
    (time(13), "machine", "new", "srv3"),
    (time(13), "queue", "emptied", f"{QUEUES[1]} at srv1"),
    (time(13), "queue", "filled", f"{QUEUES[4]} at srv1"),
    (time(13), "queue", "state", f"{QUEUES[0]} at srv1"),
    (time(13, 10), "alert", "ended", "info queue_disconnected"),
    (time(13, 30), "machine", "version", "srv1"),
    (time(14), "machine", "address", "srv4"),
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize(
    ("store", "read_log"),
    [("delta-rs", "auto"), *(pytest.param("spark", log, marks=pytest.mark.long) for log in ("auto", "spark"))],
)
def test_alerts_since_a_time_lists_what_changed(spark, tmp_path, capsys, store, read_log):
    place = str(tmp_path / "lake")
    fill(Lake(spark, place, store=store))
    arguments = ["--lake", place, "--as-of", "2026-03-02T16:00:00Z", "--set", f"lake.read_log={read_log}"]
    assert job.main([*arguments, "--since", "4h", "--json", "-"]) == 1  # as without --since
    *lines, _ = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines]
    listed = [(datetime.fromisoformat(row["at"]), row["kind"], row["what"], row["name"]) for row in found]
    assert listed == EXPECTED
    texts = {(row["kind"], row["what"]): row["text"] for row in found}
    assert texts["queue", "state"] == "from CONNECTED to WAITING"
    assert texts["queue", "filled"] == "from 0 to 4 messages"
    assert texts["machine", "address"] == "10.0.0.5, before 10.0.0.4"
    assert texts["machine", "version"] == "MSMQ 6.3, before MSMQ 5.0"
    assert texts["flow", "new"] == "from srv1 to srv3, 1 message"
    assert job.main([*arguments, "--since", "2026-03-02T12:00:00Z"]) == 1
    *lines, age, _ = capsys.readouterr().out.splitlines()
    assert lines[0] == "since 2026-03-02 12:00:00:"
    assert f"  2026-03-02 13:00:00  queue    state     {QUEUES[0]} at srv1: from CONNECTED to WAITING" in lines
    assert len(lines) == 1 + len(listed)
    assert age == "newest evidence 2026-03-02 15:00:00, 1 h ago"
    job.main([*arguments, "--since", "5m"])
    assert capsys.readouterr().out.splitlines()[0] == "nothing changed since 2026-03-02 15:55:00"
    for more in (["--ended"], ["--condition", "queue_stuck"]):
        assert job.main([*arguments, "--since", "4h", *more]) == 2
    assert "it goes neither with --condition nor with --ended" in capsys.readouterr().err
    assert job.main([*arguments, "--since", "2026-03-02T16:00:00Z"]) == 2
    assert "it is not before now, 2026-03-02 16:00:00" in capsys.readouterr().err


def alert(key, severity="warning", since=11, until=None, last_seen=15):
    return {"alert_key": key, "condition": "queue_stuck", "severity": severity, "subject": key, "since": time(since),
            "until": None if until is None else time(until), "last_seen_at": time(last_seen)}  # fmt: skip


def test_alerts_began_worsened_and_ended():
    then = [alert("same"), alert("worse"), alert("over"), alert("again", until=11)]
    now = [
        alert("same"), alert("worse", "error"), alert("over", until=13), alert("again"), alert("new", since=13),
        alert("short", since=13, until=14), alert("old", since=9, until=10),
    ]  # fmt: skip
    found = [(change.text, change.what, change.at) for change in alert_changes(then, now, PERIOD)]
    assert found == [
        ("worse", "worsened", time(15)), ("over", "ended", time(13)), ("again", "began", time(15)),
        ("new", "began", time(13)), ("short", "began", time(13)), ("short", "ended", time(14)),
    ]  # fmt: skip


def seen(name, address, first, last):
    return {
        "queue_manager_id": None,
        "host_name": name,
        "address": address,
        "first_at": time(first),
        "last_at": time(last),
    }


def test_a_machine_is_one_by_all_its_names():
    """One that was known by its address is not new when its name is first seen."""
    hosts = [seen(None, "10.0.0.1", 9, 15), seen("srv1", "10.0.0.1", 13, 15)]
    assert [*host_changes(hosts, PERIOD, Machines(hosts, {}))] == []
    alone = hosts[1:]
    assert told(host_changes(alone, PERIOD, Machines(alone, {}))) == [(time(13), "machine", "new", "srv1")]


def test_machines_with_one_identifier_are_told_apart_by_their_names():
    hosts = [seen(name, address, 13, 15) | {"queue_manager_id": "guid"} for name, address in
             (("shop1", "10.0.0.1"), ("shop2", "10.0.0.2"))]  # fmt: skip
    hosts.append(seen(None, "10.0.0.3", 13, 15) | {"queue_manager_id": "guid"})
    found = told(host_changes(hosts, PERIOD, Machines(hosts, {})))
    assert found == [(time(13), "machine", "new", "shop1"), (time(13), "machine", "new", "shop2")]


def test_a_version_that_was_there_before_is_no_change():
    version = {"queue_manager": "srv1", "type": "a", "first_at": time(11), "last_at": time(15)}
    assert [*version_changes([version], PERIOD, Machines([], {}))] == []


def test_lines_are_bounded_and_names_escaped():
    many = [ReportedChange(time(13), "queue", "state", "q\x1b[2J", str(number)) for number in range(50)]
    lines = format_changes(many, NOON)
    assert len(lines) == 42
    assert lines[1] == "  ... 10 earlier ones of kind queue"
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0 s"), (-5, "0 s"), (59.6, "1 min"), (3600, "1 h"), (11_100, "3 h 5 min"), (90_061, "1 d 1 h"),
    (86_460, "1 d 1 min"),
])  # fmt: skip
def test_an_age_has_its_two_largest_units(seconds, text):
    assert format_age(timedelta(seconds=seconds)) == text
