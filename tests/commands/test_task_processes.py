"""Tasks of a run on one machine are computed by processes of its own, without Java."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from jobs.command_line.failure_report import report_lines
from jobs.command_line.task_processes import TaskProcessError, TaskProcesses
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.engine.tasks import MAX_DRIVER_BYTES, PartitionedRows

SCHEMA = StructType().add("value", LongType())


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.int64())})


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    found = TaskProcesses(tmp_path_factory.mktemp("tasks"))
    yield found
    found.close()


def values(batches):
    return [value for each in batches for value in each["value"].to_pylist()]


def test_rows_come_in_the_order_of_the_tasks(processes):
    def rows(number):
        time.sleep(0.05 * (number % 3))
        yield from (batch(number), batch(), batch(number, 100))

    assert values(processes.run(rows, range(7))) == [value for number in range(7) for value in (number, number, 100)]


def test_tasks_are_computed_elsewhere_on_all_cores(processes):
    def rows(_):
        time.sleep(0.3)
        return [batch(os.getpid())]

    found = {*values(processes.run(rows, range(6)))}
    assert os.getpid() not in found
    assert len(found) == len(os.sched_getaffinity(0))


def test_a_session_needs_no_java_for_them(processes):
    session = LazySession(lambda: pytest.fail("Spark is not needed"), processes=processes)
    rows = PartitionedRows(3, MAX_DRIVER_BYTES + 1, lambda number: [batch(number, os.getpid())])
    found = rows.table(session, SCHEMA)["value"].to_pylist()
    assert found[::2] == [0, 1, 2]
    assert os.getpid() not in found
    with session.own() as other:
        assert rows.table(other, SCHEMA).num_rows == 6


class TwoPartsError(Exception):
    """An exception that cannot be made again from its message."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


@pytest.mark.parametrize(
    ("fail", "kind", "text"),
    [
        (lambda: OSError(28, "No space left"), OSError, "No space left"),
        (lambda: TwoPartsError("a", "b"), RuntimeError, "TwoPartsError: a b"),
    ],
)
def test_the_exception_of_a_task_is_raised_and_says_where_it_was(processes, fail, kind, text):
    def rows(number):
        if number == 1:
            raise fail()
        return [batch(number)]

    with pytest.raises(kind, match=text) as raised:
        processes.run(rows, range(3))
    assert any("test_task_processes.py" in line for line in report_lines(raised.value))
    assert values(processes.run(lambda number: [batch(number)], range(2))) == [0, 1]


def test_a_process_that_is_killed_fails_its_task_and_the_next_gets_another(processes):
    def rows(number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [batch(number)]

    with pytest.raises(TaskProcessError, match="ended with -9"):
        processes.run(rows, range(2))
    assert values(processes.run(lambda number: [batch(number)], range(5))) == [*range(5)]


def test_when_the_process_that_others_are_forked_from_is_killed_so_are_they_and_the_next_tasks_get_others(processes):
    def rows(number):
        if number == 1:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(20)
        return [batch(number)]

    begin = time.monotonic()
    with pytest.raises(TaskProcessError, match="ended with the one that it was forked from"):
        processes.run(rows, range(2))
    assert time.monotonic() - begin < 10
    assert values(processes.run(lambda number: [batch(number)], range(5))) == [*range(5)]


def test_the_exit_code_of_a_process_is_said(processes):
    with pytest.raises(TaskProcessError, match=r"ended with 7$"):
        processes.run(lambda _: os._exit(7), range(1))


def test_modules_are_imported_once_for_all(processes):
    found = processes.run(lambda _: [(time.sleep(0.2), os.getppid())[1]], range(6))
    assert len({*found}) == 1
    assert found[0] != os.getpid()


def test_a_failure_is_told_when_the_tasks_that_run_have_ended(processes, tmp_path):
    def rows(number):
        if number == 0:
            raise ValueError("bad")
        time.sleep(1)
        (tmp_path / str(number)).write_text("")
        return []

    with pytest.raises(ValueError, match="bad"):
        processes.run(rows, range(20))
    done = {file.name for file in tmp_path.iterdir()}
    assert len(done) < len(os.sched_getaffinity(0)) + 1
    time.sleep(1.5)
    assert {file.name for file in tmp_path.iterdir()} == done


def test_what_a_task_prints_is_no_answer(capfd):
    processes = TaskProcesses()

    def rows(number):
        print("found", flush=True)
        sys.stdout.buffer.write(b"\x80\x05.")
        sys.stdout.flush()
        return [batch(number)]

    assert values(processes.run(rows, range(2))) == [0, 1]
    processes.close()
    assert "found" in capfd.readouterr().err


def test_threads_use_them_side_by_side(processes):
    with ThreadPoolExecutor(4) as pool:
        tens = range(0, 40, 10)
        asked = [pool.submit(processes.run, lambda number, n=n: [batch(n + number)], range(5)) for n in tens]
    assert [values(each.result()) for each in asked] == [[n + number for number in range(5)] for n in tens]


def test_temporary_files_and_permissions_are_those_of_the_run(tmp_path):
    before, processes = os.umask(0o027), TaskProcesses(tmp_path / "private")
    (tmp_path / "private").mkdir()
    made = tmp_path / "made"

    def rows(_):
        with tempfile.NamedTemporaryFile(delete=False) as file:
            made.write_text(file.name)
        return []

    try:
        assert processes.run(rows, range(1)) == []
    finally:
        os.umask(before)
        processes.close()
    assert stat.S_IMODE(made.stat().st_mode) == 0o640
    assert Path(made.read_text()).parent == tmp_path / "private"


DRIVER = """
import os, sys, time
from pathlib import Path
from jobs import cli
from jobs.command_line.task_processes import TaskProcesses

def rows(_):
    Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(120)
    return []

def run(_):
    TaskProcesses().run(rows, range(1))

if __name__ == "__main__":
    sys.exit(cli.run_job("a_job", cli.build_base_parser("a_job", ""), run, ["--lake", "x"]))
"""


@pytest.fixture
def driver(project, tmp_path):
    """A job that waits for a task, and the id of the process that computes it."""
    script, note = tmp_path / "driver.py", tmp_path / "worker"
    script.write_text(textwrap.dedent(DRIVER).replace("sys.argv[1]", repr(str(note))))
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=project, env={**os.environ, "PYTHONPATH": str(project)}, text=True,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    for _ in range(600):
        if note.exists() and note.read_text():
            break
        time.sleep(0.05)
    yield process, int(note.read_text())
    process.kill()
    process.communicate()


def runs(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_driver(driver, number):
    process, worker = driver
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    _, err = process.communicate(timeout=10)
    if number == signal.SIGINT:
        assert (process.returncode, err) == (130, "a_job: interrupted; run again to continue\n")
    for _ in range(100):
        if not runs(worker):
            break
        time.sleep(0.1)
    assert not runs(worker)
