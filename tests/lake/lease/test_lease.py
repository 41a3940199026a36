"""One run at a time on one lake, in a folder and on an object store, whoever is killed, asleep or elsewhere."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import obstore
import pytest
from filelock import FileLock

from bronze.stores.bucket import serving_here
from pipeline.lake.lake_path import LakePath
from pipeline.runs import lease
from pipeline.runs.lease import LEASE_FOLDER, LeaseError, hold_lease

WORKER = Path(__file__).with_name("worker.py")
SHORT = {"beat_s": 0.05, "stale_s": 60.0, "poll_s": 0.005}
ASLEEP = {"beat_s": 1000.0, "stale_s": 60.0, "poll_s": 0.005}  # it does not renew its lease by itself


def quiet(_: str) -> None:
    pass


def enter(lake, run: str, **more) -> None:
    """Take the lease and give it back."""
    with hold_lease(lake, run, **{"wait_s": 0, "say": quiet, **SHORT, **more}) as held:
        held.check()


def record(lake) -> LakePath:
    return LakePath(str(lake)) / LEASE_FOLDER / "holder.json"


def leave_record(lake, **more) -> None:
    """Leave what a run of another machine leaves that is killed."""
    about = {
        "run_id": "theirs",
        "host": "far",
        "process": 7,
        "since": "2100-01-01 00:00:00 UTC",
        "token": "t",
        "beat": 1,
    }
    record(lake).write_text(json.dumps({**about, **more}))


def until(condition, what: str, seconds: float = 60) -> None:
    """Wait for something that another thread or process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def bucket():
    with serving_here() as server:
        yield server


@pytest.fixture
def store(bucket) -> str:
    return f"s3://captures/{uuid4().hex}/a lake/é"


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "a lake"


