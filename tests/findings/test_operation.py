"""Findings on operation: machines with one identifier (O01), and clocks that differ (O02)."""

import datetime as dt

import pyarrow as pa

from findings.exchanges import Story, remote, rr_end, rr_start, us
from pipeline.findings.duplicate_machines import duplicate_machine_findings, find_duplicate_machines
from schemas.hosts import HOSTS
from support.memory_lake import MemoryLake

FIRST = "5ba1e0aa-0000-4000-8000-000000000001"
AT = dt.datetime(2024, 5, 1, 8, 30, tzinfo=dt.UTC)


def host(identifier=None, name=None, address=None, *, minute=0):
    return {
        "host_key": f"{identifier}/{name}/{address}", "queue_manager_id": identifier, "host_name": name,
        "address": address, "first_seen_at": AT + dt.timedelta(minutes=minute),
    }  # fmt: skip


def machines(*rows):
    found = duplicate_machine_findings(rows).to_pylist()
    assert duplicate_machine_findings(reversed(rows)).to_pylist() == found
    assert find_duplicate_machines(MemoryLake({HOSTS: pa.Table.from_pylist(rows)})).to_pylist() == found
    assert all(row["rule_id"] == "O01" and row["scope"] == "estate" for row in found)
    return [row["actual"] for row in found]


def test_two_names_with_one_identifier_are_two_machines():
    rows = (host(FIRST, "shop1"), host(FIRST, "shop2", minute=5))
    assert machines(*rows) == ["machines shop1, shop2"]
    (row,) = duplicate_machine_findings(rows).to_pylist()
    assert row["observed_at"] == AT + dt.timedelta(minutes=5)
    assert row["subject"] == f"queue manager {FIRST}"
    assert row["evidence"] == sorted(each["host_key"] for each in rows)


def test_addresses_with_names_of_their_own_are_two_machines():
    named = (host(None, "shop1", "10.0.0.1"), host(None, "shop2", "10.0.0.2"))
    assert machines(host(FIRST, None, "10.0.0.1"), host(FIRST, None, "10.0.0.2"), *named) == ["machines shop1, shop2"]


def test_a_machine_may_have_several_addresses_and_a_domain():
    assert machines(host(FIRST, "shop1", "10.0.0.1"), host(FIRST, "SHOP1.example.com", "10.0.0.2")) == []
    both = (host(None, "shop1", "10.0.0.1"), host(None, "till", "10.0.0.1"))  # one address, two names: an alias
    assert machines(host(FIRST, "shop1"), host(FIRST, None, "10.0.0.1"), *both) == []
    assert machines(host(FIRST, None, "10.0.0.1"), host(FIRST, None, "10.0.0.2")) == []


def clocks(**times):
    story = Story(remote(rr_start(1, source_queue_manager=FIRST, **times), rr_end()))
    return [(violation.subject, violation.actual) for check, violation in story.broken() if check.rule_id == "O02"]


def test_a_message_that_arrives_before_it_was_sent_shows_the_least_difference():
    (found,) = clocks(sent_at=us(95), arrived_at=us(0))
    sender, owner = f"queue manager {FIRST}", "server 10.0.0.1"
    assert found == (f"clocks of {sender} and {owner}", f"{sender} is ahead of {owner} by at least 95 s")


def test_a_message_that_arrives_after_it_was_read_does_too():
    (found,) = clocks(sent_at=us(0), arrived_at=us(61))
    assert found[0] == "clocks of server 10.0.0.1 and the capture"
    assert "at least 60 s" in found[1]


def test_seconds_that_were_rounded_show_nothing():
    assert clocks(sent_at=us(1), arrived_at=us(0)) == []
