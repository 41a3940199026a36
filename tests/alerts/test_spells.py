"""When a condition held: looks and events -> spells and runs."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.alerts.episodes import ERROR, INFO, WARNING, Alert, Event, Look, Spell, rows, runs, spells
from pipeline.lake.arrow_rows import us

S = timedelta(seconds=1)
GAP = 10


def looks(text, step=1, **more):
    """A look each step: # holds, . does not, a blank is no look; each is believed for GAP seconds."""
    return [
        Look(us(S * at * step), char == "#", us(S * (at * step + GAP)), f"at {at}", evidence=(f"e{at}",), **more)
        for at, char in enumerate(text) if char != " "
    ]  # fmt: skip


def seconds(found):
    return [(spell.since / 1e6, None if spell.until is None else spell.until / 1e6) for spell in found]


@pytest.mark.parametrize(
    ("text", "after", "rejoin", "expected"),
    [
        ("....", 0, 0, []),
        (".##.", 0, 0, [(1, 3)]),
        ("##", 0, 0, [(0, None)]),
        ("#.#.", 0, None, [(0, 1), (2, 3)]),
        ("#.#.", 0, 1, [(0, 3)]),
        ("#.#", 0, 1, [(0, None)]),
        ("##..##.", 1, 2, [(0, 6)]),
        ("##..#.", 1, 2, [(0, 2)]),  # what is not long enough begins nothing again
        (".##.", 1, 0, [(1, 3)]),
        (".##.", 2, 0, []),
        ("#####                    #.", 4, 0, [(0, 26)]),  # nobody looked: it was not over
        ("#.                       #.", 1, 0, []),
        ("##                       ##.", 15, 0, []),  # what was not long enough before is not made so by silence
    ],
)
def test_when_it_held(text, after, rejoin, expected):
    again = None if rejoin is None else S * rejoin
    found = spells(looks(text), us(S * len(text)), after=S * after, rejoin=again)
    assert seconds(found) == expected


def test_one_look_is_no_time_and_what_nobody_looks_at_any_more_is_said():
    assert spells(looks("#"), us(S * 5), after=S * 1) == []
    (spell,) = spells(looks("##"), us(S * 9), after=S * 1)
    assert (spell.last_seen_at, spell.until, spell.missing) == (us(S), None, set())
    (spell,) = spells(looks("##"), us(S * 60), after=S * 1)
    assert (spell.last_seen_at, spell.until, spell.missing) == (us(S), None, {"no_snapshot"})


def test_a_warning_becomes_an_error_and_what_is_no_warning_does_not():
    for severity, expected in ((WARNING, ERROR), (INFO, INFO)):
        (spell,) = spells(looks("####", severity=severity), us(S * 3), error_after=S * 3)
        assert spell.severity == expected
    (spell,) = spells(looks("####"), us(S * 3), error_after=S * 4)
    assert (spell.severity, spell.message) == (WARNING, "at 3")


def test_the_first_and_the_newest_evidence_is_kept():
    (spell,) = spells(looks("#" * 30), us(S * 30))
    assert spell.evidence == ["e0", *(f"e{at}" for at in range(21, 30))]


def test_a_look_may_tell_itself_since_when():
    (spell,) = spells([Look(us(S * 100), True, us(S * 110), since=us(S * 40))], us(S * 100), after=S * 60)
    assert spell.since == us(S * 40)


def test_runs_of_events():
    events = [Event(us(S * at), us(S * at)) for at in (0, 5, 10, 30, 31)]
    found = runs(reversed(events), us(S * 40), window=S * 10, least=3)
    assert [(run.since / 1e6, run.last_seen_at / 1e6, run.count, run.until / 1e6) for run in found] == [(0, 10, 3, 20)]
    last = runs(events, us(S * 40), window=S * 10)[-1]
    assert (last.count, last.until) == (2, None)
    assert [run.count for run in runs(events, us(S * 7), window=S * 10)] == [2]  # what comes later is not known


def alerts(*spans):
    return [
        Alert("queue_stuck", "q", Spell(since, since, since, WARNING, str(since), until, evidence=[str(since)]))
        for since, until in spans
    ]


def test_alerts_of_one_subject_that_overlap_are_one():
    found = rows(alerts((0, 10), (5, 20), (30, None), (40, 50)))
    assert sorted((row["since"], row["until"]) for row in found) == [(0, 20), (30, None)]
    assert len({row["alert_key"] for row in found}) == 2
    assert rows(alerts((30, None), (0, 10), (40, 50), (5, 20))) == found
    assert len(rows(alerts((0, 10), (10, 20)))) == 2


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40, unique_by=lambda each: each[0]),
    st.integers(0, 60), st.integers(0, 12), st.integers(0, 5), st.randoms(),
)  # fmt: skip
def test_what_is_over_stays_as_it_is_whatever_comes_later_and_in_whatever_order(told, cut, after, rejoin, random):
    told = [Look(us(S * at), holds, us(S * (at + GAP)), str(at), evidence=(str(at),)) for at, holds in told]
    whole = spells(told, us(S * 60), after=S * after, rejoin=S * rejoin)
    random.shuffle(told)
    assert spells(told, us(S * 60), after=S * after, rejoin=S * rejoin) == whole
    early = [
        spell for spell in spells(told, us(S * cut), after=S * after, rejoin=S * rejoin) if spell.until is not None
    ]
    over = [spell for spell in early if spell.until + us(S * rejoin) < us(S * cut)]
    assert [spell for spell in over if spell not in whole] == []
    for spell in whole:
        assert spell.since <= spell.last_seen_at
        assert spell.until is None or spell.last_seen_at < spell.until
