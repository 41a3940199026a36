"""The HTML text of the page: its policy, its elements, and that data cannot leave its element."""

import base64
import hashlib
import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from html.parser import HTMLParser

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.sites import at, data, message_transfer, queue, session, site
from hostile import TEXTS
from pipeline.dashboards.dashboard_data import NEVER_ARRIVED, NOT_READ, encode_table, json_for_script, to_json_value
from pipeline.dashboards.html_page import render_page
from pipeline.dashboards.problems import count_problems
from pipeline.quality.coverage import PARTS
from pipeline.quality.coverage_gaps import GAP_MEANINGS, GAP_MEASURES
from pipeline.queues.history import NOT_CONNECTED_STATES


class Elements(HTMLParser):
    """Elements with their attributes, and the texts of scripts and styles, split as a browser splits them."""

    def __init__(self):
        super().__init__()
        self.found, self.texts, self.inside = [], [], False

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.texts.append([tag, dict(attrs), ""])
            self.inside = True

    def handle_endtag(self, _):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.texts[-1][2] += data


@pytest.fixture(scope="module")
def made():
    parser = Elements()
    text = render_page(site(names=TEXTS))
    parser.feed(text)
    return text, parser


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_the_policy_names_the_scripts_and_styles_and_nothing_else(made):
    _, parser = made
    policy = next(
        attrs["content"] for tag, attrs in parser.found if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    rules = {rule.split()[0]: set(rule.split()[1:]) for rule in policy.split("; ")}
    run = [text for tag, attrs, text in parser.texts if tag == "script" and attrs.get("type") != "application/json"]
    assert len(run) == 2
    assert rules["script-src"] == {digest(text) for text in run}
    assert rules["style-src"] == {digest(text) for tag, _, text in parser.texts if tag == "style"}
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == {"'none'"}
    assert not any("unsafe" in source for sources in rules.values() for source in sources)


def test_no_element_names_anything_elsewhere(made):
    _, parser = made
    assert [
        attrs for _, attrs in parser.found if {"src", "srcset", "action", "background", "data"} & attrs.keys()
    ] == []
    assert {attrs.get("href") for _, attrs in parser.found} <= {None, "#main"}
    assert not any(name.startswith("on") or name == "style" for _, attrs in parser.found for name in attrs)


def test_hostile_names_stay_in_the_data(made):
    text, parser = made
    (held,) = (text for tag, attrs, text in parser.texts if attrs.get("type") == "application/json")
    assert not re.search("[<>&]", held)
    assert json.loads(held)["data"]["queues"]["columns"]["queue"]["values"] == list(TEXTS)
    assert [tag for tag, _ in parser.found].count("script") == 3
    assert "window.owned" not in text.replace(held, "")


@given(
    st.recursive(st.none() | st.booleans() | st.text() | st.integers(-(2**53) + 1, 2**53 - 1), st.lists, max_leaves=8)
)
def test_json_comes_back_as_it_was_and_never_ends_its_element(value):
    text = json_for_script(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    text.encode("utf-8")
    assert json.loads(text) == value


def test_lone_surrogates_can_be_written():
    assert json.loads(json_for_script("a\ud800b").encode("utf-8")) == "a\ud800b"


def test_numbers_that_javascript_would_round_travel_as_text():
    assert [to_json_value(value) for value in (2**53 - 1, 2**53, Decimal(2**64 - 1), Decimal("0.5"), -(2**53))] == [
        2**53 - 1, str(2**53), str(2**64 - 1), 0.5, str(-(2**53)),
    ]  # fmt: skip
    assert [to_json_value(value) for value in (math.nan, math.inf, 1.5, None, True, b"\x00\xff")] == [
        None, None, 1.5, None, True, "00ff",
    ]  # fmt: skip


def test_columns_keep_every_value():
    moment = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
    table = pa.table(
        {
            "at": pa.array([moment, None, moment], pa.timestamp("us", tz="UTC")),
            "word": ["a", None, "a"],
            "few": ["x", "y", "z"],
            "number": pa.array([Decimal(2**60), None, Decimal(3)], pa.decimal128(20, 0)),
            "list": [["a"], None, []],
        }
    )
    found = encode_table(table)
    assert found["count"] == 3
    assert found["columns"] == {
        "at": {"kind": "time", "values": [1714564800123456, None, 1714564800123456]},
        "word": {"kind": "text", "dictionary": ["a"], "indices": [0, -1, 0]},
        "few": {"kind": "text", "values": ["x", "y", "z"]},
        "number": {"kind": "number", "values": [str(2**60), None, 3]},
        "list": {"kind": "other", "values": [["a"], None, []]},
    }


@pytest.mark.parametrize("rows", [0, 1])
def test_a_column_of_no_texts(rows):
    table = pa.table({"word": pa.array([None] * rows, pa.string())})
    column = encode_table(table)["columns"]["word"]
    assert (column.get("indices") or column.get("values") or []) in ([], [None], [-1])


def test_what_is_said_not_to_be_seen_is_counted():
    counted = {(part.layer, measure) for part in PARTS for measure in part.measures}
    assert {
        (each.layer, measure) for each in GAP_MEASURES for measure in (each.measure, *each.total_measures)
    } <= counted
    assert len(GAP_MEANINGS) == len(GAP_MEASURES) == len(set(GAP_MEANINGS.values()))
    assert [each["measure"] for each in site().to_json()["coverage_gaps"]] == [each.measure for each in GAP_MEASURES]


@pytest.mark.parametrize("state", NOT_CONNECTED_STATES)
def test_a_queue_is_not_connected_as_long_as_that_holds(state):
    rows = [queue("waits", 1, state=state), queue("waited", 2, state=state, known_until=at(900)), queue("off", 3)]
    assert ("queues", "1 queues not connected") in count_problems(site(queues=data(rows)))


def test_messages_that_did_not_get_there_are_a_problem():
    judged = (NEVER_ARRIVED, NEVER_ARRIVED, NOT_READ, None)
    rows = [message_transfer("q", n, not_delivered=what) for n, what in enumerate(judged)]
    problems = list(count_problems(site(message_transfers=data(rows))))
    assert ("transfers", "2 messages not delivered") in problems
    assert ("transfers", "1 messages delivered, not read") in problems
    assert ("transfers", "2 sequences stuck") in problems
    assert ("eod", "2 transfers with problems") in problems
    assert not any("sessions refused" in what for _, what in problems)


def test_sessions_that_were_not_opened_are_a_problem():
    rows = [
        session(1),
        session(2, session_outcome="refused"),
        session(3, session_outcome="not_established", not_established="no_answer"),
        session(4, session_outcome="not_established", not_established="answer_not_captured"),
        session(5, session_outcome="not_established", not_established="too_early"),
        session(6, session_outcome="not_established"),
    ]
    assert ("transfers", "3 sessions refused") in count_problems(site(sessions=data(rows)))


def test_captures_that_were_not_read_whole_are_a_problem():
    rows = [
        {"capture_id": status, "path": status, "status": status} for status in ("complete", "partial", "unreadable")
    ]
    assert ("coverage", "2 captures not read whole") in count_problems(site(captures=data(rows)))
