"""The file of the targets of notices, in YAML or JSON: ``--notify @FILE``, or the file named by MSMQ_NOTIFY_FILE.

It has ``targets``, a list. Each entry has a ``name`` and a ``kind``; ``_KINDS`` lists what else the kinds have. A
reference to a Databricks secret, ``{{secrets/SCOPE/KEY}}``, may replace a value, or the whole file. Error messages
contain no value of the file.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import yaml

from jobs.command_line.secret_files import (
    LogFunction,
    file_and_line,
    list_entries,
    mapping_fields,
    read_secret_yaml,
    resolve_secret,
)
from jobs.command_line.setting_values import parse_duration
from jobs.config import ConfigError
from pipeline.notices.alertmanager import Alertmanager
from pipeline.notices.chat import Slack, Teams
from pipeline.notices.https_post import Endpoint
from pipeline.notices.json_targets import Command, Webhook
from pipeline.notices.mail import PORTS, Mail, MailServer, Security
from pipeline.notices.pagerduty import PAGERDUTY_URL, PagerDuty
from pipeline.notices.target import Target

NOTIFY_FILE_VARIABLE: Final = "MSMQ_NOTIFY_FILE"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_ADDRESS: Final = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DEFAULT_INTERVAL: Final = "15m"
Value = TypeVar("Value")


def load_targets(words: Sequence[str], log: LogFunction) -> list[Target]:
    """Return the targets that ``--notify`` names: ``@FILE`` and names in it; without names all of the file.

    Without ``@FILE`` the file is that of MSMQ_NOTIFY_FILE. ConfigError says what is wrong, with file and line.
    """
    files = [word[1:] for word in words if word.startswith("@")]
    names = [word for word in words if not word.startswith("@")]
    if len(files) > 1:
        raise ConfigError("--notify: only one @FILE")
    location = files[0] if files else os.environ.get(NOTIFY_FILE_VARIABLE)
    if not location:
        raise ConfigError(f"no file of targets: --notify @FILE, or {NOTIFY_FILE_VARIABLE}")
    source = "--notify" if files else NOTIFY_FILE_VARIABLE
    root, file = read_secret_yaml(location, source, log)
    targets = _parse_targets(root, file)
    if unknown := sorted({*names} - targets.keys()):
        # Not the name: an address may stand in its place.
        raise ConfigError(f"--notify: {len(unknown)} of its names are not in {file} (there are {', '.join(targets)})")
    return [target for name, target in targets.items() if not names or name in names]


def _parse_targets(root: yaml.Node | None, file: str) -> dict[str, Target]:
    if root is None:
        raise ConfigError(f"{file}: no targets: expected a mapping with targets")
    out: dict[str, Target] = {}
    for entries in mapping_fields(root, file, ("targets",)).values():
        for number, node in enumerate(list_entries(entries, file, "targets")):
            target = _parse_target(node, file, f"{file_and_line(node, file)}: targets[{number}]")
            if target.name in out:
                raise ConfigError(f"{file_and_line(node, file)}: targets[{number}]: its name appears twice")
            out[target.name] = target
    if not out:
        raise ConfigError(f"{file}: no targets: the list is empty")
    return out


def _parse_target(node: yaml.Node, file: str, location: str) -> Target:
    every = tuple(dict.fromkeys(("name", "kind", *(name for kind in _KINDS.values() for name in kind.fields))))
    kind_node = mapping_fields(node, file, every, location).get("kind")
    kind = _KINDS.get(kind_node.value) if isinstance(kind_node, yaml.ScalarNode) else None
    if kind is None:
        raise ConfigError(f"{location}: kind: expected one of {', '.join(_KINDS)}")
    fields = _Fields(mapping_fields(node, file, ("name", "kind", *kind.fields), location), file, location)
    return kind.make(fields.checked("name", "a name of at most 40 letters, digits, - and _", _NAME.fullmatch), fields)


@dataclass(frozen=True)
class _Fields:
    """The fields of a target, as nodes, and where they are."""

    nodes: Mapping[str, yaml.Node]
    file: str
    location: str

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; ConfigError where there is none, without a default."""
        if (node := self.nodes.get(name)) is None:
            if default is None:
                raise ConfigError(f"{self.location}: {name} is missing")
            return default
        return self._value(node, name)

    def optional(self, name: str) -> str | None:
        """Return a text, or None."""
        return self.text(name) if name in self.nodes else None

    def checked(self, name: str, expected: str, check: Callable[[str], object], default: str | None = None) -> str:
        """Return a text that passes a check; ConfigError says what was expected."""
        text = self.text(name, default)
        if not check(text):
            raise self.error(name, expected)
        return text

    def converted(self, name: str, expected: str, convert: Callable[[str], Value], default: str) -> Value:
        """Return a converted text; ConfigError where ``convert`` raises ValueError."""
        try:
            return convert(self.text(name, default))
        except ValueError:
            raise self.error(name, expected) from None

    def texts(self, name: str, expected: str, check: Callable[[str], object]) -> tuple[str, ...]:
        """Return a list of texts that pass a check, with at least one entry."""
        if (node := self.nodes.get(name)) is None:
            raise ConfigError(f"{self.location}: {name} is missing")
        found = tuple(self._value(each, name) for each in list_entries(node, self.file, name))
        if not found or not all(map(check, found)):
            raise self.error(name, expected)
        return found

    def headers(self) -> dict[str, str]:
        """Return the additional headers of a request."""
        if (node := self.nodes.get("headers")) is None:
            return {}
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = {str(name.value): self._value(value, "headers") for name, value in pairs}
        is_right = all(_HEADER_NAME.fullmatch(name) and _is_header_value(text) for name, text in found.items())
        if not found or not is_right:
            raise self.error("headers", "a mapping of names and texts in one line")
        return found

    def endpoint(self, default_url: str | None = None) -> Endpoint:
        """Return where to post to: ``url``, ``headers``, ``ca_file``."""
        expected = "an https: URL (http: only on this machine, by 127.0.0.1, ::1 or localhost)"
        url = self.checked("url", expected, _is_safe_url, default_url)
        return Endpoint(url, self.headers(), self.ca_file())

    def ca_file(self) -> Path | None:
        """Return the file of certificates to trust; ConfigError where it cannot be read."""
        if (text := self.optional("ca_file")) is None:
            return None
        path = Path(self.file).parent / text
        try:
            path.read_bytes()
        except (OSError, ValueError):
            raise self.error("ca_file", "a file of certificates (PEM) that can be read") from None
        return path

    def error(self, name: str, expected: str) -> ConfigError:
        """Return the error about a field, without its value."""
        node = self.nodes.get(name)
        where = self.location if node is None else f"{file_and_line(node, self.file)}: {name}"
        return ConfigError(f"{where}: expected {expected}")

    def _value(self, node: yaml.Node, name: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self.error(name, "text (a reference to a secret is quoted)")
        return resolve_secret(node.value, f"{file_and_line(node, self.file)}: {name}")


def _is_safe_url(text: str) -> bool:
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        url = urlsplit(text)
        url.port  # noqa: B018 - raises
    except ValueError:
        return False
    if not url.hostname or url.username is not None:
        return False
    return url.scheme == "https" or (url.scheme == "http" and _is_this_machine(url.hostname))


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _webhook(name: str, fields: _Fields) -> Target:
    return Webhook(name, fields.endpoint())


def _command(name: str, fields: _Fields) -> Target:
    return Command(
        name, fields.texts("command", "a list: the program and its arguments", lambda text: "\0" not in text)
    )


def _pagerduty(name: str, fields: _Fields) -> Target:
    return PagerDuty(name, fields.endpoint(PAGERDUTY_URL), fields.text("key"))


def _alertmanager(name: str, fields: _Fields) -> Target:
    interval = fields.converted("interval", "a duration like 15m, not 0", _positive_duration, _DEFAULT_INTERVAL)
    return Alertmanager(name, fields.endpoint(), interval)


def _positive_duration(text: str) -> timedelta:
    if (found := parse_duration(text)) <= timedelta(0):
        raise ValueError(text)
    return found


def _slack(name: str, fields: _Fields) -> Target:
    return Slack(name, fields.endpoint())


def _teams(name: str, fields: _Fields) -> Target:
    return Teams(name, fields.endpoint())


def _mail(name: str, fields: _Fields) -> Target:
    host = fields.text("server")
    securities: dict[str, Security] = {each: each for each in PORTS}
    security = securities.get(fields.text("security", "starttls"))
    if security is None or (security == "none" and not _is_this_machine(host)):
        raise fields.error("security", "starttls or tls (none only on this machine)")
    server = MailServer(
        host,
        fields.converted("port", "a port, 1 to 65535", _port, str(PORTS[security])),
        security,
        fields.optional("user"),
        fields.optional("password"),
        fields.ca_file(),
    )
    expected = "mail addresses like name@example.com"
    sender = fields.checked("from", expected, _ADDRESS.fullmatch)
    return Mail(name, server, sender, fields.texts("to", f"a list of {expected}", _ADDRESS.fullmatch))


def _port(text: str) -> int:
    if not 1 <= (port := int(text)) <= 65535:
        raise ValueError(text)
    return port


class _Kind(NamedTuple):
    """A kind of target: its fields beside name and kind, and what makes it."""

    fields: tuple[str, ...]
    make: Callable[[str, _Fields], Target]


_HTTP: Final = ("url", "headers", "ca_file")
_KINDS: Final[Mapping[str, _Kind]] = {
    "webhook": _Kind(_HTTP, _webhook),
    "command": _Kind(("command",), _command),
    "pagerduty": _Kind(("key", *_HTTP), _pagerduty),
    "alertmanager": _Kind(("interval", *_HTTP), _alertmanager),
    "slack": _Kind(_HTTP, _slack),
    "teams": _Kind(_HTTP, _teams),
    "smtp": _Kind(("server", "port", "security", "user", "password", "from", "to", "ca_file"), _mail),
}
