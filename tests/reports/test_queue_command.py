"""`msmq queue`: which queues a text means, lists, near names, the exit code of the worst, and lines for a screen."""

from __future__ import annotations

import json

import pytest

from engines import without_spark
from jobs import queue_verdict, run_all
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.entries import find_entries
from pipeline.bronze.event_time import newest_event_time_us
from pipeline.lake.lake import Lake
from pipeline.reports.queue_verdict import verdict
from pipeline.reports.queue_verdict.verdict import Situation, find_verdicts, verdicts_for
from pipeline.reports.views.names import queues_meant
from pipeline.silver.machines import Machines
from schemas.alerts import ALERTS
from udfs.times import us_to_datetime

STALLED = "0cf753ea-ab77-5e15-87bc-834df08a718c"  # the machine to which 08-stall sends, whose name is not known
WIDTH, HEIGHT = 100, 40


@pytest.fixture(scope="module")
def lake(project, tmp_path_factory):
    """A lake of remote reads, of a transfer that stalls, and of snapshots."""
    data, root = project / "data", tmp_path_factory.mktemp("queues") / "lake"
    captures = [str(data / "sample" / "03-qm2qm-dependent-client.pcap"), str(data / "transfers" / "08-stall.pcap.gz")]
    snapshots = str(data / "estate" / "snapshots")
    assert run_all.main(["--lake", str(root), "--captures", *captures, "--snapshots", snapshots]) == 0
    return root


@pytest.fixture
def ask(lake, capsys):
    """Returns the exit code, the lines that are printed without the summary, and what goes to standard error."""

    def find(name, *options):
        capsys.readouterr()
        code = queue_verdict.main(["--lake", str(lake), *options, name])
        printed = capsys.readouterr()
        *lines, summary = printed.out.splitlines()
        assert json.loads(summary)["exit_code"] == code
        return code, lines, printed.err

    return find


def queues(lines):
    """The queues of verdicts in full: each begins a line that is not indented, behind the list."""
    return [line for line in lines if line and not line.startswith((" ", "TROUBLE", "no trouble seen"))]


@pytest.mark.parametrize(
    "name",
    [f"{STALLED}\\0000000a", f"{STALLED}\\0000000A".upper(), "8c\\0000000A", f"PRIVATE={STALLED}\\0000000a"],
)
def test_any_part_of_a_name_in_any_case(ask, name):
    code, lines, _ = ask(name)
    assert code == 1
    assert lines[0] == f"{STALLED}\\0000000a"
    assert lines[1].startswith("  TROUBLE since 2026-11-21 12:36:46: the receiver refuses the sequence")


def test_of_several_queues_a_list_the_worst_first_and_its_exit_code(ask):
    code, lines, _ = ask(STALLED)
    assert code == 1
    assert [line[:16].strip() for line in lines[:2]] == ["TROUBLE", "no trouble seen"]
    assert queues(lines) == [f"{STALLED}\\0000000a", f"{STALLED}\\00000009"]
    code, lines, _ = ask("private$")
    assert code == 1  # of one of many
    assert len(lines) > 5
    assert queues(lines) == []
    assert [line.startswith("TROUBLE ") for line in lines] == [True, *[False] * (len(lines) - 1)]
    code, lines, _ = ask("orders1\\")
    assert code == 0
    assert all(line.startswith("no trouble seen  orders1\\private$\\") for line in lines)


def test_a_whole_name_means_that_queue_also_where_it_is_a_part_of_others():
    names = {"srv\\orders": {"srv\\orders", "direct=os:srv\\orders"}, "srv\\orders2": {"srv\\orders2"}}
    for text in ("SRV\\orders", "DIRECT=OS:srv\\Orders"):
        assert queues_meant(names, text) == ["srv\\orders"]
    assert queues_meant(names, "srv\\order") == [*names]
    assert queues_meant(names, "orders") == [*names]


