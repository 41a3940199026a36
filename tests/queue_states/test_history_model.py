"""Histories compared with a model that computes each interval by itself from the definition."""

import itertools
from bisect import bisect_right
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from pipeline.queues.history import QueueEvent, ResumePoint, compute_histories

GAP = 10
TIMES = st.integers(0, 60)
VALUES = ("state", "message_count", "bytes", "journal_count", "journal_bytes")
COUNTED = ("received", "peeked", "nacked", "arrived", "departed", "moved_in", "moved_out")
CHANGE = {"moved_in": 1, "moved_out": -1, "received": -1, "arrived": 1, "departed": -1}
ORDER = {"pause": 0, "resume": 1, "purge": 2, "snapshot": 3}


def last(events):
    return max(events, key=lambda e: (e.at, ORDER[e.kind], e.source, e.key), default=None)


class Model:
    """The histories of one queue by definition."""

    def __init__(self, events):
        self.events = events
        self.names = {e.format_name for e in events if e.kind in ("snapshot", "pause", "resume")}
        self.purges = {name: [] for name in self.names}
        for purge in (e for e in events if e.kind == "purge"):
            known = [name for name in self.names if any(purge.at - GAP < e.at <= purge.at for e in self.own(name))]
            for name in known or [purge.format_name]:
                self.purges.setdefault(name, []).append(purge)

    def own(self, name):
        return [e for e in self.events if e.format_name == name and e.kind in ("snapshot", "pause", "resume")]

    def cuts(self, name):
        return self.own(name) + self.purges.get(name, [])

    def reports(self, name, what):
        """The events that report a value."""
        if what == "event":
            return self.cuts(name)
        if what == "base":
            return [e for e in self.cuts(name) if e.kind == "purge" or "message_count" in e.values]
        if what == "paused":
            return [e for e in self.cuts(name) if e.kind in ("pause", "resume") or e.values.get("state") is not None]
        return [e for e in self.cuts(name) if what in e.values]

    def holds(self, name, what, at):
        """The report of a value that is valid at a time."""
        return last([e for e in self.reports(name, what) if e.at <= at < e.at + GAP])

    def bounds(self, name):
        """The times of events that begin an interval, and each time at which a value becomes unknown."""
        found = {e.at for e in self.cuts(name)}
        end = max(found) + GAP
        for what in ("event", "base", "paused", *VALUES):
            for e in self.reports(name, what):
                over = e.at + GAP
                if self.holds(name, what, over - 1) is not None and self.holds(name, what, over) is None:
                    found.add(over)
        return sorted(at for at in found if at <= end)

    def expected(self, name, begin, end):
        base = self.holds(name, "base", begin)
        if base is None or (base.kind == "snapshot" and base.values["message_count"] is None):
            return None
        count = 0 if base.kind == "purge" else base.values["message_count"]
        for e in self.events:
            if not base.at <= e.at < end or e.kind not in CHANGE:
                continue
            if (
                e.kind == "received"
                and base.kind == "purge"
                and e.handed_out_at is not None
                and e.handed_out_at <= base.at
            ):
                continue
            count += CHANGE[e.kind]
        return count

    def rows(self, name):
        bounds = self.bounds(name)
        for begin, end in itertools.pairwise(bounds):
            inside = Counter(e.kind for e in self.events if begin <= e.at < end)
            values = {}
            for what in VALUES:
                report = self.holds(name, what, begin)
                values[what] = None if report is None else report.values[what]
            expected = self.expected(name, begin, end)
            report = last([e for e in self.own(name) if e.at == end and "message_count" in e.values])
            count = None if report is None else report.values["message_count"]
            stop = self.holds(name, "paused", begin)
            newest = self.holds(name, "event", begin)
            yield {
                "valid_from": begin, "valid_to": end, **values, "state": values["state"] or "UNKNOWN",
                **{kind: inside[kind] for kind in COUNTED},
                "purged": inside["purge"],
                "paused": None if stop is None else stop.kind == "pause" if stop.kind != "snapshot"
                else stop.values["state"] == "ONHOLD",
                "expected_message_count": expected,
                "unexplained_change": None if None in (count, expected) else count - expected,
                "source": None if newest is None else newest.source,
                "reported_at": max(
                    (held.at for what in VALUES if (held := self.holds(name, what, begin)) is not None), default=None
                ),
            }  # fmt: skip


