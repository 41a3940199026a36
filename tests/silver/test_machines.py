"""Machines by all their names."""

from __future__ import annotations

from pipeline.silver.machine_names import NameSighting, NameSource
from pipeline.silver.machines import Machines


def machines(*hosts, names=None):
    columns = ("queue_manager_id", "host_name", "address")
    return Machines([dict(zip(columns, host, strict=True)) for host in hosts], names or {})


def test_what_was_seen_together_is_one_machine():
    found = machines(("guid", None, "10.0.0.1"), (None, "srv1", "10.0.0.1"), names={"10.0.0.1": "Orders"})
    assert all(found.is_same(one, other) for one in ("guid", "10.0.0.1") for other in ("guid", "SRV1", "orders"))
    assert not found.is_same("guid", "10.0.0.2")
    assert not found.is_same(None, None)


def test_a_cloned_identifier_does_not_make_two_machines_one():
    found = machines(("guid", "shop1", None), ("guid", "shop2", None))
    assert found.is_same("guid", "shop1")
    assert found.is_same("guid", "shop2")
    assert not found.is_same("shop1", "shop2")


def test_the_name_is_shown_with_what_decides_beside_it():
    found = machines(("guid", "srv1", "10.0.0.1"), ("other", "a", None), ("other", "b", None))
    assert [found.text(each) for each in ("10.0.0.1", "guid", "srv1")] == ["srv1", "srv1", "srv1"]
    assert found.text("other") == "a, b (other)"
    assert machines(("guid", "srv1", "10.0.0.1"), names={"10.0.0.1": "Orders"}).text("10.0.0.1") == "Orders"


def test_a_machine_is_not_found_by_a_declared_name():
    hosts = [{"queue_manager_id": "guid", "host_name": "srv1", "address": "10.0.0.1"}]
    found = Machines(hosts, {}, [NameSighting(NameSource.DECLARED, "10.0.0.1", name="Till 7")])
    assert found.text("guid") == "Till 7"
    assert not found.is_same("Till 7", "guid")
    assert "Till 7" not in found.identifiers() | found.known_as(["10.0.0.1"])
