"""Task values: what a task of a Databricks job tells the tasks that depend on it."""

from __future__ import annotations

import os
from importlib import import_module

from jobs.config import ConfigError

_RUNTIME_VARIABLE = "DATABRICKS_RUNTIME_VERSION"  # set in every process of the runtime


def set_task_value(name: str, value: str) -> None:
    """Set a value of this task, which its job reads as ``{{tasks.TASK.values.NAME}}``.

    The runtime contains Databricks' SDK, which gives ``dbutils`` to processes that are not notebooks. Elsewhere no
    value can be set: ConfigError.
    """
    if _RUNTIME_VARIABLE not in os.environ:
        raise ConfigError(f"the task value {name} can be set in a job of Databricks only")
    try:
        utilities = import_module("databricks.sdk.runtime").dbutils
    except ImportError as error:
        raise ConfigError(f"the task value {name} cannot be set: {error}") from error
    utilities.jobs.taskValues.set(key=name, value=value)
