"""One run at a time on one lake, whoever is killed, asleep, elsewhere, or wrong about the time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.lake.lease import LEASE_FOLDER, Lease, LeaseError, _Folder, hold_lease, process_family, process_start_time

WORKER = Path(__file__).with_name("worker.py")
SHORT = {"beat_s": 0.05, "stale_s": 60.0, "poll_s": 0.005}


def quiet(_: str) -> None:
    pass


def leftovers(lake: Path) -> list[str]:
    return sorted(path.name for path in (lake / LEASE_FOLDER).iterdir())


def until(condition, what: str, seconds: float = 60) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


@pytest.fixture
def worker(tmp_path, project):
    """Start workers of one lake; those that still run at the end are killed."""
    running = []

    def start(run: str, rounds: int = 1, hold_s: float = 600) -> subprocess.Popen:
        command = [sys.executable, WORKER, tmp_path / "lake", tmp_path / "journal", run, rounds, hold_s]
        process = subprocess.Popen(list(map(str, command)), env={**os.environ, "PYTHONPATH": str(project)})
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


def journal(tmp_path: Path) -> list[list[str]]:
    path = tmp_path / "journal"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def elsewhere(lake: Path, *, beats: bool, since: str = "2020-01-01 00:00:00 UTC"):
    """A run on another machine that holds the lease; its counter goes up, or not."""
    folder = lake / LEASE_FOLDER
    folder.mkdir(parents=True)
    stop = threading.Event()
    about = {"run_id": "theirs", "host": "far", "machine": "another", "process": 7, "since": since}

    def beat(number: int) -> None:
        text = json.dumps({**about, "beat": number, "processes": [[7, "1"]]})
        (folder / "0abc.beat").write_text(text)

    def live() -> None:
        number = 0
        while not stop.wait(0.01):
            number += 1
            beat(number)

    beat(0)
    (folder / "000000000001-0abc.ticket").touch()
    thread = threading.Thread(target=live)
    if beats:
        thread.start()
    try:
        yield folder
    finally:
        stop.set()
        if beats:
            thread.join()


def test_a_lease_alone_leaves_nothing_behind(tmp_path):
    with hold_lease(tmp_path / "lake", "mine", say=quiet) as held:
        held.check()
        assert [name.rpartition(".")[2] for name in leftovers(tmp_path / "lake")] == ["ticket", "beat"]
    assert leftovers(tmp_path / "lake") == []
    with pytest.raises(LeaseError, match="mine does not hold the lease"):
        held.check()


def test_a_lake_can_be_a_uri(tmp_path):
    with hold_lease((tmp_path / "lake").as_uri(), "mine", say=quiet):
        assert len(leftovers(tmp_path / "lake")) == 2
        with pytest.raises(LeaseError), hold_lease(tmp_path / "lake", "other", wait_s=0, say=quiet):
            pass


def test_a_lake_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LeaseError, match=r"file/lake: no lease can be taken there"):
        hold_lease(tmp_path / "file" / "lake", "mine", say=quiet).__enter__()


def test_the_second_waits_says_so_and_follows(tmp_path):
    said, order = [], []

    def second() -> None:
        with hold_lease(tmp_path, "second", say=said.append, **SHORT):
            order.append("second")

    with hold_lease(tmp_path, "first", say=quiet, **SHORT):
        thread = threading.Thread(target=second)
        thread.start()
        until(lambda: said, "the second run to wait")
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    (line,) = said
    assert f"run first ({os.uname().nodename}, process {os.getpid()}, since " in line
    assert leftovers(tmp_path) == []


def test_the_second_gives_up_and_says_who_holds_it_since_when(tmp_path):
    with hold_lease(tmp_path, "first", say=quiet, **SHORT):
        with pytest.raises(LeaseError, match=rf"run first \(.*, process {os.getpid()}, since 2.* UTC\) works on .*"):
            hold_lease(tmp_path, "second", wait_s=0.1, say=quiet, **SHORT).__enter__()
        assert len(leftovers(tmp_path)) == 2
    with hold_lease(tmp_path, "third", wait_s=0, say=quiet):
        pass


def test_a_holder_that_is_just_writing_its_beat_is_named(tmp_path, monkeypatch):
    """A file that is written in its place is empty for a moment; it must not make the holder nameless."""
    with hold_lease(tmp_path, "first", say=quiet, beat_s=1000):
        read, looks = _Folder.read, []

        def now_and_then(folder: _Folder, name: str) -> bytes | None:
            looks.append(name)
            return read(folder, name) if len(looks) % 3 == 0 else b""

        monkeypatch.setattr(_Folder, "read", now_and_then)
        with pytest.raises(LeaseError, match="run first"):
            hold_lease(tmp_path, "second", wait_s=0, say=quiet, **SHORT).__enter__()
        assert len(looks) > 2


def test_an_error_in_a_run_frees_the_lake(tmp_path):
    with pytest.raises(ZeroDivisionError), hold_lease(tmp_path, "first", say=quiet):
        raise ZeroDivisionError
    assert leftovers(tmp_path) == []


def test_waiting_runs_go_in_the_order_they_came(tmp_path):
    order, waiting = [], []

    def run(name: str) -> None:
        with hold_lease(tmp_path, name, say=lambda _: waiting.append(name), **SHORT):
            order.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in "abcd"]
    with hold_lease(tmp_path, "first", say=quiet, **SHORT):
        for name, thread in zip("abcd", threads, strict=True):
            thread.start()
            until(lambda name=name: name in waiting, "the next run to wait")
    for thread in threads:
        thread.join()
    assert order == list("abcd")


# -- killed ------------------------------------------------------------------------------------------------------------


def test_a_killed_run_is_followed_at_once(tmp_path, worker):
    process = worker("killed")
    until(lambda: journal(tmp_path), "the worker to hold the lease")
    process.send_signal(signal.SIGKILL)
    process.wait()
    said = []
    with hold_lease(tmp_path / "lake", "mine", wait_s=30, say=said.append, beat_s=1, stale_s=1e9, poll_s=0.01):
        assert len(leftovers(tmp_path / "lake")) == 2
    assert any("run killed" in line and "is gone: its place is taken over" in line for line in said)


def test_a_killed_run_that_nobody_reaped_is_gone_too(tmp_path, worker):
    process = worker("killed")
    until(lambda: journal(tmp_path), "the worker to hold the lease")
    process.send_signal(signal.SIGKILL)
    with hold_lease(tmp_path / "lake", "mine", wait_s=30, say=quiet, beat_s=1, stale_s=1e9, poll_s=0.01):
        assert process.returncode is None


def test_a_killed_waiter_does_not_stand_in_the_way(tmp_path, worker):
    with hold_lease(tmp_path / "lake", "first", say=quiet, **SHORT):
        process = worker("waiter")
        until(lambda: len(leftovers(tmp_path / "lake")) == 4, "the worker to wait")
        process.kill()
        process.wait()
    with hold_lease(tmp_path / "lake", "mine", wait_s=30, say=quiet, beat_s=1, stale_s=1e9, poll_s=0.01):
        assert len(leftovers(tmp_path / "lake")) == 2


def test_what_the_killed_run_started_is_waited_for(tmp_path, worker):
    """A driver's JVM commits for a moment longer than its driver lives."""
    process = worker("killed", hold_s=-600)
    until(lambda: len(journal(tmp_path)) == 2, "the worker to have a child")
    (beat,) = (tmp_path / "lake" / LEASE_FOLDER).glob("*.beat")
    until(lambda: len(json.loads(beat.read_text() or "{}").get("processes", [])) == 2, "a beat that tells of the child")
    process.kill()
    process.wait()
    ((child, when),) = [each for each in json.loads(beat.read_text())["processes"] if each[0] != process.pid]
    assert process_start_time(child) == when
    try:
        with pytest.raises(LeaseError, match="run killed"):
            hold_lease(tmp_path / "lake", "mine", wait_s=0.2, say=quiet, beat_s=1, stale_s=1e9, poll_s=0.01).__enter__()
    finally:
        os.kill(child, signal.SIGKILL)
    with hold_lease(tmp_path / "lake", "mine", wait_s=30, say=quiet, beat_s=1, stale_s=1e9, poll_s=0.01):
        pass


