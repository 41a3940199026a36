"""Settings from a YAML file and from the command line.

An unknown setting, a duplicate one, or a value of the wrong type is a ConfigError with its location: file, line and
key, or the ``--set`` argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

import yaml

from jobs.command_line.setting_values import convert_and_check
from jobs.config import SECTIONS, Config, ConfigError, list_settings


def load_config(path: str | Path | None, overrides: Iterable[str] = ()) -> Config:
    """Read a YAML file (None: only defaults) and apply ``key.path=value`` overrides; ConfigError if invalid."""
    given = dict(_read_file(Path(path))) if path is not None else {}
    given.update(_read_overrides(overrides))
    return _build_config(given)


def _build_config(given: Mapping[str, tuple[str, object]]) -> Config:
    """Build the Config from ``{dotted key: (location, raw value)}``; ConfigError for an unknown key or wrong value."""
    known = list_settings()
    config = Config()
    for key, (location, raw) in given.items():
        if key not in known:
            raise ConfigError(f"{location}: unknown setting {key}{_known_names(key)}")
        value = convert_and_check(known[key], raw, f"{location}: {key}")
        section, name = key.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config


def _known_names(key: str) -> str:
    section = key.partition(".")[0]
    names = [each.name for each in fields(SECTIONS[section])] if section in SECTIONS else list(SECTIONS)
    return f" (there are {', '.join(names)})"


def _read_file(path: Path) -> Iterator[tuple[str, tuple[str, object]]]:
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    seen: set[str] = set()
    for location, section, node in _mapping_entries(root, str(path), "the file"):
        if section in seen or section not in SECTIONS:
            what = (
                f"{section} appears twice" if section in seen else f"unknown setting {section}{_known_names(section)}"
            )
            raise ConfigError(f"{location}: {what}")
        seen.add(section)
        yield from _read_section(node, str(path), section)


def _read_section(node: yaml.Node, path: str, section: str) -> Iterator[tuple[str, tuple[str, object]]]:
    seen: set[str] = set()
    for location, name, value in _mapping_entries(node, path, section):
        key = f"{section}.{name}"
        if key in seen:
            raise ConfigError(f"{location}: {key} appears twice")
        seen.add(key)
        yield key, (location, _python_value(value, f"{location}: {key}"))


def _mapping_entries(node: yaml.Node | None, path: str, what: str) -> Iterator[tuple[str, str, yaml.Node]]:
    """Yield (location, name, value node) for the entries of a YAML mapping; an empty file or section has none."""
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
        return
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {what} must hold settings")
    for name, value in node.value:
        location = f"{path}:{name.start_mark.line + 1}"
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError(f"{location}: a setting's name must be text")
        yield location, name.value, value


def _python_value(node: yaml.Node, location: str) -> object:
    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError(f"{location}: {' '.join(str(error).split())}") from error


def _read_overrides(overrides: Iterable[str]) -> Iterator[tuple[str, tuple[str, object]]]:
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected key.path=value")
        try:
            yield key.strip(), (f"--set {text}", yaml.safe_load(value))
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"--set {text}: not YAML: {' '.join(str(error).split())}") from error
