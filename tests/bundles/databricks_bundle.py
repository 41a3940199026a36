"""Reads databricks.yml as the Databricks CLI does: with the variables of one target filled in."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import yaml

_REFERENCE = re.compile(r"\$\{([^{}]+)\}")
_DEPTH = 8  # a variable's value may name others


class UnresolvedError(Exception):
    """A reference to a name that the bundle does not define."""


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def resolved(bundle: dict[str, Any], target: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the resources of a target. ``given`` are values of variables and of the workspace, by dotted names."""
    chosen = bundle["targets"][target]
    values = {name: each.get("default") for name, each in bundle["variables"].items() if "default" in each}
    values |= chosen.get("variables", {})
    known: dict[str, Any] = {f"var.{name}": value for name, value in values.items()}
    known |= {"bundle.name": bundle["bundle"]["name"], "bundle.target": target, **given}

    def lookup(name: str) -> Any:
        if name in known:
            return known[name]
        if name.startswith("resources."):
            found: Any = bundle
            for part in name.split("."):
                if part not in found:
                    raise UnresolvedError(name)
                found = found[part]
            return found
        raise UnresolvedError(name)

    def substitute(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: substitute(each) for key, each in value.items()}
        if isinstance(value, list):
            return [substitute(each) for each in value]
        for _ in range(_DEPTH):
            if not isinstance(value, str) or not (found := _REFERENCE.search(value)):
                return value
            whole = lookup(found[1])
            value = whole if found[0] == value else value.replace(found[0], str(whole))
        raise UnresolvedError(f"{value}: circular reference")

    return substitute(copy.deepcopy({**bundle["resources"], "target": chosen}))


def wheel_tasks(resources: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tasks that run jobs of the wheel, by ``job.task``."""
    return {
        f"{name}.{task['task_key']}": task
        for name, job in resources["jobs"].items()
        for task in job["tasks"]
        if "python_wheel_task" in task
    }
