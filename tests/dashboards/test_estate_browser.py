"""The report on an estate in headless Chromium: picture, filters, keys, paper, a phone, axe-core, hostile names."""

from __future__ import annotations

import base64
import json
import re
from datetime import timedelta

import pytest

from dashboards.estates import NOON, estate, flow, judged, machine, queue, report
from dashboards.test_accessible import AXE, FOUND
from hostile import MARKUP
from pipeline.dashboards.estate import page as page_module
from pipeline.dashboards.estate.page import render_report
from pipeline.reports.targets.verdicts import Fit

SECTIONS = ("overview", "flows", "queues", "machines", "targets", "capacity", "limits")
MOST_S = 3  # until a page of 300 machines is drawn
LINKS, NODES = "document.querySelectorAll('svg.flows .link')", "[...document.querySelectorAll('svg.flows .node')]"
LABELS = f"{NODES}.map((each) => each.querySelector('title').textContent)"
QUEUES = "[...document.querySelectorAll('#queues tbody tr')].map((each) => each.querySelector('td').innerText)"
OUTSIDE = "[document.documentElement.scrollWidth, innerWidth]"
OVERLAPS = """(() => { const picture = document.querySelector('svg.flows').getBoundingClientRect();
    const labels = [...document.querySelectorAll('svg.flows foreignObject')].map((it) => it.getBoundingClientRect());
    return labels.filter((a, place) => a.left < picture.left - 1 || a.right > picture.right + 1
    || labels.some((b, other) => other > place && a.left < b.right && b.left < a.right && a.top < b.bottom - 1
    && b.top < a.bottom - 1)).length })()"""  # labels of the picture on others, or outside


