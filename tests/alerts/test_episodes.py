"""Episodes from observations and from events, and alerts from episodes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.alerts.episodes import (
    ERROR,
    INFO,
    WARNING,
    Alert,
    Episode,
    EventCount,
    Observation,
    alert_rows,
    episodes_from_events,
    episodes_from_observations,
)

S = timedelta(seconds=1)
GAP = 10


def us(seconds):
    return round(seconds * 1_000_000)


def observations(text, step=1, **more):
    """An observation each step: # holds, . does not, a blank is none; each is valid for GAP seconds."""
    return [
        Observation(us(at * step), char == "#", us(at * step + GAP), f"at {at}", evidence=(f"e{at}",), **more)
        for at, char in enumerate(text)
        if char != " "
    ]


def bounds_s(found):
    return [(episode.since / 1e6, None if episode.until is None else episode.until / 1e6) for episode in found]


@pytest.mark.parametrize(
    ("text", "min_duration", "merge_within", "expected"),
    [
        ("....", 0, 0, []),
        (".##.", 0, 0, [(1, 3)]),
        ("##", 0, 0, [(0, None)]),
        ("#.#.", 0, None, [(0, 1), (2, 3)]),
        ("#.#.", 0, 1, [(0, 3)]),
        ("#.#", 0, 1, [(0, None)]),
        ("##..##.", 1, 2, [(0, 6)]),
        ("##..#.", 1, 2, [(0, 2)]),  # too short to continue the one before
        (".##.", 1, 0, [(1, 3)]),
        (".##.", 2, 0, []),
        ("#####                    #.", 4, 0, [(0, 26)]),  # no observation: it is not over
        ("#.                       #.", 1, 0, []),
        ("##                       ##.", 15, 0, []),  # time without observations does not make it long enough
    ],
)
def test_when_it_held(text, min_duration, merge_within, expected):
    within = None if merge_within is None else S * merge_within
    found = episodes_from_observations(
        observations(text), us(len(text)), min_duration=S * min_duration, merge_within=within
    )
    assert bounds_s(found) == expected


def test_one_look_is_no_time_and_what_nobody_looks_at_any_more_is_said():
    assert episodes_from_observations(observations("#"), us(5), min_duration=S * 1) == []
    (episode,) = episodes_from_observations(observations("##"), us(9), min_duration=S * 1)
    assert (episode.last_seen_at, episode.until, episode.missing) == (us(1), None, set())
    (episode,) = episodes_from_observations(observations("##"), us(60), min_duration=S * 1)
    assert (episode.last_seen_at, episode.until, episode.missing) == (us(1), None, {"no_snapshot"})


def test_a_warning_becomes_an_error_and_what_is_no_warning_does_not():
    for severity, expected in ((WARNING, ERROR), (INFO, INFO)):
        (episode,) = episodes_from_observations(observations("####", severity=severity), us(3), error_after=S * 3)
        assert episode.severity == expected
    (episode,) = episodes_from_observations(observations("####"), us(3), error_after=S * 4)
    assert (episode.severity, episode.message) == (WARNING, "at 3")


def test_the_first_and_the_newest_evidence_is_kept():
    (episode,) = episodes_from_observations(observations("#" * 30), us(30))
    assert episode.evidence == ["e0", *(f"e{at}" for at in range(21, 30))]


def test_a_look_may_tell_itself_since_when():
    (episode,) = episodes_from_observations(
        [Observation(us(100), True, us(110), since=us(40))],
        us(100),
        min_duration=S * 60,
    )
    assert episode.since == us(40)


def test_runs_of_events():
    events = [EventCount(us(at), us(at)) for at in (0, 5, 10, 30, 31)]
    found = episodes_from_events(reversed(events), us(40), window=S * 10, min_count=3)
    (first,) = found
    assert (first.since, first.last_seen_at, first.count, first.until) == (0, us(10), 3, us(20))
    last = episodes_from_events(events, us(40), window=S * 10)[-1]
    assert (last.count, last.until) == (2, None)
    early = episodes_from_events(events, us(7), window=S * 10)
    assert [each.count for each in early] == [2]  # later events are not known yet


def alerts(*spans):
    return [
        Alert("queue_stuck", "q", Episode(since, since, since, WARNING, str(since), until, evidence=[str(since)]))
        for since, until in spans
    ]


def test_alerts_of_one_subject_that_overlap_are_one():
    found = alert_rows(alerts((0, 10), (5, 20), (30, None), (40, 50)))
    assert sorted((row["since"], row["until"]) for row in found) == [(0, 20), (30, None)]
    assert len({row["alert_key"] for row in found}) == 2
    assert alert_rows(alerts((30, None), (0, 10), (40, 50), (5, 20))) == found
    assert len(alert_rows(alerts((0, 10), (10, 20)))) == 2


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40, unique_by=lambda each: each[0]),
    st.integers(0, 60), st.integers(0, 12), st.integers(0, 5), st.randoms(),
)  # fmt: skip
def test_what_is_over_stays_as_it_is_whatever_comes_later_and_in_whatever_order(drawn, cut, duration, within, random):
    seen = [Observation(us(at), holds, us(at + GAP), str(at), evidence=(str(at),)) for at, holds in drawn]
    limits = {"min_duration": S * duration, "merge_within": S * within}
    whole = episodes_from_observations(seen, us(60), **limits)
    random.shuffle(seen)
    assert episodes_from_observations(seen, us(60), **limits) == whole
    early = [episode for episode in episodes_from_observations(seen, us(cut), **limits) if episode.until is not None]
    over = [episode for episode in early if episode.until + us(within) < us(cut)]
    assert [episode for episode in over if episode not in whole] == []
    for episode in whole:
        assert episode.since <= episode.last_seen_at
        assert episode.until is None or episode.last_seen_at < episode.until
