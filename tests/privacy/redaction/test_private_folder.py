"""Private folders of processes: who may read them, and that they are removed, those of killed processes too."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jobs import cli
from jobs.command_line.private_folder import PRIVATE_FOLDER, PrivateFolder, remove_left_folders
from jobs.config import ConfigError
from jobs.lake_access import open_lake

# Holds a private folder, tells where it is, and lives as long as its input.
HOLDER = """
import sys
from pathlib import Path
from jobs.command_line.private_folder import PRIVATE_FOLDER
folder = PRIVATE_FOLDER.path(Path(sys.argv[1]))
(folder / "names").write_text("srv1")
print(folder, flush=True)
if sys.argv[2:]:  # by a child that has the lock as Java has it
    import subprocess
    print(subprocess.Popen(["sleep", "60"], pass_fds=PRIVATE_FOLDER.locks).pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(project, tmp_path):
    """Start a process with a private folder; return the process and what it wrote."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, tmp_path, *arguments], cwd=project, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process, [process.stdout.readline().strip() for _ in range(1 + len(arguments))]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_folders_of_killed_processes_go_and_those_of_others_stay(held, tmp_path):
    killed, _ = held()
    ended, _ = held()
    running, (mine,) = held()
    with_java, (theirs, java) = held("java")
    strange = tmp_path / "msmq-of-somebody"
    strange.mkdir()
    assert len(list(tmp_path.iterdir())) == 5
    for process in (killed, with_java):
        process.kill()
        process.wait()
    ended.communicate()
    assert len(list(tmp_path.iterdir())) == 4
    remove_left_folders(tmp_path)
    assert {str(path) for path in tmp_path.iterdir()} == {mine, theirs, str(strange)}
    os.kill(int(java), signal.SIGKILL)
    running.communicate()
    for _ in range(200):  # the system releases the lock when it has ended the process
        remove_left_folders(tmp_path)
        if theirs not in map(str, tmp_path.iterdir()):
            break
        time.sleep(0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["msmq-of-somebody"]


def test_only_this_user_may_read_a_folder_and_its_parts_go(tmp_path):
    private = PrivateFolder()
    folder = private.path(tmp_path / "new" / "place")
    assert folder == private.path(tmp_path / "new" / "place")
    assert folder.stat().st_mode & 0o777 == 0o700
    with private.subfolder(tmp_path / "new" / "place", "spool") as spool:
        assert spool.parent == folder
        assert spool.stat().st_mode & 0o777 == 0o700
        (spool / "names").write_text("srv1")
    assert not spool.exists()


def test_a_folder_that_cannot_be_made_is_told_in_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/here: .*; set privacy\.scratch_folder"):
        PrivateFolder().path(tmp_path / "file" / "here")


@pytest.mark.parametrize(
    ("access", "mode"), [("owner", 0o600), ("group_read", 0o640), ("group_write", 0o660), ("all_read", 0o644)]
)
def test_files_are_for_those_of_the_setting(tmp_path, access, mode):
    before = os.umask(0o022)

    def write(_job_run):
        (tmp_path / "written").write_text("")
        return cli.Outcome()

    parser = cli.build_base_parser("job", None, lake=False)
    assert cli.run_job("job", parser, write, ["--set", f"privacy.file_access={access}"]) == cli.ExitCode.OK
    assert (tmp_path / "written").stat().st_mode & 0o777 == mode
    assert os.umask(before) == 0o022


def test_what_a_query_does_not_hold_in_memory_goes_to_the_private_folder(tmp_path):
    sql, seen = "SELECT current_setting('temp_directory') AS folder", []

    def query(job_run):
        seen.append(open_lake(job_run).query(sql)["folder"][0].as_py())
        return cli.Outcome()

    arguments = ["--lake", str(tmp_path / "lake"), "--set", f"privacy.scratch_folder={tmp_path / 'scratch'}"]
    assert cli.run_job("job", cli.build_base_parser("job", None), query, arguments) == cli.ExitCode.OK
    assert seen == [str(PRIVATE_FOLDER.path(tmp_path / "scratch"))]
