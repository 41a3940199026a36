"""A browser for the tests of pages; where there is none, they are reported as not run."""

from __future__ import annotations

import pytest

from dashboards import browser


@pytest.fixture(scope="session")
def chromium():
    """A running browser; None where there is none."""
    name = browser.find_browser()
    if name is None:
        yield None
        return
    with browser.chromium(name) as started:
        yield started


@pytest.fixture
def at(request, chromium):
    """The browser. In the end, its console must be empty, and it must have loaded nothing but the file."""
    if chromium is None:
        request.getfixturevalue("need_tool")("chromium")
    chromium.console_errors.clear()
    chromium.requests.clear()
    chromium.set_display(width=1366, height=800)
    yield chromium
    assert chromium.console_errors == []
    assert {url.split(":")[0] for url in chromium.requests} <= {"file", "about", "data"}
