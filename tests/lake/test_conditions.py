"""Conditions that people write: what is taken, where a mistake is, and that both stores find the same rows."""

import datetime as dt
import re
from decimal import Decimal
from itertools import repeat

import pyarrow as pa
import pytest

from hostile import LONG, TEXTS
from pipeline.lake.lake import Lake
from pipeline.lake.queries.conditions import FUNCTIONS, MAX_CHARS, ConditionError, parse_condition
from schemas.table import BIGINT, BIGINTS, BINARY, BOOLEAN, DATE, DOUBLE, INT, STRING, STRINGS, TIMESTAMP, UINT64

COLUMNS = pa.schema([
    ("label", STRING), ("other", STRING), ("number", BIGINT), ("unsigned", UINT64), ("share", DOUBLE),
    ("sent_at", TIMESTAMP), ("day", DATE), ("ok", BOOLEAN), ("bytes", BINARY), ("names", STRINGS), ("sizes", BIGINTS),
    ("headers", pa.map_(STRING, STRING)), ("clocks", pa.struct([("tap", INT), ("table", INT)])), ("table", STRING),
])  # fmt: skip
LATE, EARLY = dt.datetime(2024, 5, 1, 23, 59, 59, 999999, dt.UTC), dt.datetime(1971, 1, 1, tzinfo=dt.UTC)
LETTERS = ("ORDER Äöü", "İstanbul", "ΑΣ", "Straße", "жЖ", "\U00010400\U0001f600x", "", " ", "a\\b", "100%", "a_b")
LABELS = (None, *LETTERS, *TEXTS, LONG)


def cycle(place, *values):
    """One of several values, and null now and then."""
    return None if place % 5 == 4 else values[place % len(values)]


def rows():
    """Rows with texts that try to be more, and with the edges of numbers and times."""
    return pa.Table.from_pylist([
        {
            "label": label, "other": cycle(place, *LETTERS),
            "number": cycle(place, 0, -1, 2**63 - 1, -(2**63), 5, 1000),
            "unsigned": cycle(place, Decimal(2**64 - 1), Decimal(0), Decimal(5)),
            "share": cycle(place, 0.1, float("inf"), float("nan"), -0.0, 1e300, 5.0),
            "sent_at": cycle(place, LATE, EARLY),
            "day": cycle(place, dt.date(2024, 5, 1), dt.date(2024, 5, 2)), "ok": cycle(place, True, False),
            "bytes": cycle(place, b"\0\xff", b"", b"a"), "names": cycle(place, ["a", None], [], ["it's", "b"], [None]),
            "sizes": cycle(place, [1, 2], [], [None, 5]),
            "headers": cycle(place, [("k", "v"), ("it's", None)], [], [("\\", "{x}")]),
            "clocks": cycle(place, {"tap": 1, "table": None}, {"tap": None, "table": 2}),
            "table": cycle(place, "a", "b"),
        }
        for place, label in enumerate(LABELS)
    ], COLUMNS)  # fmt: skip


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


