"""Reads databricks.yml as the Databricks CLI does for one target, and returns the resources that a deployment makes.

The rules are those of databricks/cli v1.13.0 (2026-08-20), in the order of its phases: variables, presets of the
target's mode, references to other resources. Each function names the file of ``bundle/config/mutator`` that it follows.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

USER = {"workspace.current_user.userName": "Some.Body@example.com", "workspace.current_user.short_name": "some_body"}
PREFIX = "[dev some_body] "
_REFERENCE = re.compile(r"\$\{([^{}]+)\}")
_ROUNDS = 11  # resolve_variable_references.go: references whose values have references
# resourcemutator/apply_bundle_permissions.go
_LEVELS = {
    "jobs": {"CAN_MANAGE": "CAN_MANAGE", "CAN_VIEW": "CAN_VIEW", "CAN_RUN": "CAN_MANAGE_RUN"},
    "dashboards": {"CAN_MANAGE": "CAN_MANAGE", "CAN_VIEW": "CAN_READ"},
}


class BundleError(Exception):
    """The CLI would refuse the bundle: a name that it does not define, or values that exclude each other."""


def load(path: Path) -> dict[str, Any]:
    """Return a bundle with the resources of the files that it includes; no resource may be in two of them."""
    bundle = yaml.safe_load(path.read_text(encoding="utf-8"))
    for pattern in bundle.get("include", []):
        (included,) = path.parent.glob(pattern)
        for kind, resources in yaml.safe_load(included.read_text(encoding="utf-8"))["resources"].items():
            found = bundle["resources"].setdefault(kind, {})
            if both := found.keys() & resources.keys():
                raise BundleError(f"{kind} in two files: {sorted(both)}")  # validate/unique_resource_keys.go
            found |= resources
    return bundle


def resolved(bundle: dict[str, Any], target: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the resources of a target. ``given`` are values of variables and of the workspace, by dotted names."""
    chosen = bundle["targets"][target]
    values = {name: each["default"] for name, each in bundle["variables"].items() if "default" in each}
    for name, value in chosen.get("variables", {}).items():
        values[name] = value["default"] if isinstance(value, dict) else value
    known = {f"var.{name}": value for name, value in values.items()}
    known |= {"bundle.name": bundle["bundle"]["name"], "bundle.target": target, **USER, **given}
    found = _substitute({**bundle["resources"], "target": chosen}, lambda name: _value(known, name))
    chosen = found["target"]
    _apply_run_as(found, chosen.get("run_as"))
    if chosen["mode"] == "development":
        _apply_development_presets(found)
    _apply_permissions(found, chosen.get("permissions", []))
    for schema in found["schemas"].values():
        schema["grants"] = _merged_grants(schema["grants"])
    return _substitute(found, lambda name: _field(found, name))


def _value(known: dict[str, Any], name: str) -> Any:
    """The value of a variable, of the bundle or of the workspace; references to resources stay."""
    if name.startswith("resources."):
        return None
    if name not in known:
        raise BundleError(f"no value for {name}")
    return known[name]


def _field(resources: dict[str, Any], name: str) -> Any:
    """A field of another resource, as it is after the presets."""
    _, kind, key, field = name.split(".")
    if key not in resources[kind]:
        raise BundleError(f"no resource {name}")
    return resource_id(resources, kind, key) if field == "id" else resources[kind][key][field]


def resource_id(resources: dict[str, Any], kind: str, key: str) -> int:
    """A number that stands for the id that a workspace gives a resource."""
    return 1 + list(resources[kind]).index(key)


def _substitute(value: Any, lookup: Callable[[str], Any]) -> Any:
    """resolve_variable_references.go. A text that is one reference becomes its value, of whatever type."""
    if isinstance(value, dict):
        return {key: _substitute(each, lookup) for key, each in value.items()}
    if isinstance(value, list):
        return [_substitute(each, lookup) for each in value]
    for _ in range(_ROUNDS):
        if not isinstance(value, str):
            return _substitute(copy.deepcopy(value), lookup) if isinstance(value, dict | list) else value
        replaced = {name: each for name in _REFERENCE.findall(value) if (each := lookup(name)) is not None}
        if not replaced:
            return value
        for name, each in replaced.items():
            reference = f"${{{name}}}"
            value = each if value == reference else value.replace(reference, str(each))
    raise BundleError(f"circular reference: {value}")


def _apply_run_as(resources: dict[str, Any], run_as: dict[str, str] | None) -> None:
    """resourcemutator/run_as.go: one identity, of every job that names none itself."""
    if run_as is None:
        return
    if len([each for each in run_as.values() if each]) != 1:
        raise BundleError("run_as section must specify exactly one identity")
    for job in resources["jobs"].values():
        job.setdefault("run_as", run_as)


def _apply_development_presets(resources: dict[str, Any]) -> None:
    """resourcemutator/apply_target_mode.go, apply_presets.go: names, tags, and what starts by itself is paused."""
    for job in resources["jobs"].values():
        job["name"] = PREFIX + job["name"]
        job["tags"] = {"dev": "some_body", **job.get("tags", {})}
        job.setdefault("max_concurrent_runs", 4)
        for start in ("schedule", "trigger"):
            if start in job and not job[start].get("pause_status"):
                job[start]["pause_status"] = "PAUSED"
    for dashboard in resources["dashboards"].values():
        dashboard["display_name"] = PREFIX + dashboard["display_name"]
    for schema in resources["schemas"].values():
        schema["name"] = _normalized_prefix(PREFIX) + schema["name"]


def _normalized_prefix(prefix: str) -> str:
    """normalizePrefix of apply_presets.go, NormalizeString of libs/textutil: ``dev_some_body_``."""
    plain = re.sub(r"[\W_]+", "_", prefix.lower()).strip("_")
    return plain + ("_" if prefix.strip().endswith("]") else "")


def _apply_permissions(resources: dict[str, Any], permissions: list[dict[str, str]]) -> None:
    """resourcemutator/apply_bundle_permissions.go: a level that a kind of resource does not have is left out."""
    for kind, levels in _LEVELS.items():
        own = [{**each, "level": levels[each["level"]]} for each in permissions if each["level"] in levels]
        for resource in resources[kind].values():
            resource["permissions"] = [*resource.get("permissions", []), *own]


def _merged_grants(grants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """resourcemutator/merge_grants.go: one entry for each principal."""
    merged: dict[str, dict[str, None]] = {}
    for each in grants:
        merged.setdefault(each["principal"], {}).update(dict.fromkeys(each["privileges"]))
    return [{"principal": name, "privileges": list(privileges)} for name, privileges in merged.items()]


def wheel_tasks(resources: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tasks that run jobs of the wheel, by ``job.task``."""
    return {name: task for name, task in tasks(resources) if "python_wheel_task" in task}


def tasks(resources: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every task with its name, ``job.task``."""
    for name, job in resources["jobs"].items():
        for task in job["tasks"]:
            yield f"{name}.{task['task_key']}", task
