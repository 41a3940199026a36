"""Files that jobs write: whole or not at all, and never over what jobs read."""

import fcntl
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from jobs import cli, forget
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.config import Config, ConfigError
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES


class Ledgers:
    """The ledger of captures, as ``check_outputs`` reads it."""

    def __init__(self, *paths):
        self.paths = [str(path) for path in paths]

    def query(self, _, *, rows):
        return pa.table({"path": self.paths if rows == CAPTURE_FILES else []})


@pytest.fixture
def checked(tmp_path):
    """Check one output of a job on a lake that has read ``capture.pcap``."""
    config = Config()
    config = replace(config, collector=replace(config.collector, password_file=tmp_path / "password"))
    for name in ("capture.pcap", "conf.yml", "password", "other"):
        (tmp_path / name).write_text(name)
    arguments = SimpleNamespace(lake=str(tmp_path / "lake"), conf=str(tmp_path / "conf.yml"))
    job_run = cli.JobRun("a_job", arguments, config, "run", datetime.now(UTC))
    ledgers = Ledgers("s3://bucket/x.pcap", tmp_path / "gone.pcap", tmp_path / "capture.pcap")

    def check(name):
        check_outputs(job_run, ledgers, [tmp_path / "new", tmp_path / name])

    return check


@pytest.mark.parametrize("name", ["capture.pcap", "conf.yml", "password"])
def test_an_input_is_refused_by_every_name(tmp_path, checked, name):
    (tmp_path / "link").symlink_to(name)
    (tmp_path / "hard").hardlink_to(tmp_path / name)
    (tmp_path / "folder").symlink_to(tmp_path)
    for given in (name, f"./{name}", f"lake/../{name}", "link", "hard", f"folder/{name}"):
        with pytest.raises(ConfigError, match=f"{name}, which jobs read; choose another name"):
            checked(given)


@pytest.mark.parametrize(
    "name", ["lake/bronze/rpc_calls/x", "lake/gold/out.json", "lake/_lease/x", "other/../lake/silver/x"]
)
def test_the_tables_of_the_lake_are_refused(checked, name):
    with pytest.raises(ConfigError, match="lies among the tables of the lake"):
        checked(name)


@pytest.mark.parametrize("name", ["new", "other", "lake/pages/index.html", "lake/out.json", "."])
def test_all_else_may_be_written(checked, name):
    checked(name)


def test_a_file_is_whole_or_what_it_was(tmp_path):
    target, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to("out")
    with replace_file(link) as out:
        out.write(b"first")
        assert not target.exists()
    assert (link.is_symlink(), target.read_bytes()) == (True, b"first")

    def write_half():
        with replace_file(target) as out:
            out.write(b"sec")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_half()
    assert target.read_bytes() == b"first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_two_writers_do_not_mix_and_remains_of_a_killed_one_go(tmp_path):
    target = tmp_path / "out"
    (tmp_path / ".out.killed.msmq-part").write_bytes(b"names")
    with replace_file(target) as first:
        first.write(b"first")
        with replace_file(target) as second:
            second.write(b"second")
        assert target.read_bytes() == b"second"
    assert target.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [target]


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replace_file(tmp_path / "pipe") as out:
        out.write(b"packets")
    assert os.read(reading, 100) == b"packets"
    os.close(reading)


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with replace_file(tmp_path / "out") as out:
        out.write(b"x")
    assert (tmp_path / "out").read_bytes() == b"x"


def test_forget_removes_a_results_page_and_nothing_beside_it(tmp_path, monkeypatch):
    for folder in ("docs", "captures"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "index.html").touch()
    (tmp_path / "captures" / "one.pcap").touch()
    arguments = SimpleNamespace(pages=[], docs=[str(tmp_path / "docs"), str(tmp_path / "captures")])
    forget._republish_pages(SimpleNamespace(arguments=arguments), Lake(None, str(tmp_path / "lake")))
    assert sorted(str(path.relative_to(tmp_path)) for path in Path(tmp_path).rglob("*")) == [
        "captures", "captures/one.pcap",
    ]  # fmt: skip
