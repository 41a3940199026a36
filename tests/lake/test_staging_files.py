"""Side files are shared out among tasks: each row group to one of them, and no task with much more than others."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake import staging_files
from pipeline.lake.engine import tasks as lake_tasks
from pipeline.lake.lake_path import LakePath
from pipeline.lake.staging_files import StagingWriter, count_staged_rows, plan_tasks, staged_files

KIB = 1024


@pytest.fixture(autouse=True)
def every_batch_is_a_row_group(monkeypatch):
    monkeypatch.setattr(staging_files, "_GROUP_BYTES", 1)


def write(folder, name, batches):
    """Write a side file of batches of so many KiB each, whose rows say where they are."""
    out = StagingWriter(str(folder), name)
    for number, size in enumerate(batches):
        noise = [f"{name} {number}".encode().ljust(KIB, b"%c" % (number % 256)) for _ in range(size)]
        out.add("calls", pa.record_batch({"place": [f"{name} {number}"] * size, "data": noise}))
    out.close()


def files(folder):
    """Return the side files of calls in a folder."""
    return staged_files(LakePath(str(folder / "calls")))


@given(given_files=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), max_size=8), most=st.integers(1, 200))
def test_each_row_group_is_read_by_one_task(tmp_path_factory, given_files, most):
    folder = tmp_path_factory.mktemp("side")
    for number, batches in enumerate(given_files):
        write(folder, f"capture {number}", batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_tasks, "_LEAST_TASK_BYTES", most)
        patch.setattr(lake_tasks, "TASK_BYTES", most)
        tasks = plan_tasks(files(folder))
    assert all(tasks)
    read = [batch.column("place").to_pylist() for task in tasks for piece in task for batch in piece.read()]
    expected = [[f"capture {n} {b}"] * size for n, batches in enumerate(given_files) for b, size in enumerate(batches)]
    assert sorted(read) == sorted(expected)
    assert count_staged_rows(files(folder)) == sum(map(len, expected))


def test_many_small_files_are_few_tasks_and_a_large_one_is_several(tmp_path, monkeypatch):
    for number in range(30):
        write(tmp_path / "small", f"capture {number}", [1])
    assert len(plan_tasks(files(tmp_path / "small"))) == 1
    write(tmp_path / "large", "capture", [40] * 32)
    monkeypatch.setattr(lake_tasks, "_LEAST_TASK_BYTES", 1)
    sizes = [[len(piece.groups) for piece in task] for task in plan_tasks(files(tmp_path / "large"))]
    assert sizes == [[4]] * 8


def test_small_files_of_several_folders_are_one_task(tmp_path):
    for folder in ("alone", "joined"):
        write(tmp_path / folder, "capture", [1])
    (task,) = plan_tasks(files(tmp_path / "alone") | files(tmp_path / "joined") | files(tmp_path / "nowhere"))
    assert sorted(piece.path.split("/")[-3] for piece in task) == ["alone", "joined"]


def test_small_batches_are_one_row_group_until_there_is_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(staging_files, "_GROUP_BYTES", 10 * KIB)
    write(tmp_path, "capture", [4, 4, 4, 4, 20, 1])
    ((piece,),) = plan_tasks(files(tmp_path))
    assert [batch.num_rows for batch in piece.read()] == [12, 24, 1]


def test_what_is_still_written_is_none_of_them_and_a_folder_that_is_not_there_has_none(tmp_path):
    out = StagingWriter(str(tmp_path), "capture")
    out.add("calls", pa.record_batch({"place": ["here"]}))
    assert files(tmp_path) == files(tmp_path / "nowhere") == {}
    assert (plan_tasks({}), count_staged_rows({})) == ([], 0)
    out.close()
    assert len(plan_tasks(files(tmp_path))) == 1


@pytest.mark.parametrize("first_one", ["is done first", "is done last", "gives up", "never ends"])
def test_two_attempts_at_one_task_in_one_process_do_not_write_into_each_others_files(tmp_path, first_one):
    """Containers give their processes the same number, so two executors' attempts may have one; this is one process."""
    first, second = (StagingWriter(str(tmp_path), "capture") for _ in range(2))
    for number in range(3):
        for attempt in (first, second):
            attempt.add("calls", pa.record_batch({"place": [f"row {number}"] * 1000}))
    order = {"is done first": [first.close, second.close], "is done last": [second.close, first.close]}
    for step in order.get(first_one, [second.close, *([first.discard] if first_one == "gives up" else [])]):
        step()
    ((piece,),) = plan_tasks(files(tmp_path))
    read = [row["place"] for batch in piece.read() for row in batch.to_pylist()]
    assert read == [f"row {number}" for number in range(3) for _ in range(1000)]
    left = [path.name for path in (tmp_path / "calls").iterdir()]
    assert len(left) == (2 if first_one == "never ends" else 1)