# Bytes in a picture: of all flows, of links, and of the nodes of each side.
SUMS = """(() => {{ const rows = DATA.estate_flows.rows, sum = (of) => of.reduce((all, each) => all + each.amount, 0);
    const found = pictureOf(rows, rows.all(), {{measure: 'bytes', most: {most}, grouped: false}}, false);
    return [found.total, sum(found.links), sum(found.left), sum(found.right)] }})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """HTML files of reports on estates by number of machines; one of hostile names; and one of an empty lake."""
    folder = tmp_path_factory.mktemp("estate")
    made = {3: estate(3), 30: estate(30), "hostile": hostile(), "empty": report()}
    for name, each in made.items():
        (folder / f"{name}.html").write_text(render_report(each), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def hostile():
    """A report whose names are markup, run from right to left, or are very long."""
    names = [*MARKUP, "abc\u202egpj.exe", "\u05d0\u05d1\u05d2", "x" * 1000, "=1+1"]
    target = estate(3).targets[0].name
    return report(
        estate_queues=[queue(name, number, holders=[name], senders=[name], response_queues=[name])
                       for number, name in enumerate(names, 1)],
        estate_flows=[flow(name, names[0], name, 1000 * number) for number, name in enumerate(names, 1)],
        estate_hours=[{"queue": name, "start_at": NOON, "sendings": 3} for name in names],
        estate_queue_coverage=[{"queue": name, "first_at": NOON, "until_at": NOON + timedelta(hours=1), "minutes": 60}
                               for name in names],
        estate_machines=[machine(name, addresses=[name], versions=[name]) for name in names],
        verdicts=[judged(name, target, (name, Fit.DOES_NOT_FIT, name)) for name in names],
    )  # fmt: skip


def test_three_machines_are_all_in_the_picture(at, pages):
    at.open(pages[3])
    assert at.run("document.querySelectorAll('main > section').length") == len(SECTIONS)
    labels = at.run(LABELS)
    names = {re.sub(r"(sender|receiver) (.*?):.*", r"\2", each) for each in labels}
    assert names == {"web000.corp.example", "app001.corp.example", "db002.corp.example"}
    assert at.run(f"{LINKS}.length") >= 3
    assert at.run(OVERLAPS) == 0
    assert at.run("document.querySelector('#overview h1').innerText") == "Overview"
    assert at.run("document.querySelectorAll('#overview .tile').length") == 4


def test_the_picture_shows_the_largest_and_the_rest_together(at, pages):
    at.open(pages[30])
    choose = "document.querySelector('.choices select[data-key=most]')"
    joined = "document.querySelector('.choices input[type=checkbox]')"
    assert at.run(f"{joined}.checked")  # of 30 machines
    assert at.run(f"{NODES}.length") == 8  # four kinds of names on each side
    at.run(f"{joined}.click()")
    amounts = at.run(f"{NODES}.map((each) => Number(each.querySelector('rect').getAttribute('height')))")
    labels = at.run(LABELS)
    senders = [each for each in labels if each.startswith("sender")]
    assert len(senders) == 13
    assert senders[-1].startswith("sender 18 others: ")
    assert amounts[:12] == sorted(amounts[:12], reverse=True)
    shares = [float(re.search(r"([\d.]+) %$", each)[1]) for each in senders]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert at.run(OVERLAPS) == 0
    at.run(f"{choose}.value = '48'; {choose}.dispatchEvent(new Event('change'))")
    flows = estate(30).views["estate_flows"]
    whole = sum(flows["bytes"].to_pylist())
    assert at.run(SUMS.format(most=4)) == at.run(SUMS.format(most=100)) == [whole] * 4
    assert len(at.run(LABELS)) == len(flows["sender"].unique()) + len(flows["receiver"].unique())
    assert at.run(OVERLAPS) == 0


def test_a_machine_of_the_picture_filters_all_sections_by_keys_too(at, pages):
    at.open(pages[30], "#flows")
    at.run("document.querySelector('.choices input[type=checkbox]').click()")
    name = at.run(f"{NODES}[0].focus(), document.activeElement.querySelector('bdi').textContent")
    at.key("Enter")
    at.wait(f"location.hash.includes({json.dumps(name)})")
    assert at.run("document.querySelector('#f-machine').value") == name
    assert at.run(f"{LABELS}.every((each) => each.length > 0)")
    rows = at.run("DATA.estate_flows.rows.count")
    shown = at.run("document.querySelector('#flows summary').innerText")
    assert 0 < int(re.search(r"All (\d+) flows", shown)[1]) < rows
    assert at.run("document.querySelector('#chosen').textContent").startswith("Only what has")
    at.key("c")
    at.wait("location.hash === '#flows'")
    assert at.run(QUEUES + ".length") == 50


def test_typing_filters_and_a_row_opens_what_is_known_of_the_queue(at, pages):
    at.open(pages[30])
    at.type("#f-queue", "orders.0066")
    at.wait("STATE.params.queue === 'orders.0066'")
    (name,) = at.run(QUEUES)
    at.run("document.querySelector('#queues button.open').focus()")
    at.key("Enter")
    at.wait("document.querySelector('#row').open")
    text = at.run("document.querySelector('#row').innerText").replace("\u202f", " ")
    assert text.startswith(name)
    for part in (
        "never on the wire",
        "1 340 of 6 700 (20.0 %)",
        "Sendings by weekday and hour, UTC",
        "does not fit",
        "exactly-once sequences rely on it",
        "Not seen in 30 days: ",
        "Source: https://",
    ):
        assert part in text
    heat = "[...document.querySelectorAll('#row svg.heatmap rect')]"
    assert at.run(f"{heat}.length") == 168
    assert at.run(f"{heat}.filter((each) => Number(each.getAttribute('fill-opacity')) > 0).length") > 10
    at.key("Escape")
    at.wait("!document.querySelector('#row').open")
    assert at.run("document.activeElement.matches('#queues button.open')")


def test_queues_whose_verdicts_are_not_explained_say_where_they_are(at, tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "_MOST_EXPLAINED", 1)
    target = estate(3).targets[0].name
    page = report(
        estate_queues=[queue("large", 3), queue("bad", 2), queue("good", 1)],
        verdicts=[judged(name, target, ("order", fit, "because")) for name, fit in
                  (("large", Fit.CHANGE), ("bad", Fit.DOES_NOT_FIT), ("good", Fit.FITS))],
    )  # fmt: skip
    path = tmp_path / "estate.html"
    path.write_text(render_report(page), encoding="utf-8")
    at.open(path)
    found = {}
    for name in ("large", "bad", "good"):
        at.go(f"#queues?row={name}")
        text = at.run("document.querySelector('#row .evidence').innerText")
        found[name] = ("because" in text, "Does not fit: order." in text, "estate_verdicts.csv" in text)
    assert found == {"large": (True, False, False), "bad": (False, True, True), "good": (False, False, False)}


def test_what_was_not_seen_is_a_dash(at, tmp_path):
    path = tmp_path / "estate.html"
    bare = {"queue": "q", "senders": [], "readers": [], "sender_count": None, "reader_count": None, "messages": 3}
    path.write_text(render_report(report(estate_queues=[bare], estate_machines=[{"machine": "m", "roles": []}])))
    at.open(path)
    for section in ("queues", "machines", "targets"):
        cells = at.run(f"[...document.querySelectorAll('#{section} td')].map((each) => each.innerText)")
        assert cells
        assert {"", "null", "undefined", "NaN"}.isdisjoint(cells), section
    at.run("document.querySelector('#queues button.open').click()")
    at.wait("document.querySelector('#row').open")
    text = at.run("document.querySelector('#row').innerText")
    assert "none seen" in text
    assert re.search(r"null|undefined|NaN", text) is None


def test_what_was_not_captured_is_marked_in_the_heat_map(at, pages):
    at.open(pages["hostile"])  # one hour was captured, that of Wednesday noon
    at.run("document.querySelector('#queues button.open').click()")
    at.wait("document.querySelector('#row').open")
    assert at.run("document.querySelectorAll('#row svg.heatmap rect.outside').length") == 167
    titles = at.run("[...document.querySelectorAll('#row svg.heatmap rect')].map((each) => each.textContent)")
    assert [each for each in titles if "not captured" not in each] == [
        "Wed 12:00: 3 sendings in 1 h 0 min that were captured"
    ]


def test_keys(at, pages):
    at.open(pages[3])
    at.key("5")
    at.wait("STATE.section === 'targets'")
    at.key("/")
    assert at.run("document.activeElement.id") == "f-queue"
    at.key("Escape")
    at.key("m")
    assert at.run("document.activeElement.id") == "f-machine"
    at.key("Escape")
    theme = at.run("document.documentElement.dataset.theme")
    at.key("t")
    assert at.run("document.documentElement.dataset.theme") != theme
    at.key("?")
    assert at.run("document.querySelector('#keys').open")


@pytest.mark.parametrize("width", [400, 1366])
@pytest.mark.parametrize("page", [30, "hostile", "empty"])
def test_nothing_is_wider_than_the_window(at, pages, page, width):
    at.set_display(width=width, height=800, mobile=width < 500)
    at.open(pages[page])
    whole, window = at.run(OUTSIDE)
    assert whole <= window
    if page != "empty":
        assert at.run(OVERLAPS) == 0
        at.run("document.querySelector('#queues button.open').click()")
        at.wait("document.querySelector('#row').open")
        assert at.run("((box) => box.scrollWidth - box.clientWidth)(document.querySelector('#row'))") <= 0


def test_hostile_names_are_text(at, pages):
    at.open(pages["hostile"])
    assert at.run("window.owned === undefined && document.querySelectorAll('main script, main img').length") == 0
    shown = at.run(QUEUES)
    assert "<script>" in "".join(shown)
    everything = at.run("new XMLSerializer().serializeToString(document.querySelector('main'))")
    assert "\u202e" not in everything
    assert "\\u{202e}" in everything


def test_an_empty_lake_says_that_nothing_is_known(at, pages):
    at.open(pages["empty"])
    text = at.run("document.querySelector('main').innerText")
    assert "too short for a rate" in text
    assert "No flow matches" in text
    assert "what it needs was not captured" in text


def test_it_prints_on_paper(at, pages):
    at.open(pages[30])
    printed = at.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, marginLeft=0.4, marginRight=0.4)["data"]
    assert 5 < len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) < 20
    at.set_display(width=718, height=1000)
    at.send("Emulation.setEmulatedMedia", media="print")
    try:
        at.run("dispatchEvent(new Event('beforeprint'))")
        wide = at.run("""[...document.querySelectorAll('main *:not(svg *)')].filter((each) =>
            each.getBoundingClientRect().right > 719).map((each) => each.outerHTML.slice(0, 90))""")
        assert wide == []
        assert at.run("getComputedStyle(document.querySelector('#filters')).display") == "none"
    finally:
        at.send("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize(
    ("dark", "width"),
    [(True, 400), *(pytest.param(*each, marks=pytest.mark.long) for each in ((False, 400), (True, 1366)))],
)
def test_axe_finds_nothing(at, pages, dark, width):
    wrong = {}
    for page in (30, "hostile", "empty"):
        at.set_display(width=width, height=844, dark=dark, mobile=width < 500)
        at.open(pages[page])
        at.run("localStorage.clear()")
        at.open(pages[page])
        at.run(f"{AXE};0")
        wrong[page] = at.run(FOUND)
        if page != "empty":
            at.run("document.querySelector('#queues button.open').click()")
            at.wait("document.querySelector('#row').open")
            wrong[page, "queue"] = at.run(FOUND)
            at.run("go('#overview')")
            at.wait("!document.querySelector('#row').open")
        at.run("showKeys()")
        wrong[page, "help"] = at.run(FOUND)
    assert {each: found for each, found in wrong.items() if found} == {}


@pytest.mark.long
def test_three_hundred_machines_are_drawn_in_time(at, tmp_path):
    path = tmp_path / "large.html"
    path.write_text(render_report(estate(300, 1000)), encoding="utf-8")
    at.open(path)
    drawn = at.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert drawn < MOST_S * 1000
    assert at.run(OVERLAPS) == 0
    at.run("document.querySelector('.choices input[type=checkbox]').click()")
    assert len(at.run(LABELS)) == 26
    assert at.run(OVERLAPS) == 0
    begun = at.run("performance.now()")
    at.type("#f-machine", "web00")
    at.wait("STATE.params.machine === 'web00'")
    assert at.run("performance.now()") - begun < MOST_S * 1000
