"""Faults that an environment has in store for a run, each on a lake of its own; what follows must mend it.

A fault is a function of a ``Scene``. It does something to a run and returns what that came to; then the scene is as it
was before the fault (room on the disk, the right to write, the files), and an ordinary run goes over all captures.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from end_to_end.lakes import KILLED, Job

A_DAY_S = 86_400
WAIT_S = 0.05


class NotRunError(Exception):
    """A fault that this machine cannot make; the message says what is missing."""


@dataclass
class Scene:
    """A lake that has a first run's files, the captures of all, the job, and chance."""

    root: Path
    captures: Path
    job: str
    chance: random.Random
    watched: Job  # the same run, undisturbed
    kills: int = 0  # so far

    def start(self) -> Job:
        """Start the run over all captures."""
        return Job(self.root, [self.captures], self.job)

    def wait(self, job: Job, fraction: float) -> None:
        """Wait until a run is about as far; or at its end."""
        signs = self.watched.moment(fraction).signs
        while job.running() and job.look() < signs:
            time.sleep(WAIT_S)


def killed(scene: Scene, many: int) -> str:
    """SIGKILL of the driver, of Java, of the Python workers or of all, at any moment, and up to ``many`` in a row.

    What was to mend a run that was killed is killed too, some time after its start. With a run that comes to its end,
    before its kill or for it killed nothing that cannot be replaced, all is mended, and the row ends.
    """
    told: list[str] = []
    while len(told) < many:
        what, when = scene.chance.choice(KILLED), scene.chance.random()
        job, watched = scene.start(), scene.watched
        said = job.kill_after(watched.seconds(when), what) if told else job.kill(watched.moment(when), what)
        if said is None:
            break
        told.append(f"{what} at {when:.2f}: {said.splitlines()[0]}")
        scene.kills += 1
        if job.survived:
            break
    return "; ".join(told)


def full_disk(scene: Scene) -> str:
    """The lake's disk has room for a part of what the run writes."""
    used = sum(path.stat().st_size for path in scene.root.rglob("*") if path.is_file())
    more = scene.chance.randint(60, 1500) << 10
    with mounted(scene.root, used + (used >> 2) + more):
        code, said = scene.start().end()
        _mount("-o", "remount,size=2g", str(scene.root))
        _keep(scene.root)
    return f"{more >> 10} KiB left: exit code {code}: {_last(said)}"


def read_only(scene: Scene) -> str:
    """The lake turns read-only while the run works, or before it begins."""
    when = scene.chance.choice([0.0, 0.3, 0.6, 0.9])
    with mounted(scene.root, 2 << 30):
        if not when:
            _mount("-o", "remount,ro", str(scene.root))
        job = scene.start()
        if when:
            scene.wait(job, when)
            while job.running() and not _tried("-o", "remount,ro", str(scene.root)):  # busy while a file is written
                time.sleep(WAIT_S)
        code, said = job.end()
        _mount("-o", "remount,rw", str(scene.root))
        _keep(scene.root)
    return f"from {when} on: exit code {code}: {_last(said)}"


def growing(scene: Scene) -> str:
    """A capture is written while it is read: a part of it is there at first, the rest comes bit by bit."""
    path = _largest(scene)
    whole = path.read_bytes()
    there = scene.chance.randrange(1, len(whole))
    path.write_bytes(whole[:there])
    job = scene.start()

    def write() -> None:
        with path.open("ab") as file:
            for at in range(there, len(whole), 997):
                file.write(whole[at : at + 997])
                file.flush()
                time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    code, said = job.end()
    writer.join()
    return f"{path.name} from byte {there}: exit code {code}: {_last(said)}"


def vanishing(scene: Scene) -> str:
    """A capture goes while the run works, and is there again later."""
    path, when = _largest(scene), scene.chance.random() / 2
    away = path.with_name("away")
    job = scene.start()
    scene.wait(job, when)
    path.rename(scene.root.parent / away.name)
    code, said = job.end()
    shutil.move(scene.root.parent / away.name, path)
    return f"{path.name} at {when:.2f}: exit code {code}: {_last(said)}"


def clock_set_back(scene: Scene) -> str:
    """All that is there is dated a day ahead, as after a clock was set back by a day; lakes and captures alike."""
    ahead = time.time() + A_DAY_S
    for folder in (scene.root, scene.captures):
        for path in folder.rglob("*"):
            if path.is_file() and path.name != "_delta_log":
                os.utime(path, (ahead, ahead))
    code, said = scene.start().end()
    return f"exit code {code}: {_last(said)}"


FAULTS: dict[str, Callable[[Scene], str]] = {
    "full_disk": full_disk,
    "read_only": read_only,
    "growing": growing,
    "vanishing": vanishing,
    "clock_set_back": clock_set_back,
}
TOUCHING = (growing, vanishing, clock_set_back)  # which leave files with other times


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """Have a folder on a disk of its own, of some bytes, with what was in it."""
    kept = folder.with_name(f"{folder.name}-kept")
    folder.rename(kept)
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", f"size={size}", "chaos", str(folder))
    except NotRunError:
        folder.rmdir()
        kept.rename(folder)
        raise
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()
        (folder.with_name(f"{folder.name}-after") if _kept(folder).exists() else kept).rename(folder)
        shutil.rmtree(kept, ignore_errors=True)


def _kept(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-after")


def _keep(folder: Path) -> None:
    """Keep what is on the disk for when it is gone."""
    shutil.copytree(folder, _kept(folder))


def _tried(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRunError(f"mount needs root, and a machine that lets it: {done.stderr.strip()}")


def _largest(scene: Scene) -> Path:
    return max((path for path in scene.captures.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(("\t", " "))]
    return lines[-1][:200] if lines else ""
