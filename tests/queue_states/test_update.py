"""Update of the queue tables from the recorded estate and sample, in several runs, against a full recomputation."""

import pytest

from jobs import run_all
from jobs.config import Config
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.queues import recompute_queues, update_actions, update_machines
from pipeline.queues import update as queues_update
from pipeline.queues.update import update
from schemas.attempts import QUEUE_OPERATIONS
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.queue_history import MACHINE_HISTORY, MANAGEMENT_ACTIONS, QUEUE_HISTORY
from tests.support.lakes import versions_text

pytestmark = [pytest.mark.spark, pytest.mark.long]

TABLES = (QUEUE_OPERATIONS, QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES, MACHINE_HISTORY, MANAGEMENT_ACTIONS)
SETTINGS = run_all.queue_state_settings(Config())


def run(lake, *captures, snapshots=()):
    arguments = ["--lake", lake.root, "--captures", *map(str, captures)]
    assert run_all.main([*arguments, "--snapshots", *map(str, snapshots)]) == 0


def everything(lake):
    return {
        str(table): sorted((row.asDict(recursive=True) for row in lake.read(table).drop("run_id").collect()), key=str)
        for table in TABLES
    }


@pytest.fixture
def full_recomputes(monkeypatch):
    """The run ids of full recomputations."""
    seen = []
    whole = queues_update._QueuesUpdate._recompute_all

    def counting(self, *asked):
        seen.append(self.run_id)
        return whole(self, *asked)

    monkeypatch.setattr(queues_update._QueuesUpdate, "_recompute_all", counting)
    return seen


def test_states_follow_run_by_run_as_if_made_anew(spark, project, tmp_path, monkeypatch, full_recomputes):
    lake = Lake(spark, str(tmp_path / "lake"))
    data = project / "data"
    landed = sorted((data / "estate" / "snapshots").iterdir())
    run(lake, data / "sample" / "04-qmmgmt.pcapng", snapshots=landed[::2])
    monkeypatch.setattr(recompute_queues, "MAX_EVENTS_IN_MEMORY", 20)  # some queues at a time, some alone
    run(
        lake, data / "sample" / "01-remoteread-ndr.pcap", data / "sample" / "09-transactions-and-moves.pcapng",
        data / "estate" / "wire", snapshots=landed[1::2],
    )  # fmt: skip
    followed = everything(lake)
    assert len(full_recomputes) == 1
    _check_rows(followed)

    versions = versions_text(lake, *TABLES)
    assert set(update(lake, SETTINGS, "again").values()) == {0}
    assert versions_text(lake, *TABLES) == versions

    for limit in (lake_module.MAX_ROWS_IN_MEMORY, -1):  # in memory, in Spark
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", limit)
        for table in (QUEUE_HISTORY, MACHINE_HISTORY, MANAGEMENT_ACTIONS):
            lake.note_provenance(table, "nothing")
        update(lake, SETTINGS, "full")
        update_machines.update(lake, SETTINGS, "full")
        update_actions.update(lake, SETTINGS, "full")
        assert everything(lake) == followed
    assert len(full_recomputes) == 3


def _check_rows(tables):
    transfers = tables[str(EOD_TRANSFERS)]
    assert {row["queue_manager"] for row in transfers} == {"relay1", "10.77.0.1"}
    found = {}
    for row in sorted(transfers, key=lambda row: row["observed_at"]):
        if row["queue_manager"] == "relay1":
            series = found.setdefault((row["queue"].rpartition("\\")[2], row["source"]), [])
            series.append(row["condition"])
    for source in ("wire", "collector"):
        assert found["flowing", source] == ["flowing"] * 8
        assert found["stalled", source] == ["flowing"] * 3 + ["stalled"] * 5
        assert found["reset", source] == ["flowing"] * 5 + ["reset"] + ["flowing"] * 2
        assert found["resending", source][0] == "flowing"
        assert "reset" not in found["resending", source]
        assert found["paused", source] == ["idle"] * 3 + ["slow", "stalled", "stalled", "idle", "idle"]

    history = tables[str(QUEUE_HISTORY)]
    assert {row["queue_manager"] for row in history} == {"orders1", "relay1", "shop1", "shop2", "10.77.0.1"}
    held = sorted(
        (row for row in history if row["queue"] == "far\\private$\\paused"), key=lambda row: row["valid_from"]
    )
    states = [row["state"] for row in held]
    assert states == ["CONNECTED"] * 6 + ["ONHOLD"] * 6 + ["CONNECTED"] * 4
    assert [row["paused"] for row in held] == [state == "ONHOLD" for state in states]
    growing = [row for row in history if row["queue"] == "orders1\\private$\\growing"]
    assert sum(row["unexplained_change"] or 0 for row in growing) == 7 * 3
    assert not [row for row in history if row["queue"] == "orders1\\private$\\inactive"]  # it never reported anything

    orders = "srv1\\private$\\orders"
    done = {(row["operation"], row["queue"]) for row in tables[str(QUEUE_OPERATIONS)] if row["outcome"] == "done"}
    assert done == {("purge", orders), ("move", orders)}
    names = {row["queue_format_name"] for row in tables[str(QUEUE_OPERATIONS)] if row["queue"] == orders}
    assert {name.lower() for name in names} == {f"direct=os:{orders}"}
    inbox = sorted(
        (row for row in history if row["queue"] == "far\\private$\\inbox"), key=lambda row: row["valid_from"]
    )
    assert [row["paused"] for row in inbox if row["source"] == "operations"][:2] == [True, False]
    of_orders = [row for row in history if row["queue"] == orders]
    assert sum(row["purged"] for row in of_orders) == 1
    assert sum(row["moved_out"] for row in of_orders) == 1
    assert {row["sender_queue_manager"][-2:] for row in tables[str(EOD_SOURCES)]} >= {"a1", "a2"}
