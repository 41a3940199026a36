"""Key file for encrypted traffic: read decryption keys from YAML (``--keys FILE`` or MSMQ_KEYS_FILE).

The file has ``ntlm``, a list of ``principal`` with ``password`` or ``nt_hash``, and ``kerberos``, a list of ``keytab``
paths. A reference to a Databricks secret, ``{{secrets/SCOPE/KEY}}``, may replace a password, a hash, the path of a
keytab (the secret is then its bytes in base64), or the whole file.

Error messages contain nothing from the file: no values, and no names either, because a typing error can turn one into
the other.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from jobs.config import ConfigError
from pipeline.bronze.decryption import DecryptionKeys, KeytabError, NtlmKey, parse_keytab

KEYS_FILE_VARIABLE: Final = "MSMQ_KEYS_FILE"
LogFunction = Callable[[str], None]
_SECRET_REFERENCE: Final = re.compile(r"\{\{secrets/([^/{}]+)/([^/{}]+)\}\}")
_NT_HASH: Final = re.compile(r"[0-9a-fA-F]{32}")
_OTHERS_MAY_READ: Final = stat.S_IRGRP | stat.S_IROTH


def load_keys(keys_file: str | None, log: LogFunction) -> DecryptionKeys:
    """Load the keys from ``keys_file`` or else from the file named by MSMQ_KEYS_FILE; no keys if neither is given.

    ConfigError says what is wrong, with file and line. ``log`` receives a warning about files that others may read.
    """
    location = keys_file or os.environ.get(KEYS_FILE_VARIABLE)
    if not location:
        return DecryptionKeys()
    source = "--keys" if keys_file else KEYS_FILE_VARIABLE
    if _SECRET_REFERENCE.fullmatch(location):
        return _parse_keys(_resolve_secret(location, source), source, Path(), log)
    path = Path(location)
    text = _read_file(path, f"{source} {location}", log)
    try:
        return _parse_keys(text.decode("utf-8"), location, path.parent, log)
    except UnicodeDecodeError:
        raise ConfigError(f"{source} {location}: not text in UTF-8") from None


def read_secret(location: str, source: str, log: LogFunction) -> bytes:
    """Return the content of a file, or of a Databricks secret if ``location`` refers to one.

    ``source`` is the argument or variable that named it, for error messages. ``log`` receives a warning if others may
    read the file. ConfigError if there is no such file or secret.
    """
    if _SECRET_REFERENCE.fullmatch(location):
        return _resolve_secret(location, source).encode("utf-8", "surrogateescape")
    return _read_file(Path(location), f"{source} {location}", log)


def _read_file(path: Path, label: str, log: LogFunction) -> bytes:
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{label}: cannot be read: {error.strerror}") from None
    if mode & _OTHERS_MAY_READ:
        log(f"warning: {path} contains keys and others may read it (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    return data


def _parse_keys(text: str, file: str, folder: Path, log: LogFunction) -> DecryptionKeys:
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{file}:{line}: not YAML") from None
    except yaml.YAMLError:
        raise ConfigError(f"{file}: not YAML") from None
    if root is None:
        raise ConfigError(f"{file}: no keys: expected a mapping with ntlm, kerberos or both")
    ntlm: list[NtlmKey] = []
    kerberos: list[Any] = []
    for name, entries in _mapping_fields(root, file, ("ntlm", "kerberos")).items():
        for number, entry in enumerate(_list_entries(entries, file, name)):
            location = f"{_file_and_line(entry, file)}: {name}[{number}]"
            if name == "ntlm":
                values = _text_fields(entry, file, location, ("principal", "password", "nt_hash"))
                ntlm.append(_parse_ntlm_entry(values, location))
            else:
                values = _text_fields(entry, file, location, ("keytab",))
                kerberos += _load_keytab_entry(values, location, folder, log)
    if not ntlm and not kerberos:
        raise ConfigError(f"{file}: no keys: both lists are empty")
    return DecryptionKeys(tuple(ntlm), tuple(kerberos))


def _parse_ntlm_entry(entry: dict[str, str], location: str) -> NtlmKey:
    principal = entry.get("principal")
    if not principal:
        raise ConfigError(f"{location}: principal is missing: DOMAIN\\user, * stands for anything")
    if ("password" in entry) == ("nt_hash" in entry):
        raise ConfigError(f"{location}: expected either password or nt_hash")
    if "password" in entry:
        return NtlmKey.from_password(principal, _resolve_secret(entry["password"], location))
    value = _resolve_secret(entry["nt_hash"], location)
    if not _NT_HASH.fullmatch(value):
        raise ConfigError(f"{location}: nt_hash: expected 32 hexadecimal digits")
    return NtlmKey(principal, bytes.fromhex(value))


def _load_keytab_entry(entry: dict[str, str], location: str, folder: Path, log: LogFunction) -> list[Any]:
    keytab = entry.get("keytab")
    if not keytab:
        raise ConfigError(f"{location}: keytab is missing: the path of a keytab")
    if _SECRET_REFERENCE.fullmatch(keytab):
        try:
            data = base64.b64decode(_resolve_secret(keytab, location), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"{location}: keytab: the secret is not base64") from None
    else:
        data = _read_file(folder / keytab, f"{location}: keytab {keytab}", log)
    try:
        found = parse_keytab(data)
    except KeytabError as error:
        raise ConfigError(f"{location}: keytab: {error}") from None
    if not found:
        raise ConfigError(f"{location}: keytab: it has no keys")
    return found


def _file_and_line(node: yaml.Node, file: str) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def _mapping_fields(
    node: yaml.Node, file: str, names: tuple[str, ...], location: str | None = None
) -> dict[str, yaml.Node]:
    """Return the entries of a mapping by name; ConfigError for an unknown or duplicate name."""
    expected = ", ".join(names)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{location or _file_and_line(node, file)}: expected a mapping of {expected}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in names:
            raise ConfigError(f"{_file_and_line(key, file)}: unknown name (there are {expected})")
        if key.value in found:
            raise ConfigError(f"{_file_and_line(key, file)}: {key.value} appears twice")
        found[key.value] = value
    return found


def _list_entries(node: yaml.Node, file: str, name: str) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~"):
        return
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(f"{_file_and_line(node, file)}: {name}: expected a list")
    yield from node.value


def _text_fields(node: yaml.Node, file: str, location: str, names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name, value in _mapping_fields(node, file, names, location).items():
        if not isinstance(value, yaml.ScalarNode):
            raise ConfigError(f"{location}: {name}: expected text (a reference to a secret is quoted)")
        found[name] = value.value
    return found


def _resolve_secret(text: str, location: str) -> str:
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
