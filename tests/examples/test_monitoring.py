"""The examples for Prometheus and Grafana ask for metrics and labels that metrics.prom has."""

import json
import re
import subprocess

import pytest
import yaml

from dashboards.sites import alert, data, quality, queue, site
from dashboards.test_prometheus import read
from pipeline.dashboards.prometheus import render_metrics

OTHERS = {"node_textfile_mtime_seconds": {"file"}}  # of node_exporter
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")
SELECTOR = re.compile(r"\b([a-zA-Z_]\w*)\b(?!\s*\()(\{[^}]*\})?")  # a name before a parenthesis is a function
MATCHER = re.compile(r'(\w+)\s*(=~|=)\s*"([^"]*)"')


@pytest.fixture(scope="module")
def samples():
    """The labels of the samples of each metric, of a lake with a row or more of all that the examples ask for."""
    severities = ("error", "warning", "info")
    dashboard = site(
        alerts=data([alert("orders", number, severity=severity) for number, severity in enumerate(severities)]),
        queues=data([queue("orders", 1), queue("old", 2, state="UNKNOWN", known_until=None)]),
        quality=data([quality("has_a_connection", 1), quality("keys_unique", 2, success=False)]),
    )
    return {name: [labels for labels, _ in found] for name, found in read(render_metrics(dashboard)).items()}


@pytest.fixture
def examples(project):
    return project / "conf" / "examples"


def selected(expression):
    """The metrics that an expression selects, with their matchers; and the labels that it groups by."""
    found = [(name, MATCHER.findall(matchers)) for name, matchers in SELECTOR.findall(GROUPING.sub("", expression))]
    return found, {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}


def check(expression, samples, shown=()):
    """Assert that an expression selects samples, and that these have the labels that it groups by and shows."""
    found, grouped = selected(expression)
    assert found, expression
    for name, matchers in found:
        if name in OTHERS:
            assert {label for label, _, _ in matchers} | grouped <= OTHERS[name]
            continue
        assert name in samples, f"{expression}: no metric {name}"
        chosen = [labels for labels in samples[name] if all(matches(labels, *matcher) for matcher in matchers)]
        assert chosen, f"{expression}: no sample of {name}"
        assert all(grouped <= labels.keys() for labels in chosen), f"{expression}: grouped by what {name} has not"
        assert all(set(shown) <= (grouped or labels.keys()) for labels in chosen), f"{expression}: shows {shown}"


def matches(labels, name, operator, value):
    pattern = re.escape(value) if operator == "=" else value
    return name in labels and re.fullmatch(pattern, labels[name]) is not None


def test_the_rules_ask_for_what_there_is(examples, samples):
    (group,) = yaml.safe_load((examples / "prometheus-rules.yml").read_text(encoding="utf-8"))["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 4
    for rule in group["rules"]:
        check(rule["expr"], samples, re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_each_rule_is_tested_where_it_fires_and_where_it_does_not(examples):
    (group,) = yaml.safe_load((examples / "prometheus-rules.yml").read_text(encoding="utf-8"))["groups"]
    tests = yaml.safe_load((examples / "prometheus-rules-test.yml").read_text(encoding="utf-8"))["tests"]
    asked = [each for test in tests for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in asked if each["exp_alerts"]} == {rule["alert"] for rule in group["rules"]}


def test_the_pages_that_alerts_name_are_there(examples, project):
    text = (examples / "prometheus-rules.yml").read_text(encoding="utf-8")
    pages = re.findall(r"runbook: (\S+)", text)
    assert pages
    assert [page for page in pages if not (project / page).exists()] == []


@pytest.mark.tool("promtool")
def test_the_rules_fire_as_their_tests_say(examples):
    tests = examples / "prometheus-rules-test.yml"
    done = subprocess.run(["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_asks_for_what_there_is(examples, samples):
    dashboard = json.loads((examples / "grafana-dashboard.json").read_text(encoding="utf-8"))
    assert dashboard["schemaVersion"] >= 36
    assert [each["type"] for each in dashboard["templating"]["list"]] == ["datasource"]
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            check(target["expr"], samples, re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))


def test_panels_do_not_overlap(examples):
    panels = json.loads((examples / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(msmq_alert)",
        'sum(msmq_alerts{severity="fatal"})',
        "sum by (machine) (msmq_alerts)",
        'msmq_alerts{level="error"} > 0',
    ],
)
def test_what_metrics_do_not_have_is_found(samples, wrong):
    with pytest.raises(AssertionError):
        check(wrong, samples)
