"""Disturb runs at random moments: ``python -m chaos.run [--kills N] [--pairs N] [--faults N]``, or ``make chaos``.

Each round starts with a lake into which some files were read. It disturbs a run over all files, then does an ordinary
run. Every table must equal that of an undisturbed run. Up to eight kills follow one another, each of the run that
should repair the lake after the kill before. A pair is two runs at the same time on one new lake. The seed of the
random generator is printed; the same seed chooses the same faults. The exit code is 1 if a table differed.
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
from chaos.faults import FAULTS, FAULTS_THAT_CHANGE_FILE_TIMES, NotRunError, Scene, growing, killed
from end_to_end.conversations import SMALL, Conversations
from end_to_end.lakes import ALL, BRONZE, WRITTEN_BY, Job, run, tables
from jobs.session import get_spark_session
from pipeline.lake.lake import Lake
from pipeline.runs.recovery import RunMarkers
from schemas.bronze import PENDING

KILLS_PER_ROUND = (1, 2, 4, 8)  # kills of a round
FILE_TIME_COLUMNS = {"modified_at", "other_files"}


class Chaos:
    """Captures, a lake after a first run, and the expected tables, from a second run that was not disturbed."""

    def __init__(self, folder: Path, job: str, seed: int) -> None:
        self.folder, self.job, self.chance, self.kills = folder, job, random.Random(seed), 0
        self.spark = get_spark_session("chaos")
        self.talks = Conversations(folder / "captures")
        for name in SMALL:
            self.talks.add_any(name, self.chance, last=2)
        self.talks.write()
        self.begun = Lake(self.spark, str(folder / "begun"))
        run(self.begun, self.talks.run(1), job=job)
        self.watched = Job(
            Path(shutil.copytree(self.begun.root, folder / "undisturbed")), [self.talks.cut], job, engine="spark"
        )
        self.watched.watch()
        self.expected = tables(Lake(self.spark, str(self.watched.root)), WRITTEN_BY[job])

    def disturbed(self, fault: Callable[[Scene], str], number: int) -> str:
        """Disturb a run with a fault, then do an ordinary run; AssertionError if a table differs."""
        place = self.folder / f"{number}"
        # The captures keep their paths, by which the ledger knows them.
        root = Path(shutil.copytree(self.begun.root, place / "lake"))
        aside = self.folder / "aside"
        shutil.copytree(self.talks.cut, aside)
        try:
            scene = Scene(root, self.talks.cut, self.job, self.chance, self.watched)
            events = fault(scene)
            self.kills += scene.kills
            lake = Lake(self.spark, str(root))
            run(lake, self.talks.cut, job=self.job)
            assert RunMarkers.of(lake).unfinished() == {}, "a run is still marked as unfinished"
            left_out = OF_THE_RUN | (FILE_TIME_COLUMNS if fault in FAULTS_THAT_CHANGE_FILE_TIMES else set())
            # What is left of a connection has a row for each time that its capture was read further.
            self._compare(lake, left_out, not_compared=(PENDING.name,) if fault is growing else ())
        finally:
            shutil.rmtree(self.talks.cut)
            shutil.copytree(aside, self.talks.cut)
            shutil.rmtree(aside)
            shutil.rmtree(place, ignore_errors=True)
        return events

    def rounds_of_kills(self, wanted: int) -> Iterator[tuple[str, Callable[[int], str]]]:
        """Yield rounds of kills until ``wanted`` runs were killed, and at most ``wanted`` rounds."""
        for _ in range(wanted):
            if self.kills < wanted:
                many = min(wanted - self.kills, self.chance.choice(KILLS_PER_ROUND))
                yield "kill", partial(self.disturbed, partial(killed, many=many))

    def _compare(self, lake: Lake, left_out: Collection[str], not_compared: Collection[str] = ()) -> None:
        """AssertionError if a table differs, but for some columns and tables."""
        written = tables(lake, WRITTEN_BY[self.job])
        found = differences(written, self.expected, left_out=left_out, not_compared=not_compared)
        assert not found, self.talks.explain(found)

    def pair(self, number: int) -> str:
        """Do two runs at the same time on one new lake; together they read all files."""
        root = self.folder / f"{number}" / "lake"
        later = self.chance.choice([0, 0, 1, 4])
        one, two = self.chance.choice([((1,), (2,)), ((2,), (1,)), ((1, 2), (1, 2)), ((1,), (1, 2)), ((1, 2), (2,))])
        both = []
        for numbers, wait_s in ((one, later), (two, 0)):
            both.append(Job(root, [self.talks.run(each) for each in numbers], self.job, engine="spark"))
            time.sleep(wait_s)
        for each in both:
            each.succeed()
        self._compare(Lake(self.spark, str(root)), OF_THE_RUN)
        shutil.rmtree(root.parent)
        return f"runs {one} and {two}, {later} s later"


def main() -> int:
    """Run all rounds and print the result of each."""
    top = argparse.ArgumentParser(prog="python -m chaos.run", description=__doc__)
    top.add_argument("--kills", type=int, default=200, help="number of runs to kill (default: 200)")
    top.add_argument("--pairs", type=int, default=50, help="number of pairs of runs at the same time (default: 50)")
    top.add_argument(
        "--faults", type=int, default=2, help=f"rounds of each other fault: {', '.join(FAULTS)} (default: 2)"
    )
    top.add_argument("--job", choices=(ALL, BRONZE), default=ALL, help="all layers, or bronze only (default: all)")
    top.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = top.parse_args()
    print(f"chaos: seed {arguments.seed}, job {arguments.job}", flush=True)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="msmq-chaos-") as folder:
        chaos = Chaos(Path(folder), arguments.job, arguments.seed)
        others: list[tuple[str, Callable[[int], str]]] = [("pair", chaos.pair)] * arguments.pairs
        for name, fault in FAULTS.items():
            others += [(name, partial(chaos.disturbed, fault))] * arguments.faults
        for number, (name, act) in enumerate(chain(chaos.rounds_of_kills(arguments.kills), others)):
            begin = time.monotonic()
            try:
                events, verdict = act(number), "equal"
            except NotRunError as why:
                events, verdict = str(why), "not run"
            except AssertionError as wrong:
                events, verdict = str(wrong), "DIFFERENT"
            counts[f"{name} {verdict}"] += 1
            print(f"chaos: {name}: {verdict}, {time.monotonic() - begin:.0f} s: {events}", flush=True)
        chaos.spark.stop()
    print(
        f"chaos: {chaos.kills} runs killed; rounds: "
        + ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    )
    return 1 if any("DIFFERENT" in what for what in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
