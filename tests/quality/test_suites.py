"""The suites of conf/quality, the validation of suites, and their results on rows, without Spark."""

import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipeline.alerts.conditions import CONDITIONS
from pipeline.quality import data_docs
from pipeline.quality.check import CheckResult, results_table
from pipeline.quality.gx_checks import SuiteValidator
from pipeline.quality.suites import SuiteError, read_suites
from schemas import catalog
from schemas.quality import QUALITY_RESULTS

SUITE = """
table: gold.coverage
lookups:
  call: {table: bronze.rpc_calls, key_column: call_key, key_sql: measure}
columns: {even: value % 2 = 0}
expectations:
  - {name: keys_unique, type: expect_column_values_to_be_between, kwargs: {column: copies, max_value: 1}}
  - {name: even, type: expect_column_values_to_be_in_set, kwargs: {column: even, value_set: [true], mostly: 0.5},
     severity: warning, about: Numbers are even.}
  - {name: layers, type: expect_column_values_to_be_in_set, kwargs: {column: layer, value_set: [rpc]}, severity: info}
"""


def suite_of(tmp_path, text=SUITE):
    (tmp_path / "one.yml").write_text(text)
    return read_suites(tmp_path)[0]


@pytest.fixture(scope="module")
def suites(project):
    return read_suites(project / "conf" / "quality")


def test_every_table_has_its_suite(suites):
    # except gold.quality_results: each check would have to check the rows of the one before
    assert {str(suite.table) for suite in suites} == {str(table) for table in catalog.DATA_TABLES}
    for suite in suites:
        assert all(re.search(r"[.]$", each.description) for each in suite.expectations), suite.name
        if suite.rows_sql is None:
            assert "keys_unique" in {each.name for each in suite.expectations}


def test_conditions_of_alerts_are_those_that_there_are(suites):
    (suite,) = (suite for suite in suites if suite.name == "alerts")
    (known,) = (each.kwargs["value_set"] for each in suite.expectations if each.name == "condition_known")
    assert known == list(CONDITIONS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gold.coverage", "gold.covrage", "there is no table 'gold.covrage'"),
        ("key_column: call_key", "key_column: call", "bronze.rpc_calls has no column 'call'"),
        ("columns:", "colums:", "unknown key colums"),
        ("column: layer", "column: layr", "layers: no such column: layr"),
        ("name: layers", "name: even", "two expectations of the name even"),
        ("severity: info", "severity: fatal", "layers: severity: expected error, warning, info, not 'fatal'"),
        ("type: expect_column_values_to_be_between", "type: unique", "type: expected one of Great Expectations"),
        ("name: keys_unique", "name: Keys", "expectations[0]: name: expected small letters"),
        ("table: gold.coverage", "table: [", "while parsing"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(tmp_path, old, new, message):
    with pytest.raises(SuiteError, match=re.escape(message)) as refused:
        suite_of(tmp_path, SUITE.replace(old, new, 1))
    assert "one.yml" in str(refused.value)


def test_a_folder_without_suites_is_refused(tmp_path):
    with pytest.raises(SuiteError, match="no suites"):
        read_suites(tmp_path)


@pytest.fixture(scope="module")
def validator():
    return SuiteValidator()


def rows_of(**columns):
    kinds = {"coverage_key": pa.string(), "even": pa.bool_(), "copies": pa.int64(), "layer": pa.string()}
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


def test_rows_are_judged_with_what_was_seen_and_where(tmp_path, validator):
    rows = rows_of(
        coverage_key=["a", "b", "c", "c"], even=[True, False, None, True], copies=[1, 1, 2, 2],
        layer=["rpc", "stub", None, "<script>"],
    )  # fmt: skip
    found = {each.expectation.name: each[1:] for each in validator.validate(suite_of(tmp_path), rows).results}
    assert found == {
        "keys_unique": (False, 4, 2, "2 of 4; values 2; for example c"),
        "even": (True, 3, 1, "1 of 3; for example b"),  # one of three, and half may be
        "layers": (False, 3, 2, "2 of 3; values stub, <script>"),
    }


def test_what_cannot_be_asked_of_rows_is_an_error_of_the_suite(tmp_path, validator):
    text = SUITE.replace(
        "expect_column_values_to_be_in_set, kwargs: {column: even", "expect_nothing, kwargs: {column: even"
    )
    with pytest.raises(SuiteError, match="suite one: even: no expectation expect_nothing"):
        validator.validate(
            suite_of(tmp_path, text), rows_of(coverage_key=["a"], even=[True], copies=[1], layer=["rpc"])
        )


def result(name, severity, *, success):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return {"result_key": name, "table": "gold.coverage", "suite": "one", "expectation": name, "severity": severity,
            "success": success, "evaluated": 4, "unexpected": 0 if success else 1, "run_at": now, "scope": "all",
            "observed": None if success else "<script>alert(1)</script>", "event_date": now.date(),
            "run_id": "r"}  # fmt: skip


def test_the_gate_is_shut_by_errors_alone():
    assert CheckResult([result("a", "error", success=False)]).gate_failed
    assert not CheckResult([result("a", "warning", success=False), result("b", "error", success=True)]).gate_failed
    assert results_table([result("a", "error", success=True)]).schema.names == list(QUALITY_RESULTS.names)


def test_what_was_seen_is_printed_harmlessly():
    row = result("a", "error", success=False) | {"observed": "1 of 4; values \x1b[2J"}
    assert CheckResult([row]).summary_lines() == [
        "quality   0 of 1 expectations hold",
        "  error    gold.coverage a (one): 1 of 4; values <U+001B>[2J",
    ]


def test_pages_ask_nobody_and_run_nothing(tmp_path, validator):
    rows = rows_of(coverage_key=["a"], even=[True], copies=[1], layer=["<script>alert(1)</script>"])
    report = validator.validate(suite_of(tmp_path), rows).report
    index = data_docs.write_data_docs(tmp_path / "pages", [result("layers", "info", success=False)], {"one": report})
    for page in (index, tmp_path / "pages" / "one.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:link|script|img|iframe|source|embed|object)\b[^>]*(?:src|href)\s*=[^>]*>", text)
        assert [each for each in loaded if "data:" not in each] == []
        assert "<script" not in text.lower()
        assert "Content-Security-Policy" in text
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", text)
    assert "expectations hold" in index.read_text(encoding="utf-8")
    assert "layers: " in (tmp_path / "pages" / "one.html").read_text(encoding="utf-8")


def test_what_templates_load_is_taken_out():
    page = (
        "<html><head><link rel='stylesheet' href='https://x/y.css'/><script src=\"//x/y.js\"></script></head>"
        "<body><img src=http://x/p.png><a href='https://docs'>link</a><script>run()</script>"
        "<style>@import url(https://x/f.css); a{background:url('https://x/b.png')}</style></body></html>"
    )
    alone = data_docs.strip_external_content(page)
    assert "//x" not in alone
    assert "<a href='https://docs'>link</a>" in alone
