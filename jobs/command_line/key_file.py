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
import os
import re
from pathlib import Path
from typing import Any, Final

import yaml

from jobs.command_line.secret_files import (
    LogFunction,
    file_and_line,
    is_secret_reference,
    list_entries,
    mapping_fields,
    read_secret_file,
    read_secret_yaml,
    resolve_secret,
    text_fields,
)
from jobs.config import ConfigError
from pipeline.decryption_keys import DecryptionKeys, KeytabError, NtlmKey, parse_keytab

KEYS_FILE_VARIABLE: Final = "MSMQ_KEYS_FILE"
_NT_HASH: Final = re.compile(r"[0-9a-fA-F]{32}")


def load_keys(keys_file: str | None, log: LogFunction) -> DecryptionKeys:
    """Load the keys from ``keys_file`` or else from the file named by MSMQ_KEYS_FILE; no keys if neither is given.

    ConfigError says what is wrong, with file and line. ``log`` receives a warning about files that others may read.
    """
    location = keys_file or os.environ.get(KEYS_FILE_VARIABLE)
    if not location:
        return DecryptionKeys()
    source = "--keys" if keys_file else KEYS_FILE_VARIABLE
    root, file = read_secret_yaml(location, source, log)
    return _parse_keys(root, file, Path() if is_secret_reference(location) else Path(location).parent, log)


def _parse_keys(root: yaml.Node | None, file: str, folder: Path, log: LogFunction) -> DecryptionKeys:
    if root is None:
        raise ConfigError(f"{file}: no keys: expected a mapping with ntlm, kerberos or both")
    ntlm: list[NtlmKey] = []
    kerberos: list[Any] = []
    for name, entries in mapping_fields(root, file, ("ntlm", "kerberos")).items():
        for number, entry in enumerate(list_entries(entries, file, name)):
            location = f"{file_and_line(entry, file)}: {name}[{number}]"
            if name == "ntlm":
                values = text_fields(entry, file, location, ("principal", "password", "nt_hash"))
                ntlm.append(_parse_ntlm_entry(values, location))
            else:
                values = text_fields(entry, file, location, ("keytab",))
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
        return NtlmKey.from_password(principal, resolve_secret(entry["password"], location))
    value = resolve_secret(entry["nt_hash"], location)
    if not _NT_HASH.fullmatch(value):
        raise ConfigError(f"{location}: nt_hash: expected 32 hexadecimal digits")
    return NtlmKey(principal, bytes.fromhex(value))


def _load_keytab_entry(entry: dict[str, str], location: str, folder: Path, log: LogFunction) -> list[Any]:
    keytab = entry.get("keytab")
    if not keytab:
        raise ConfigError(f"{location}: keytab is missing: the path of a keytab")
    if is_secret_reference(keytab):
        try:
            data = base64.b64decode(resolve_secret(keytab, location), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"{location}: keytab: the secret is not base64") from None
    else:
        data = read_secret_file(folder / keytab, f"{location}: keytab {keytab}", log)
    try:
        found = parse_keytab(data)
    except KeytabError as error:
        raise ConfigError(f"{location}: keytab: {error}") from None
    if not found:
        raise ConfigError(f"{location}: keytab: it has no keys")
    return found
