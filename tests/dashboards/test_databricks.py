"""The Databricks dashboard definition is consistent. test_run_all.py runs its queries on a lake."""

from __future__ import annotations

import json
from types import SimpleNamespace

from pipeline.dashboards.databricks import DASHBOARD_DATASETS, DASHBOARD_PAGES, dashboard_json


def definition():
    lake = SimpleNamespace(sql_name=lambda table: f"`main`.`{table.layer}`.`{table.name}`")
    return json.loads(dashboard_json(lake))


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
