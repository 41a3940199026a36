"""Task values are set where Databricks runs the process, and refused elsewhere."""

import sys
from types import SimpleNamespace

import pytest

from jobs.command_line.task_values import set_task_value
from jobs.config import ConfigError

RUNTIME = "databricks.sdk.runtime"


@pytest.fixture
def values(monkeypatch):
    """What is set, with a module like the one of the runtime: ``dbutils.jobs.taskValues.set(key=..., value=...)``."""
    found = {}
    task_values = SimpleNamespace(set=lambda *, key, value: found.__setitem__(key, value))
    dbutils = SimpleNamespace(jobs=SimpleNamespace(taskValues=task_values))
    monkeypatch.setitem(sys.modules, RUNTIME, SimpleNamespace(dbutils=dbutils))
    return found


def test_a_task_of_databricks_sets_its_value(monkeypatch, values):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.2")
    set_task_value("worst_alert", "error")
    assert values == {"worst_alert": "error"}


def test_elsewhere_it_is_refused_also_where_the_sdk_is_installed(monkeypatch, values):
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    with pytest.raises(ConfigError, match="in a job of Databricks only"):
        set_task_value("worst_alert", "error")
    assert values == {}


def test_a_runtime_without_the_sdk_is_told_apart(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.2")
    monkeypatch.setitem(sys.modules, RUNTIME, None)
    with pytest.raises(ConfigError, match="worst_alert cannot be set"):
        set_task_value("worst_alert", "error")
