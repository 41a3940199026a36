"""Values of settings as they are written, made values of the types of their settings and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from jobs.config import ConfigError, Setting
from pipeline.local_paths import local_path
from pipeline.settings import ByteSize, CollectorMachine, MachineQuota, QueueQuota, TunnelPort

_ListEntry: TypeAlias = CollectorMachine | QueueQuota | MachineQuota | TunnelPort
SECONDS_PER_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_DURATION_S = 100 * 366 * 86400  # a century: a packet time plus a duration stays a valid date
BYTES_PER_UNIT = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def convert_and_check(setting: Setting, raw: object, location: str) -> object:
    """Convert a raw value to the type of its setting; ConfigError if it has another type or is out of bounds."""
    value = _convert(setting.value_type, raw, location)
    if isinstance(value, tuple) and setting.minimum is not None:
        for each in value:
            _check_bounds(setting, each, each, location)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        return value
    return _check_bounds(setting, value, raw, location)


def _check_bounds(setting: Setting, value: float | timedelta, raw: object, location: str) -> object:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    unit = " seconds" if isinstance(value, timedelta) else ""
    if setting.minimum is not None and not number >= setting.minimum:
        raise ConfigError(f"{location}: must be at least {setting.minimum}{unit}, not {raw}")
    if setting.maximum is not None and not number <= setting.maximum:
        raise ConfigError(f"{location}: must be at most {setting.maximum}{unit}, not {raw}")
    return value


def _convert(value_type: Any, raw: object, location: str) -> object:
    if value_type == tuple[tuple[str, ...], ...]:
        return _convert_name_groups(raw, location)
    if get_origin(value_type) is tuple:
        return _convert_list(get_args(value_type)[0], raw, location)
    if get_origin(value_type) is Literal:
        allowed = get_args(value_type)
        return _expect(isinstance(raw, str) and raw in allowed, raw, raw, f"one of {', '.join(allowed)}", location)
    if value_type in get_args(_ListEntry):
        return _convert_entry(value_type, raw, location)
    if value_type in (str | None, Path | None, ByteSize | None, timedelta | None) and raw is None:
        return None
    if value_type == Path | None:
        return _convert_path(raw, location)
    if value_type in (str, str | None):
        return _expect(isinstance(raw, str), raw, raw, "text", location)
    if value_type is bool:
        return _expect(isinstance(raw, bool), raw, raw, "true or false", location)
    whole = isinstance(raw, int) and not isinstance(raw, bool)
    if value_type is int:
        return _expect(whole, raw, raw, "a whole number", location)
    if value_type is float:
        number = isinstance(raw, float) or whole
        return _expect(number, float(raw) if isinstance(raw, int | float) else None, raw, "a number", location)
    if value_type in (timedelta, timedelta | None):
        return _convert_duration(raw, location)
    if value_type in (ByteSize, ByteSize | None):
        return _convert_size(raw, location)
    raise TypeError(f"cannot read settings of type {value_type}")


def _expect(holds: bool, value: object, raw: object, expected: str, location: str) -> object:  # noqa: FBT001
    if not holds:
        raise ConfigError(f"{location}: expected {expected}, not {raw!r}")
    return value


def _convert_path(raw: object, location: str) -> Path:
    try:
        return Path(local_path(str(_expect(isinstance(raw, str), raw, raw, "text", location))))
    except ValueError as error:
        raise ConfigError(f"{location}: {error}") from error


def _convert_list(value_type: Any, raw: object, location: str) -> tuple[object, ...]:
    if get_origin(value_type) is Literal:
        return _convert_choices(get_args(value_type), raw, location)
    what = {
        str: "texts",
        int: "whole numbers",
        timedelta: "durations",
        CollectorMachine: "machines",
        QueueQuota: "quotas",
        MachineQuota: "quotas",
        TunnelPort: "ports",
    }[value_type]
    if not isinstance(raw, list):
        raise ConfigError(f"{location}: expected a list of {what}, not {raw!r}")
    found = tuple(_convert(value_type, each, f"{location}[{number}]") for number, each in enumerate(raw))
    if value_type is CollectorMachine:
        names = [machine.name for machine in found if isinstance(machine, CollectorMachine)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"{location}: two machines have the name {twice[0]}")
        return found
    return found if value_type is timedelta else tuple(dict.fromkeys(found))


def _convert_entry(value_type: type[_ListEntry], raw: object, location: str) -> _ListEntry:
    hints = get_type_hints(value_type)
    needed = [each.name for each in fields(value_type) if each.default is MISSING]
    if not isinstance(raw, dict):
        raise ConfigError(f"{location}: expected a mapping with {' and '.join(needed)}, not {raw!r}")
    if unknown := [key for key in raw if key not in hints]:
        raise ConfigError(f"{location}: unknown key {unknown[0]} (there are {', '.join(hints)})")
    values: dict[str, Any] = {}
    for key, each in raw.items():
        if each is not None:
            hint = next((part for part in get_args(hints[key]) if get_origin(part) is tuple), hints[key])
            values[key] = _convert(int if key == "port" else hint, each, f"{location}.{key}")
    if lacking := [key for key in needed if not values.get(key)]:
        raise ConfigError(f"{location}: {lacking[0]} is missing")
    if not 0 < values.get("port", 1) < 1 << 16:
        raise ConfigError(f"{location}.port: must be 1 to 65535, not {values['port']}")
    return value_type(**values)


def _convert_choices(allowed: Sequence[str], raw: object, location: str) -> tuple[str, ...]:
    if not isinstance(raw, list) or any(each not in allowed for each in raw):
        raise ConfigError(f"{location}: expected a list of {', '.join(allowed)}, not {raw!r}")
    return tuple(dict.fromkeys(raw))


def _convert_name_groups(raw: object, location: str) -> tuple[tuple[str, ...], ...]:
    """Convert a list of name groups; each group has at least two names."""
    groups: list[object] = raw if isinstance(raw, list) else [raw]
    found: list[tuple[str, ...]] = []
    for group in groups:
        names = [name for name in group if isinstance(name, str) and name] if isinstance(group, list) else []
        if not isinstance(raw, list) or not isinstance(group, list) or len(names) < max(2, len(group)):
            raise ConfigError(f"{location}: expected a list of lists of two names or more, not {raw!r}")
        found.append(tuple(names))
    return tuple(found)


def parse_duration(raw: object) -> timedelta:
    """Return a duration that is written like 500ms, 60s, 15m, 12h or 7d; ValueError where it is not."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)", raw) if isinstance(raw, str) else None
    if not found:
        raise ValueError(f"expected a duration like 500ms, 60s, 15m, 12h or 7d, not {raw!r}")
    seconds = float(found[1]) * SECONDS_PER_UNIT[found[2]]
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{raw} is too long a time")
    return timedelta(seconds=seconds)


def _convert_duration(raw: object, location: str) -> timedelta:
    try:
        return parse_duration(raw)
    except ValueError as error:
        raise ConfigError(f"{location}: {error}") from error


def _convert_size(raw: object, location: str) -> ByteSize:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return ByteSize(raw)
    found = re.fullmatch(r"(\d{1,15})(|KiB|MiB|GiB|TiB)", raw) if isinstance(raw, str) else None
    if not found:
        raise ConfigError(f"{location}: expected bytes, like 1048576 or 16MiB, not {raw!r}")
    return ByteSize(int(found[1]) * BYTES_PER_UNIT[found[2]])
