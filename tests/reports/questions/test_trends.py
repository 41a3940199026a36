"""Trends of queues, journals and queue managers: against those of scipy, and time until a quota."""

import datetime as dt
from functools import partial
from random import Random

import pytest
from scipy.stats import theilslopes

from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.scope import Scope
from reports.questions.both_engines import answers_of, quick_session
from reports.questions.in_memory_lake import InMemoryLake, rows
from schemas.bronze import CAPTURE_FILES
from schemas.queue_history import MACHINE_HISTORY, QUEUE_HISTORY

pytestmark = pytest.mark.spark

DAY = 24 * 60  # minutes
NOW = 400 * DAY + 720
OLDEST = 311  # the newest 90 days begin at noon of the day before
GIB = 1 << 30


def queue(name, levels, *, journal=False, manager="srv1", at=600, **more):
    """Reports of a queue: its bytes by day since 1970, or those of its journal."""
    columns = ("journal_count", "journal_bytes") if journal else ("message_count", "bytes")
    for day, level in levels.items():
        begin = day * DAY + at
        values = {"interval_key": f"{name} {begin} {journal}", "queue_manager": manager, "queue": name, "state": "X"}
        times = {"valid_from": begin, "valid_to": begin + 1, "reported_at": begin}
        yield values | times | dict(zip(columns, (1, level), strict=True)) | more


def machine(name, levels):
    for day, level in levels.items():
        begin = day * DAY + 600
        times = {"valid_from": begin, "valid_to": begin + 1, "reported_at": begin}
        yield {"interval_key": f"{name}{begin}", "queue_manager": name, "bytes_in_all_queues": level, **times}


def views_of(queues=(), machines=(), *, now=NOW, spark=None, **settings):
    tables = {
        QUEUE_HISTORY: rows(QUEUE_HISTORY, *queues),
        MACHINE_HISTORY: rows(MACHINE_HISTORY, *machines, state="CONNECTED"),
        CAPTURE_FILES: rows(CAPTURE_FILES, {"capture_id": "c", "last_packet_at": now}),
    }
    return LakeViews(InMemoryLake(spark, tables), **settings)


def answer(views, name, **where):
    """The rows of a view that have some values, in both engines if there is Spark."""
    found = answers_of(views, in_spark=views.lake.spark is not None)(name).to_pylist()
    return [row for row in found if where.items() <= row.items()]


@pytest.fixture(scope="module")
def session(spark):
    return quick_session(spark)


def random_levels(random):
    """Levels of some days, with gaps; most with equal ones among them, half with a trend."""
    days = sorted(random.sample(range(OLDEST, 401), random.randint(7, 60)))
    steps, slope = random.choice((1, 3, 10, 10**9)), random.choice((0, 0, -3, 0.2, 5))
    return {day: max(0, round(random.randint(0, steps) * 40 + slope * (day - OLDEST) + 300)) for day in days}


def expected_trend(levels):
    slope, _, low, high = theilslopes([*levels.values()], [*levels])
    return slope, low, high, "rising" if low > 0 else "falling" if high < 0 else "no trend"


def trend_of(row):
    return row["trend_bytes_per_day"], row["trend_low"], row["trend_high"], row["trend"]


# A plain run asks Spark for trends as the dashboard of Databricks does (tests/dashboards/test_databricks.py).
@pytest.mark.parametrize(("count", "in_spark"), [pytest.param(20, True, marks=pytest.mark.long), (300, False)])
def test_slopes_and_intervals_are_those_of_scipy(session, count, in_spark):
    random = Random(78)
    series = {f"q{number}": random_levels(random) for number in range(count)}
    series["equal"] = dict.fromkeys(range(350, 360), 7)
    queues = [row for name, levels in series.items() for row in queue(name, levels, manager=None)]
    queues += [row for name, levels in series.items() for row in queue(f"{name};journal", levels)]
    machines = [row for name, levels in series.items() for row in machine(name, levels)]
    views = views_of(queues, machines, spark=session if in_spark else None, scope=Scope(since=minute(0)))
    expected = {name: expected_trend(levels) for name, levels in series.items()}
    assert {trend[3] for trend in expected.values()} == {"rising", "falling", "no trend"}
    depth = {row["queue"]: row for row in answer(views, "depth_growth") if not row["queue"].endswith(";journal")}
    journal = {row["queue"]: row for row in answer(views, "journal_growth") if row["trend_days"]}
    whole = {row["queue_manager"]: row for row in answer(views, "machines")}
    for found in (depth, journal, whole):
        assert {name: trend_of(row) for name, row in found.items()} == expected
        assert {name: row["trend_days"] for name, row in found.items()} == {n: len(s) for n, s in series.items()}


