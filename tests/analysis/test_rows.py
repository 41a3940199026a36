"""`msmq rows`: any table or view, in each format, the same rows in both stores, read as they are written."""

import csv
import datetime as dt
import io
import json
import subprocess
import sys
from contextlib import nullcontext
from itertools import repeat

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engines import without_spark
from hostile import LONG, TEXTS
from jobs import run_all
from jobs.analysis import rows
from jobs.analysis.row_formats import csv_parts, json_parts, text_parts
from pipeline.lake.engine.collect import stream
from pipeline.lake.lake import Lake
from pipeline.lake.queries import answer
from pipeline.lake.queries.conditions import FUNCTIONS, parse_condition
from pipeline.reports.row_queries import SortColumn, find_relation, row_meanings
from pipeline.reports.views.catalog import VIEWS_BY_NAME, LakeViews
from schemas.bronze import RPC_CALLS
from schemas.catalog import ALL_TABLES
from schemas.messages import MESSAGES
from schemas.table import BINARY, DATE, DOUBLE, STRING, STRINGS, TIMESTAMP, UINT64

AT = dt.datetime(2024, 5, 1, 12, 0, 0, 5, dt.UTC)
KINDS = pa.schema([
    ("text", STRING), ("bytes", BINARY), ("at", TIMESTAMP), ("day", DATE), ("unsigned", UINT64), ("share", DOUBLE),
    ("names", STRINGS), ("headers", pa.map_(STRING, STRING)),
    ("parts", pa.list_(pa.field("element", pa.struct([("token", BINARY), ("at", TIMESTAMP)])))),
])  # fmt: skip
OF_EACH_KIND = pa.Table.from_pylist([
    {
        "text": "it's \u202e,\n\"x\"", "bytes": b"\0\xff", "at": AT, "day": AT.date(), "unsigned": 2**64 - 1,
        "share": float("nan"),
        "names": ["a", None], "headers": [("k", "v"), ("n", None)], "parts": [{"token": b"\1", "at": AT}, None],
    },
    dict.fromkeys(KINDS.names),
], KINDS)  # fmt: skip
IN_BOTH = ("bronze.rpc_calls", "silver.messages", "gold.message_transfers", "failures", "transfer_latency")


@pytest.fixture(scope="module")
def root(project, tmp_path_factory):
    """The lake of the recordings in data/sample and data/transfers."""
    lake = tmp_path_factory.mktemp("rows") / "lake"
    captures = [str(project / "data" / name) for name in ("sample", "transfers")]
    snapshots = str(project / "data" / "estate" / "snapshots")
    assert run_all.main(["--lake", str(lake), "--captures", *captures, "--snapshots", snapshots]) == 0
    return str(lake)


@pytest.fixture
def printed(root, capsysbinary):
    """Run the command on the lake; return its exit code, and what it prints as data and to standard error."""

    def run(*arguments):
        capsysbinary.readouterr()
        code = rows.main(["--lake", root, *arguments])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return run


def table(root, declared):
    return Lake(without_spark(), root).select(declared, "TRUE")


def test_the_summary_is_on_standard_error_and_the_rows_on_standard_output(printed):
    code, out, err = printed(
        "message_transfers", "--columns", "transfer_key", "class", "--limit", "3", "--format", "json"
    )
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, [[*row] for row in found]) == (0, [["transfer_key", "class"]] * 3)
    assert found == sorted(found, key=lambda row: row["transfer_key"])
    more, summary = err.splitlines()
    assert more == "gold.message_transfers has more rows: --limit 0 gives all"
    assert {"job": "rows", "exit_code": 0, "relation": "gold.message_transfers", "rows": 3, "more": True}.items() <= (
        json.loads(summary).items()
    )