def reported(draw_states):
    value = st.none() | st.integers(0, 9)
    return st.fixed_dictionaries({}, optional={"state": draw_states, **dict.fromkeys(VALUES[1:], value)})


NAMES = st.sampled_from(["a", "b"])
SNAPSHOTS = st.tuples(
    st.just("snapshot"), TIMES, NAMES, reported(st.sampled_from([None, "ONHOLD", "CONNECTED"])),
    st.sampled_from(["wire", "collector"]),
)  # fmt: skip
ACTIONS = st.tuples(st.sampled_from(["pause", "resume"]), TIMES, NAMES)
PURGES = st.tuples(st.just("purge"), TIMES, st.sampled_from(["a", "x"]))
OTHERS = st.tuples(st.sampled_from([*COUNTED, "doubt"]), TIMES, TIMES)


@st.composite
def series(draw):
    drawn = draw(st.lists(SNAPSHOTS | ACTIONS | PURGES | OTHERS, max_size=25))
    events = []
    for number, (kind, at, second, *more) in enumerate(drawn):
        if kind == "snapshot":
            events.append(QueueEvent(at, kind, f"s{number}", second, more[1], more[0]))
        elif isinstance(second, str):
            events.append(QueueEvent(at, kind, f"o{number}", second))
        else:
            events.append(QueueEvent(at, kind, f"r{number}", source="wire", handed_out_at=min(second, at)))
    return events


SHOWN = ("evidence", "confidence", "missing", "errors")


@given(series(), st.randoms(use_true_random=False))
@settings(max_examples=examples(400), deadline=None)
def test_histories_are_as_the_model_says(events, random):
    model = Model(events)
    shuffled = random.sample(events, len(events))
    made = compute_histories(shuffled, GAP)
    assert {name for name, rows in made.items() if rows} == {*model.names, *(n for n, p in model.purges.items() if p)}
    for name, rows in made.items():
        plain = [{key: value for key, value in row.items() if key not in SHOWN} for row in rows]
        assert plain == list(model.rows(name))


@given(series())
@settings(max_examples=examples(200), deadline=None)
def test_intervals_are_half_open_without_overlap_or_hole_and_unknown_is_never_zero(events):
    for name, rows in compute_histories(events, GAP).items():
        ends = [row["valid_to"] for row in rows]
        assert [row["valid_from"] for row in rows[1:]] == ends[:-1]
        assert all(row["valid_from"] < row["valid_to"] for row in rows)
        times = sorted(e.at for e in events if e.format_name == name or e.kind == "purge")
        for row in rows:
            place = bisect_right(times, row["valid_from"])
            if not place or times[place - 1] <= row["valid_from"] - GAP:
                assert (row["state"], row["source"], row["paused"]) == ("UNKNOWN", None, None)
                assert {row[value] for value in (*VALUES[1:], "expected_message_count")} == {None}
            assert (row["confidence"] == "complete") == (not row["missing"])


@given(series(), TIMES)
@settings(max_examples=examples(300), deadline=None)
def test_a_history_taken_up_at_any_of_its_cuts_goes_on_as_if_it_had_been_told_whole(events, at):
    whole = compute_histories(events, GAP)
    cuts = {}
    for name, rows in whole.items():
        later = [row for row in rows if row["valid_to"] >= at]
        if later:
            gone = later[0]["valid_from"] if later[0]["source"] is None else None
            cuts[name] = ResumePoint(later[0]["valid_from"], gone)
    some = [e for e in events if e.kind not in ORDER or e.kind == "purge" or e.at >= at - 3 * GAP]
    some = [replace(e, kind="purged") if e.kind == "purge" and e.at < at - 2 * GAP else e for e in some]
    made = compute_histories(some, GAP, cuts)
    for name, cut in cuts.items():
        assert made[name] == [row for row in whole[name] if row["valid_from"] >= cut.since]
