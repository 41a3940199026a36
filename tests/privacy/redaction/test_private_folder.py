"""Private folders of redacting runs, and that they are removed."""

import os
from types import SimpleNamespace

import pytest

from jobs import cli, redaction
from jobs.config import Config
from pipeline.privacy.redaction import RedactionError, private_folder


def run_with(workplace) -> cli.JobRun:
    settings = [f"privacy.scratch_folder={workplace}", "privacy.redact=[hosts]"]
    return cli.JobRun("run_all", SimpleNamespace(), Config.load(None, settings), "run", None)


def test_only_this_user_may_read_a_folder_and_it_goes(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "left.txt").write_text("by a run that was killed")
    with private_folder(tmp_path / "here") as folder:
        assert not list(folder.iterdir())
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "here").exists()


def test_a_folder_that_cannot_be_made_is_told_in_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RedactionError, match=r"file/here: .*; set privacy\.scratch_folder"),
        private_folder(tmp_path / "file" / "here"),
    ):
        pass


def failing(this: cli.JobRun) -> cli.Outcome:
    (redaction.create_private_spool(this, "lake") / "piped.capture").write_bytes(b"names")
    raise KeyError


def test_what_was_piped_in_goes_when_the_run_fails(tmp_path):
    settings = ["--set", f"privacy.scratch_folder={tmp_path}", "--set", "privacy.redact=[hosts]"]
    parser = cli.build_base_parser("job", None, lake=False)
    assert cli.run_job("job", parser, failing, settings) == cli.ExitCode.UNFORESEEN_ERROR
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_had_piped_in_goes_and_what_another_is_reading_stays(tmp_path):
    this = run_with(tmp_path)
    place = redaction.scratch_folder_path(this, "lake")
    killed = place.with_name(f"{place.name}.spool-{2**22 + 1}")  # beyond all process numbers
    running = place.with_name(f"{place.name}.spool-{os.getppid()}")
    strange = place.with_name(f"{place.name}.spool-of-somebody")
    for folder in (killed, running, strange):
        folder.mkdir()
    with this.exit_stack:
        mine = redaction.create_private_spool(this, "lake")
        assert sorted(tmp_path.iterdir()) == sorted([mine, running, strange])
