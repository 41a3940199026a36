"""The names of queue managers in gold."""

from pipeline.queues.queue_managers import QueueManagerNames


def host(guid=None, name=None, address=None):
    return {"queue_manager_id": guid, "host_name": name, "address": address}


HOSTS = [host("g1", "srv1", "10.0.0.1"), host(None, "srv1.corp", "10.0.0.1"), host("g2", None, "10.0.0.2"),
         host("g3", "srv3"), host(None, "srv3", "10.0.0.3")]  # fmt: skip


def test_an_address_is_called_by_the_configured_name_that_was_seen_with_it():
    assert QueueManagerNames.from_hosts(HOSTS, ["Srv1"]).name_by_address == {"10.0.0.1": "Srv1"}
    assert QueueManagerNames.from_hosts(HOSTS, []).name_by_address == {}
    assert QueueManagerNames.from_hosts(HOSTS, ["srv1.corp", "srv1"]).name_by_address == {"10.0.0.1": "srv1"}
    assert QueueManagerNames.from_hosts(HOSTS, ["srv1"], {"10.0.0.1": "mail", "10.0.0.9": "nine"}).name_by_address == {
        "10.0.0.1": "mail", "10.0.0.9": "nine",
    }  # fmt: skip


def test_only_what_the_wire_shows_is_called_otherwise():
    machines = QueueManagerNames.from_hosts(HOSTS, ["srv1"])
    assert machines.canonical_name("wire", "10.0.0.1") == "srv1"
    assert machines.canonical_name("wire", "10.0.0.2") == "10.0.0.2"
    assert machines.canonical_name("collector", "10.0.0.1") == "10.0.0.1"


def test_an_identifier_is_that_of_the_machines_seen_with_it():
    assert QueueManagerNames.from_hosts(HOSTS, ["srv1"]).names_by_guid == {
        "g1": ["srv1"],
        "g2": ["10.0.0.2"],
        "g3": ["10.0.0.3"],
    }
    clones = [host("g", "shop1", "10.0.0.3"), host("g", "shop2", "10.0.0.4")]
    assert QueueManagerNames.from_hosts(clones, ["shop1"]).names_by_guid == {"g": ["10.0.0.4", "shop1"]}
