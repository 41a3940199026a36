"""Names of machines in alerts: in what people read and nowhere else, and as the file of today declares them."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from alerts.scenario import LIMITS
from engines import without_spark
from pipeline.alerts import update as alerts_update
from pipeline.alerts.update import current_alerts, update
from pipeline.lake.lake import Lake
from pipeline.silver.machine_names import NameSighting, NameSource
from pipeline.silver.machines import Machines
from reports.questions.in_memory_lake import rows
from schemas.alerts import ALERTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.hosts import HOSTS
from schemas.sessions import SESSIONS

GUID = "6b9f3e0a-0f52-4d4a-9a0b-0d1a5b6c7d8e"
CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
DAY = 1440
TEXTS = ("subject_text", "message")


def refused(at):
    """A session that was refused, and its connection."""
    same = {
        "connection_id": f"c{at}", "client_address": CLIENT, "server_address": SERVER, "first_packet_at": at,
        "last_packet_at": at + 1, "closed_at": at + 1,
    }  # fmt: skip
    kind = {"kind": "binary_protocol", "server_port": 1801, "missing_bytes": 0}
    return rows(SESSIONS, same | {"outcome": "refused", "ended": "refused"}), rows(CONNECTIONS, same | kind)


def declared(*names):
    """The thresholds of alerts with names of machines: (address, GUID, name) each."""
    return replace(LIMITS, machine_names=tuple(NameSighting(NameSource.DECLARED, *each) for each in names))


@pytest.fixture
def lake(tmp_path):
    return filled(Lake(without_spark(), str(tmp_path / "lake")))


def filled(lake):
    """The lake with two sessions that were refused, days apart."""
    for at in (100, 5 * DAY):
        sessions, connections = refused(at)
        lake.append(SESSIONS, sessions)
        lake.append(CONNECTIONS, connections)
    lake.append(CAPTURE_FILES, rows(CAPTURE_FILES, {"capture_id": "c", "last_packet_at": 5 * DAY + 60}))
    seen = {"address": SERVER, "queue_manager_id": GUID, "host_name": "srv2", "source": "snapshot"}
    lake.append(HOSTS, rows(HOSTS, seen | {"host_key": "h", "first_seen_at": 1, "last_seen_at": 9}))
    return lake


def alerts(lake):
    found = lake.select(ALERTS, "TRUE").sort_by("alert_key").to_pylist()
    assert len(found) == 2
    return found


def texts(lake):
    """What all alerts say, which is the same."""
    (found,) = {tuple(row[name] for name in TEXTS) for row in alerts(lake)}
    return found


def test_a_change_of_the_file_takes_effect_with_the_next_run(lake):
    assert update(lake, LIMITS, "run") == 2
    before = alerts(lake)
    assert texts(lake) == (f"sessions from {CLIENT} to srv2", f"from {CLIENT} to srv2: 1 session refused")
    named = declared((CLIENT, None, "Till 7"), (None, GUID, "Orders"))
    assert update(lake, named, "run") == 2
    assert texts(lake) == ("sessions from Till 7 to Orders", "from Till 7 to Orders: 1 session refused")
    assert update(lake, named, "run") == 0
    assert update(lake, declared((CLIENT, None, "Orders"), (None, GUID, "Orders")), "run") == 2
    assert texts(lake)[0] == f"sessions from Orders ({CLIENT}) to Orders ({SERVER})"
    assert update(lake, LIMITS, "run") == 2
    assert alerts(lake) == before


def test_names_change_nothing_but_texts(lake):
    update(lake, LIMITS, "run")
    before = alerts(lake)
    update(lake, declared((CLIENT, None, "Till 7")), "run")
    assert [{name: row[name] for name in row if name not in TEXTS} for row in alerts(lake)] == [
        {name: row[name] for name in row if name not in TEXTS} for row in before
    ]
    assert {row["subject"] for row in before} == {f"sessions from {CLIENT} to {SERVER}"}


def test_asked_with_other_names_alerts_are_computed_and_not_stored(lake):
    update(lake, LIMITS, "run")
    before, version = alerts(lake), lake.version(ALERTS)
    found = current_alerts(lake, declared((CLIENT, None, "Till 7"))).to_pylist()
    assert {row["subject_text"] for row in found} == {"sessions from Till 7 to srv2"}
    assert (alerts(lake), lake.version(ALERTS)) == (before, version)


def test_a_name_that_is_seen_later_is_in_alerts_of_before(lake):
    update(lake, LIMITS, "run")
    seen = {"host_key": "later", "address": CLIENT, "host_name": "till", "source": "format_name"}
    lake.append(HOSTS, rows(HOSTS, seen | {"first_seen_at": 5 * DAY, "last_seen_at": 5 * DAY}))
    update(lake, LIMITS, "run")
    assert texts(lake)[0] == "sessions from till to srv2"


def test_a_name_resolution_block_names_an_address_and_makes_no_machine(lake):
    block = {"host_names": [{"address": CLIENT, "name": "of-the-block"}], "first_packet_at": 1, "last_packet_at": 2}
    lake.append(CAPTURE_FILES, rows(CAPTURE_FILES, {"capture_id": "named", **block}))
    update(lake, LIMITS, "run")
    assert texts(lake)[0] == "sessions from of-the-block to srv2"
    machines = Machines.of(lake)
    assert not machines.is_same("of-the-block", CLIENT)
    assert CLIENT not in {info.address for info in machines.infos()}


def test_names_of_blocks_are_in_force_by_the_time_of_their_captures(lake):
    for at, name in ((300, "now"), (100, "before"), (200, "between")):
        block = {"host_names": [{"address": CLIENT, "name": name}], "first_packet_at": at, "last_packet_at": at + 50}
        lake.append(CAPTURE_FILES, rows(CAPTURE_FILES, {"capture_id": name, **block}))
    assert Machines.of(lake).text(CLIENT) == "now"
    both = {"host_names": [{"address": CLIENT, "name": "also"}], "first_packet_at": 320, "last_packet_at": 330}
    lake.append(CAPTURE_FILES, rows(CAPTURE_FILES, {"capture_id": "both", **both}))
    assert Machines.of(lake).text(CLIENT) == f"now, also ({CLIENT})"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("read_log", ["auto", "spark"])
def test_spark_stores_and_reads_the_same_names(spark, tmp_path, read_log):
    lake = filled(Lake(spark, str(tmp_path / "lake"), store="spark", read_log=read_log))
    block = {"host_names": [{"address": CLIENT, "name": "of-the-block"}], "first_packet_at": 1, "last_packet_at": 2}
    lake.append(CAPTURE_FILES, rows(CAPTURE_FILES, {"capture_id": "named", **block}))
    update(lake, LIMITS, "run")
    assert texts(lake) == ("sessions from of-the-block to srv2", "from of-the-block to srv2: 1 session refused")
    update(lake, declared((None, GUID, "Orders")), "run")
    assert texts(lake)[0] == "sessions from of-the-block to Orders"


def test_the_commit_holds_no_name(lake):
    update(lake, declared((CLIENT, None, "Till 7")), "run")
    assert "Till 7" not in str(lake.versions.provenance(ALERTS))


def test_with_nothing_new_no_name_is_read(lake, monkeypatch):
    update(lake, LIMITS, "run")
    monkeypatch.setattr(alerts_update.Machines, "of", Mock(side_effect=AssertionError))
    assert update(lake, LIMITS, "run") == 0
