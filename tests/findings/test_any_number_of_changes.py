"""However many calls, connections and associations change, the rules are evaluated on these, in memory or in tasks."""

from random import Random

import pytest

from example_counts import seeds
from findings.facts import read
from findings.test_derive import World, joined, of_connections
from pipeline.findings import affected_associations, changed_calls
from pipeline.findings import update as findings_update
from pipeline.lake import lake as lake_module
from tests.support.engines import without_spark

SAMPLES = ("03", "04", "07", "09", "10")


def draw_limits(monkeypatch, chance):
    """Let changes be evaluated in memory or in tasks, with or without a look at what ongoing associations gained."""
    for module, name in (
        (affected_associations, "MIN_CALLS_FOR_KEYS"),
        (changed_calls, "MAX_ROWS_IN_MEMORY"),
        (findings_update, "_MAX_CALLS_IN_MEMORY"),
        (findings_update, "_MAX_CALLS_IN_TASK"),
        (lake_module, "MAX_ROWS_IN_MEMORY"),
    ):
        monkeypatch.setattr(module, name, chance.choice([1, 1_000_000]))


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_findings_follow_without_an_evaluation_of_everything(tmp_path, project, monkeypatch, seed):
    chance, world = Random(seed), World(without_spark(), tmp_path / "lake")
    every = joined(*(read(next((project / "data" / "sample").glob(f"{name}-*"))) for name in SAMPLES))
    parts = [set(), set(), set()]
    for name in sorted(every["connections"]["connection_id"].to_pylist()):
        chance.choice(parts).add(name)
    first, *more = (of_connections(every, names) for names in parts)
    world.add(first)
    world.follows()
    monkeypatch.setattr(findings_update._FindingsUpdate, "_evaluate_all", None)
    for change, part in ((world.add, more[0]), (world.add, more[1]), (world.take, first), (world.add, first)):
        draw_limits(monkeypatch, chance)
        change(part)
        assert world.follows().num_rows
