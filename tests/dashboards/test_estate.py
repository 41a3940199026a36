"""The report on an estate, without a browser: hours of the week in any time zone, the overview, the page's size."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from dashboards.estates import NOON, estate, flow, growth, judged, machine, queue, report
from pipeline.dashboards.estate import page as page_module
from pipeline.dashboards.estate.heat_map import captured_seconds, captured_weeks, heat_maps, hour_of_week
from pipeline.dashboards.estate.overview import format_bytes, overview
from pipeline.dashboards.estate.page import MAX_PAGE_BYTES, render_report
from pipeline.dashboards.estate.report import read_report
from pipeline.dashboards.estate.time_zones import find_time_zone
from pipeline.reports.targets.requirements import REQUIREMENTS
from pipeline.reports.targets.target_file import bundled_targets
from pipeline.reports.targets.verdicts import Fit
from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.scope import Scope
from reports.questions.in_memory_lake import InMemoryLake
from reports.questions.planted_estate import captured_minutes, plant, tables_of

HOUR = timedelta(hours=1)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
TIME = pa.timestamp("us", tz="UTC")


def quarters(begin, count):
    """A sending of one queue in each of so many quarters of an hour."""
    starts = [begin + number * HOUR / 4 for number in range(count)]
    return pa.table({"queue": ["q"] * count, "start_at": pa.array(starts, TIME), "sendings": [1] * count})


def of_day(counts, day):
    return counts[24 * day : 24 * day + 24]


@pytest.mark.parametrize(
    ("zone", "begin", "changed", "length"),
    [
        ("Europe/Berlin", datetime(2024, 3, 30, 23, tzinfo=UTC), {2: 0}, 23),  # 02:00 is followed by 03:00
        ("Europe/Berlin", datetime(2024, 10, 26, 22, tzinfo=UTC), {2: 8}, 25),  # 02:00 to 03:00 comes twice
        ("Australia/Lord_Howe", datetime(2024, 10, 5, 13, 30, tzinfo=UTC), {2: 2}, 23.5),  # half an hour is left out
        ("Australia/Lord_Howe", datetime(2024, 4, 6, 13, tzinfo=UTC), {1: 6}, 24.5),  # half an hour comes twice
    ],
)
def test_a_day_on_which_clocks_are_changed(zone, begin, changed, length):
    clocks = find_time_zone(zone)
    counts = heat_maps(quarters(begin, int(4 * length)), clocks)["q"]
    assert of_day(counts, 6) == [changed.get(hour, 4) for hour in range(24)]
    assert sum(counts) == sum(of_day(counts, 6))
    seconds = captured_seconds([(begin, begin + length * HOUR)], clocks)
    assert seconds == [900 * count for count in counts]


@pytest.mark.parametrize(
    ("zone", "hour"),
    [("UTC", 10), ("Asia/Kolkata", 15), ("Asia/Kathmandu", 16), ("Pacific/Chatham", 23), ("America/St_Johns", 7)],
)
def test_zones_of_half_and_quarter_hours(zone, hour):
    monday = datetime(2024, 7, 1, 10, 15, tzinfo=UTC)
    clocks = find_time_zone(zone)
    assert hour_of_week(monday, clocks) == hour
    assert captured_seconds([(monday, monday + HOUR / 4)], clocks)[hour] == 900


def test_each_queue_has_its_own_hours():
    two = pa.table({"queue": ["a", "b", "a"], "start_at": pa.array([NOON, NOON, NOON + HOUR], TIME),
                    "sendings": [2, 3, 4]})  # fmt: skip
    maps = heat_maps(two, UTC)
    wednesday = 2 * 24 + 12
    assert {name: {place: n for place, n in enumerate(counts) if n} for name, counts in maps.items()} == {
        "a": {wednesday: 2, wednesday + 1: 4}, "b": {wednesday: 3},
    }  # fmt: skip


def test_seconds_that_were_captured_are_counted_once_and_cut_at_both_ends():
    begin = datetime(2024, 4, 29, 0, 50, tzinfo=UTC)  # a Monday
    seconds = captured_seconds([(begin, begin + timedelta(minutes=75))], UTC)
    assert {place: each for place, each in enumerate(seconds) if each} == {0: 600, 1: 3600, 2: 300}


def test_each_queue_has_the_time_that_could_show_it():
    monday = datetime(2024, 4, 29, tzinfo=UTC)
    stretches = [("a", 0, 1), ("a", 3, 4), ("b", 1, 2), ("c", 0, 1), ("c", 3, 4)]
    coverage = pa.table({
        "queue": [name for name, _, _ in stretches],
        "first_at": pa.array([monday + first * HOUR for _, first, _ in stretches], TIME),
        "until_at": pa.array([monday + until * HOUR for _, _, until in stretches], TIME),
    })  # fmt: skip
    weeks = captured_weeks(coverage, UTC)
    assert {name: {place for place, each in enumerate(week) if each} for name, week in weeks.items()} == {
        "a": {0, 3}, "b": {1}, "c": {0, 3},
    }  # fmt: skip
    sent = [{"queue": name, "start_at": monday, "sendings": 1} for name in "abcd"]
    covered = [{**row, "minutes": 60} for row in coverage.to_pylist()]
    queues = [queue(name) for name in "abcd"]
    made = report(estate_queues=queues, estate_hours=sent, estate_queue_coverage=covered)
    data = data_of(render_report(made))
    shown = {name: data["captured_weeks"][heat["week"]] for name, heat in data["heat_maps"].items()}
    assert shown == {name: [*weeks.get(name, [0.0] * 168)] for name in "abcd"}
    assert len(data["captured_weeks"]) == 3


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_a_planted_estate_comes_out_exactly(zone):
    messages = plant(5, queues=12, messages=600)
    lake = InMemoryLake(None, tables_of(messages))
    lake.root = "/data/lake"
    epoch, clocks = datetime(1970, 1, 1, tzinfo=UTC), find_time_zone(zone)
    until = epoch + timedelta(minutes=2_000)
    views = LakeViews(lake, until, scope=Scope(epoch, until))
    found = read_report(views, bundled_targets(), clocks, lake_options="--lake x", published_at=until)
    page = data_of(render_report(found))
    sent = Counter()
    for message in messages:
        for at in message.hops[-1][2] if message.hops else ():
            local = (epoch + timedelta(minutes=at)).astimezone(clocks)
            sent[message.queue, local.strftime("%a %H")] += 1
    shown = {(name, f"{DAYS[place // 24]} {place % 24:02}"): count for name, heat in page["heat_maps"].items()
             for place, count in enumerate(heat["counts"]) if count}  # fmt: skip
    assert shown == sent
    minutes = [epoch + timedelta(minutes=at) for at in captured_minutes()]
    captured = Counter(at.astimezone(clocks).strftime("%a %H") for at in minutes)
    assert {f"{DAYS[place // 24]} {place % 24:02}": seconds / 60
            for place, seconds in enumerate(page["captured_weeks"][0]) if seconds} == captured  # fmt: skip
    tiles = {each["label"]: each["value"] for each in page["overview"]["tiles"]}
    a_day = round(sum(sent.values()) / len(minutes) * 1440)
    assert tiles["Messages sent a day"] == f"{a_day:,}".replace(",", "\u202f")
    assert tiles["Queues"] == str(len({message.queue for message in messages}))
    assert page["data"]["verdicts"]["count"] == 12 * len(bundled_targets())


@pytest.mark.parametrize("name", ["", "Europe", "Europe/Berlin2", "../etc/passwd", "/etc/passwd", "Europe/berlin "])
def test_a_zone_that_does_not_exist_is_refused(name):
    with pytest.raises(ValueError, match="no such time zone"):
        find_time_zone(name)


def test_utc_needs_no_database(monkeypatch):
    monkeypatch.setattr("pipeline.dashboards.estate.time_zones.available_timezones", set)
    assert find_time_zone("utc") is UTC


def small(**more):
    """A report on two queues of which one is full soon and does not fit."""
    target = estate(3).targets[0]
    given = {
        "estate_queues": [queue("a", 10), queue("b", 1)],
        "estate_machines": [machine("server1", roles=["holds_queues"]), machine("client1"), machine("client2")],
        "estate_flows": [flow("client1", "server1", "a", 3 << 20), flow("client2", "server1", "b", 1 << 20),
                         flow("server1", "reader1", "a", 9 << 20, way="rpc_read")],
        "estate_coverage": [{"first_at": NOON - 48 * HOUR, "until_at": NOON, "minutes": 2880}],
        "depth_growth": [growth("depth_growth", queue="a", queue_manager="server1")],
        "targets": (target,),
        "verdicts": [judged("a", target.name, ("largest message", Fit.DOES_NOT_FIT, "4.1 MB over 1 MiB")),
                     judged("b", target.name, ("order", Fit.CHANGE, "2 sequences"))],
    }  # fmt: skip
    return report(**{**given, **more})


def test_the_overview_says_what_an_owner_asks():
    found = overview(small())
    tiles = {each["label"]: (each["value"], each["detail"]) for each in found["tiles"]}
    assert tiles == {
        "Queues": ("2", "1\u202f100 messages seen"),
        "Machines": ("3", "2 senders, 1 with queues"),
        "Messages sent a day": ("522", "mean of 2.0 days that were captured"),  # 1,045 sendings
        "Bytes sent a day": ("537.1 KiB", "mean of 2.0 days that were captured"),
    }
    flows, move, full = found["sentences"]
    assert flows == ("Most bytes: client1 to a (75%); client2 to b (25%). "
                     "All flows together: 4.0 MiB.")  # fmt: skip
    assert re.fullmatch(r"Hard to move, of 2 queues: 1 do not fit .+\. Most often in the way: largest message\.", move)
    assert full == "Full soon: queue a in 50 days (40 to 90, quota assumed)."


def test_what_was_not_captured_is_no_zero():
    found = overview(small(estate_coverage=[{"first_at": NOON - 2 * HOUR, "until_at": NOON, "minutes": 120}]))
    assert [(each["label"], each["value"], each["detail"]) for each in found["tiles"]][2:] == [
        ("Messages sent", "1\u202f045", "in 2.0 hours: too short for a rate by day"),
        ("Bytes sent", "1.0 MiB", "in 2.0 hours: too short for a rate by day"),
    ]
    found = overview(report())
    assert found["sentences"][0] == "No message was seen to be sent from one machine to another."


def test_nothing_is_full_soon_without_a_trend():
    flat = growth("depth_growth", trend="no trend", trend_days_until_full=None, trend_full_low=None)
    assert overview(small(depth_growth=[flat]))["sentences"][-1].startswith("Full soon: no growth")
    never = growth("machines", trend_full_high=None, quota_assumed=False)
    assert overview(small(depth_growth=[flat], machines=[never]))["sentences"][-1] == (
        "Full soon: machine server1 in 50 days (40 or never)."
    )


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 50, "3072.0 TiB")])
def test_bytes_as_text(size, text):
    assert format_bytes(size) == text


def data_of(page):
    """The data that a page has."""
    return json.loads(re.search(r'<script type="application/json" id="site">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_is_bounded_and_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(page_module, "MAX_PAGE_BYTES", 400_000)
    made = estate(100)
    page = render_report(made)
    assert len(page.encode()) <= 400_000
    data = data_of(page)["data"]
    queues = data["estate_queues"]
    assert 10 <= queues["count"] < queues["total"] == 300
    sizes = sorted(made.views["estate_queues"]["messages"].to_pylist(), reverse=True)
    assert queues["columns"]["messages"]["values"] == sizes[: queues["count"]]
    shown = queues["columns"]["queue"]["values"]
    assert set(data["verdicts"]["columns"]["queue"]["dictionary"]) == set(shown)
    explained = set(data["in_the_way"]["columns"]["queue"]["dictionary"])
    assert explained == set(shown[: len(explained)])
    assert 0 < len(explained) <= len(shown) / 4 + 1


def test_growth_is_of_the_newest_day_that_has_a_trend():
    rows = [growth("journal_growth", day=NOON, trend_days=None), growth("journal_growth", day=NOON - 24 * HOUR)]
    found = data_of(render_report(report(journal_growth=rows)))["data"]["journal_growth"]
    assert (found["count"], found["total"], found["columns"]["trend_days"]["values"]) == (1, 1, [20])


def test_no_title_of_a_property_has_a_comma():
    """The page has them in one text."""
    assert [each.title for each in REQUIREMENTS if "," in each.title] == []


def test_small_flows_are_joined_and_no_byte_is_lost(monkeypatch):
    made = estate(30, 300)
    monkeypatch.setattr(page_module, "_MOST_EXPLAINED", 50)
    flows, every = data_of(render_report(made))["data"]["estate_flows"], made.views["estate_flows"]
    assert 200 < flows["count"] < flows["total"] == every.num_rows
    for name in ("bytes", "messages"):
        values = flows["columns"][name]["values"]
        assert sum(values) == sum(every[name].to_pylist())
        assert values[:200] == sorted(values[:200], reverse=True)


def test_a_large_estate_is_below_five_megabytes():
    page = render_report(estate(300, 1000))
    assert len(page.encode()) <= MAX_PAGE_BYTES
    assert data_of(page)["data"]["estate_queues"]["count"] == 1000


def test_very_long_names_are_cut_and_stay_different():
    names = [f"{'x' * 1000}{number}" for number in range(2)]
    page = render_report(report(estate_queues=[queue(name) for name in names],
                                estate_hours=[{"queue": names[1], "start_at": NOON, "sendings": 1}]))  # fmt: skip
    data = data_of(page)
    shown = data["data"]["estate_queues"]["columns"]["queue"]["values"]
    assert len(set(shown)) == 2
    assert max(map(len, shown)) < 540
    assert [*data["heat_maps"]] == [shown[1]]


def test_no_name_ends_the_script():
    hostile = "</script><script>alert(1)</script>"
    page = render_report(report(estate_queues=[queue(hostile, senders=[hostile])]))
    assert page.lower().count("</script") == 2
    assert data_of(page)["data"]["estate_queues"]["columns"]["queue"]["values"] == [hostile]