def test_a_process_id_used_again_is_another_process():
    assert (os.getpid(), process_start_time(os.getpid())) in process_family()
    assert process_start_time(os.getpid()) != "0"
    done = subprocess.Popen(["true"])
    done.wait()
    assert process_start_time(done.pid) is None


@pytest.mark.parametrize("seed", [1, 2])
def test_many_runs_some_killed_never_two_at_once(tmp_path, worker, seed):
    """Each line of the journal is written while the lease is held; nobody enters before the one inside left or died."""
    rng = random.Random(seed)
    processes = {f"r{number}": worker(f"r{number}", rounds=12, hold_s=0.002) for number in range(5)}
    victims = rng.sample(sorted(processes), 3)
    for count, victim in enumerate(victims, 1):
        until(lambda count=count: len(journal(tmp_path)) > 14 * count, "the workers to work")
        processes[victim].kill()
    for name, process in processes.items():
        assert process.wait(timeout=120) == (-signal.SIGKILL if name in victims else 0) or name in victims
    inside = None
    done = dict.fromkeys(processes, 0)
    for what, name in journal(tmp_path):
        if what == "enter":
            assert inside is None or inside in victims, f"{name} entered while {inside} was inside"
            inside = name
        else:
            assert inside == name, f"{name} left while {inside} was inside"
            inside = None
            done[name] += 1
    assert [done[name] for name in processes if name not in victims] == [12, 12]
    with hold_lease(tmp_path / "lake", "last", wait_s=30, say=quiet, poll_s=0.01):
        assert len(leftovers(tmp_path / "lake")) == 2


