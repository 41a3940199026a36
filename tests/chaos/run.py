"""Faults at random moments: ``python -m chaos.run [--kills N] [--pairs N] [--faults N]``, or ``make chaos``.

Each round has a lake that some files were read into, disturbs a run over all files, and lets an ordinary run go over
them again: every table must be that of a run that nothing disturbed. Kills come up to eight in a row, each of the run
that was to mend the one before. Pairs are two runs at once on one new lake. Chance has a seed, which is printed: the
same one chooses the same faults. Exits with 1 when a table differed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from capture.merge.comparing import OF_THE_RUN, differences
from chaos.faults import FAULTS, TOUCHING, NotRunError, Scene, killed
from end_to_end.conversations import SMALL, Conversations
from end_to_end.lakes import ALL, BRONZE, WRITTEN_BY, Job, run, tables
from jobs.session import session
from pipeline.lake.lake import Lake
from pipeline.lake.recovery import Runs

IN_A_ROW = (1, 2, 4, 8)  # kills of a round
OF_FILES_TIMES = {"modified_at", "other_files"}


class Chaos:
    """The conversations, a lake that has the first run's files, and one whose second run was watched."""

    def __init__(self, folder: Path, job: str, seed: int) -> None:
        self.folder, self.job, self.chance, self.kills = folder, job, random.Random(seed), 0
        self.spark = session("chaos")
        self.talks = Conversations(folder / "captures")
        for name in SMALL:
            self.talks.add_any(name, self.chance, last=2)
        self.talks.write()
        self.begun = Lake(self.spark, str(folder / "begun"))
        run(self.begun, self.talks.run(1), job=job)
        self.watched = Job(Path(shutil.copytree(self.begun.root, folder / "undisturbed")), [self.talks.cut], job)
        self.watched.watch()
        self.expected = tables(Lake(self.spark, str(self.watched.root)), WRITTEN_BY[job])

    def disturbed(self, fault: Callable[[Scene], str], number: int) -> str:
        """Have a fault at a run, then an ordinary run; AssertionError when a table differs."""
        place = self.folder / f"{number}"
        # At the place of the captures that were read before: the ledger knows them by their paths.
        root = Path(shutil.copytree(self.begun.root, place / "lake"))
        aside = self.folder / "aside"
        shutil.copytree(self.talks.cut, aside)
        try:
            scene = Scene(root, self.talks.cut, self.job, self.chance, self.watched)
            told = fault(scene)
            self.kills += scene.kills
            lake = Lake(self.spark, str(root))
            run(lake, self.talks.cut, job=self.job)
            assert Runs.of(lake).unfinished() == {}, "a run is not at its end"
            self._compare(lake, OF_THE_RUN | (OF_FILES_TIMES if fault in TOUCHING else set()))
        finally:
            shutil.rmtree(self.talks.cut)
            shutil.copytree(aside, self.talks.cut)
            shutil.rmtree(aside)
            shutil.rmtree(place, ignore_errors=True)
        return told

    def rounds_of_kills(self, wanted: int) -> Iterator[tuple[str, Callable[[int], str]]]:
        """Yield rounds until so many runs were killed; no more of them than that, whatever becomes of them."""
        for _ in range(wanted):
            if self.kills < wanted:
                many = min(wanted - self.kills, self.chance.choice(IN_A_ROW))
                yield "kill", partial(self.disturbed, partial(killed, many=many))

    def _compare(self, lake: Lake, left_out: Collection[str]) -> None:
        found = differences(tables(lake, WRITTEN_BY[self.job]), self.expected, left_out=left_out)
        assert not found, self.talks.explain(found)

    def pair(self, number: int) -> str:
        """Two runs at once on one new lake, which together are given all files."""
        root = self.folder / f"{number}" / "lake"
        later = self.chance.choice([0, 0, 1, 4])
        one, two = self.chance.choice([((1,), (2,)), ((2,), (1,)), ((1, 2), (1, 2)), ((1,), (1, 2)), ((1, 2), (2,))])
        both = []
        for numbers, wait_s in ((one, later), (two, 0)):
            both.append(Job(root, [self.talks.run(each) for each in numbers], self.job))
            time.sleep(wait_s)
        for each in both:
            each.succeed()
        self._compare(Lake(self.spark, str(root)), OF_THE_RUN)
        shutil.rmtree(root.parent)
        return f"runs {one} and {two}, {later} s later"


def main() -> int:
    """Disturb, compare, count."""
    top = argparse.ArgumentParser(prog="python -m chaos.run", description=__doc__)
    top.add_argument("--kills", type=int, default=200, help="runs that are killed (200)")
    top.add_argument("--pairs", type=int, default=50, help="pairs of runs at once (50)")
    top.add_argument("--faults", type=int, default=2, help=f"times each of {', '.join(FAULTS)} (2)")
    top.add_argument("--job", choices=(ALL, BRONZE), default=ALL, help="through all layers, or to bronze (all)")
    top.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = top.parse_args()
    print(f"chaos: seed {arguments.seed}, job {arguments.job}", flush=True)
    came: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="msmq-chaos-") as folder:
        chaos = Chaos(Path(folder), arguments.job, arguments.seed)
        others: list[tuple[str, Callable[[int], str]]] = [("pair", chaos.pair)] * arguments.pairs
        for name, fault in FAULTS.items():
            others += [(name, partial(chaos.disturbed, fault))] * arguments.faults
        for number, (name, act) in enumerate(chain(chaos.rounds_of_kills(arguments.kills), others)):
            begin = time.monotonic()
            try:
                told, verdict = act(number), "equal"
            except NotRunError as why:
                told, verdict = str(why), "not run"
            except AssertionError as wrong:
                told, verdict = str(wrong), "DIFFERENT"
            came[f"{name} {verdict}"] += 1
            print(f"chaos: {name}: {verdict}, {time.monotonic() - begin:.0f} s: {told}", flush=True)
        chaos.spark.stop()
    print(
        f"chaos: {chaos.kills} runs killed; rounds: "
        + ", ".join(f"{count} {what}" for what, count in sorted(came.items()))
    )
    return 1 if any("DIFFERENT" in what for what in came) else 0


if __name__ == "__main__":
    sys.exit(main())
