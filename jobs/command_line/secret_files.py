"""YAML files with secrets: what is wrong in one is said with its line, never with what stands there.

Names are not said either, because a typing error can turn a value into a name. A reference to a Databricks secret,
``{{secrets/SCOPE/KEY}}``, may stand in place of a value, or of the whole file.
"""

from __future__ import annotations

import importlib
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import yaml

from jobs.config import ConfigError

LogFunction = Callable[[str], None]
_SECRET_REFERENCE: Final = re.compile(r"\{\{secrets/([^/{}]+)/([^/{}]+)\}\}")
_OTHERS_MAY_READ: Final = stat.S_IRGRP | stat.S_IROTH


def is_secret_reference(text: str) -> bool:
    """Whether a text refers to a Databricks secret."""
    return _SECRET_REFERENCE.fullmatch(text) is not None


def read_secret(location: str, source: str, log: LogFunction) -> bytes:
    """Return the content of a file, or of a Databricks secret if ``location`` refers to one.

    ``source`` is the argument or variable that named it, for error messages. ``log`` receives a warning if others may
    read the file. ConfigError if there is no such file or secret.
    """
    if _SECRET_REFERENCE.fullmatch(location):
        return resolve_secret(location, source).encode("utf-8", "surrogateescape")
    return read_secret_file(Path(location), f"{source} {location}", log)


def read_secret_file(path: Path, label: str, log: LogFunction) -> bytes:
    """Return the content of a file; ``label`` is what it is called in messages. Otherwise as ``read_secret``."""
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{label}: cannot be read: {error.strerror}") from None
    if mode & _OTHERS_MAY_READ:
        log(f"warning: {path} contains keys and others may read it (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    return data


def read_secret_yaml(location: str, source: str, log: LogFunction) -> tuple[yaml.Node | None, str]:
    """Return the YAML nodes of a file, None of an empty one, and what it is called in messages.

    The arguments are those of ``read_secret``. ConfigError if there is none, or if it is not YAML.
    """
    file = source if is_secret_reference(location) else location
    data = read_secret(location, source, log)
    try:
        root: yaml.Node | None = yaml.compose(data.decode("utf-8"), Loader=yaml.BaseLoader)
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{file}:{line}: not YAML") from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{file}: not YAML") from None
    return root, file


def file_and_line(node: yaml.Node, file: str) -> str:
    """Return where a node is, for messages."""
    return f"{file}:{node.start_mark.line + 1}"


def mapping_fields(
    node: yaml.Node, file: str, names: tuple[str, ...], location: str | None = None
) -> dict[str, yaml.Node]:
    """Return the entries of a mapping by name; ConfigError for an unknown or duplicate name."""
    expected = ", ".join(names)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{location or file_and_line(node, file)}: expected a mapping of {expected}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in names:
            raise ConfigError(f"{file_and_line(key, file)}: unknown name (there are {expected})")
        if key.value in found:
            raise ConfigError(f"{file_and_line(key, file)}: {key.value} appears twice")
        found[key.value] = value
    return found


def list_entries(node: yaml.Node, file: str, name: str) -> Iterator[yaml.Node]:
    """Yield the entries of a list; none for null. ConfigError for anything else."""
    if isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~"):
        return
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(f"{file_and_line(node, file)}: {name}: expected a list")
    yield from node.value


def text_fields(node: yaml.Node, file: str, location: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the texts of a mapping by name; ConfigError for an unknown or duplicate name, and for other values."""
    found = {}
    for name, value in mapping_fields(node, file, names, location).items():
        if not isinstance(value, yaml.ScalarNode):
            raise ConfigError(f"{location}: {name}: expected text (a reference to a secret is quoted)")
        found[name] = value.value
    return found


def resolve_secret(text: str, location: str) -> str:
    """Return the text, or the value of the Databricks secret that it refers to."""
    reference = _SECRET_REFERENCE.fullmatch(text)
    if reference is None:
        return text
    scope, key = reference.groups()
    try:
        utilities = importlib.import_module("databricks.sdk.runtime").dbutils
    except (ImportError, AttributeError):
        raise ConfigError(f"{location}: secret {scope}/{key}: secret scopes can only be read on Databricks") from None
    try:
        return str(utilities.secrets.get(scope=scope, key=key))
    except Exception:  # noqa: BLE001 - any error of dbutils; its text may contain secrets
        raise ConfigError(
            f"{location}: secret {scope}/{key}: it does not exist, or this user may not read it"
        ) from None
