"""Queue histories when queue managers get other names: only the queues at these are recomputed, as if made anew."""

import pytest

from engines import without_spark
from pipeline.lake.lake import Lake
from pipeline.queues import update as queues_update
from pipeline.queues.queue_rows import QueueSettings
from pipeline.queues.recompute_queues import QueueStateReader
from reports.questions.in_memory_lake import rows
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.hosts import HOSTS
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

FIRST, SECOND, THIRD = "10.0.0.1", "10.0.0.2", "10.0.0.3"
OUTPUTS = (QUEUE_HISTORY, EOD_TRANSFERS, EOD_SOURCES)


def reported(minute, queue, manager, count=3, source="wire"):
    name = f"{queue} {manager} {minute}"
    known = {"snapshot_id": name, "call_key": name, "queue_format_name": f"DIRECT=OS:{queue}", "hresult": 0}
    states = {"property_states": [("state", "ok"), ("message_count", "ok")], "state": "LOCAL CONNECTION"}
    known |= {"queue": queue, "source": source, "queue_manager": manager, "message_count": count}
    return rows(QUEUE_SNAPSHOTS, known | states | {"observed_at": minute})


def seen(name, address):
    return rows(HOSTS, {"host_key": f"{name} {address}", "host_name": name, "address": address, "first_seen_at": 0})


class Runs:
    """Runs over a lake; after each all is what it would be if it were made anew."""

    def __init__(self, lake, monkeypatch):
        self.lake, self.recomputed, self.whole = lake, [], 0
        read, anew = QueueStateReader.read_queue_events, queues_update._QueuesUpdate._recompute_all

        def read_events(reader, queues, since):
            self.recomputed.append((sorted(queues), since))
            return read(reader, queues, since)

        def recompute_all(update, *given):
            self.whole += 1
            return anew(update, *given)

        monkeypatch.setattr(QueueStateReader, "read_queue_events", read_events)
        monkeypatch.setattr(queues_update._QueuesUpdate, "_recompute_all", recompute_all)

    def tables(self):
        found = {table: self.lake.select(table, "TRUE").sort_by(table.key[0]) for table in OUTPUTS}
        return {table: each.drop_columns(["run_id"]).to_pylist() for table, each in found.items()}

    def run(self, **new):
        for table in (QUEUE_SNAPSHOTS, HOSTS, CONNECTIONS, CAPTURE_FILES):
            for each in new.get(table.name, ()):
                self.lake.append(table, each)
        self.recomputed, self.whole = [], 0
        queues_update.update(self.lake, QueueSettings(), "run")
        found, seen_now = self.tables(), (self.recomputed, self.whole)
        self.lake.note_provenance(QUEUE_HISTORY, "nothing")
        queues_update.update(self.lake, QueueSettings(), "run")
        assert self.tables() == found
        self.recomputed, self.whole = seen_now
        return {(row["queue"], row["queue_manager"]) for row in found[QUEUE_HISTORY]}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    return Runs(Lake(without_spark(), str(tmp_path / "lake")), monkeypatch)


def test_another_name_of_a_queue_manager_has_its_queues_recomputed_and_no_others(runs):
    snapshots = [reported(5, "one", FIRST), reported(6, "two", SECOND), reported(9, "one", "srv1", 4, "collector")]
    assert runs.run(queue_snapshots=snapshots) == {("one", FIRST), ("two", SECOND), ("one", "srv1")}
    assert runs.whole == 1
    assert runs.run(hosts=[seen("srv1", FIRST)]) == {("one", "srv1"), ("two", SECOND)}
    assert (runs.recomputed, runs.whole) == ([(["one"], -2_700_000_000)], 0)
    runs.run(hosts=[seen("srv3", THIRD)], queue_snapshots=[reported(600, "two", "srv3", source="collector")])
    assert runs.whole == 0
    assert all(since > 0 for _, since in runs.recomputed)


def test_arrivals_are_seen_where_transfers_of_a_queue_manager_were_captured(runs):
    def captured(name, first, last, client, missing=0):
        at = {"first_packet_at": first, "last_packet_at": last}
        session = {"connection_id": name, "kind": "binary_protocol", "client_address": client, "missing_bytes": missing}
        return {
            "connections": [rows(CONNECTIONS, at | session | {"server_address": FIRST})],
            "capture_files": [rows(CAPTURE_FILES, at | {"capture_id": name, "servers": [FIRST]})],
        }

    def arrivals():
        found = runs.lake.select(QUEUE_HISTORY, "TRUE", ("queue_manager", "valid_from", "arrivals_seen")).to_pylist()
        return sorted((row["queue_manager"], row["valid_from"].minute, row["arrivals_seen"]) for row in found)

    every = [reported(minute, "one", manager) for minute in (0, 14, 28) for manager in (FIRST, SECOND)]
    runs.run(queue_snapshots=every)
    assert not any(seen_there for *_, seen_there in arrivals())
    runs.run(**captured("first", 0, 30, THIRD))
    assert [minute for manager, minute, seen_there in arrivals() if seen_there] == [0, 14]
    assert runs.whole == 0
    runs.run(**captured("second", 30, 60, SECOND))  # it is another queue manager of this server
    assert {manager for manager, _, seen_there in arrivals() if seen_there} == {FIRST, SECOND}
    runs.run(**captured("third", 300, 310, SECOND), queue_snapshots=[reported(301, "two", "srv9", source="collector")])
    runs.run(hosts=[seen("srv9", SECOND)])
    assert {manager for manager, _, seen_there in arrivals() if seen_there} == {FIRST, "srv9"}
    assert runs.whole == 0
