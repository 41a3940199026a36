"""A redacted lake: no name is in any of its files, and its tables agree with those of a lake without redaction."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import ask, export_packets, ingest_captures, ingest_snapshots, run_all, session
from jobs.analysis import report_estate
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.reports.views.catalog import QUESTIONS
from privacy.redaction import planted
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.alerts import ALERTS
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_history import QUEUE_HISTORY

pytestmark = pytest.mark.spark

# Of the sample and the estate: machines, queues, a label, an address, a sender; no word of ours has these letters.
NAMES = (
    "srv1",
    "shop1",
    "orders1",
    "private$\\orders",
    "private$\\till",
    "order 10",
    "order 2",
    "10.77.0.",
    "s-1-5-21-",
)
EVERYTHING = "privacy.redact=[labels,queues,hosts,addresses,senders]"


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key"
    path.write_text("7d9f0a53c1b24e6688aa0b1c2d3e4f50\n")
    path.chmod(0o600)
    return path


def options(key, root, workplace):
    return [
        "--set",
        EVERYTHING,
        "--set",
        f"privacy.scratch_folder={workplace}",
        "--redact-key",
        str(key),
        "--lake",
        str(root),
    ]


def texts(value):
    """Yield all texts in a value in lower case, and bytes decoded as texts that they may hold."""
    if isinstance(value, str | bytes):
        yield from planted.readings(value)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)


def found(root: Path, names=NAMES) -> list[tuple[str, str]]:
    """Return (file, name) for each name that a file of a folder holds, compressed by Parquet or not."""
    hits = []
    for path in (path for path in root.rglob("*") if path.is_file()):
        try:
            held = pq.ParquetFile(path).read().to_pylist() if path.suffix == ".parquet" else path.read_bytes()
        except pa.ArrowInvalid:  # half a file of a killed run
            held = path.read_bytes()
        told = set(texts(held))
        hits += [(str(path.relative_to(root)), name) for name in names if any(name in text for text in told)]
    return hits


def histogram(lake, table, *columns):
    return Counter(tuple(row) for row in lake.read(table).select(*columns).collect())


@pytest.fixture(scope="module")
def ingested(spark, project, key, tmp_path_factory):
    """A redacted lake of two sample captures (reads, queue state), and the scratch folder of its run."""
    root, work = tmp_path_factory.mktemp("redacted"), tmp_path_factory.mktemp("work")
    sample = project / "data" / "sample"
    named = [str(sample / name) for name in ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng")]
    assert ingest_captures.main([*options(key, root, work), "--captures", *named]) == 0
    return Lake(spark, str(root)), work


def test_no_name_is_in_any_file(ingested, key):
    lake, work = ingested
    assert found(Path(lake.root)) == []
    assert found(Path(lake.root), (key.read_text().strip(),)) == []
    assert [path.name for path in work.rglob("*") if path.is_file()] == ["lock"]  # of this process


def test_rows_are_all_there_and_join(ingested):
    lake, _ = ingested
    calls, messages = lake.read(RPC_CALLS), lake.read(MESSAGES)
    assert messages.count() > 0
    assert messages.join(calls, "call_key", "left_anti").count() == 0
    assert calls.where("request_stub IS NOT NULL OR response_stub IS NOT NULL").count() == 0
    assert messages.where("label NOT LIKE 'label-%'").count() == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--set", "privacy.redact=[]"], "names in this lake are redacted"),
        (["--set", "privacy.redact=[labels]"], "another key, or of other kinds"),
        (["--redact-key", "other"], "another key, or of other kinds"),
        (["--redact-key", "short"], "a key needs 16 bytes or more"),
        (["--redact-key", "missing"], "cannot be read"),
    ],
)
def test_what_would_not_agree_is_refused(ingested, key, project, tmp_path, monkeypatch, capsys, changed, said):
    lake, work = ingested
    monkeypatch.chdir(tmp_path)
    Path("other").write_text("0" * 32)
    Path("short").write_text("0" * 8)
    capture = project / "data" / "sample" / "05-sealed-ntlm.pcap"
    assert ingest_captures.main([*options(key, lake.root, work), "--captures", str(capture), *changed]) == 2
    assert said in capsys.readouterr().err
    assert lake.read(CAPTURE_FILES).count() == 2


def test_packets_are_not_looked_for(ingested, tmp_path, capsys):
    lake, _ = ingested
    assert export_packets.main(["--lake", lake.root, "--call", "x", "--out", str(tmp_path / "out.pcapng")]) == 2
    assert "names are redacted" in capsys.readouterr().err


def test_a_lake_with_names_is_not_redacted_afterwards(spark, key, project, tmp_path, capsys):
    root = tmp_path / "lake"
    capture = str(project / "data" / "sample" / "08-endpoint-mapper.pcap")
    assert ingest_captures.main(["--lake", str(root), "--captures", capture]) == 0
    assert ingest_captures.main([*options(key, root, tmp_path), "--captures", capture]) == 2
    assert "filled without redaction" in capsys.readouterr().err


def test_the_key_can_be_in_the_environment(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MSMQ_REDACT_KEY", "too short")
    assert run_all.main(["--set", EVERYTHING, "--lake", str(tmp_path / "lake"), "--captures", str(tmp_path)]) == 2
    assert "MSMQ_REDACT_KEY: a key needs 16 bytes or more" in capsys.readouterr().err
    monkeypatch.delenv("MSMQ_REDACT_KEY")
    assert run_all.main(["--set", EVERYTHING, "--lake", str(tmp_path / "lake"), "--captures", str(tmp_path)]) == 2
    assert "needs a key" in capsys.readouterr().err


@pytest.mark.long
def test_no_token_of_the_input_is_in_the_lake_its_pages_or_logs(spark, key, tmp_path, capfd):
    tokens = planted.Tokens(planted.LETTERS)
    (tmp_path / "in").mkdir()
    for number, capture in enumerate(planted.captures(tokens)):
        (tmp_path / "in" / f"{number}.pcapng").write_bytes(capture)
    snapshots = tmp_path / "snapshots.jsonl"
    snapshots.write_text("\n".join(planted.snapshot_lines(tokens)))
    out, logs = tmp_path / "out", tmp_path / "out" / "logs"
    mine = ["--captures", str(tmp_path / "in"), "--snapshots", str(snapshots), "--pages", str(out / "pages")]
    assert run_all.main([*options(key, out / "lake", tmp_path / "work"), *mine, "--set", "quality.in_runs=true"]) in (
        1,
        3,
    )
    assert ask.main(["--lake", str(out / "lake"), "--rows", "0", *map(str, QUESTIONS)]) == 0
    assert report_estate.main(["--lake", str(out / "lake"), "--out", str(out / "report"), "--last", "36500d"]) == 0
    logs.mkdir()
    for name, text in zip(("output", "errors"), capfd.readouterr(), strict=True):
        (logs / name).write_text(text)
    assert Lake(spark, str(out / "lake")).read(MESSAGES).count() > 20
    stem = planted.LETTERS.partition("{")[0]
    assert found(tmp_path / "in", [stem])
    assert found(out, [stem]) == []
    assert found(tmp_path / "work", [stem]) == []


# Run by spark-submit: whatever the size of the input, Spark's tasks read and decode it.
SUBMITTED = """
import sys
from jobs import ingest_captures
from pipeline.lake.engine import tasks
tasks.MAX_DRIVER_BYTES = -1
sys.exit(ingest_captures.main(sys.argv[1:]))
"""


def test_no_token_of_the_input_is_in_folders_or_logs_of_spark_whose_tasks_computed(spark, project, key, tmp_path):
    tokens = planted.Tokens(planted.LETTERS)
    for name in ("in", "out", "out/local", "out/events"):
        (tmp_path / name).mkdir()
    for number, capture in enumerate(planted.captures(tokens)):
        (tmp_path / "in" / f"{number}.pcapng").write_bytes(capture)
    (tmp_path / "job.py").write_text(SUBMITTED)
    settings = {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.local.dir": tmp_path / "out" / "local",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (tmp_path / "out" / "events").as_uri(),
        **session.SPARK_SETTINGS, **session.java_options(),
        "spark.driver.extraClassPath": os.pathsep.join(map(str, session.delta_jars())),
    }  # fmt: skip
    command = [f"{os.environ['SPARK_HOME']}/bin/spark-submit"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["job.py", *options(key, tmp_path / "out" / "lake", tmp_path / "out" / "work")]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    env |= {"PYTHONPATH": str(project), "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path / "out" / "local")}
    done = subprocess.run(
        [*command, "--captures", str(tmp_path / "in")],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    for name, text in (("output", done.stdout), ("errors", done.stderr)):
        (tmp_path / "out" / name).write_text(text)
    (events,) = (path for path in (tmp_path / "out" / "events").rglob("events*") if path.is_file())
    assert events.read_text().count("SparkListenerTaskEnd") > len(list((tmp_path / "in").iterdir()))
    assert Lake(spark, str(tmp_path / "out" / "lake")).read(MESSAGES).count() > 20
    stem = planted.LETTERS.partition("{")[0]
    assert found(tmp_path / "in", [stem])
    assert found(tmp_path / "out", [stem]) == []


def test_a_scratch_folder_that_tasks_do_not_reach_ends_the_run_before_it_reads(key, tmp_path, monkeypatch, capsys):
    """As on a cluster, where each machine has a folder of that name: what the driver writes there, no task finds."""
    right = LakePath.write_text
    monkeypatch.setattr(LakePath, "write_text", lambda file, text: file.name == "_reached" or right(file, text))
    capture = tmp_path / "capture.pcap"  # none: it is not even opened
    capture.touch()
    lake, work = tmp_path / "lake", tmp_path / "work"
    assert ingest_captures.main([*options(key, lake, work), "--captures", str(capture)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"ingest_captures: {work}/")
    assert said.endswith("set privacy.scratch_folder to a folder that all workers reach")
    assert not (lake / "bronze").exists()


@pytest.mark.long
def test_what_a_killed_run_leaves_is_private_and_the_next_job_removes_it(project, key, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-m", "jobs", "run_all", "--set", EVERYTHING, "--redact-key", str(key)]
    command += ["--lake", str(tmp_path / "lake"), "--captures", str(project / "data" / "sample")]
    with subprocess.Popen(
        command, cwd=project, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        start_new_session=True,
    ) as run:  # fmt: skip
        for line in run.stderr:
            if line.startswith("replacing names"):
                break
        os.killpg(run.pid, signal.SIGKILL)
    (left,) = place.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    assert {name for _, name in found(place)}
    assert found(tmp_path / "lake") == []
    command = [sys.executable, "-m", "jobs", "forget", "--before", "2000-01-01", "--lake", str(tmp_path / "lake")]
    subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True)
    assert list(place.iterdir()) == []


@pytest.mark.long
def test_gold_says_the_same_of_names_and_of_pseudonyms(spark, project, key, tmp_path):
    """One run without redaction and three with it: a capture comes later, and one has grown and is read again."""
    sample, estate = project / "data" / "sample", project / "data" / "estate"
    captures = tmp_path / "captures"
    shutil.copytree(sample, captures)
    mine = ["--snapshots", str(estate / "snapshots"), "--captures", str(captures)]
    files = sorted((estate / "snapshots").iterdir())[:3]
    late, whole = captures / "09-transactions-and-moves.pcapng", captures / "01-remoteread-ndr.pcap"
    root = tmp_path / "redacted"
    content = whole.read_bytes()
    whole.write_bytes(content[: len(content) // 2])
    held = late.rename(tmp_path / late.name)
    assert run_all.main([*options(key, root, tmp_path / "work"), *mine]) == 0
    assert ingest_snapshots.main([*options(key, root, tmp_path / "work"), "--snapshots", *map(str, files)]) == 0
    held.rename(late)
    assert run_all.main([*options(key, root, tmp_path / "work"), *mine]) == 0
    whole.write_bytes(content)
    assert run_all.main([*options(key, root, tmp_path / "work"), *mine]) == 0
    plain, redacted = Lake(spark, str(tmp_path / "plain")), Lake(spark, str(root))
    assert run_all.main(["--lake", plain.root, *mine]) == 0
    assert found(root) == []
    for table, *columns in (
        (RPC_CALLS, "interface_name", "opnum", "outcome", "request_at"),
        (MESSAGES, "class_name", "seen_at", "body_bytes"),
        (RECEIVE_ATTEMPTS, "protocol", "outcome"),
        (ACK_SEQUENCES, "fate", "attempts"),
        (FINDINGS, "rule_id", "level"),
        (QUEUE_HISTORY, "from_at", "to_at", "message_count"),
        (ALERTS, "condition", "severity", "since"),
    ):
        here = [name for name in columns if name in table.names]
        assert histogram(redacted, table, *here) == histogram(plain, table, *here), table
    before = {str(table): redacted.version(table) for table in (RPC_CALLS, RECEIVE_ATTEMPTS, FINDINGS)}
    assert run_all.main([*options(key, root, tmp_path / "work"), *mine]) == 0
    assert before == {str(table): redacted.version(table) for table in (RPC_CALLS, RECEIVE_ATTEMPTS, FINDINGS)}
    assert json.loads((root / "_redaction.json").read_text())["kinds"]
