"""The names of machines that people see: which source counts, what is in force, and what stands beside."""

from __future__ import annotations

from itertools import combinations

import pytest

from pipeline.silver.machine_names import MachineInfo, MachineNames, NameSighting, NameSource

GUID = "6b9f3e0a-0f52-4d4a-9a0b-0d1a5b6c7d8e"
OTHER = "0e1d2c3b-4a59-6877-8695-a4b3c2d1e0f9"
FIRST, SECOND = "10.0.0.1", "10.0.0.2"


def seen(source, address=None, guid=None, name=None, at=None, until=None):
    return NameSighting(NameSource[source], address, guid, name, at, at if until is None else until)


def names(*sightings):
    """Return the names; the same in whatever order the sightings are given."""
    found = MachineNames(sightings)
    turned = MachineNames(sightings[::-1])
    assert found.shown_by_identifier() == turned.shown_by_identifier()
    assert found.machines() == turned.machines()
    return found


@pytest.mark.parametrize(("first", "then"), [*combinations([source.name for source in NameSource], 2)])
def test_the_first_source_that_knows_a_name_counts(first, then):
    found = names(seen(then, FIRST, name="later", at=9), seen(first, FIRST, name="earlier", at=1))
    assert found.shown(FIRST) == "earlier"


@pytest.mark.parametrize("source", [source.name for source in NameSource])
def test_a_name_that_another_one_followed_is_over(source):
    followed = names(seen(source, FIRST, name="old", at=1, until=5), seen(source, FIRST, name="new", at=6, until=9))
    assert followed.shown(FIRST) == "new"
    both = names(seen(source, FIRST, name="old", at=1, until=6), seen(source, FIRST, name="new", at=6, until=9))
    assert both.shown(FIRST) == f"new, old ({FIRST})"


def test_names_of_very_many_are_few():
    found = names(*(seen("WIRE", FIRST, name=f"n{number}", at=1) for number in range(50)))
    assert found.shown(FIRST) == f"n0, n1, n10 and 47 more ({FIRST})"


def test_two_spellings_are_one_name():
    assert names(seen("WIRE", FIRST, name="srv1", at=1), seen("WIRE", FIRST, name="SRV1", at=1)).shown(FIRST) == "SRV1"


def test_the_address_stands_beside_a_name_that_two_have():
    apart = names(seen("DECLARED", FIRST, name="till"), seen("NAME_RESOLUTION", SECOND, name="TILL", at=1))
    assert (apart.shown(FIRST), apart.shown(SECOND)) == (f"till ({FIRST})", f"TILL ({SECOND})")
    of_another = names(seen("DECLARED", FIRST, name="till"), seen("SNAPSHOT", None, GUID, "till", at=1))
    assert (of_another.shown(FIRST), of_another.shown(GUID)) == (f"till ({FIRST})", f"till ({GUID})")


def test_an_address_and_its_identifier_are_one_machine():
    found = names(seen("DECLARED", FIRST, name="till"), seen("WIRE", FIRST, GUID, at=1))
    assert (found.shown(FIRST), found.shown(GUID)) == ("till", "till")
    found = names(seen("DECLARED", None, GUID, "till"), seen("WIRE", FIRST, GUID, at=1))
    assert (found.shown(FIRST), found.shown(GUID)) == ("till", "till")


def test_a_machine_with_two_addresses():
    at_both = (seen("WIRE", FIRST, GUID, at=1), seen("WIRE", SECOND, GUID, at=1))
    found = names(seen("DECLARED", None, GUID, "till"), *at_both)
    assert [found.shown(each) for each in (FIRST, SECOND, GUID)] == [f"till ({FIRST})", f"till ({SECOND})", "till"]


def test_a_cloned_identifier_stands_beside_the_names_of_both_machines():
    found = names(seen("SNAPSHOT", FIRST, GUID, "shop1", at=1), seen("SNAPSHOT", SECOND, GUID, "shop2", at=1))
    assert found.shown(GUID) == f"shop1, shop2 ({GUID})"
    assert (found.shown(FIRST), found.shown(SECOND)) == ("shop1", "shop2")
    third = names(
        seen("SNAPSHOT", None, GUID, "shop1", at=1), seen("SNAPSHOT", None, GUID, "shop2", at=1),
        seen("WIRE", FIRST, GUID, at=1),
    )  # fmt: skip
    assert third.shown(FIRST) == FIRST  # either of both, or another one


