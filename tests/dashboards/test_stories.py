"""Stories of what is in trouble, on the page: what comes first, addresses, names, the age of the evidence, paper."""

from __future__ import annotations

import json
import re

import pytest

from dashboards.sites import attempt, call, data, finding, message_timeline, site, trouble
from hostile import MARKUP
from pipeline.dashboards.datasets import PACKET_TABLES
from pipeline.dashboards.html_page import render_page
from pipeline.dashboards.stories import MAX_STORIES, build_stories
from pipeline.silver.machines import Machines

FIRST_CARD = "document.querySelector('.entry')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "index.html"
    path.write_text(render_page(site(stories=trouble())), encoding="utf-8")
    return path


def text(at, selector="main"):
    return at.run(f"document.querySelector({json.dumps(selector)}).innerText")


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_screen_says_what_is_wrong_since_when_why_and_what_to_do(at, page, width, height):
    at.set_display(width=width, height=height, mobile=width < 400)
    at.open(page)
    assert text(at, ".verdict").startswith(
        "Worst: srv1\\private$\\orders, since 2024-05-01 12:05:00 UTC (for 11 min 40 s)"
    )
    assert text(at, ".verdict").endswith("2 causes, 2 queues in trouble.")
    card = text(at, ".entry")
    for part in ("error", "srv1\\private$\\orders", "since 2024-05-01 12:05:00 UTC", "stalls",
                 "Do: look at the next hop", "1 more alert of this cause"):  # fmt: skip
        assert part in card
    assert at.run(f"{FIRST_CARD}.getBoundingClientRect().bottom") <= height
    headings = at.run("[...document.querySelectorAll('main h2')].map((each) => each.textContent)")
    assert headings[:4] == ["What is wrong, and what to do", "Queues in trouble", "Counts", "Coverage gaps"]


def test_where_all_is_well_nothing_of_it_is_shown(at, tmp_path):
    (tmp_path / "well.html").write_text(render_page(site(alerts=data([]))), encoding="utf-8")
    at.open(tmp_path / "well.html")
    assert "No alert is active." in text(at)
    assert at.run("document.querySelectorAll('.entry').length") == 0
    assert "Queues in trouble" not in text(at)
    assert "Worst:" not in text(at)


def test_from_the_page_to_the_packets_in_three_steps(at, page):
    at.open(page)
    at.run("document.querySelector('.verdict a').click()")
    at.wait("location.hash === '#entry?key=e1'")
    assert "msmq export_packets --lake /lake --packet p1 --out trouble.pcapng" in text(at)
    at.run("[...document.querySelectorAll('main dd a')].find((each) => each.textContent.startsWith('srv1')).click()")
    at.wait("location.hash.startsWith('#queue?name=srv1')")
    story = text(at)
    for part in ("stalls, since 2024-05-01 12:05:00 UTC", "look at the next hop", "how old its oldest message is",
                 "LOCAL CONNECTION", "Who sends to it",
                 "msmq export_packets --lake /lake --packet p1 --out trouble.pcapng"):  # fmt: skip
        assert part in story


def test_each_thing_in_trouble_has_an_address(at, page):
    at.open(page)
    for address, parts in (
        ("#machine?name=10.0.0.7", ["Seen as", "srv1\\private$\\orders stalls", "far\\private$\\out"]),
        ("#machine?name=FAR", ["10.0.0.7, 7c29fc40"]),
        ("#message?key=m1", ["on its way to srv1", "msmq trace_message", "--message m1 --out trouble.pcapng"]),
        ("#entry?key=gone", ["This cause is not on this page"]),
        ("#queue?name=other", ["no trouble of it is seen"]),
        ("#machine?name=other", ["No active alert names this machine"]),
    ):
        at.go(address)
        assert [part for part in parts if part not in text(at)] == [], address


def test_tables_and_rows_lead_to_stories(at, page):
    at.open(page, "#queues")
    labels = at.run("[...document.querySelectorAll('[data-rows=queues] th')].map((each) => each.textContent)")
    assert {"cause", "since", "unacknowledged", "last read"} <= set(labels)
    links = at.run("[...document.querySelectorAll('[data-rows=queues] tbody a')].map((each) => each.hash)")
    assert {"#entry?key=e1", "#queue?name=srv1%5Cprivate%24%5Corders"} <= set(links)
    at.go("#alerts?row=alerts%3Ae1")
    assert "#entry?key=e1" in at.run("[...document.querySelectorAll('dialog a')].map((each) => each.hash)")
    at.go("#reads?row=attempts%3Aa1")
    assert "#message?key=m1" in at.run("[...document.querySelectorAll('dialog a')].map((each) => each.hash)")


def test_filters_choose_among_what_is_wrong(at, page):
    at.open(page, "#overview?queue=out")
    assert at.run("document.querySelectorAll('.entry').length") == 1
    assert text(at, ".verdict").startswith("Worst: far\\private$\\out")
    at.go("#overview?queue=nothing")
    assert at.run("document.querySelectorAll('.entry').length") == 0