@pytest.fixture(params=["folder", "store"])
def lake(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def worker(tmp_path, project):
    """Start processes that work on a lake; those that still run at the end are killed."""
    running = []

    def start(lake, run: str, rounds: int = 1, hold_s: float = 600) -> subprocess.Popen:
        command = [sys.executable, WORKER, lake, tmp_path / "journal", run, rounds, hold_s]
        process = subprocess.Popen(list(map(str, command)), env={**os.environ, "PYTHONPATH": str(project)})
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


def journal(tmp_path: Path) -> list[tuple[str, str]]:
    path = tmp_path / "journal"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


# -- one after the other -----------------------------------------------------------------------------------------------


def test_the_record_says_who_works_on_the_lake(lake):
    with hold_lease(lake, "mine", say=quiet) as held:
        held.check()
        said = json.loads(record(lake).read_text())
        assert (said["run_id"], said["host"], said["process"]) == ("mine", os.uname().nodename, os.getpid())
    assert record(lake).read_text() == "{}"
    with pytest.raises(LeaseError, match="run mine does not hold the lease"):
        held.check()
    enter(lake, "next")


def test_the_second_waits_says_so_and_follows(lake):
    said, order = [], []

    def second() -> None:
        with hold_lease(lake, "second", say=said.append, **SHORT):
            order.append("second")

    with hold_lease(lake, "first", say=quiet, **SHORT) as held:
        thread = threading.Thread(target=second)
        thread.start()
        until(lambda: said, "the second run to wait")
        held.check()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    who = f"run first ({os.uname().nodename}, process {os.getpid()}, since "
    assert len(said) == 1
    assert said[0].startswith(who)
    assert said[0].endswith(f" UTC) works on {lake}: waiting for it to end")


def test_nobody_is_waited_for_who_is_just_coming_or_going(folder):
    """A run locks the folder before it writes who it is, and unlocks it after it has taken that back."""
    said, coming = [], FileLock(folder / LEASE_FOLDER / "lock", thread_local=False)
    enter(folder, "before")
    coming.acquire()
    thread = threading.Thread(
        target=enter, args=(folder, "second"), kwargs={"say": said.append, "wait_s": 60, "beat_s": 600}
    )
    thread.start()
    time.sleep(0.1)
    coming.release()
    thread.join()
    assert not said
    with coming, pytest.raises(LeaseError, match=r"^another run works on .*; waited 0 s"):
        enter(folder, "third", say=said.append, wait_s=0.3)
    assert said == [f"another run works on {folder}: waiting for it to end"]


def test_the_second_gives_up_and_says_who_holds_it_since_when(lake):
    with hold_lease(lake, "first", say=quiet, **SHORT) as held:
        said = rf"run first \(.*, process {os.getpid()}, since 2.* UTC\) works on .*; waited 0 s for it to end"
        with pytest.raises(LeaseError, match=said):
            enter(lake, "second", wait_s=0.1)
        held.check()
    enter(lake, "third")


def test_an_error_in_a_run_frees_the_lake(lake):
    with pytest.raises(ZeroDivisionError), hold_lease(lake, "first", say=quiet):
        raise ZeroDivisionError
    enter(lake, "second")


def test_a_path_and_its_uri_are_one_lake(folder):
    with hold_lease(folder.as_uri(), "mine", say=quiet), pytest.raises(LeaseError, match="run mine"):
        enter(folder, "other")


@pytest.mark.parametrize(("place", "kills"), [("folder", 3), ("store", 0)])
def test_many_processes_never_two_at_once(request, tmp_path, worker, place, kills):
    """Each line of the journal is written while the lease is held; nobody enters before the one inside left or died."""
    lake, rounds = request.getfixturevalue(place), 6
    processes = {f"r{number}": worker(lake, f"r{number}", rounds, 0.002) for number in range(5 if kills else 3)}
    victims = random.Random(1).sample(sorted(processes), kills)
    until(lambda: len([1 for what, _ in journal(tmp_path) if what == "start"]) == len(processes), "the workers")
    for count, victim in enumerate(victims, 1):
        until(lambda count=count: len(journal(tmp_path)) > 5 + 8 * count, "the workers to work")
        processes[victim].kill()
    for name, process in processes.items():
        assert process.wait(timeout=120) == 0 or name in victims
    inside = None
    done = dict.fromkeys(processes, 0)
    for what, name in journal(tmp_path):
        if what == "enter":
            assert inside is None or inside in victims, f"{name} entered while {inside} was inside"
            inside = name
        elif what == "leave":
            assert inside == name, f"{name} left while {inside} was inside"
            inside = None
            done[name] += 1
    assert {done[name] for name in processes if name not in victims} == {rounds}
    enter(lake, "last")


# -- killed ------------------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_in_a_folder_is_followed_at_once(folder, tmp_path, worker):
    process = worker(folder, "killed")
    until(lambda: ("enter", "killed") in journal(tmp_path), "the worker to hold the lease")
    with pytest.raises(LeaseError, match="run killed"):
        enter(folder, "mine")
    process.kill()  # the child that it has started goes on
    said = []
    enter(folder, "mine", wait_s=30, say=said.append, stale_s=1e9)
    assert process.returncode is None  # nobody has waited for its end yet
    assert said[-1].startswith("run killed (")
    assert said[-1].endswith("is gone: its place is taken over")


def test_a_run_that_was_killed_on_a_store_is_followed_after_a_time(store, tmp_path, worker):
    process = worker(store, "killed")
    until(lambda: ("enter", "killed") in journal(tmp_path), "the worker to hold the lease")
    with pytest.raises(LeaseError, match="run killed"):
        enter(store, "mine", wait_s=1.8, stale_s=1.5)  # it renews its lease
    process.kill()
    process.wait()
    begun = time.monotonic()
    enter(store, "mine", wait_s=30, stale_s=0.3, poll_s=0.02)
    assert time.monotonic() - begun >= 0.3


# -- elsewhere, asleep -------------------------------------------------------------------------------------------------


@pytest.fixture
def local_locks(monkeypatch):
    """Locks that others do not see, as those of a file system that several machines have, and that keeps them apart."""
    monkeypatch.setattr(lease, "FileLock", lambda path, **more: FileLock(f"{path}-{uuid4().hex}", **more))
    hosts = iter(("one", "another"))
    monkeypatch.setattr(lease.platform, "node", lambda: next(hosts, "a third"))


def test_a_run_elsewhere_is_waited_for_whose_lock_is_not_seen(folder, local_locks):
    said = []
    with hold_lease(folder, "first", say=quiet, **SHORT) as held:
        with pytest.raises(LeaseError, match=r"run first \(one, "):
            enter(folder, "second", say=said.append, wait_s=0.8, stale_s=0.5)
        held.check()
    assert len(said) == 1
    enter(folder, "second")


def test_of_two_that_hold_a_lake_one_goes_on(folder, local_locks):
    lost = r"run first has lost the lease of .*: run second \(another, .*\) has taken it over"
    with (
        hold_lease(folder, "first", say=quiet, **ASLEEP) as first,
        hold_lease(folder, "second", say=quiet, **{**SHORT, "stale_s": 0.1}) as second,
    ):
        with pytest.raises(LeaseError, match=lost):
            first.check()
        second.check()


@pytest.mark.parametrize("beats", [True, False])
def test_a_run_elsewhere_is_alive_while_its_record_changes(lake, beats):
    """Whatever its clock says."""
    leave_record(lake)
    stop, said = threading.Event(), []

    def live() -> None:
        number = 1
        while beats and not stop.wait(0.01):
            number += 1
            leave_record(lake, beat=number)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        if beats:
            with pytest.raises(LeaseError, match=r"run theirs \(far, process 7, since 2100-01-01 00:00:00 UTC\)"):
                enter(lake, "mine", wait_s=0.8, stale_s=0.5)
        else:
            begun = time.monotonic()
            enter(lake, "mine", wait_s=60, say=said.append, stale_s=0.3, poll_s=0.01)
            assert time.monotonic() - begun >= 0.3
            assert "run theirs (far, process 7, since 2100-01-01 00:00:00 UTC) is gone" in said[-1]
    finally:
        stop.set()
        thread.join()


def test_time_in_which_nobody_looked_is_no_silence(lake, monkeypatch):
    """A machine that slept together with the one it waits for must not find it dead when both wake."""
    leave_record(lake)
    clock = [0.0]
    monkeypatch.setattr(lease, "_now", lambda: clock[0])
    monkeypatch.setattr(lease.time, "sleep", lambda _: clock.__setitem__(0, clock[0] + 3600))
    with pytest.raises(LeaseError, match="run theirs"):
        enter(lake, "mine", wait_s=7000, poll_s=0.5)


def test_a_run_that_slept_too_long_has_lost_its_lease(store):
    lost = r"run sleeper has lost the lease of .*: run other \(.*\) has taken it over"
    with (
        hold_lease(store, "sleeper", say=quiet, **ASLEEP) as sleeper,
        hold_lease(store, "other", say=quiet, **{**SHORT, "stale_s": 2.0}) as other,
    ):
        with pytest.raises(LeaseError, match=lost):
            sleeper.check()
        sleeper.release()
        other.check()
        with pytest.raises(LeaseError, match="run other"):
            enter(store, "third")


def test_a_run_that_slept_goes_on_if_nobody_took_its_place(lake, monkeypatch):
    with hold_lease(lake, "mine", say=quiet, **ASLEEP) as held:
        before, late = record(lake).read_text(), lease._now() + 3600
        monkeypatch.setattr(lease, "_now", lambda: late)
        held.check()
        assert record(lake).read_text() != before


def test_a_run_that_could_not_renew_its_lease_for_long_is_told(lake, monkeypatch):
    with hold_lease(lake, "mine", say=quiet, **ASLEEP) as held:
        late = held._renewed_at + 31
        with monkeypatch.context() as away:
            away.setattr(held._location, "put", Mock(side_effect=OSError))
            held.check()
            away.setattr(lease, "_now", lambda: late)
            with pytest.raises(LeaseError, match="could not be renewed for 31 s by run mine"):
                held.check()
        held.check()


def test_the_heartbeat_notices_that_the_lease_is_lost(lake):
    with hold_lease(lake, "mine", say=quiet, **SHORT) as held:
        leave_record(lake)
        until(lambda: held._trouble, "the next beat")
        leave_record(lake, token=held._about["token"])  # what is lost stays lost
        with pytest.raises(LeaseError, match=r"run mine has lost the lease of .*: run theirs \(far"):
            held.check()


def test_a_record_that_was_removed_is_a_lease_that_is_lost(lake):
    with hold_lease(lake, "mine", say=quiet, **ASLEEP) as held:
        record(lake).remove_file()
        with pytest.raises(LeaseError, match=r"run mine has lost the lease of .*: another run has taken it over"):
            held.check()


@pytest.mark.parametrize("what", ["lock", "everything"])
def test_a_lock_that_was_removed_lets_others_in_and_is_noticed(folder, what):
    with hold_lease(folder, "mine", say=quiet, **SHORT) as held:
        for path in (folder / LEASE_FOLDER).iterdir():
            if what == "everything" or path.name == what:
                path.unlink()
        with hold_lease(folder, "other", wait_s=0, say=quiet) as other:
            with pytest.raises(LeaseError, match="run mine has lost the lease"):
                held.check()
            other.check()


def test_of_two_that_read_the_same_one_puts(store):
    place = lease._ObjectStore(LakePath(store) / LEASE_FOLDER)
    for data in (b"1", b"2", b"3"):
        before = place.read()
        assert [place.put(data, before), place.put(b"another", before)] == [True, False]
        assert place.read().data == data


@pytest.mark.parametrize("refused", [obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError])
def test_a_put_whose_answer_was_lost_has_happened(store, monkeypatch, refused):
    """The client repeats it, and the second one is refused: the object is what the first one put."""
    put = obstore.put

    def twice(*arguments, **more):
        put(*arguments, **more)
        raise refused("it is there")

    monkeypatch.setattr(obstore, "put", twice)
    with hold_lease(store, "mine", wait_s=5, say=quiet, **ASLEEP) as held:
        held.check()
        held._look(renew=True)
        held.check()
    assert record(store).read_text() == "{}"


# -- what cannot be ----------------------------------------------------------------------------------------------------


def one_line(lake, **more) -> str:
    with pytest.raises(LeaseError) as raised:
        enter(lake, "mine", **more)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file/lake: no lease can be taken there: " in one_line(tmp_path / "file" / "lake")


@pytest.mark.parametrize("name", ["lock", "holder.json"])
def test_a_folder_in_place_of_a_file_is_one_line(folder, name):
    (folder / LEASE_FOLDER / name).mkdir(parents=True)
    assert f"{name}" in one_line(folder)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_refused(folder, monkeypatch, code):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(code, os.strerror(code))))
    said = one_line(folder)
    assert os.strerror(code) in said
    assert "its file system cannot lock files" in said
    assert "put the lake on one that can" in said
    assert not record(folder).exists()


