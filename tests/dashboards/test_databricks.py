"""The Databricks dashboard definition is consistent. test_run_all.py runs its queries on a lake."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from pipeline.dashboards.databricks import DASHBOARD_DATASETS, DASHBOARD_PAGES, dashboard_json
from pipeline.reports.views.catalog import catalog_sql
from reports.questions.both_engines import quick_session
from reports.questions.test_trends import GIB, RISING, machine, queue, views_of


def sql_name(table):
    return f"`main`.`{table.layer}`.`{table.name}`"


def definition():
    return json.loads(dashboard_json(SimpleNamespace(sql_name=sql_name)))


def test_widgets_name_datasets_that_are_there_and_none_lies_over_another():
    found = definition()
    names = {dataset["name"] for dataset in found["datasets"]}
    for page in found["pages"]:
        taken = set()
        for each in page["layout"]:
            place = each["position"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["width"])
                for y in range(place["y"], place["y"] + place["height"])
            }
            assert max(x for x, _ in cells) < 6
            assert not cells & taken
            taken |= cells
            (query,) = each["widget"]["queries"]
            assert query["query"]["datasetName"] in names
    widgets = [each["widget"]["name"] for page in found["pages"] for each in page["layout"]]
    assert len(set(widgets)) == len(widgets)
    assert {page["displayName"]: len(page["layout"]) for page in found["pages"]} == {
        title: len(widgets) for title, widgets in DASHBOARD_PAGES
    }


def test_encodings_name_fields_of_the_widgets_query():
    def named(value):
        if isinstance(value, dict):
            if "fieldName" in value:
                yield value["fieldName"]
            for each in value.values():
                yield from named(each)
        elif isinstance(value, list):
            for each in value:
                yield from named(each)

    for page in definition()["pages"]:
        for each in page["layout"]:
            fields = {field["name"] for field in each["widget"]["queries"][0]["query"]["fields"]}
            assert set(named(each["widget"]["spec"]["encodings"])) == fields, each["widget"]["name"]


def test_queries_are_of_the_lakes_own_tables():
    for dataset in definition()["datasets"]:
        text = "".join(dataset["queryLines"])
        assert "`main`.`" in text
        assert "{" not in text
    assert {dataset["name"] for dataset in definition()["datasets"]} == {source.name for source in DASHBOARD_DATASETS}


def test_the_page_of_the_estate_shows_the_views_of_the_estate():
    datasets = {each["name"]: "".join(each["queryLines"]) for each in definition()["datasets"]}
    for name in ("estate_queues", "estate_flows", "estate_machines"):
        assert datasets[name] == f"SELECT * FROM ({catalog_sql(name, sql_name)})"
    assert catalog_sql("estate_hours", sql_name) in datasets["estate_hours"]
    (page,) = (page for page in definition()["pages"] if page["displayName"] == "Estate")
    shown = {each["widget"]["queries"][0]["query"]["datasetName"] for each in page["layout"]}
    assert shown == {"estate_queues", "estate_flows", "estate_machines", "estate_hours", "trends"}


@pytest.mark.spark
def test_the_trends_of_the_dashboard_are_those_of_the_views(spark):
    session = quick_session(spark)
    reports = [*queue("q", RISING), *queue("q", RISING, journal=True)]
    views = views_of(reports, machine("srv1", RISING), spark=session)
    views.create_temporary(["depth_growth", "journal_growth", "machines"])  # makes views of the tables, too
    names = SimpleNamespace(sql_name=lambda table: f"{table.layer}_{table.name}")
    datasets = {each["name"]: "".join(each["queryLines"]) for each in json.loads(dashboard_json(names))["datasets"]}
    found = session.sql(datasets["trends"]).toArrow().to_pylist()
    assert [(row["what"], row["queue"], row["bytes"]) for row in found] == [
        ("messages", "q", 5 * GIB // 2), ("journal", "q", 5 * GIB // 2), ("all queues", None, 5 * GIB // 2),
    ]  # fmt: skip
    assert {(row["trend"], row["trend_days"], row["trend_bytes_per_day"]) for row in found} == {("rising", 20, GIB / 8)}
