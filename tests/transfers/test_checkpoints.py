"""Long sessions: runs that go on from checkpoints give the tables that are computed from all packets."""

from random import Random

import pytest

from pipeline.lake.lake import Lake
from pipeline.lake.spark.sessions import LazySession
from pipeline.transfers import checkpoint_cuts
from pipeline.transfers import update as sessions_update
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from transfers.long_sessions import long_session, parts, seen_so_far
from transfers.test_update import load, rows, update

TABLES = (SESSIONS, ORDER_ACKS, SENDINGS, MESSAGES)


def lake_at(path):
    return Lake(LazySession(lambda: pytest.fail("Spark is not needed")), str(path))


@pytest.fixture
def uses(monkeypatch):
    """How often packets were read behind a checkpoint, and that it held."""
    found = []
    outdated = sessions_update.outdated_checkpoints

    def spy(packets, *given):
        out = outdated(packets, *given)
        found.extend(name for name in packets.checkpoints if name not in out)
        return out

    monkeypatch.setattr(sessions_update, "outdated_checkpoints", spy)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_runs_with_checkpoints_give_the_tables_of_one_run(tmp_path, monkeypatch, uses, seed):
    draw = Random(seed)
    talk = long_session(draw)
    kept = lake_at(tmp_path / "kept")
    for number, (there, done) in enumerate(parts(draw, talk)):
        seen = seen_so_far(talk, there, closed=done)
        ends_at = 2000 if done else seen.last
        monkeypatch.setattr(checkpoint_cuts, "MIN_PACKETS", 5)
        load(kept, [seen], ends_at)
        update(kept)
        monkeypatch.setattr(checkpoint_cuts, "MIN_PACKETS", 10**9)
        whole = lake_at(tmp_path / f"whole {number}")
        load(whole, [seen], ends_at)
        update(whole)
        for table in TABLES:
            assert rows(kept, table) == rows(whole, table), (number, table)