def test_hostile_names_stay_text_in_stories(at, tmp_path):
    stories = trouble(*MARKUP)
    (tmp_path / "hostile.html").write_text(render_page(site(names=MARKUP, stories=stories)), encoding="utf-8")
    at.open(tmp_path / "hostile.html")
    addresses = ["#overview", "#entry?key=e1", "#message?key=m1", "#machine?name=far"]
    addresses += [at.run(f"link('queue', {{name: {json.dumps(name)}}})") for name in MARKUP]
    for address in addresses:
        at.go(address)
        assert (
            at.run("document.querySelectorAll('main script, main img, main iframe, main a[href^=javascript]').length")
            == 0
        )
    assert at.run("window.owned === undefined")


def test_the_page_has_a_limited_number_of_stories_and_says_how_many_are_left_out():
    stories = trouble(*(f"srv{number}\\private$\\{'x' * 2000}" for number in range(MAX_STORIES + 5)))
    assert len(stories.entries) == len(stories.queues) == MAX_STORIES
    assert stories.left_out["entries"] == stories.left_out["queues"] == 5
    names = [story["queue"] for story in stories.queues.values()]
    assert max(map(len, names)) < 600
    assert len(set(names)) == MAX_STORIES
    many = [message_timeline("x" * 499, number) for number in range(150)]
    for timeline in many:
        timeline.events *= 60
    bounded = build_stories([], [], many, Machines([], {}), "--lake /lake")
    assert len(json.dumps(bounded.to_json())) < 8 << 20
    assert all(len(story["events"]) <= 50 < story["event_count"] for story in bounded.messages.values())


def test_terms_conditions_rules_and_codes_are_explained(at, tmp_path):
    faults = [
        call(f"k{number}", number, outcome="fault", fault_status=code) for number, code in ((1, 0x6F7), (2, 10061))
    ]
    made = site(stories=trouble(), calls=data(faults), findings=data([finding(1, rule_id="R14")]))
    (tmp_path / "terms.html").write_text(render_page(made), encoding="utf-8")
    at.open(tmp_path / "terms.html", "#calls?row=calls%3Ak1")
    assert "RPC_X_BAD_STUB_DATA (0x000006F7)" in text(at, "dialog")
    at.go("#calls?row=calls%3Ak2")
    assert "WSAECONNREFUSED (0x0000274D)" in text(at, "dialog")
    heading = "[...document.querySelectorAll('dialog h2')].find((each) => each.textContent === 'Evidence')"
    assert at.run(f"{heading}.title").startswith("evidence: ")
    at.go("#findings")
    assert at.run("TERMS.rules.R14") in text(at, "[data-rows=findings]")
    at.go("#entry?key=e1")
    title = at.run("document.querySelector('[data-term]').title")
    assert title == at.run("TERMS.conditions.transfer_stalled")
    at.go("#overview")
    at.key("?")
    assert at.run("TERMS.glossary.peek") in text(at, "dialog[open]")


def test_the_page_says_how_old_its_evidence_is_by_the_clock_of_the_browser(at, page):
    at.open(page)
    at.run("showAge(AS_OF + 3 * 3600_000 + 240_000)")
    assert text(at, "#age") == "evidence is 3 h 4 min old now"
    at.run("showAge(AS_OF - 60_000)")
    assert text(at, "#age") == "evidence is 1 min 0 s ahead of this computer's clock"
    at.run("showAge()")
    assert re.fullmatch(r"evidence is \d+\.\d d old now", text(at, "#age"))


def test_on_paper_tables_are_whole(at, tmp_path):
    rows = [attempt("q", number, client_address=f"10.9.{number}.1") for number in range(130)]
    (tmp_path / "long.html").write_text(render_page(site(attempts=data(rows))), encoding="utf-8")
    at.open(tmp_path / "long.html", "#reads")
    count = "document.querySelectorAll('[data-rows=attempts] tbody tr').length"
    assert at.run(count) == 50
    at.run("window.dispatchEvent(new Event('beforeprint'))")
    assert at.run(count) == 130
    at.run("window.dispatchEvent(new Event('afterprint'))")
    assert at.run(count) == 50


def test_rows_of_gold_lead_to_the_command_that_exports_their_packets(project):
    """The key of a row in the page is that of its table, but for rows that are none of their table."""
    text = (project / "pipeline/dashboards/static/data.js").read_text(encoding="utf-8")
    keys = dict(re.findall(r'^  (\w+): \{.*\bkey: "(\w+)"', text, re.MULTILINE))
    others = {"sequence_points", "transfer_latencies", "coverage"}  # their packets, stages and sums
    assert {name: key for name, (_, key) in PACKET_TABLES.items() if name not in others}.items() <= keys.items()
    assert all(keys.get(name) != PACKET_TABLES[name][1] for name in others)
    assert {name for name, (table, _) in PACKET_TABLES.items() if table == "gold.alerts"} == {"alerts"}