def test_an_object_store_that_refuses_is_one_line(bucket, store, monkeypatch):
    assert "NoSuchBucket" in one_line("s3://no-such-bucket/lake")
    bucket.deny("s3:*", "/denied/*")
    try:
        assert "s3://captures/denied: no lease can be taken there: " in one_line("s3://captures/denied")
    finally:
        bucket.client.delete_bucket_policy(Bucket="captures")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(lease, "_RETRY_TIMEOUT", timedelta(0))
    assert "127.0.0.1:9" in one_line(store)


# -- what no run made --------------------------------------------------------------------------------------------------

ODD_RECORDS = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\0",
    "deep": b"[" * 100_000,
    "a list": b"[1, 2]",
    "a number of many digits": b'{"token": ' + b"9" * 10_000 + b"}",
    "wrong types": b'{"run_id": {"a": [1]}, "host": 7, "process": "x", "since": null, "token": []}',
    "a text that is long": json.dumps({"run_id": "\x1b[2J" + "r" * 100_000}).encode(),
}


@pytest.mark.parametrize("data", ODD_RECORDS.values(), ids=ODD_RECORDS)
def test_an_odd_record_may_be_of_a_run_that_works(folder, data):
    """Nobody takes its place before its time."""
    said = []
    (folder / LEASE_FOLDER).mkdir(parents=True)
    (folder / LEASE_FOLDER / "holder.json").write_bytes(data)
    with pytest.raises(LeaseError, match="run"):
        enter(folder, "mine", wait_s=0.02, say=said.append)
    enter(folder, "mine", wait_s=60, say=said.append, stale_s=0.1)
    assert said[-1].endswith("is gone: its place is taken over")
    assert max(map(len, said)) < 700


def test_what_else_is_there_is_left_alone(folder):
    """Of an earlier version of this program, and of strangers."""
    place = folder / LEASE_FOLDER
    place.mkdir(parents=True)
    for name in ("000000000001-0abc.ticket", "0abc.choosing", "0abc.beat", "README"):
        (place / name).touch()
    os.mkfifo(place / "pipe")
    before = {path.name for path in place.iterdir()}
    said = []
    enter(folder, "mine", say=said.append)
    assert said == []
    assert {path.name for path in place.iterdir()} == before | {"lock", "holder.json"}
