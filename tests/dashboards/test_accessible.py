"""The page for everybody: axe-core has no objection, in any section and story, in either theme, on a phone."""

from pathlib import Path

import pytest

from dashboards.sites import site, trouble
from pipeline.dashboards.html_page import render_page

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
FOUND = """axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.flatMap((each) =>
    each.nodes.map((node) => `${each.id}: ${node.html.slice(0, 120)}`)))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "index.html"
    path.write_text(render_page(site(stories=trouble())), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("dark", "width", "height"),
    [(True, 390, 844), *(pytest.param(*each, marks=pytest.mark.long)
                         for each in ((False, 1400, 900), (True, 1400, 900), (False, 390, 844)))],
)  # fmt: skip
def test_axe_finds_nothing(at, page, dark, width, height):
    at.set_display(width=width, height=height, dark=dark, mobile=width < 400)
    at.open(page)
    at.run("localStorage.clear()")
    at.open(page)
    at.run(f"{AXE};0")
    stories = ["#entry?key=e1", "#queue?name=far%5Cprivate%24%5Cout", "#machine?name=10.0.0.7", "#message?key=m1"]
    wrong = {}
    for address in (*(f"#{section}" for section in at.run("TABS")), *stories, "#queues?row=alerts%3Ae1"):
        at.go(address)
        wrong[address] = at.run(FOUND)
    at.run("document.querySelector('dialog[open]').close(); showKeys()")
    wrong["help"] = at.run(FOUND)
    assert {address: each for address, each in wrong.items() if each} == {}
