"""`msmq report_estate`: the page and CSV files of a lake, time zones, targets, wrong usage, redacted lakes.

That both stores give the same files is in ``tests/reports/test_queue_verdict_in_spark.py``, which has such lakes.
"""

import csv
import json
import re
import shutil

import pyarrow as pa
import pytest

from dashboards import estates
from engines import without_spark
from jobs import run_all
from jobs.analysis import report_estate
from jobs.analysis.row_formats import csv_parts, without_formulas
from pipeline.dashboards.estate.report import REPORT_VIEWS
from pipeline.lake.lake import Lake
from pipeline.reports.targets.target_file import bundled_targets
from schemas.catalog import ALL_TABLES

CAPTURES = ("sample/01-remoteread-ndr.pcap", "sample/04-qmmgmt.pcapng", "transfers/07-several-queues.pcap")
NAMES = {"srv1", "private$\\\\orders", "10.77.0."}  # as JSON and CSV have them
FILES = {"estate.html", "estate_verdicts.csv", *(f"{view}.csv" for view in REPORT_VIEWS)}
OWN_TARGET = """\
product: Own
sources: {manual: {address: https://example.com/manual, checked: 2026-02-01}}
targets: {queue: {message_bytes: {value: 1 KiB, source: manual}}}
"""


def captures(project):
    return [str(project / "data" / name) for name in CAPTURES]


def snapshots(project):
    return ["--snapshots", str(project / "data" / "estate" / "snapshots")]


@pytest.fixture(scope="module")
def root(project, tmp_path_factory):
    """The lake of copies of some recordings, which a test tries to write over, and of snapshots."""
    folder = tmp_path_factory.mktemp("estate")
    copied = [shutil.copy(capture, folder) for capture in captures(project)]
    lake = folder / "lake"
    assert run_all.main(["--lake", str(lake), "--captures", *copied, *snapshots(project)]) == 0
    return str(lake)


@pytest.fixture
def report(root, tmp_path, capsys):
    """Write a report on the lake; return its exit code, its folder, its summary, and what standard error says."""

    def write(*arguments, lake=root, out=tmp_path / "out"):
        capsys.readouterr()
        code = report_estate.main(["--lake", lake, "--out", str(out), *arguments])
        printed, said = capsys.readouterr()
        return code, out, json.loads(printed) if printed else None, said

    return write


def rows_of(folder, name):
    with (folder / name).open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def data_of(folder):
    page = (folder / "estate.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="site">(.*?)</script>', page, re.DOTALL)[1])


def test_it_writes_one_page_and_a_file_for_each_view(report, root):
    code, out, summary, said = report()
    assert code == 0
    assert {path.name for path in out.iterdir()} == FILES
    assert summary["written_bytes"] == {name: (out / name).stat().st_size for name in FILES}
    assert summary["page"] == str(out / "estate.html")
    assert said.splitlines()[-1] == f"the report is in {(out / 'estate.html').as_uri()}"
    assert summary["rows"] == {view: len(rows_of(out, f"{view}.csv")) for view in REPORT_VIEWS}
    queues = rows_of(out, "estate_queues.csv")
    assert {"srv1\\private$\\orders"} <= {row["queue"] for row in queues}
    data = data_of(out)
    assert data["data"]["estate_queues"]["count"] == len(queues)
    assert data["lake_options"] == f"--lake {root}"
    assert data["asked"] == "30 days"
    verdicts = rows_of(out, "estate_verdicts.csv")
    assert {row["target"] for row in verdicts} == {target.name for target in bundled_targets()}
    assert {row["queue"] for row in verdicts} == {row["queue"] for row in queues}
    sent = {row["queue"]: int(row["sendings"]) for row in queues if row["sendings"]}
    assert {queue: sum(heat["counts"]) for queue, heat in data["heat_maps"].items()} == {
        queue: count for queue, count in sent.items() if count
    }


def test_other_files_of_the_folder_stay_and_a_report_is_written_over(report, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert report()[0] == report()[0] == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "notes.txt"}
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_hours_are_those_of_the_time_zone(report):
    def busy(*arguments):
        data = data_of(report(*arguments)[1])
        return data["time_zone"], {place for heat in data["heat_maps"].values()
                                   for place, count in enumerate(heat["counts"]) if count}  # fmt: skip

    # Recorded on Saturday, 2026-11-21, 12:00 UTC.
    assert busy("--time-zone", "Asia/Kathmandu") == ("Asia/Kathmandu", {5 * 24 + 17})
    assert busy("--time-zone", "Pacific/Kiritimati") == ("Pacific/Kiritimati", {6 * 24 + 2})


def test_last_limits_it_to_the_hours_before_now(report):
    _, out, summary, _ = report("--as-of", "2020-01-01T00:00:00Z", "--last", "12h")
    assert summary["rows"]["estate_queues"] == summary["rows"]["estate_flows"] == 0
    assert data_of(out)["asked"] == "12 hours"
    assert rows_of(out, "estate_verdicts.csv") == []
    assert (out / "estate_verdicts.csv").read_text().startswith("queue,target,queue_verdict,property,")


def test_own_targets_take_the_place_of_the_shipped_ones(report, tmp_path):
    (tmp_path / "own.yml").write_text(OWN_TARGET)
    _, out, _, _ = report("--targets", str(tmp_path / "own.yml"))
    verdicts = rows_of(out, "estate_verdicts.csv")
    assert {row["target"] for row in verdicts} == {"Own, queue"}
    over = [row["evidence"] for row in verdicts if "over a limit of 1 KiB" in row["evidence"]]
    assert over
    assert data_of(out)["targets"] == ["Own, queue"]


def test_a_lake_without_messages_says_that_nothing_was_seen(report, tmp_path, project):
    empty = tmp_path / "capture.pcap"
    empty.write_bytes((project / "data" / CAPTURES[0]).read_bytes()[:24])
    lake = str(tmp_path / "lake")
    assert run_all.main(["--lake", lake, "--captures", str(empty)]) == 0
    code, out, summary, _ = report(lake=lake)
    assert code == 0
    assert set(summary["rows"].values()) == {0}
    data = data_of(out)
    assert (data["as_of"], data["since"]) == (None, None)
    assert not any(view["is_known"] for view in data["views"])


@pytest.mark.parametrize(("arguments", "problem"), [
    (("--time-zone", "Europe/Berln"), "argument --time-zone: no such time zone: 'Europe/Berln'; similar: "),
    (("--time-zone", "../etc/passwd"), "argument --time-zone: no such time zone: '../etc/passwd'"),
    (("--last", "month"), "argument --last: expected a duration like "),
    (("--targets", "/no/such.yml"), "/no/such.yml: "),
    (("--out", "/dev/null/x"), "/dev/null"),
    (("--lake", "/no/such/lake"), "/no/such/lake: no captures or snapshots were read into this lake"),
])  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_2(report, arguments, problem):
    code, out, summary, said = report(*arguments)
    *_, line = said.splitlines()
    assert (code, summary) == (2, None)
    assert line.startswith(f"report_estate: {problem}")
    assert not out.exists()


def test_nothing_that_jobs_read_is_written_over(report, root, tmp_path):
    capture = Lake(without_spark(), root).select(ALL_TABLES[0], "TRUE")["path"].to_pylist()[0]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "estate_flows.csv").symlink_to(capture)
    assert report()[0] == 2
    assert report(out=f"{root}/gold")[0] == 2