OF_FUNCTIONS = {
    "array_contains": ("array_contains(names, 'b')", "NOT array_contains(names, 'it''s')", "array_contains(sizes, 5)"),
    "coalesce": ("coalesce(label, other, 'none') = 'none'", "coalesce(number, 5) = 5", "coalesce(ok, FALSE)"),
    "contains": (*(f"contains(label, {quoted(text[1:3])})" for text in TEXTS), "contains(label, other)"),
    "date": ("date(sent_at) = '2024-05-01'", "date(sent_at) < day", "date(sent_at) >= DATE '1971-01-01'"),
    "endswith": ("endswith(label, '\\')", "endswith(label, '')", "NOT endswith(label, 'x')", "endswith(label, other)"),
    "hex": ("hex(bytes) = '00FF'", "hex(bytes) = ''"),
    "hour": ("hour(sent_at) = 23", "hour(sent_at) < 1"),
    "length": ("length(label) = 3", "length(label) > length(other)", "length(other) = 0"),
    "lower": (f"lower(label) = {quoted('ΑΣ'.lower())}", "lower(other) = 'жж'", "lower(other) = 'order äöü'",
              "lower(other) <> other"),
    "size": ("size(names) = 0", "size(names) > 1", "NOT size(sizes) = 2"),
    "startswith": ("startswith(label, '$')", "startswith(label, '')", "startswith(label, other)"),
}  # fmt: skip
OF_OPERATORS = (
    *(f"label = {quoted(text)}" for text in (*TEXTS, LONG[:MAX_CHARS // 2]) if "\0" not in text),
    *(f"label LIKE {quoted('%' + text[1:4] + '%')}" for text in TEXTS if "\0" not in text),
    "label > 'a' AND label <= 'l'", "label IN ('it''s \\ one', '\\', 'x')", "NOT label IN ('\\')", "label NOT IN ('x')",
    "label BETWEEN 'a' AND 'b'", "label NOT BETWEEN '\\' AND 'z'", "label = other", "label IS DISTINCT FROM other",
    "label IS NOT DISTINCT FROM other", "label IS NULL", "label IS NOT NULL AND other IS NULL", "other LIKE '_\\_'",
    "other LIKE '100%'", "other LIKE 'a_b'", "other LIKE '__x'", "other NOT LIKE '%e%'", "other ILIKE 'order ÄÖÜ'",
    "other ILIKE 'Ж_'", "other NOT ILIKE '%A%'", "other ILIKE 'i%'",
    "number = 5", "number > -2", "number <> 9223372036854775807", "number IN (0, -1, 18446744073709551615)",
    "number BETWEEN -1 AND 5.5", "number >= 4.9", "number + 1 > 1000", "number - 1 = -2", "-number * 2 = -10",
    "unsigned = 18446744073709551615", "unsigned > number", "unsigned <= 5.0", "unsigned = share",
    "share = 0.1", "share < 1", "share > 1e299", "share = 0", "share * 2 > 0.1", "share = number", "share <> share",
    "sent_at >= '2024-05-01'", "sent_at = '2024-05-02T01:59:59.999999+02:00'",
    "sent_at < TIMESTAMP '2024-05-01 00:00:00'",
    "sent_at IN ('1971-01-01')", "'2000-01-01' > sent_at", "day = '2024-05-01'",
    "day BETWEEN '2024-05-02' AND '2025-01-01'",
    "ok", "NOT ok", "ok = FALSE", "ok OR number = 5", "NOT (ok AND day = '2024-05-01')", "TRUE", "FALSE OR ok",
    "bytes = bytes", "headers['k'] = 'v'", "headers['it''s'] IS NULL", "headers['\\'] = '{x}'",
    "clocks.tap = 1", "clocks.`table` > clocks.tap", "clocks IS NULL", "names IS NOT NULL",
    "`table` = 'a' -- a comment",
)  # fmt: skip


@pytest.fixture(scope="module")
def found(spark, tmp_path_factory):
    """By condition, what DuckDB and Spark say of each row: one query of each."""
    lake, given = Lake(spark, str(tmp_path_factory.mktemp("lake"))), rows()
    texts = [*OF_OPERATORS, *(text for several in OF_FUNCTIONS.values() for text in several)]
    columns, inputs = [], {"rows": given}
    for place, text in enumerate(texts):
        sql, named = parse_condition(text, COLUMNS)
        names = {name: f"of{place}_{name}" for name in named}
        inputs |= {names[name]: values for name, values in named.items()}
        columns.append(re.sub(r"\{(\w+)\}", lambda at, names=names: f"{{{names[at[1]]}}}", sql) + f" AS c{place}")
    sql = f"SELECT {', '.join(columns)} FROM {{rows}}"
    answers = lake.query(sql, **inputs), lake.frame(sql, **inputs).toArrow()
    return {text: [answer[f"c{place}"].to_pylist() for answer in answers] for place, text in enumerate(texts)}


def both_say_the_same(found, text):
    in_duckdb, in_spark = found[text]
    assert len(in_duckdb) == len(LABELS)
    assert in_duckdb == in_spark
    return True in in_duckdb


@pytest.mark.spark
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_equal_results_in_both_stores(found, name):
    said = [both_say_the_same(found, text) for text in OF_FUNCTIONS[name]]
    assert True in said  # of some rows it is true


@pytest.mark.spark
def test_operators_have_equal_results_in_both_stores(found):
    said = [both_say_the_same(found, text) for text in OF_OPERATORS]
    assert sum(said) > 0.8 * len(said)


@pytest.mark.parametrize(("text", "place", "problem"), [
    ("lable = 'x'", "at character 1 (lable)", "no column lable; similar: table, label"),
    ("ok AND 'ä' = x.y", "at character 14 (x.y)", "no column x"),
    ("clocks.tip = 1", "at character 1 (clocks.tip)", "no field tip; similar: tap"),
    ("label.x = 1", "at character 1 (label.x)", "no field x"),
    ("label = ", "at the end", "syntax error"),
    ("ok AND table = 'a'", "at character 8", "syntax error (a column that is called like a word of SQL stands in `"),
    ("number = 'x'", "at character 1 (number = 'x')", "cannot compare number and text"),
    ("names = names", "at character 1 (names = names)", "cannot compare list"),
    ("sent_at > 'soon'", "at character 1 (sent_at > 'soon')", "not a time like 2024-05-01T12:00:00Z: 'soon'"),
    ("sent_at > '0001-01-01T00:00+14:00'", "at character 1", "not a time like"),
    ("day = '2024-13-01'", "at character 1", "not a date like 2024-05-01: '2024-13-01'"),
    ("number = NULL", "at character 10 (NULL)", "NULL is no literal that is taken here; compare with IS NULL"),
    ("number = 1e400", "at character 10 (1e400)", "1e400 is no literal"),
    ("bytes = X'00'", "at character 9 (X'00')", "00 is no literal that is taken here"),
    (f"number = 1{'0' * 38}", "at character 10", "is no literal"),
    ("number", "at character 1 (number)", "is a number, not a condition"),
    ("ok AND label", "at character 8 (label)", "is a text, not a condition"),
    ("label LIKE other", "at character 7 (LIKE other)", "LIKE compares a text with a pattern in '...'"),
    ("lower(number) = 'x'", "at character 1 (lower(number))", "lower takes text, not number"),
    ("lower() = 'x'", "at character 1 (lower())", "lower takes text, not nothing"),
    ("array_contains(names, 1)", "at character 1 (array_contains(names, 1))", "cannot compare number and text"),
])  # fmt: skip
def test_a_mistake_is_said_with_its_place(text, place, problem):
    with pytest.raises(ConditionError, match=re.escape(problem)) as raised:
        parse_condition(text, COLUMNS)
    assert str(raised.value).startswith(place)


@pytest.mark.parametrize("text", [
    "number = (SELECT 1)", "number IN (SELECT 1)", "EXISTS (SELECT 1)", "*", "rows.*", "COLUMNS(*) = 1", "count(*) > 1",
    "sum(number) OVER () > 1", "read_text('/etc/passwd') = ''", "getenv('HOME') = ''", "main.lower(label) = 'x'",
    "lower(DISTINCT label) = 'x'", "lower(label) FILTER (WHERE TRUE) = 'x'", "lower(text := label) = 'x'",
    "regexp_matches(label, 'x')", "label ~ 'x'", "label GLOB '*'", "label SIMILAR TO 'x'", "label LIKE 'x' ESCAPE '!'",
    "label COLLATE nocase = 'x'", "CASE WHEN ok THEN ok END", "CAST(label AS BIGINT) = 1", "number::text = '1'",
    "label = ?", "label = $x", "number = #1", "number / 2 = 1", "number % 2 = 1", "label || other = 'x'", "[1] = sizes",
    "{'a': 1} = clocks", "names[1] = 'a'", "label = current_user", "random() > 1", "sizes = (x -> x)",
    "headers[label] = 'v'", "INTERVAL '1 day' > INTERVAL '1 hour'", "ROW(1) = ROW(1)", "DEFAULT = 1",
])  # fmt: skip
def test_what_is_not_declared_is_refused_and_what_is_allowed_is_said(text):
    with pytest.raises(ConditionError, match=r"^at character \d+.*(allowed are columns, |no column|no value of a map)"):
        parse_condition(text, COLUMNS)


@pytest.mark.parametrize("text", [
    "ok) LIMIT (1", "ok) GROUP BY (label", "ok) ORDER BY (label", "ok) UNION SELECT (1", "ok; DROP TABLE t",
    "ok -- ) x\n)", "", "  ", "/*", "not " * 200 + "ok", "(" * 2000 + "ok" + ")" * 2000, "ok OR " * MAX_CHARS + "ok",
])  # fmt: skip
def test_what_is_more_or_less_than_a_condition_is_refused(text):
    with pytest.raises(ConditionError):
        parse_condition(text, COLUMNS)


def test_texts_are_inputs_and_never_sql():
    for text in TEXTS:
        sql, inputs = parse_condition(f"label = {quoted(text)} AND number IN (1, 2)", COLUMNS)
        assert (sql, inputs) == ("((`label` = {condition0}) AND (`number` IN (1, 2)))", {"condition0": text})


def test_many_parts_beside_each_other_are_taken():
    sql, inputs = parse_condition(" OR ".join(repeat("label = 'x'", 500)), COLUMNS)
    assert sql.count(" OR ") == len(inputs) - 1 == 499