@pytest.mark.parametrize("written", [b"", b'{"run_id": "r1", "ho'], ids=["nothing", "a part"])
def test_a_beat_that_a_killed_run_was_writing_is_removed(tmp_path, written):
    (tmp_path / LEASE_FOLDER).mkdir()
    (tmp_path / LEASE_FOLDER / "0abc.beat").write_bytes(written)
    with hold_lease(tmp_path, "mine", say=quiet, **SHORT):
        assert len(leftovers(tmp_path)) == 2


def test_who_queues_makes_a_beat_that_was_removed_again(tmp_path):
    """It may look like a dead run's while it is written."""
    with hold_lease(tmp_path, "mine", say=quiet, **SHORT) as held:
        (beat,) = (tmp_path / LEASE_FOLDER).glob("*.beat")
        beat.unlink()
        until(beat.exists, "the next beat")
        held.check()
        with pytest.raises(LeaseError, match="run mine"):
            hold_lease(tmp_path, "other", wait_s=0, say=quiet, **SHORT).__enter__()


# -- what no run made --------------------------------------------------------------------------------------------------

MINE = json.dumps({"run_id": "r", "machine": "M", "processes": "P"})
ODD_BEATS = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\0",
    "deep": b"[" * 100_000,
    "huge": b" " * 3_000_000,
    "a list": b"[1, 2]",
    "a number of many digits": b'{"processes": ' + b"9" * 10_000 + b"}",
    "of the future": b'{"run_id": "r", "since": "9999-12-31 23:59:59 UTC", "processes": [[7, "1"]]}',
    "wrong types": b'{"run_id": {"a": [1]}, "host": 7, "process": "x", "since": null, "processes": {"7": 1}}',
    "a text that is long": json.dumps({"run_id": "\x1b[2J" + "r" * 100_000}).encode(),
    **{
        f"processes {processes}": MINE.replace('"P"', processes).encode()
        for processes in ("[1]", "[[1]]", '[["/etc", "1"]]', '[[true, "1"]]', '[[1e400, "1"]]', "[null]", "[[]]")
    },
}  # fmt: skip


@pytest.mark.parametrize("beat", ODD_BEATS.values(), ids=ODD_BEATS)
def test_an_odd_sign_of_life_is_a_strangers(tmp_path, monkeypatch, beat):
    """It may be alive: nobody takes its place before its time. Then it is told of, and followed."""
    monkeypatch.setattr("pipeline.lake.lease._machine", lambda: "M")
    said = []
    folder = tmp_path / LEASE_FOLDER
    folder.mkdir()
    (folder / "0abc.beat").write_bytes(beat)
    (folder / "000000000001-0abc.ticket").touch()
    with pytest.raises(LeaseError, match="run"):
        hold_lease(tmp_path, "mine", wait_s=0.02, say=said.append, beat_s=0.05, stale_s=60, poll_s=0.005).__enter__()
    with hold_lease(tmp_path, "mine", wait_s=60, say=said.append, beat_s=0.05, stale_s=0.1, poll_s=0.005):
        assert [name.rpartition(".")[2] for name in leftovers(tmp_path)] == ["ticket", "beat"]
    assert "sign of life" in said[-1]
    assert max(map(len, said)) < 700


def test_what_no_run_names_so_is_left_alone_and_told(tmp_path):
    said = []
    folder = tmp_path / LEASE_FOLDER
    folder.mkdir()
    for name in ("x.ticket", "1-abc.ticket", "999999999999-abc.ticket", "README", "0a-b.beat", ".nfs0001"):
        (folder / name).touch()
    os.mkfifo(folder / "0pipe.beat")
    (folder / "0there.beat").symlink_to("/nowhere")
    for name in ("000000000003-0abc.ticket", "0abc.choosing", "0abc.beat"):
        (folder / name).mkdir()
    Path(os.fsdecode(bytes(folder) + b"/\xff.ticket")).touch()
    before = leftovers(tmp_path)
    with hold_lease(tmp_path, "mine", wait_s=0, say=said.append, **SHORT) as held:
        held.check()
        assert any(name.startswith("000000000001-") for name in leftovers(tmp_path))
    assert leftovers(tmp_path) == before
    assert len(said) == 1
    assert " and 8 more: no run made this" in said[0]