def test_all_rows_are_given_in_each_format(printed, root, tmp_path):
    whole = table(root, MESSAGES)
    keys = set(whole["sighting_key"].to_pylist())
    ask = ("silver.messages", "--limit", "0")
    code, out, _ = printed(*ask, "--format", "csv")
    found = [*csv.DictReader(io.StringIO(out.decode()))]
    assert (code, [*found[0]]) == (0, [*MESSAGES.names])
    assert {row["sighting_key"] for row in found} == keys
    for name, read in (
        ("rows.parquet", lambda path: pq.read_table(path)["sighting_key"].to_pylist()),
        ("rows.jsonl", lambda path: [json.loads(line)["sighting_key"] for line in path.read_text().splitlines()]),
        ("rows.CSV", lambda path: [row["sighting_key"] for row in csv.DictReader(path.open(newline=""))]),
    ):
        code, out, _ = printed(*ask, "--out", str(tmp_path / name))
        assert (code, out) == (0, b"")
        assert set(read(tmp_path / name)) == keys
    assert pq.read_schema(tmp_path / "rows.parquet").equals(MESSAGES.schema())
    code, out, _ = printed(*ask, "--format", "parquet")
    assert pq.read_table(io.BytesIO(out)).num_rows == whole.num_rows
    code, out, _ = printed(*ask, "--columns", "sighting_key")
    assert sorted(set(out.decode().split()) - {"sighting_key", "-" * 32}) == sorted(keys)


def test_conditions_orders_and_counts(printed, root):
    every = [
        row for row in table(root, MESSAGES).to_pylist() if row["body_bytes"] is not None and row["body_bytes"] > 100
    ]
    where = ("--where", "body_bytes > 100")
    assert printed("silver.messages", *where, "--count")[:2] == (0, f"{len(every)}\n".encode())
    order = ("--order", "body_bytes:desc", "label", "--columns", "body_bytes", "label")
    _, out, _ = printed("messages", *where, *order, "--limit", "20", "--format", "json")
    found = [tuple(json.loads(line).values()) for line in out.splitlines()]
    by_label = sorted(
        ((row["body_bytes"], row["label"]) for row in every), key=lambda row: (row[1] is not None, row[1] or "")
    )
    assert found == sorted(by_label, key=lambda row: -row[0])[:20]
    assert printed("silver.messages", "--where", "label = 'no such'", "--columns", "label")[1] == b"(no row)\n"


def test_tables_and_views_are_listed_and_described(printed):
    _, out, _ = printed("--list")
    listed = dict(line.split(": ", 1) for line in out.decode().splitlines())
    assert [*listed] == [*map(str, ALL_TABLES), *VIEWS_BY_NAME]
    assert all(listed.values())
    _, out, _ = printed("silver.messages", "--describe")
    described = out.decode()
    assert f"silver.messages: {MESSAGES.comment}" in " ".join(described.split())
    assert f"key: {', '.join(MESSAGES.key)}\n" in described
    for column in MESSAGES.columns:
        assert f"\n{column.name}  {column.sql_type}\n" in described
        assert column.comment in " ".join(described.split())
    _, out, _ = printed("failures", "--describe")
    assert out.decode().startswith(f"failures: {VIEWS_BY_NAME['failures'].row_meaning}\n")
    assert "\nclients  array<string>\n" in out.decode()


@pytest.mark.parametrize(("arguments", "problem"), [
    ((), "give a table or a view, or --list alone"),
    (("failures", "--list"), "give a table or a view, or --list alone"),
    (("failure",), "no table or view failure; similar: failures"),
    (("failures", "--columns", "methd"), "failures: no column methd; similar: method"),
    (("failures", "--columns", "*"), "failures: no column *"),
    (("failures", "--columns", "calls", "calls"), "--columns: a name twice"),
    (("failures", "--order", "clients"), "failures: no column with an order clients"),
    (("failures", "--order", "calls desc"), "failures: no column with an order calls desc; similar: calls"),
    (("failures", "--limit", "-1"), "--limit: must be at least 0, not -1"),
    (("failures", "--where", "calls > 'x'"), "--where: at character 1 (calls > 'x'): cannot compare number and text"),
    (("failures", "--where", "calls IN (SELECT 1)"), "--where: at character 10 ((SELECT 1)): is not allowed; "),
    (("failures", "--out", "/no/such/folder/x.csv"), "/no/such/folder/x.csv: No such file or directory"),
])  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_2(printed, arguments, problem):
    code, out, err = printed(*arguments)
    assert (code, out, err.count("\n")) == (2, b"", 1)
    assert err.startswith(f"rows: {problem}")