@pytest.mark.parametrize(
    ("name", "near"),
    [("ordrs", ["srv1\\private$\\orders"]),
     ("FAR\\PRIVATE$\\STALED", ["far\\private$\\stalled"]),
     ("direct=os:srv1\\private$\\ordrs", ["srv1\\private$\\orders"]),
     (f"{STALLED[:-1]}0\\0000000a", [f"{STALLED}\\0000000a", f"{STALLED}\\00000009"]),
     ("nothing like it", [])],
)  # fmt: skip
def test_of_a_name_that_no_queue_has_the_near_ones(ask, name, near):
    """Each queue once, whichever of its names is near."""
    code, lines, said = ask(name)
    assert (code, lines) == (5, [])
    (line,) = [line for line in said.splitlines() if "nothing was captured of a queue called" in line]
    named = line.partition("; similar names: ")[2]
    found = named.split(", ") if named else []
    assert (found[: len(near)] if near else found) == near
    assert len(set(found)) == len(found) <= 5


def test_a_verdict_is_a_screen(ask):
    for name in (f"{STALLED}\\0000000a", "shop2\\private$\\till", "far\\private$\\resending", "srv1\\private$\\orders"):
        _, lines, _ = ask(name)
        assert len(lines) <= HEIGHT
        assert [line for line in lines if len(line) > WIDTH and not line.startswith("  packets ")] == []


def test_the_parts_of_a_verdict(ask):
    def part(name, lines):
        """The text behind a name, with the lines below it."""
        begin = next(place for place, line in enumerate(lines) if line.startswith(f"  {name} "))
        more = [place for place, line in enumerate(lines) if place > begin and not line.startswith(" " * 12)]
        return " ".join(line[12:] for line in lines[begin : min(more, default=len(lines))])

    _, lines, _ = ask("srv1\\private$\\orders")
    assert part("where", lines) == "on srv1, as its name says"
    assert part("oldest", lines).startswith("unread for ")
    assert "10.77.0.2: " in part("readers", lines)
    assert "gave back" in part("readers", lines)
    _, lines, _ = ask("orders1\\private$\\growing")
    assert part("where", lines) == "on orders1, as reported there"
    state = "at orders1: LOCAL CONNECTION, since 2026-11-21 15:18:03, 24 messages, 8000 bytes, reported 2026-11-21"
    assert state in part("state", lines)
    assert "how old its oldest message is" in part("not known", lines)
    _, lines, _ = ask("far\\private$\\stalled")
    assert "12 not acknowledged" in part("transfers", lines)
    assert "when messages were sent to it" in part("not known", lines)
    _, lines, _ = ask(f"{STALLED}\\0000000a")
    assert part("senders", lines).startswith("10.77.108.1 to 10.77.108.2: 3 messages, the last one ")
    assert part("do", lines).startswith("The number's predecessor")
    alerts = (
        "error sequence_refused since 2026-11-21 12:36:46 also warning order_acks_stalled since 2026-11-21 12:36:46"
    )
    assert part("alerts", lines) == alerts
    assert part("packets", lines).startswith("msmq export_packets --lake ")


def test_who_has_the_alerts_gets_verdicts_for_their_queues_without_asking_again(lake, monkeypatch):
    """As the site does: of the queues with an active alert, the worst first."""
    there = Lake(without_spark(), str(lake))
    machines, active = Machines.of(there), there.select(ALERTS, "until IS NULL").to_pylist()
    now = us_to_datetime(newest_event_time_us(there))
    situation = Situation(find_entries(active, machines), machines, Thresholds(), now)
    expected = find_verdicts(there, STALLED, Thresholds()).verdicts[0]
    for name in ("current_alerts", "newest_event_time_us", "LakeViews"):
        monkeypatch.setattr(verdict, name, lambda *_, **__: pytest.fail("the caller has it"))
    assert situation.queues == [f"{STALLED}\\0000000a"]
    (found,) = verdicts_for(there, situation.queues[:5], situation)
    assert (found.facts, found.cause, found.keys) == (expected.facts, expected.cause, expected.keys)
    assert verdicts_for(there, [], situation) == []
    assert verdicts_for(there, ["no such queue"], situation) == []