def minute(value):
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=value)


RISING = {day: (day - 380) * GIB // 8 for day in range(381, 401)}  # an eighth of a GiB a day; 2.5 GiB in the end


def test_a_planted_growth_reaches_its_quota_when_it_was_planted_to(session):
    """At noon of day 400 the last report is two hours old, and shows 2.5 GiB; 8 GiB are 44 days of growth away."""
    views = views_of(queue("q", RISING), machine("srv1", RISING), spark=session)
    for name in ("depth_growth", "machines"):
        (row,) = answer(views, name)
        assert (row["trend_days"], *trend_of(row)) == (20, GIB / 8, GIB / 8, GIB / 8, "rising")
        assert (row["trend_quota_bytes"], row["quota_assumed"], row["quota_bytes"]) == (8 * GIB, True, None)
        until_full = 44 - 2 / 24
        assert row["trend_days_until_full"] == row["trend_full_low"] == row["trend_full_high"]
        assert row["trend_days_until_full"] == pytest.approx(until_full, abs=1e-9)


def test_the_interval_of_days_is_that_of_the_slope(session):
    levels = {day: level + Random(day).randrange(GIB // 2) for day, level in RISING.items()}
    (row,) = answer(views_of(queue("q", levels), spark=session, queue_quota_bytes=4 * GIB), "depth_growth")
    left, since = 4 * GIB - levels[400], 2 / 24
    assert row["trend_low"] < row["trend_bytes_per_day"] < row["trend_high"]
    days = [left / row[slope] - since for slope in ("trend_high", "trend_bytes_per_day", "trend_low")]
    assert [row["trend_full_low"], row["trend_days_until_full"], row["trend_full_high"]] == pytest.approx(days)
    assert row["quota_assumed"] is False


QUOTAS = partial(views_of, [*queue("q", RISING), *queue("r", RISING), *queue("q", RISING, journal=True)])


@pytest.mark.parametrize(
    ("settings", "expected", "of_journal"),
    [
        ({}, (8, True), (8, True)),
        ({"machine_quota_bytes": 6 * GIB}, (6, False), (6, False)),
        ({"machine_quota_bytes": 6 * GIB, "machine_quotas": {"srv1": 5 * GIB}}, (5, False), (5, False)),
        ({"machine_quotas": {"srv2": 5 * GIB}}, (8, True), (8, True)),
        ({"machine_quotas": {"srv1": 5 * GIB}, "queue_quota_bytes": 4 * GIB}, (4, False), (5, False)),
        ({"queue_quota_bytes": 4 * GIB, "quotas": {"q": (3 * GIB, None)}}, (3, False), (8, True)),
        ({"quotas": {"r": (3 * GIB, 3 * GIB)}, "journal_quota_bytes": GIB}, (8, True), (1, False)),
    ],
)
def test_the_quota_is_the_nearest_that_the_configuration_names_else_assumed(settings, expected, of_journal):
    views = QUOTAS(**settings)
    for name, (gib, assumed) in (("depth_growth", expected), ("journal_growth", of_journal)):
        row = answer(views, name, queue="q")[0]
        assert (row["trend_quota_bytes"], row["quota_assumed"]) == (gib * GIB, assumed)


def test_the_quota_of_a_queue_manager_is_its_own():
    machines = [*machine("srv1", RISING), *machine("srv2", RISING)]
    views = views_of((), machines, machine_quotas={"srv1": 3 * GIB})
    found = {
        row["queue_manager"]: (row["trend_quota_bytes"], row["quota_assumed"]) for row in answer(views, "machines")
    }
    assert found == {"srv1": (3 * GIB, False), "srv2": (8 * GIB, True)}


def test_what_is_full_has_no_days_left_and_what_should_be_full_by_now_neither():
    full = views_of(queue("q", RISING), queue_quota_bytes=2 * GIB)
    (row,) = answer(full, "depth_growth")
    assert [row["trend_days_until_full"], row["trend_full_low"], row["trend_full_high"]] == [0, 0, 0]
    # The last report, of day 400, shows half a GiB less than the quota: four days. Ten have passed.
    late = views_of(queue("q", RISING), now=NOW + 10 * DAY, queue_quota_bytes=3 * GIB, scope=Scope(since=minute(0)))
    (row,) = answer(late, "depth_growth")
    assert row["trend_days_until_full"] == 0


@pytest.mark.parametrize("falling", [True, False])
def test_without_a_rising_trend_nothing_is_full_one_day(falling):
    levels = {day: 100 - day % 20 if falling else 50 + day % 2 for day in range(381, 400)}
    (row,) = answer(views_of(queue("q", levels, at=1439)), "depth_growth")
    assert row["trend"] == ("falling" if falling else "no trend")
    assert [row["trend_days_until_full"], row["trend_full_low"], row["trend_full_high"]] == [None] * 3
    assert row["trend_low"] <= row["trend_bytes_per_day"] <= row["trend_high"]


def test_seven_days_are_needed_and_days_without_reports_are_gaps(session):
    """The days between are no zeros: these would give another slope, and more days."""
    days = (340, 341, 350, 360, 371, 390, 400)
    seven = {day: 1000 * day for day in days}
    six = {day: 1000 * day for day in days[1:]}
    unknown = [*queue("six", {345: None, 355: None}), *queue("seven", {345: None})]  # reports without bytes
    views = views_of([*queue("six", six), *queue("seven", seven), *unknown], spark=session)
    (row,) = answer(views, "depth_growth", queue="seven")
    assert (row["trend_days"], *trend_of(row)) == (7, 1000, 1000, 1000, "rising")
    (row,) = answer(views, "depth_growth", queue="six")
    assert (row["trend_days"], *trend_of(row), row["trend_days_until_full"]) == (6, *[None] * 5)
    assert (row["trend_quota_bytes"], row["quota_assumed"]) == (8 * GIB, True)


def test_the_maximum_of_a_day_counts_and_the_last_level_is_that_of_the_last_report():
    more = [*queue("q", RISING), *queue("q", dict.fromkeys(RISING, 0), at=30), *queue("q", {400: GIB}, at=700)]
    (row,) = answer(views_of(more), "depth_growth")
    assert (row["trend_days"], row["trend_bytes_per_day"]) == (20, GIB / 8)
    assert row["trend_days_until_full"] == pytest.approx(7 * 8 - 20 / DAY)


def test_the_newest_90_days_count_within_the_hours_that_are_asked_for():
    steady = dict.fromkeys(range(OLDEST - 200, OLDEST), 10**9)
    levels = steady | {day: 1000 * day for day in range(OLDEST, 401)}
    queues, machines = [*queue("q", levels), *queue("q", levels, journal=True)], [*machine("srv1", levels)]

    def days(since, until=None):
        now = None if until is None else minute(until * DAY)
        scope = Scope(since=None if since is None else minute(since * DAY), until=now)
        views = views_of(queues, machines, scope=scope, as_of=now)
        return [
            next(row["trend_days"] for row in answer(views, name) if row["trend_days"] is not None)
            for name in ("depth_growth", "journal_growth", "machines")
        ]

    assert days(None) == days(0) == [90] * 3
    assert days(371) == [30] * 3
    assert days(371, 396) == [25] * 3
    assert days(396) == [5] * 3


def test_a_journal_has_the_trend_in_the_row_of_its_newest_day():
    found = answer(views_of(queue("q", RISING, journal=True)), "journal_growth")
    assert len(found) == 20
    assert [row["trend_days"] for row in found] == [20] + [None] * 19
    assert found[0]["trend"] == "rising"
    assert {row["quota_assumed"] for row in found[1:]} == {None}


def test_a_queue_manager_that_does_not_report_its_bytes_has_no_trend():
    machines = machine("srv1", dict.fromkeys(RISING))
    (row,) = answer(views_of(queue("q", RISING), machines), "machines")
    assert {name: value for name, value in row.items() if name.startswith(("trend", "quota_assumed"))} == dict.fromkeys(
        ("trend_days", "trend", "trend_bytes_per_day", "trend_low", "trend_high", "trend_quota_bytes",
         "quota_assumed", "trend_days_until_full", "trend_full_low", "trend_full_high"),
    )  # fmt: skip