def test_a_spreadsheet_computes_no_text():
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", " =1", "\r\n=1", "a=1", "x\n=1", "", None, "1-2"]
    rows = pa.table({"text": texts, "number": pa.array([-1] * len(texts)), "list": [["=1"]] * len(texts)})
    text = "".join(csv_parts([without_formulas(rows)], rows.column_names, "\r\n"))
    found = [*csv.DictReader(text.splitlines(keepends=True))]
    assert [row["text"] for row in found] == [
        "'=1+1", "'+1", "'-1", "'@x", "'\t=1", "' =1", "'\r\n=1", "a=1", "x\n=1", "", "", "1-2",
    ]  # fmt: skip
    assert {(row["number"], row["list"]) for row in found} == {("-1", '["=1"]')}


def test_no_file_has_a_formula(report, monkeypatch):
    made = estates.report(estate_queues=[estates.queue("=1+1")], estate_flows=[estates.flow("+a", "@b", "-c", 1000)])
    monkeypatch.setattr(report_estate, "read_report", lambda *_, **__: made)
    _, out, _, _ = report()
    assert rows_of(out, "estate_queues.csv")[0]["queue"] == "'=1+1"
    (flow,) = rows_of(out, "estate_flows.csv")
    assert (flow["sender"], flow["receiver"], flow["queue"], flow["bytes"]) == ("'+a", "'@b", "'-c", "1000")


def names_in(folder):
    """Those of NAMES that a file of a report has, beside the place of its lake."""
    texts = [path.read_text(encoding="utf-8").lower() for path in folder.glob("*.csv")]
    texts += [json.dumps(data_of(folder)[part]).lower() for part in ("data", "overview", "heat_maps")]
    return {name for name in NAMES for text in texts if name in text or name.replace("\\\\", "\\") in text}


@pytest.mark.long  # a plain run asks for the same views of a redacted lake (tests/privacy/redaction/test_estate.py)
def test_a_redacted_lake_is_reported_with_pseudonyms(report, project, tmp_path):
    key = tmp_path / "key"
    key.write_text("7d9f0a53c1b24e6688aa0b1c2d3e4f50\n")
    key.chmod(0o600)
    lake = str(tmp_path / "lake")
    redacted = ["--set", "privacy.redact=[labels,queues,hosts,addresses,senders]", "--redact-key", str(key),
                "--set", f"privacy.scratch_folder={tmp_path}"]  # fmt: skip
    assert run_all.main(["--lake", lake, "--captures", *captures(project), *redacted]) == 0
    assert names_in(report()[1]) == NAMES
    code, out, summary, _ = report(lake=lake, out=tmp_path / "redacted")
    assert (code, summary["rows"]["estate_queues"] > 3) == (0, True)
    assert names_in(out) == set()
