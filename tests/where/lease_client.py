"""Clients of a Spark Connect server that take the lease of a lake in a catalog: processes that are killed and paused.

``python lease_client.py URL JOURNAL`` starts others, ``... RUN VALID_S``, and looks at what they do. One of these holds
the lease until there is a file ``JOURNAL.leave``; then it wants to commit. It writes into the journal what it does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from pipeline.runs.lease import LeaseError, Record, hold_lease
from pipeline.runs.lease_table import LeaseTable, lease_location

TIMES = {"beat_s": 0.5, "poll_s": 0.2}
NEVER = 1e9
MAX_SECONDS = 120


def hold(place, journal, run, valid_s):
    """Hold the lease, and ask before a commit."""
    leave, times = journal.with_suffix(".leave"), {**TIMES, "stale_s": NEVER, "valid_s": valid_s}
    try:
        with hold_lease("the lake", run, location=place, wait_s=MAX_SECONDS, say=print, **times) as held:
            note(journal, f"{run} enters")
            while not leave.exists():
                time.sleep(0.05)
            held.check()
            note(journal, f"{run} commits")
    except LeaseError as error:
        note(journal, str(error))


def note(journal, line):
    """Write a line."""
    with journal.open("a") as file:
        file.write(f"{line}\n")


@contextmanager
def client(url, journal, run, valid_s=120.0):
    """Start a client; yield it when it holds the lease."""
    with subprocess.Popen([sys.executable, __file__, url, journal, run, str(valid_s)]) as running:
        try:
            wait_for(journal, f"{run} enters")
            yield running
        finally:
            running.kill()


def wait_for(journal, text):
    """Wait until a line is in the journal; return the journal."""
    end = time.monotonic() + MAX_SECONDS
    while text not in (lines := journal.read_text() if journal.exists() else ""):
        assert time.monotonic() < end, f"{text!r} is not in {lines!r}"
        time.sleep(0.05)
    return lines


def look(place, url, journal):
    """Take the lease from clients: one that leaves it, one that is paused, one that is killed."""

    def take(**more):
        given = {"wait_s": MAX_SECONDS, "say": said.append, "stale_s": NEVER, **TIMES, **more}
        return hold_lease("the lake", "mine", location=place, **given)

    said, leave = [], journal.with_suffix(".leave")
    with client(url, journal, "first"):
        with pytest.raises(LeaseError, match=r"^run first \("), take(wait_s=2.0):
            pass
        said = []
        leave.touch()
        with take() as held:
            assert "first commits" in journal.read_text()
            held.check()
    assert not [line for line in said if line.endswith("is gone: its place is taken over")], said
    leave.unlink()
    with client(url, journal, "paused", valid_s=1.0) as other:
        other.send_signal(signal.SIGSTOP)
        with take(stale_s=1.0) as held:
            assert said[-1].startswith("run paused ("), said
            assert said[-1].endswith("is gone: its place is taken over"), said
            leave.touch()
            other.send_signal(signal.SIGCONT)
            other.wait(MAX_SECONDS)
            assert "run paused has lost the lease of the lake: run mine (" in (lines := journal.read_text()), lines
            assert "paused commits" not in lines
            held.check()
    leave.unlink()
    assert place.read() == Record(b"{}")
    with client(url, journal, "killed") as other:
        other.kill()
        other.wait()
        assert b'"killed"' in place.read().data
        with take(stale_s=1.0) as held:
            held.check()
    assert place.read() == Record(b"{}")


def main(url, journal, run=None, valid_s=0):
    """Be a client."""
    spark = SparkSession.builder.remote(url).getOrCreate()
    spark.range(1).collect()  # only then does the server have a session that can be copied
    place = lease_location(Lake(LazySession.of(spark), "work", catalog="spark_catalog", prefix="shared_"))
    assert isinstance(place, LeaseTable), place
    if run is None:
        look(place, url, Path(journal))
    else:
        hold(place, Path(journal), run, float(valid_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
