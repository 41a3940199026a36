"""A connection whose bind was lost may belong to any association of its client: what it misses may be there."""

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from findings.facts import read
from findings.test_derive import World, of_connections
from pipeline.attempts import server_slices
from pipeline.findings import update as findings_update

pytestmark = pytest.mark.spark
NEVER_DONE = {"R14", "R30"}  # an End, a close


def without_bind(connection, seconds):
    """A connection of the same client some seconds after another one began, of which only the end was captured."""
    row = connection.to_pylist()[0]
    began = row["first_packet_at"] + dt.timedelta(seconds=seconds)
    later = {"connection_id": f"later {seconds}", "first_packet_at": began, "last_packet_at": row["last_packet_at"]}
    lost = {
        "syn_seen": False,
        "association_group_id": None,
        "association_joined": None,
        "missing_bytes": None,
        "calls": 0,
    }
    return pa.Table.from_pylist([row | later | lost], connection.schema)


@pytest.mark.parametrize("way", ["in memory", "in slices"])
def test_nothing_is_said_to_be_missing_where_a_connection_without_bind_began(
    spark, tmp_path, project, monkeypatch, way
):
    if way == "in slices":
        monkeypatch.setattr(findings_update, "_MAX_CALLS_IN_MEMORY", -1)
        monkeypatch.setattr(server_slices, "_CALLS_IN_ONE_SLICE", 1)
    sample = read(next((project / "data" / "sample").glob("07-*")))
    rows = sample["connections"]
    (name,) = rows.filter(pc.equal(rows["client_port"], 36034))["connection_id"].to_pylist()
    world = World(spark, tmp_path / "lake")

    def said():
        found = world.follows()
        ours = found.filter(pc.equal(found["connection_id"], name))
        return {*ours["rule_id"].to_pylist()} & NEVER_DONE

    def stray(seconds):
        row = without_bind(rows.filter(pc.equal(rows["connection_id"], name)), seconds)
        return of_connections(sample, []) | {"connections": row}

    before, during = stray(-1), stray(0.1)
    world.add(sample)
    assert said() == NEVER_DONE
    world.add(during)
    assert said() == set()
    world.take(during)
    assert said() == NEVER_DONE
    world.add(before)  # it asked for its association before this one was there
    assert said() == NEVER_DONE