def test_the_page_names_each_function(project):
    page = (project / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("**Conditions** (`--where`)")[2].partition("\n### ")[0]
    assert [name for name in FUNCTIONS if f"`{name}(" not in section] == []


def test_a_file_that_jobs_read_is_not_written_over(printed, root):
    capture = table(root, ALL_TABLES[0])["path"].to_pylist()[0]
    assert printed("failures", "--out", capture)[0] == 2
    assert printed("failures", "--out", f"{root}/gold/x.csv")[0] == 2


def test_values_of_each_kind_as_json_and_csv():
    first, second = (json.loads(line) for line in json_parts([OF_EACH_KIND]))
    assert first == {
        "text": "it's \u202e,\n\"x\"", "bytes": "00ff", "at": "2024-05-01T12:00:00.000005Z", "day": "2024-05-01",
        "unsigned": 2**64 - 1, "share": "nan", "names": ["a", None], "headers": {"k": "v", "n": None},
        "parts": [{"token": "01", "at": "2024-05-01T12:00:00.000005Z"}, None],
    }  # fmt: skip
    assert second == dict.fromkeys(KINDS.names)
    of_csv = [*csv.reader(io.StringIO("".join(csv_parts([OF_EACH_KIND], KINDS.names, "\r\n")), newline=""))]
    plain = {name: value if isinstance(value, str) else json.dumps(value) for name, value in first.items()}
    assert of_csv == [KINDS.names, [*plain.values()], [""] * len(KINDS.names)]


def test_values_of_each_kind_at_a_terminal():
    lines = "".join(text_parts([OF_EACH_KIND], KINDS.names, None)).splitlines()
    assert lines[2].split("  ")[:2] == ['it\'s \\x202e,\\x0a"x"', "00ff"]
    for cell in (
        "2024-05-01 12:00:00",
        "18446744073709551615",
        "nan",
        "a, ",
        '{"k": "v", "n": null}',
        '{"token": "01", ',
    ):
        assert cell in lines[2]
    assert lines[3] == ""


def test_text_fits_the_terminal_in_pages_whose_rows_are_numbered_on():
    wide = pa.table({f"column{place}": [f"{'x' * 30}{row}" for row in range(150)] for place in range(4)})
    text = "".join(text_parts([wide], wide.column_names, 80))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("row  column0") == 2
    assert f"\n100  {'x' * 30}99  {'x' * 30}99\n" in text
    assert f"\n101  {'x' * 30}100  {'x' * 30}100\n" in text


@pytest.mark.parametrize("text", [*TEXTS, LONG])
def test_texts_of_the_wire_are_escaped_at_a_terminal(text):
    (part,) = text_parts([pa.table({"label": [text]})], ["label"], 80)
    assert part.isascii() or part.replace("\n", "").isprintable()
    assert part.count("\n") == 3


@pytest.mark.parametrize("form", ["csv", "json"])
def test_csv_and_json_are_escaped_where_a_terminal_shows_them_and_nowhere_else(printed, monkeypatch, form):
    hostile = pa.table({"label": ["\x1b]0;owned\x07"]})
    monkeypatch.setattr(Lake, "read_batches", lambda *_, **__: nullcontext(hostile.to_batches()))
    ask = ("silver.messages", "--columns", "label", "--format", form)
    raw = {"csv": b"label\n\x1b]0;owned\x07\n", "json": b'{"label": "\\u001b]0;owned\\u0007"}\n'}[form]
    assert printed(*ask)[:2] == (0, raw)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert printed(*ask)[:2] == (0, raw.replace(b"\x1b", b"<U+001B>").replace(b"\x07", b"<U+0007>"))
    assert printed(*ask[:-1], "parquet")[2] == "rows: --format parquet: not to a terminal; give --out a file\n"


@pytest.mark.parametrize("parts", [
    lambda some: text_parts(some, ["n"], None), json_parts, lambda some: csv_parts(some, ["n"], "\n"),
], ids=["text", "json", "csv"])  # fmt: skip
def test_what_is_written_comes_before_the_last_row_is_read(parts):
    endless = parts(repeat(pa.table({"n": [1, 2, 3]})))
    assert next(endless)
    assert next(endless)


def test_batches_come_before_the_answer_is_complete(root):
    """A thousand million rows would take minutes, and more memory than there is."""
    lake, many = Lake(without_spark(), root), pa.table({"n": range(32_000)})
    before = pa.total_allocated_bytes()
    with lake.read_batches("SELECT a.n, b.n AS m FROM {many} AS a CROSS JOIN {many} AS b", many=many) as batches:
        first = next(iter(batches))
        assert 0 < first.num_rows <= 100_000
        assert pa.total_allocated_bytes() - before < 64 << 20


@pytest.mark.spark
def test_batches_of_spark_come_before_the_answer_is_complete(spark):
    first = next(stream(spark.range(0, 10**9, 1, 100_000).selectExpr("id", "CAST(NULL AS array<string>) AS names")))
    assert 0 < first.num_rows <= 10_000


def test_a_closed_pipe_is_no_failure(root):
    command = [
        sys.executable,
        "-m",
        "jobs",
        "rows",
        "--lake",
        root,
        "bronze.rpc_calls",
        "--limit",
        "0",
        "--format",
        "json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert json.loads(running.stdout.readline())["call_key"]
        running.stdout.close()
        said = running.stderr.read()
    assert running.returncode == 0
    assert [json.loads(line)["exit_code"] for line in said.splitlines()] == [0]


def in_store(relation, batches):
    """Rows of a query, as they are written."""
    return [row for batch in batches for row in pa.Table.from_batches([batch]).cast(relation.schema()).to_pylist()]


@pytest.mark.spark
@pytest.mark.parametrize("name", [
    name if name in IN_BOTH else pytest.param(name, marks=pytest.mark.long) for name, _ in row_meanings()
])  # fmt: skip
def test_both_stores_give_the_same_rows(spark, root, name):
    views = LakeViews(Lake(spark, root))
    relation = find_relation(views, name)
    by = [SortColumn(relation.columns[-2].name, descending=True)] if name in IN_BOTH else []
    for order, limit in (([], None), (by, 7)):
        query = relation.select(relation.schema().names, None, order, limit)
        with views.lake.read_batches(query.sql, **query.inputs) as batches:
            in_duckdb = in_store(relation, batches)
        in_spark = in_store(relation, stream(views.lake.frame(query.sql, **query.inputs)))
        if limit is None and relation.key:  # as they are stored
            in_duckdb, in_spark = (sorted(found, key=repr) for found in (in_duckdb, in_spark))
        assert in_duckdb == in_spark
    if name in IN_BOTH:
        assert in_duckdb


@pytest.mark.spark
def test_rows_that_only_spark_reaches_are_the_same(spark, root, tmp_path, monkeypatch):
    """Where Spark tells of logs, and a table is too large to be fetched as a whole."""
    monkeypatch.setattr(answer, "MAX_HELD_ROWS", 10)
    Lake(spark, str(tmp_path), store="spark").append(MESSAGES, table(root, MESSAGES))
    there = Lake(spark, str(tmp_path), read_log="spark")
    relation = find_relation(LakeViews(there), "silver.messages")
    condition = parse_condition("label ILIKE '%o%' OR size(errors) = 0", relation.schema())
    query = relation.select(relation.schema().names, condition, [SortColumn("label")], 20)
    found = []
    for lake in (there, Lake(without_spark(), root)):
        with lake.read_batches(query.sql, **query.inputs) as batches:
            found.append((isinstance(batches, pa.RecordBatchReader), in_store(relation, batches)))
    assert [in_duckdb for in_duckdb, _ in found] == [False, True]
    assert found[0][1] == found[1][1]
    assert len(found[0][1]) == 20


def test_a_condition_finds_the_rows_that_it_says(root):
    views = LakeViews(Lake(without_spark(), root))
    relation = find_relation(views, "bronze.rpc_calls")
    text = "interface_name LIKE '%Read' AND opnum IN (2, 7) OR response_at IS NULL"
    query = relation.count(parse_condition(text, relation.schema()))
    every = table(root, RPC_CALLS).to_pylist()
    meant = [
        row for row in every
        if (str(row["interface_name"]).endswith("Read") and row["opnum"] in (2, 7)) or row["response_at"] is None
    ]  # fmt: skip
    assert views.lake.query(query.sql, **query.inputs)["number"].to_pylist() == [len(meant)]
    assert 0 < len(meant) < len(every)
