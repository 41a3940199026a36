"""The key file: which keys open sealed traffic (``--keys FILE``, or MSMQ_KEYS_FILE).

YAML: ``ntlm``, a list of ``principal`` with ``password`` or ``nt_hash``; ``kerberos``, a list of ``keytab`` paths. In
place of a password, a hash or a keytab's path, and of the whole file, may stand a reference to a Databricks secret,
``{{secrets/SCOPE/KEY}}`` (a keytab's secret is its bytes in base64).

Nothing of the file's contents goes into a message: not a value, and not a name either, for a slip of the keyboard makes
one of the other.
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
from pipeline.bronze.decryption import Keys, KeytabError, NtlmKey, keytab_keys

VARIABLE: Final = "MSMQ_KEYS_FILE"
Say = Callable[[str], None]
_SECRET: Final = re.compile(r"\{\{secrets/([^/{}]+)/([^/{}]+)\}\}")
_HASH: Final = re.compile(r"[0-9a-fA-F]{32}")
_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


def load_keys(named: str | None, say: Say) -> Keys:
    """Return the keys of a file, of the one that MSMQ_KEYS_FILE names, or none; ConfigError with what is wrong where.

    ``say`` is told of files that others may read.
    """
    place = named or os.environ.get(VARIABLE)
    if not place:
        return Keys()
    source = "--keys" if named else VARIABLE
    if _SECRET.fullmatch(place):
        return _parsed(_secret(place, source), source, Path(), say)
    path = Path(place)
    text = _bytes(path, f"{source} {place}", say)
    try:
        return _parsed(text.decode("utf-8"), place, path.parent, say)
    except UnicodeDecodeError:
        raise ConfigError(f"{source} {place}: not text in UTF-8") from None


def read_secret(named: str, source: str, say: Say) -> bytes:
    """Return the content of a file, or of the Databricks secret that is named in its place; else ConfigError.

    ``source`` says where it was named; ``say`` is told of a file that others may read.
    """
    if _SECRET.fullmatch(named):
        return _secret(named, source).encode("utf-8", "surrogateescape")
    return _bytes(Path(named), f"{source} {named}", say)


def _bytes(path: Path, place: str, say: Say) -> bytes:
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{place}: cannot be read: {error.strerror}") from None
    if mode & _OTHERS:
        say(f"warning: {path} holds keys and others may read it (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    return data


def _parsed(text: str, place: str, folder: Path, say: Say) -> Keys:
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{place}:{line}: not YAML") from None
    except yaml.YAMLError:
        raise ConfigError(f"{place}: not YAML") from None
    if root is None:
        raise ConfigError(f"{place}: no keys: expected a mapping with ntlm, kerberos or both")
    ntlm: list[NtlmKey] = []
    kerberos: list[Any] = []
    for name, entries in _fields(root, place, ("ntlm", "kerberos")).items():
        for number, entry in enumerate(_entries(entries, place, name)):
            where = f"{_at(entry, place)}: {name}[{number}]"
            if name == "ntlm":
                ntlm.append(_ntlm(_texts(entry, place, where, ("principal", "password", "nt_hash")), where))
            else:
                kerberos += _keytab(_texts(entry, place, where, ("keytab",)), where, folder, say)
    if not ntlm and not kerberos:
        raise ConfigError(f"{place}: no keys: both lists are empty")
    return Keys(tuple(ntlm), tuple(kerberos))


def _ntlm(entry: dict[str, str], where: str) -> NtlmKey:
    principal = entry.get("principal")
    if not principal:
        raise ConfigError(f"{where}: principal is missing: DOMAIN\\user, * stands for anything")
    if ("password" in entry) == ("nt_hash" in entry):
        raise ConfigError(f"{where}: expected either password or nt_hash")
    if "password" in entry:
        return NtlmKey.of_password(principal, _secret(entry["password"], where))
    value = _secret(entry["nt_hash"], where)
    if not _HASH.fullmatch(value):
        raise ConfigError(f"{where}: nt_hash: expected 32 hexadecimal digits")
    return NtlmKey(principal, bytes.fromhex(value))


def _keytab(entry: dict[str, str], where: str, folder: Path, say: Say) -> list[Any]:
    named = entry.get("keytab")
    if not named:
        raise ConfigError(f"{where}: keytab is missing: the path of a keytab")
    if _SECRET.fullmatch(named):
        try:
            data = base64.b64decode(_secret(named, where), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"{where}: keytab: the secret is not base64") from None
    else:
        data = _bytes(folder / named, f"{where}: keytab {named}", say)
    try:
        found = keytab_keys(data)
    except KeytabError as error:
        raise ConfigError(f"{where}: keytab: {error}") from None
    if not found:
        raise ConfigError(f"{where}: keytab: it has no keys")
    return found


def _at(node: yaml.Node, place: str) -> str:
    return f"{place}:{node.start_mark.line + 1}"


def _fields(node: yaml.Node, place: str, names: tuple[str, ...], where: str | None = None) -> dict[str, yaml.Node]:
    """Return the fields of a mapping, each of a known name, none twice."""
    expected = ", ".join(names)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{where or _at(node, place)}: expected a mapping of {expected}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in names:
            raise ConfigError(f"{_at(key, place)}: unknown name (there are {expected})")
        if key.value in found:
            raise ConfigError(f"{_at(key, place)}: {key.value} stands there twice")
        found[key.value] = value
    return found


def _entries(node: yaml.Node, place: str, name: str) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~"):
        return
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(f"{_at(node, place)}: {name}: expected a list")
    yield from node.value


def _texts(node: yaml.Node, place: str, where: str, names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name, value in _fields(node, place, names, where).items():
        if not isinstance(value, yaml.ScalarNode):
            raise ConfigError(f"{where}: {name}: expected text (a reference to a secret is quoted)")
        found[name] = value.value
    return found


def _secret(text: str, where: str) -> str:
    """Return the text, or the Databricks secret that it refers to."""
    reference = _SECRET.fullmatch(text)
    if reference is None:
        return text
    scope, key = reference.groups()
    try:
        utilities = importlib.import_module("databricks.sdk.runtime").dbutils
    except (ImportError, AttributeError):
        raise ConfigError(f"{where}: secret {scope}/{key}: secret scopes can be read on Databricks alone") from None
    try:
        return str(utilities.secrets.get(scope=scope, key=key))
    except Exception:  # noqa: BLE001 - whatever the utilities raise; their text is not ours to show
        raise ConfigError(f"{where}: secret {scope}/{key}: there is none, or this user may not read it") from None
