"""Texts that try to be more than text, as names of machines, queues and files and as labels, through every job."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from attempts.wire import capture_of
from collector.snapshot_files import machine, queue, write
from hostile import FILE_NAME, LONG, NOT_UTF8, QUOTED, REPLACED, TEXTS
from jobs import ask, check_quality, export_packets, forget, maintain, run_all, trace_message
from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import QUESTIONS
from reports.packet_export.recordings import comments_of
from schemas import catalog
from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS

pytestmark = [pytest.mark.spark, pytest.mark.long]

OLD, KEPT_FROM, NEW = dt.date(2024, 5, 1), dt.date(2024, 5, 2), dt.date(2024, 5, 3)
LABELS = [text for text in TEXTS if "\0" not in text and max(text) < "\ud800"]  # what a label's count can count
NAMES = (*TEXTS, LONG, *NOT_UTF8)
US = 1_000_000


def capture(day: dt.date) -> bytes:
    """Return a capture in which each text is a queue that is opened, and the label of a message that is read there."""
    begin = round(dt.datetime.combine(day, dt.time(12), dt.UTC).timestamp()) * US
    told = SimpleNamespace(connections={}, calls=[], brought={}, now=0)
    for number, text in enumerate(LABELS, 1):
        name, handle, at = f"c{number}", f"{number:040x}", begin + number * US
        told.connections[name] = {"at": at, "number": number, "closed": None}
        for place, (opnum, more) in enumerate({
            2: {"queue": f"srv1\\private$\\{text}"},
            7: {"lookup_id": number, "action": 0, "timeout_ms": 0, "sequence_id": number, "label": text},
            9: {"ack": 2},
        }.items(), 1):  # fmt: skip
            told.calls.append({
                "protocol": "RemoteRead", "opnum": opnum, "call_key": f"{name} {opnum}", "connection_id": name,
                "requested_at": at + 1000 * place, "responded_at": at + 1000 * place + 500, "outcome": "ok",
                "context_handle": handle, "request_id": 1, **more,
            })  # fmt: skip
        told.brought[f"{name} 7"] = number
    return capture_of(told)


def add_input(folder: Path, day: dt.date) -> None:
    at = f"{day}T12:00:00.000000Z"
    (folder / "captures").mkdir(exist_ok=True)
    (folder / "captures" / f"{day} {FILE_NAME}.pcap").write_bytes(capture(day))
    lines = [line for name in NAMES for line in (machine(name, at), queue(7, name, name, at))]
    write(folder / "snapshots" / f"{day} {FILE_NAME}.jsonl", *lines, f"broken {TEXTS}")


def files_with(text: str, *folders: Path) -> Iterator[Path]:
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        values = str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else ""
        if text.encode() in path.read_bytes() or text in values:
            yield path


@pytest.mark.parametrize("prefix", [None, "hostile_"], ids=["folder", "catalog"])
def test_every_job_takes_them_as_they_are(spark, tmp_path, capsys, prefix):
    def summary() -> dict:
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    root, pages, conf = tmp_path / "the 'lake' {1} (2) $x", tmp_path / "pages", tmp_path / "conf.yml"
    configured = (*REPLACED, *QUOTED)
    conf.write_text(json.dumps({
        "lake": {"catalog": prefix and "spark_catalog", "prefix": prefix or ""},
        "quotas": {
            "queues": [{"queue": text, "messages": 1} for text in configured],
            "machines": [{"machine": text, "bytes": 1} for text in configured],
        },
        "collector": {"machines": [{"name": text, "address": "10.0.0.1"} for text in configured]},
    }))  # fmt: skip
    given = ["--lake", str(root), "--conf", str(conf)]
    inputs = ["--captures", str(tmp_path / "captures"), "--snapshots", str(tmp_path / "snapshots")]
    everything = [*given, *inputs, "--pages", str(pages), "--set", "quality.in_runs=true"]
    lake = Lake(spark, str(root), catalog=prefix and "spark_catalog", prefix=prefix or "")
    try:
        for day in (OLD, NEW):  # the second run follows change feeds
            add_input(tmp_path, day)
            assert run_all.main(everything) in (0, 1)  # 1: a quality expectation is not met
            assert "error" not in summary()
        assert {row[0] for row in lake.read(MESSAGES).select("label").collect()} == set(LABELS)
        machines = lake.read(MACHINE_SNAPSHOTS).select("queue_manager").collect()
        assert {row[0] for row in machines} == {
            *TEXTS,
            LONG,
            *(re.sub("[\ud800-\udfff]", "\ufffd", text) for text in NOT_UTF8),
        }

        assert check_quality.main([*given, "--all"]) in (0, 1)
        assert "error" not in summary()
        assert ask.main([*given, *map(str, QUESTIONS)]) == 0
        for text in (*REPLACED[:3], *QUOTED[:3]):
            asked = ["--label", text, "--queue", f"DIRECT=OS:srv1\\private$\\{text}"]
            assert trace_message.main([*given, *asked]) == 0
            assert summary()["messages"] == sum(label.lower().startswith(text.lower()) for label in LABELS)
        call = lake.read(MESSAGES).select("call_key").first()[0]
        calls = ["--call", call, *REPLACED]  # which are no calls, and the exit code says so
        assert export_packets.main([*given, *calls, "--out", str(tmp_path / "some.pcapng")]) == 3
        assert summary()["packets"] > 0
        for text in (*REPLACED[:3], *QUOTED[:3]):
            asked = ["--label", text, "--queue", text, "--out", str(tmp_path / "more.pcapng")]
            assert export_packets.main([*given, *asked]) in (0, 3)
            comments = comments_of(tmp_path / "more.pcapng")
            assert comments
            assert all(comment.isprintable() for comment in comments)

        assert maintain.main(given) == 0
        assert forget.main([*given, "--before", str(KEPT_FROM), "--pages", str(pages)]) == 0
        assert summary()["forgotten"]["bronze.snapshots_raw"] == 2 * len(NAMES)
        assert {row[0] for row in lake.read(MESSAGES).select("label").collect()} == set(LABELS)
        assert run_all.main(everything) in (0, 1)
        assert summary()["bytes"] == 0
        assert lake.read(CAPTURE_FILES).count() == 2
        folders = [
            Path(lake.location(table).removeprefix("file:")) for table in catalog.ALL_TABLES if lake.exists(table)
        ]
        assert list(files_with(os.environ["PATH"], root, pages, *folders)) == []
    finally:
        for layer in ("bronze", "silver", "gold") if prefix else ():
            spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{prefix}{layer} CASCADE")
