"""Findings on queues when queue managers get other names: only the queues there are evaluated again."""

import json

import pytest

from engines import without_spark
from findings.test_queues_follow import OWNER, PARTS, SERVER, World
from pipeline.findings import update as findings_update
from schemas.queue_history import QUEUE_HISTORY


@pytest.mark.parametrize(
    ("first", "then"), [({}, {SERVER: OWNER}), ({SERVER: "old"}, {SERVER: OWNER}), ({SERVER: OWNER}, {})]
)
def test_with_other_names_the_findings_are_those_of_all_rows(tmp_path, monkeypatch, first, then):
    world, whole = World(without_spark(), tmp_path / "lake"), []
    for name in PARTS:
        world.add(name)
    world.lake.note_provenance(QUEUE_HISTORY, json.dumps({"names": first}))
    before = world.found()
    anew = findings_update._FindingsUpdate._evaluate_all
    monkeypatch.setattr(findings_update._FindingsUpdate, "_evaluate_all", lambda self: whole.append(1) or anew(self))
    world.lake.note_provenance(QUEUE_HISTORY, json.dumps({"names": then}))
    found = world.found()
    assert not whole
    assert found != before
    assert world.recomputed() == found
    assert whole
