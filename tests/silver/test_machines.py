"""Machines by all their names."""

from __future__ import annotations

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


def test_the_name_stands_beside_what_decides():
    found = machines(("guid", "srv1", "10.0.0.1"), ("other", "a", None), ("other", "b", None))
    assert found.text("10.0.0.1") == "srv1 (10.0.0.1)"
    assert found.text("guid") == "srv1 (guid)"
    assert found.text("srv1") == "srv1"
    assert found.text("other") == "other"
    assert machines(("guid", "srv1", "10.0.0.1"), names={"10.0.0.1": "Orders"}).text("10.0.0.1") == "Orders (10.0.0.1)"
