"""The suites of conf/quality, the validation of suites, and their results on rows, without Spark."""

import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipeline.alerts.conditions import CONDITIONS
from pipeline.quality.check import CheckResult, results_table
from pipeline.quality.gx_checks import SuiteValidator
from pipeline.quality.limits import describe_limits
from pipeline.quality.results_page import render_results
from pipeline.quality.suites import Expectation, SuiteError, read_suites
from schemas import catalog
from schemas.bronze import RUNS
from schemas.quality import QUALITY_RESULTS

SUITE = """
table: gold.coverage
lookups:
  call: {table: bronze.rpc_calls, key_column: call_key, key_sql: measure}
columns: {even: value % 2 = 0}
expectations:
  - {name: keys_unique, type: expect_column_values_to_be_unique, kwargs: {column: coverage_key}}
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
    assert {str(suite.table) for suite in suites} == {str(table) for table in (*catalog.DATA_TABLES, RUNS)}
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
        ("type: expect_column_values_to_be_unique", "type: unique", "type: expected one of Great Expectations"),
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
    kinds = {"coverage_key": pa.string(), "even": pa.bool_(), "layer": pa.string()}
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


def test_rows_are_judged_with_what_was_seen_and_where(tmp_path, validator):
    rows = rows_of(
        coverage_key=["a", "b", "c", "c"], even=[True, False, None, True],
        layer=["rpc", "stub", None, "<script>"],
    )  # fmt: skip
    found = {each.expectation.name: each[1:] for each in validator.validate(suite_of(tmp_path), rows)}
    assert found == {
        "keys_unique": (False, 4, 2, "2 of 4 rows: c", ["c"]),
        "even": (True, 3, 1, "1 of 3 rows", ["b"]),  # one of three, and half may be
        "layers": (False, 3, 2, "2 of 3 rows: stub, <script>", ["b", "c"]),
    }


def test_values_have_their_unit(tmp_path, validator):
    text = SUITE.replace(
        "expectations:",
        """expectations:
  - {name: small, type: expect_column_values_to_be_between, kwargs: {column: value, max_value: 3}, unit: s}
  - {name: ordered, type: expect_column_pair_values_a_to_be_greater_than_b, kwargs: {column_A: value, column_B: least}}
""",
    ).replace("columns: {", "columns: {least: abs(value), ")
    rows = rows_of(coverage_key=["a", "b"], even=[True, True], layer=["rpc", "rpc"])
    rows = rows.append_column("value", pa.array([5.25, None])).append_column("least", pa.array([7, 1]))
    small, ordered, *_ = validator.validate(suite_of(tmp_path, text), rows)
    assert (small.observed, small.evaluated) == ("1 of 1 rows: 5.25 s", 1)
    held, *_ = validator.validate(suite_of(tmp_path, text.replace("max_value: 3", "max_value: 6")), rows)
    assert (held.success, held.observed) == (True, "5.25 s")
    assert (ordered.observed, ordered.evaluated, ordered.failed_keys) == ("1 of 1 rows: 5.25 / 7", 1, ["a"])


def test_what_cannot_be_asked_of_rows_is_an_error_of_the_suite(tmp_path, validator):
    text = SUITE.replace(
        "expect_column_values_to_be_in_set, kwargs: {column: even", "expect_nothing, kwargs: {column: even"
    )
    with pytest.raises(SuiteError, match="suite one: even: no expectation expect_nothing"):
        validator.validate(suite_of(tmp_path, text), rows_of(coverage_key=["a"], even=[True], layer=["rpc"]))


def result(name, severity, *, success):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return {"result_key": name, "table": "gold.coverage", "suite": "one", "expectation": name, "severity": severity,
            "description": "What is expected.", "limits": "layer: rpc", "unit": None, "key_column": "coverage_key",
            "failed_keys": [], "success": success, "evaluated": 4, "unexpected": 0 if success else 1, "run_at": now,
            "scope": "all",
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


def test_the_page_needs_nothing_and_runs_nothing():
    rows = [result("layers", "info", success=False), result("even", "error", success=True)]
    text = render_results([*rows, {**rows[0], "suite": "two & three", "failed_keys": ["<b>", "k"]}])
    assert not re.search(r"<(link|script|img|iframe|source|embed|object)\b", text.lower())
    assert "Content-Security-Policy" in text
    assert not re.search(r"@import|url\(|https?:", text)
    assert "1 of 3 expectations hold" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "coverage_key:<br>&lt;b&gt;<br>k" in text
    targets = re.findall(r'href="([^"]*)"', text)
    assert [target[1:] for target in targets] == re.findall(r'<h2 id="([^"]*)"', text)
    assert len(targets) == 2
    assert text.index("<code>layers") < text.index("<code>even")  # what failed comes first


@pytest.mark.parametrize(
    ("kind", "kwargs", "limits"),
    [
        ("column_values_to_be_between", {"column": "value", "max_value": 5}, "value: at most 5 s"),
        ("column_values_to_be_between", {"column": "value", "min_value": 1}, "value: at least 1 s"),
        ("column_values_to_be_between", {"column": "value", "min_value": 1, "max_value": 5}, "value: 1 to 5 s"),
        ("column_values_to_be_in_set", {"column": "even", "value_set": [True]}, "value % 2 = 0"),
        ("column_values_to_be_in_set", {"column": "layer", "value_set": ["a", "b"]}, "layer: a, b"),
        ("column_values_to_not_be_null", {"column": "layer", "mostly": 0.955},
         "layer: not null; for at least 95.5 % of the rows"),
        ("column_values_to_be_unique", {"column": "layer"}, "layer: no value twice"),
        ("compound_columns_to_be_unique", {"column_list": ["layer", "hour"]}, "layer, hour: no values twice"),
        ("column_pair_values_a_to_be_greater_than_b", {"column_A": "hour", "column_B": "value", "or_equal": True},
         "hour >= value"),
        ("column_values_to_match_strftime_format", {"column": "layer", "strftime_format": "%Y"},
         "expect_column_values_to_match_strftime_format: column layer, strftime_format %Y"),
    ],
)  # fmt: skip
def test_limits_in_words(tmp_path, kind, kwargs, limits):
    suite = suite_of(tmp_path)
    each = Expectation("one", f"expect_{kind}", kwargs, "error", "About it.", "s")
    assert describe_limits(suite, each) == limits


def test_every_limit_of_the_projects_suites_has_words(suites):
    limits = {describe_limits(suite, each) for suite in suites for each in suite.expectations}
    assert [text for text in limits if "expect_" in text] == []
    assert len({each.type for suite in suites for each in suite.expectations}) >= 10