def test_the_dead_whose_files_cannot_be_removed_are_waited_for(tmp_path, monkeypatch):
    folder = tmp_path / LEASE_FOLDER
    folder.mkdir()
    (folder / "000000000001-0abc.ticket").touch()
    drop = _Folder.drop
    monkeypatch.setattr(_Folder, "drop", lambda self, name: None if "0abc" in name else drop(self, name))
    said = []
    with pytest.raises(LeaseError, match=r"cannot be removed: remove .*_lease/\*0abc\*"):
        hold_lease(tmp_path, "mine", wait_s=1, say=said.append, beat_s=0.05, stale_s=0.05, poll_s=0.01).__enter__()
    assert len(said) <= 4


# -- elsewhere, asleep -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("since", ["1970-01-01 00:00:00 UTC", "2100-01-01 00:00:00 UTC"])
def test_a_run_elsewhere_that_beats_is_alive_whatever_its_clock_says(tmp_path, since):
    with (
        elsewhere(tmp_path, beats=True, since=since),
        pytest.raises(LeaseError, match=rf"run theirs \(far, process 7, since {since}\)"),
    ):
        hold_lease(tmp_path, "mine", wait_s=2, say=quiet, beat_s=0.05, stale_s=1, poll_s=0.01).__enter__()


@pytest.mark.parametrize("since", ["1970-01-01 00:00:00 UTC", "2100-01-01 00:00:00 UTC"])
def test_a_run_elsewhere_without_a_beat_is_followed_after_a_time(tmp_path, since):
    said = []
    with elsewhere(tmp_path, beats=False, since=since):
        begun = time.monotonic()
        with hold_lease(tmp_path, "mine", wait_s=60, say=said.append, beat_s=0.05, stale_s=0.5, poll_s=0.01):
            assert time.monotonic() - begun >= 0.5
            assert len(leftovers(tmp_path)) == 2
    assert any("run theirs" in line and "no sign of life" in line for line in said)


def test_time_in_which_nobody_looked_is_no_silence(tmp_path, monkeypatch):
    """A machine that slept together with the one it waits for must not find it dead when both wake."""
    clock = [0.0]
    monkeypatch.setattr("pipeline.lake.lease._now", lambda: clock[0])
    monkeypatch.setattr("pipeline.lake.lease.time.sleep", lambda _: clock.__setitem__(0, clock[0] + 3600))
    with elsewhere(tmp_path, beats=False), pytest.raises(LeaseError, match="run theirs"):
        hold_lease(tmp_path, "mine", wait_s=7000, say=quiet, stale_s=60, poll_s=0.5).__enter__()


def test_a_holder_whose_place_was_taken_is_told(tmp_path):
    with hold_lease(tmp_path, "sleeper", say=quiet) as held:
        for path in (tmp_path / LEASE_FOLDER).iterdir():
            path.unlink()
        with hold_lease(tmp_path, "other", wait_s=0, say=quiet) as other:
            with pytest.raises(LeaseError, match=r"another run has taken the lease of .* over from run sleeper"):
                held.check()
            other.check()


def test_a_holder_that_could_not_beat_for_long_is_told(tmp_path, monkeypatch):
    with hold_lease(tmp_path, "mine", say=quiet, beat_s=1000, stale_s=60) as held:
        late = held._beaten_at + 31
        monkeypatch.setattr("pipeline.lake.lease._now", lambda: late)
        with monkeypatch.context() as away:
            away.setattr(held._folder, "put", Mock(side_effect=OSError))
            with pytest.raises(LeaseError, match="could not be renewed for 31 s"):
                held.check()


def test_a_holder_that_was_asleep_goes_on_if_nobody_took_its_place(tmp_path, monkeypatch):
    with hold_lease(tmp_path, "mine", say=quiet, beat_s=1000, stale_s=60, poll_s=0.01) as held:
        clock = [held._beaten_at + 3600]
        monkeypatch.setattr("pipeline.lake.lease._now", lambda: clock[0])
        held.check()
        assert held._beaten_at == clock[0]
        clock[0] += 3600
        (ticket,) = (tmp_path / LEASE_FOLDER).glob("*.ticket")
        with monkeypatch.context() as meanwhile:  # who had found it dead takes its ticket while it waits
            meanwhile.setattr("pipeline.lake.lease.time.sleep", lambda _: ticket.unlink())
            with pytest.raises(LeaseError, match="could not be renewed for 3600 s"):
                held.check()