def test_an_address_has_the_name_of_the_machine_that_is_there_now():
    found = names(
        seen("SNAPSHOT", None, GUID, "old", at=1), seen("SNAPSHOT", None, OTHER, "new", at=6),
        seen("WIRE", FIRST, GUID, at=1, until=5), seen("WIRE", FIRST, OTHER, at=6, until=9),
    )  # fmt: skip
    assert [found.shown(each) for each in (FIRST, GUID, OTHER)] == ["new", "old", "new"]


def test_a_name_of_gold_becomes_the_declared_one():
    found = names(seen("COLLECTOR", FIRST, name="srv1"), seen("DECLARED", FIRST, name="Till 7"))
    assert (found.shown(FIRST), found.shown("srv1")) == ("Till 7", "Till 7")
    assert found.in_text("queue srv1\\private$\\q at srv1", "srv1\\private$\\q") == "queue srv1\\private$\\q at Till 7"
    twice = names(
        seen("COLLECTOR", FIRST, name="srv1"), seen("COLLECTOR", SECOND, name="srv1"),
        seen("DECLARED", FIRST, name="a"), seen("DECLARED", SECOND, name="b"),
    )  # fmt: skip
    assert twice.shown("srv1") == "srv1"
    same = names(
        seen("COLLECTOR", FIRST, name="srv1"), seen("COLLECTOR", SECOND, name="srv2"),
        seen("DECLARED", FIRST, name="till"), seen("DECLARED", SECOND, name="till"),
    )  # fmt: skip
    assert [same.shown(each) for each in ("srv1", "srv2", FIRST)] == ["till (srv1)", "till (srv2)", f"till ({FIRST})"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"sessions from {FIRST} to {SECOND}", f"sessions from till to {SECOND}"),
        (f"from {FIRST}: no answer, {FIRST}.", "from till: no answer, till."),
        (f"queue manager {GUID}", "queue manager till"),
        (f"queue {FIRST}\\private$\\q at {FIRST}", f"queue {FIRST}\\private$\\q at till"),
        (f"DIRECT=TCP:{FIRST}\\q, private={GUID}\\f", f"DIRECT=TCP:{FIRST}\\q, private={GUID}\\f"),
        (f"next hops IP={FIRST}:1801, 110.0.0.1, {FIRST}1", f"next hops IP={FIRST}:1801, 110.0.0.1, {FIRST}1"),
        ("from fd00::7: reset", "from till6: reset"),
        (f"{FIRST}:1801 -> fd00::7:40001, fd00::7:8", "till:1801 -> till6:40001, till8"),
        ("at 12:30", "at 12:30"),
    ],
)
def test_names_in_a_text(text, expected):
    found = names(
        seen("DECLARED", FIRST, name="till"), seen("DECLARED", "fd00::7", name="till6"),
        seen("WIRE", FIRST, GUID, at=1),
        seen("DECLARED", "fd00::7:8", name="till8"),
    )  # fmt: skip
    assert found.in_text(text) == expected


def test_the_names_in_a_text():
    found = names(seen("DECLARED", FIRST, name="till"), seen("DECLARED", SECOND, name="hq"))
    assert found.shown_in(f'["{FIRST}", "{FIRST}:1801", "10.0.0.9"]') == {FIRST: "till"}


def test_a_queue_keeps_its_name_whatever_it_is_called():
    found = names(seen("DECLARED", FIRST, name="till"))
    queue = f"srv1\\private$\\from {FIRST} on"
    text, expected = f"transfer to {queue} from {FIRST}", f"transfer to {queue} from till"
    assert found.in_text(f"{text}; {text}", queue) == f"{expected}; {expected}"


def test_the_machines_by_address_and_identifier():
    found = names(
        seen("DECLARED", FIRST, name="till"), seen("WIRE", FIRST, GUID, at=1), seen("WIRE", SECOND, at=1),
        seen("SNAPSHOT", None, OTHER, "far", at=1), seen("NAME_RESOLUTION", "192.0.2.1", name="www", at=1),
    )  # fmt: skip
    assert found.machines() == [
        MachineInfo("", OTHER, "far"), MachineInfo(FIRST, GUID, "till"), MachineInfo(SECOND, "", ""),
    ]  # fmt: skip
