"""The first screen, for each planted situation: what is wrong, since when, why; nothing of it where all is well."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

import pytest

from engines import without_spark
from pipeline.alerts import update as alerts_update
from pipeline.dashboards.html_page import render_page
from pipeline.dashboards.read_datasets import RowLimits, read_dashboard_data
from pipeline.lake.lake import Lake
from reports.test_queue_verdict import (
    FAR,
    LIMITS,
    LOCAL,
    failed_connections,
    flowing,
    outgoing,
    reported,
    verdicts,  # noqa: F401 - a fixture
)
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.queue_aliases import QUEUE_ALIASES
from transfers.conversations import (
    ACCEPTOR,
    SERVER,
    START,
    Conversation,
    refused_for_ever,
    session_ack,
    table_of,
    transactional,
)

MOMENT = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
IDENTIFIER = "5ba1e0aa-0000-4000-8000-00000000c10e"
ALIASES = table_of(QUEUE_ALIASES, [
    {"queue": "other", "canonical_queue": "other", "event_date": START.date(), "run_id": "run"},
])  # fmt: skip
WAITING = [reported(minute, 12) for minute in range(0, 66, 5)]


def host(name, **more):
    return {"host_key": name, "host_name": name, "event_date": START.date(), "first_seen_at": START,
            "last_seen_at": START, "sightings": 1, **more}  # fmt: skip


def unacknowledged():
    talk = Conversation().handshake()
    for at in (10, 41, 71):
        talk.say("client", "user_message", transactional(1), at)
    talk.say("server", "session_ack", session_ack(ack=3), 72)
    return talk


def poison():
    return table_of(ACK_SEQUENCES, [{
        "sequence_key": "one", "queue": LOCAL, "lookup_id": 1, "attempts": 6, "peeks": 0, "outcomes": ["nacked"] * 6,
        "first_attempt_at": START, "settled_at": START + dt.timedelta(minutes=50), "fate": "returned",
        "redelivered": True, "loss_risk": "poison", "evidence": ["call"], "confidence": "complete", "missing": [],
        "event_date": START.date(), "run_id": "run",
    }])  # fmt: skip


def cloned():
    return {
        HOSTS: table_of(HOSTS, [host(name, queue_manager_id=IDENTIFIER, source="snapshot")
                                for name in ("srv1", "srv2")]),
        FINDINGS: table_of(FINDINGS, [{
            "finding_key": "one", "rule_id": "O01", "severity": "error", "subject": f"queue manager {IDENTIFIER}",
            "actual": "machines srv1, srv2", "observed_at": START, "evidence": ["snapshot"], "missing": [],
            "event_date": START.date(), "run_id": "run",
        }]),
    }  # fmt: skip


def unreachable(cause):
    return {
        "snapshots": [outgoing(minute, "WAITING", 12) for minute in range(0, 66, 5)],
        "failures": failed_connections(cause, [600, 1200, 1800, 2400, 3000, 3600]),
        "tables": {HOSTS: table_of(HOSTS, [host("far", address=SERVER, source="message")])},
    }


def rejected(kind):
    """Messages that a machine rejects whose identifier a handshake shows."""
    acceptor = host("acceptor", host_name=None, queue_manager_id=str(ACCEPTOR), address=SERVER, source="session")
    return (flowing(kind),), {"ends_at": 100, "tables": {HOSTS: table_of(HOSTS, [acceptor])}}


class Situation(NamedTuple):
    """What is planted, the queue in trouble, what the first screen says of why, and how many alerts its entry has."""

    name: str
    conversations: tuple = ()
    planted: dict = {}  # noqa: RUF012 - read only
    queue: str = ""
    why: str = ""
    alerts: int = 0


SITUATIONS = (
    Situation("no answer", (), unreachable("no_answer"), FAR, "cannot connect to far: no answer", 2),
    Situation("reset", (), unreachable("reset"), FAR, "reset (service not running, or a firewall that rejects)", 2),
    Situation("queue missing", *rejected(0x8000), "ORDERS", "2 messages rejected", 1),
    Situation("queue full", *rejected(0x8003), "ORDERS", "2 messages rejected", 1),
    Situation("access refused", *rejected(0x8004), "ORDERS", "2 messages rejected", 1),
    Situation("reason not sent", (unacknowledged(),), {"ends_at": 300}, "ORDERS", "reason not sent: 1 message", 2),
    Situation("nobody reads", (), {"snapshots": WAITING}, LOCAL, "nobody reads: 12 messages", 1),
    Situation("poison", (), {"snapshots": WAITING, "tables": {ACK_SEQUENCES: poison()}}, LOCAL, "again and again", 1),
    Situation("sequence refused", (refused_for_ever(),), {"ends_at": 300}, "ORDERS", "refuses the sequence", 2),
    Situation("one identifier twice", (), {"snapshots": [reported(0, 0)], "tables": cloned()}, LOCAL,
              "two machines have one identifier", 1),
)  # fmt: skip


@pytest.fixture
def published(tmp_path, verdicts):  # noqa: F811 - the fixture
    """Returns the data of the page of a planted situation, and its file."""

    def publish(situation):
        tables = {QUEUE_ALIASES: ALIASES, **situation.planted.get("tables", {})}
        verdicts(situation.queue, *situation.conversations, **{**situation.planted, "tables": tables})
        lake = Lake(without_spark(), str(tmp_path / "lake"))
        alerts_update.update(lake, LIMITS, "run")
        site = read_dashboard_data(lake, limits=RowLimits(), published_at=MOMENT)
        page = tmp_path / "index.html"
        page.write_text(render_page(site), encoding="utf-8")
        return site.stories, page

    return publish


def text(at, selector):
    return at.run(f"[...document.querySelectorAll({selector!r})].map((each) => each.innerText).join('\\n')")


IN_PLAIN_RUNS = ("no answer", "queue missing", "nobody reads")  # the verdict is tested for all


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(each, id=each.name, marks=() if each.name in IN_PLAIN_RUNS else pytest.mark.long)
        for each in SITUATIONS
    ],
)
def test_the_first_screen_names_queue_time_and_cause(at, published, situation):
    stories, page = published(situation)
    (queue,) = [story for story in stories.queues.values() if situation.queue.casefold() in story["queue"].casefold()]
    assert situation.why in queue["cause"]["text"]
    assert [entry["alert_count"] for entry in stories.entries] == [situation.alerts]
    at.set_display(width=1400, height=900)
    at.open(page)
    shown = text(at, ".entry")
    since = stories.entries[0]["since"][:19].replace("T", " ")
    for part in (situation.why, since, queue["queue"], queue["cause"]["suggestion"]):
        assert part in shown
    assert queue["queue"] in text(at, "main td")
    assert at.run("document.querySelector('.entry').getBoundingClientRect().bottom") <= 900
    assert queue["queue"] in text(at, ".verdict")
    at.run("document.querySelector('.verdict a').click()")
    at.wait("STATE.section === 'entry'")
    assert situation.why in text(at, "main")


def test_where_all_is_well_nothing_of_it_is_there(at, published):
    stories, page = published(Situation("well", (flowing(),), {"ends_at": 100}, "ORDERS"))
    assert (stories.entries, dict(stories.queues), stories.machines, dict(stories.messages)) == ([], {}, [], {})
    at.open(page)
    assert text(at, ".entry, .verdict a") == ""
    assert "Queues in trouble" not in text(at, "main")