def test_a_waiter_held_for_dead_stands_at_the_end_again(tmp_path):
    """Its ticket was removed while it was asleep; it takes another one and is served."""
    waiting = []
    with hold_lease(tmp_path, "first", say=quiet, **SHORT):
        thread = threading.Thread(
            target=lambda: hold_lease(tmp_path, "second", say=waiting.append, **SHORT).__enter__().release()
        )
        thread.start()
        until(lambda: waiting, "the second run to wait")
        (ticket,) = [
            path for path in (tmp_path / LEASE_FOLDER).glob("*.ticket") if path.name.startswith("000000000002")
        ]
        ticket.unlink()
        until(lambda: len(list((tmp_path / LEASE_FOLDER).glob("*.ticket"))) == 2, "another ticket")
    thread.join()
    assert leftovers(tmp_path) == []


# -- every interleaving ------------------------------------------------------------------------------------------------


class Turns:
    """Threads that take turns at the store in an order drawn at random: one step at a time, whoever is next.

    The same goes on with a probability that is drawn too: trouble needs one to stand still while others go far.
    """

    def __init__(self, rng: random.Random, names: str) -> None:
        self.rng, self.waiting, self.left = rng, set(), set(names)
        self.steady, self.last = rng.choice([0.0, 0.6, 0.9, 0.95]), None
        self.lock = threading.Lock()
        self.gates = {name: threading.Semaphore(0) for name in names}

    def step(self) -> None:
        me = threading.current_thread().name
        with self.lock:
            self.waiting.add(me)
            self._next()
        self.gates[me].acquire()

    def leave(self) -> None:
        with self.lock:
            self.left.discard(threading.current_thread().name)
            self._next()

    def _next(self) -> None:
        """When all stand still, one of them goes on."""
        if self.left and self.waiting == self.left:
            if self.last not in self.waiting or self.rng.random() >= self.steady:
                self.last = self.rng.choice(sorted(self.waiting))
            self.waiting.discard(self.last)
            self.gates[self.last].release()


class Memory:
    """The lease's folder in memory. A listing is not of one moment: each name is looked at in a step of its own."""

    def __init__(self, files: dict[str, bytes], turns: Turns) -> None:
        self.files, self.turns = files, turns

    def names(self) -> set[str]:
        self.turns.step()
        found = set()
        for name in self.turns.rng.sample(sorted(self.files), len(self.files)):
            self.turns.step()
            if name in self.files:
                found.add(name)
        return found

    def strangers(self) -> list[str]:
        return []

    def put(self, name: str, data: bytes = b"") -> None:
        self.turns.step()
        self.files[name] = data

    def read(self, name: str) -> bytes | None:
        self.turns.step()
        return self.files.get(name)

    def drop(self, name: str) -> None:
        self.turns.step()
        self.files.pop(name, None)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_in_any_interleaving_never_two_at_once(monkeypatch, first):
    for seed in range(first, first + 50):
        interleaved(monkeypatch, seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(400, 10_000, 400))
def test_in_many_more_interleavings_never_two_at_once(monkeypatch, first):
    for seed in range(first, first + 400):
        interleaved(monkeypatch, seed)


def interleaved(monkeypatch, seed):
    """Three contenders, twice each, in one order of all their steps."""
    turns, files, inside, entered, wrong = Turns(random.Random(seed), "abc"), {}, [], [], []
    monkeypatch.setattr("pipeline.lake.lease._Folder", lambda _: Memory(files, turns))
    monkeypatch.setattr("pipeline.lake.lease.Thread", Idle)
    monkeypatch.setattr("pipeline.lake.lease.process_family", lambda: [(os.getpid(), process_start_time(os.getpid()))])

    def run(name: str) -> None:
        try:
            for number in range(2):
                once(name, f"{name}{number}")
        finally:
            turns.leave()

    def once(name: str, token: str) -> None:
        mine = Lease("lake", name, say=quiet, stale_s=1e9, poll_s=0)
        mine.token = token
        mine.acquire(1e9)
        wrong.extend((name, other) for other in inside)
        inside.append(name)
        entered.append(name)
        turns.step()
        turns.step()
        inside.remove(name)
        mine.release()

    threads = [threading.Thread(target=run, args=(name,), name=name) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [], f"seed {seed}"
    assert sorted(entered) == ["a", "a", "b", "b", "c", "c"]
    assert files == {}


class Idle(threading.Thread):
    """A heartbeat's thread that does not run: the turns are the contenders' alone."""

    def run(self) -> None:
        pass
