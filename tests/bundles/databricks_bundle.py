"""databricks.yml as the command line reads it: its variables put in, for one target."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import yaml

_REFERENCE = re.compile(r"\$\{([^{}]+)\}")
_DEPTH = 8  # a variable's value may name others


class UnresolvedError(Exception):
    """A reference to what the bundle does not define."""


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def resolved(bundle: dict[str, Any], target: str, given: dict[str, Any]) -> dict[str, Any]:
    """The resources of a target. ``given`` are values of variables, and of what a workspace says, by dotted names."""
    chosen = bundle["targets"][target]
    values = {name: each.get("default") for name, each in bundle["variables"].items() if "default" in each}
    values |= chosen.get("variables", {})
    known: dict[str, Any] = {f"var.{name}": value for name, value in values.items()}
    known |= {"bundle.name": bundle["bundle"]["name"], "bundle.target": target, **given}

    def one(name: str) -> Any:
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

    def put_in(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put_in(each) for key, each in value.items()}
        if isinstance(value, list):
            return [put_in(each) for each in value]
        for _ in range(_DEPTH):
            if not isinstance(value, str) or not (found := _REFERENCE.search(value)):
                return value
            whole = one(found[1])
            value = whole if found[0] == value else value.replace(found[0], str(whole))
        raise UnresolvedError(f"{value}: a circle")

    return put_in(copy.deepcopy({**bundle["resources"], "target": chosen}))


def tasks(resources: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tasks of all jobs, by ``job.task``."""
    return {f"{name}.{task['task_key']}": task for name, job in resources["jobs"].items() for task in job["tasks"]}
