"""Settings: one tree of frozen dataclasses, read from YAML, every value checked at start.

The dataclasses are the only list of settings: name, type, default, meaning. A setting that is not in them, twice
in the file, or of the wrong kind is a ConfigError that says where: file, line and key, or the ``--set`` it stood in.
The pipeline never sees a Config; a job hands each function the values that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml


class ConfigError(Exception):
    """Wrong usage or configuration: stops a job at its start with exit code 2 and this one line."""


class Size(int):
    """A number of bytes, written as a whole number or with KiB, MiB, GiB, TiB."""

    __slots__ = ()


Redactable = Literal["labels", "queues", "hosts", "addresses", "senders"]
Discovery = Literal["active", "private"]
Authentication = Literal["none", "ntlm", "kerberos"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A queue manager to collect from: an entry of ``collector.machines``; None: the collector's own setting."""

    name: str
    address: str
    port: int | None = None
    queues: tuple[str, ...] = ()
    discover: tuple[Discovery, ...] | None = None
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of one queue, by its normal form, and of its journal: an entry of ``quotas.queues``."""

    queue: str
    messages: Size | None = None
    journal: Size | None = None


def setting(default: object, meaning: str, *, least: float | None = None, most: float | None = None) -> Any:
    """One setting: its default, what it means, and for numbers, durations (seconds) and sizes its bounds."""
    return field(default=default, metadata={"meaning": meaning, "least": least, "most": most})


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """Where the tables live when it is not a folder."""

    catalog: str | None = setting(None, "catalog of the tables; null: Delta tables in the folder given by --lake")
    prefix: str = setting("", "put before the layer's name in the catalog: <catalog>.<prefix>bronze.rpc_calls")
    lease_wait: timedelta = setting(
        timedelta(minutes=10), "how long a run waits for another one on the same lake before it gives up", least=0
    )


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """How captures are read, and the bounds that a hostile one meets."""

    reorder_window_s: float = setting(2.0, "how long a missing TCP segment may come late, seconds", least=0, most=3600)
    spool_bytes: Size = setting(Size(16 << 30), "most bytes copied from standard input or a pipe", least=1)
    max_expansion: int = setting(1100, "most decompressed bytes for each compressed byte of a capture", least=1)
    max_expanded_bytes: Size = setting(Size(256 << 30), "most decompressed bytes of one capture", least=1)
    block_bytes: Size = setting(Size(16 << 20), "bytes of a capture held at a time", least=64 << 10, most=1 << 30)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What of the messages' content is kept in tables."""

    stubs: bool = setting(True, "keep stubs in bronze (they hold bodies); false empties them once silver is made")
    bodies: bool = setting(False, "keep message bodies (messages.body, comqc_calls.marshaled)")
    packets: bool = setting(False, "keep message packets (remote_read_calls.packet)")


@dataclass(frozen=True, slots=True)
class PendingConfig:
    """Halves that wait for their other half."""

    expire: timedelta = setting(timedelta(days=7), "how long an unfinished half is waited for", least=0)


@dataclass(frozen=True, slots=True)
class ReadsConfig:
    """Loss risks of remote reads."""

    lost_after: timedelta = setting(timedelta(seconds=60), "a reader gone this soon after an ack is a risk", least=0)
    poison_after: int = setting(3, "returns of one message that make it poison", least=1)


@dataclass(frozen=True, slots=True)
class QueuesConfig:
    """What the captures cannot show of queues."""

    aliases: tuple[tuple[str, ...], ...] = setting(
        (), "groups of names of one queue each, as a list of lists: format names, path names or direct names"
    )


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Queue histories."""

    max_gap: timedelta = setting(timedelta(minutes=15), "how long an observation holds", least=1)


@dataclass(frozen=True, slots=True)
class EodConfig:
    """Exactly-once delivery."""

    resend_rise: int = setting(1, "rise of the resend count that means resending", least=1)
    resend_ladder: tuple[timedelta, ...] = setting(
        tuple(timedelta(seconds=each) for each in (30, 30, 30, 300, 300, 300, 1800, 1800, 1800, 21600)),
        "pauses before the first resend, the second, ...; the last one before all others",
        least=0,
    )


@dataclass(frozen=True, slots=True)
class TimersConfig:
    """Timers of the queue managers that cannot be seen on the wire."""

    cleanup: timedelta = setting(timedelta(minutes=5), "clean-up timer of pending receives", least=0)


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """When a condition is worth an alert; docs/alerts.md says of each which of these it goes by."""

    rejoin: timedelta = setting(timedelta(minutes=5), "what begins again so soon is the same alert", least=0)
    error_after: timedelta = setting(
        timedelta(hours=1), "queues and transfers that stand still so long: error", least=0
    )
    disconnected_after: timedelta = setting(timedelta(minutes=5), "an outgoing queue is not connected so long", least=0)
    on_hold_after: timedelta = setting(timedelta(minutes=30), "a queue with messages is on hold so long", least=0)
    stuck_after: timedelta = setting(timedelta(minutes=15), "messages wait so long and nobody reads", least=0)
    unacked_after: timedelta = setting(timedelta(minutes=30), "a message is sent and not acknowledged so long", least=0)
    unread_after: timedelta = setting(timedelta(hours=4), "messages arrived and are not read so long", least=0)
    stalled_after: timedelta = setting(timedelta(minutes=2), "an exactly-once transfer stands still so long", least=0)
    rejected: int = setting(3, "messages of a sequence that its receiver rejects", least=1)
    window: timedelta = setting(timedelta(hours=1), "failures no further apart are one alert", least=60)
    negative: int = setting(1, "negative acknowledgements of one class and sender", least=1)
    slow_window: timedelta = setting(timedelta(days=1), "in which dead letters and journals grow", least=60)
    dead_letters: int = setting(1, "dead letters more within slow_window", least=1)
    journal_messages: int = setting(1000, "messages more in a journal within slow_window", least=1)
    full_within: timedelta = setting(timedelta(days=7), "a quota will be used up so soon", least=0)
    held_after: timedelta = setting(timedelta(minutes=5), "a reader holds a message so long", least=0)
    failures: int = setting(5, "failures of one method with one result", least=1)
    ignored_results: tuple[int, ...] = setting(
        (0xC00E001B, 0xC00E0004, 0xC00E0008, 0xC00E0088, 0xC0000225, 0x1C00000D),
        "results that are no failures",
        least=1,
    )
    clock_difference: timedelta = setting(timedelta(seconds=5), "by which two clocks differ", least=0)
    lost_share: float = setting(0.01, "share of a server's bytes that captures lack in an hour", least=0, most=1)


@dataclass(frozen=True, slots=True)
class QuotasConfig:
    """How much queues may hold: queue managers do not tell it by their management interface."""

    queue: Size | None = setting(None, "quota of each queue; null: not known", least=1)
    journal: Size | None = setting(None, "quota of each journal; null: not known", least=1)
    queues: tuple[Quota, ...] = setting((), "quotas of single queues: queue, and if need be messages, journal")


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """Whom the collector asks, what, how often, and who it says it is. No secret stands here."""

    machines: tuple[Machine, ...] = setting(
        (), "queue managers: name, address, port, queues, discover, include, exclude"
    )
    discover: tuple[Discovery, ...] = setting(("active", "private"), "lists of the machine that queues are taken from")
    include: tuple[str, ...] = setting(("*",), "patterns: discovered queues that fit one are asked about")
    exclude: tuple[str, ...] = setting((), "patterns: discovered queues that fit one are not")
    properties: tuple[int, ...] = setting(
        tuple(range(1, 28)), "numbers of the queue properties that are asked for", least=1, most=(1 << 32) - 1
    )
    endpoint_mapper_port: int = setting(135, "TCP port of the endpoint mapper", least=1, most=65535)
    authentication: Authentication = setting("none", "none, ntlm, kerberos")
    user: str = setting("", "user who asks")
    domain: str = setting("", "the user's domain, of Kerberos the realm")
    kdc: str | None = setting(None, "host of the Kerberos key distribution centre; null: the realm's name")
    password_file: str | None = setting(None, "file with the password in its first line")
    privacy: bool = setting(False, "encrypt what is asked and answered (packet privacy)")
    timeout: timedelta = setting(timedelta(seconds=10), "how long connecting, and each question, may take", least=0.001)
    retries: int = setting(2, "times that what failed in passing is asked again", least=0, most=100)
    backoff: timedelta = setting(timedelta(seconds=1), "pause before the first of them; it doubles", least=0)
    at_once: int = setting(8, "machines asked side by side", least=1, most=256)
    every: timedelta = setting(timedelta(seconds=60), "time from one round at a machine to its next", least=0)
    rounds: int = setting(1, "rounds at each machine; 0: until it is stopped", least=0)


@dataclass(frozen=True, slots=True)
class QualityConfig:
    """What is expected of the tables."""

    in_runs: bool = setting(False, "run_all asks it of what a run changed; a failed error is exit code 1")
    suites: str | None = setting(None, "folder of the suites; null: quality beside the settings, else the project's")


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """What is not shown."""

    redact: tuple[Redactable, ...] = setting((), "any of labels, queues, hosts, addresses, senders; needs --redact-key")
    workplace: str | None = setting(None, "folder in which such a run decodes; null: the system's for temporary files")


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting. ``Config()`` is the defaults; ``Config.load`` reads a file and what overrides it."""

    lake: LakeConfig = LakeConfig()
    capture: CaptureConfig = CaptureConfig()
    store: StoreConfig = StoreConfig()
    pending: PendingConfig = PendingConfig()
    reads: ReadsConfig = ReadsConfig()
    queues: QueuesConfig = QueuesConfig()
    history: HistoryConfig = HistoryConfig()
    eod: EodConfig = EodConfig()
    timers: TimersConfig = TimersConfig()
    alerts: AlertsConfig = AlertsConfig()
    quotas: QuotasConfig = QuotasConfig()
    collector: CollectorConfig = CollectorConfig()
    quality: QualityConfig = QualityConfig()
    privacy: PrivacyConfig = PrivacyConfig()

    @classmethod
    def load(cls, path: str | Path | None, overrides: Iterable[str] = ()) -> Config:
        """The settings of a YAML file (None: the defaults), then of ``key.path=value`` texts; else ConfigError."""
        given = dict(_from_file(Path(path))) if path is not None else {}
        given.update(_from_overrides(overrides))
        return _build(given)


SECTIONS: dict[str, type] = {
    name: kind for name, kind in get_type_hints(Config).items() if is_dataclass(kind) and isinstance(kind, type)
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the tree, as documentation and checks see it."""

    key: str
    kind: Any
    default: object
    meaning: str
    least: float | None
    most: float | None


def settings() -> dict[str, Setting]:
    """Every setting by its dotted key, in order."""
    found: dict[str, Setting] = {}
    for section, tree in SECTIONS.items():
        hints = get_type_hints(tree)
        for each in fields(tree):
            key = f"{section}.{each.name}"
            found[key] = _leaf(key, hints[each.name], each)
    return found


def _leaf(key: str, kind: object, each: Field[Any]) -> Setting:
    meta: Mapping[str, Any] = each.metadata
    return Setting(key, kind, each.default, meta["meaning"], meta["least"], meta["most"])


def _build(given: Mapping[str, tuple[str, object]]) -> Config:
    """The tree from ``{key: (place, raw value)}``."""
    known = settings()
    config = Config()
    for key, (place, raw) in given.items():
        if key not in known:
            raise ConfigError(f"{place}: unknown setting {key}{_suggestion(key)}")
        value = _checked(known[key], raw, f"{place}: {key}")
        section, name = key.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config


def _suggestion(key: str) -> str:
    section = key.partition(".")[0]
    names = [each.name for each in fields(SECTIONS[section])] if section in SECTIONS else list(SECTIONS)
    return f" (there are {', '.join(names)})"


def _from_file(path: Path) -> Iterator[tuple[str, tuple[str, object]]]:
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
    for place, section, node in _pairs(root, str(path), "the file"):
        if section in seen or section not in SECTIONS:
            what = f"{section} stands twice" if section in seen else f"unknown setting {section}{_suggestion(section)}"
            raise ConfigError(f"{place}: {what}")
        seen.add(section)
        yield from _from_section(node, str(path), section)


def _from_section(node: yaml.Node, path: str, section: str) -> Iterator[tuple[str, tuple[str, object]]]:
    seen: set[str] = set()
    for place, name, value in _pairs(node, path, section):
        key = f"{section}.{name}"
        if key in seen:
            raise ConfigError(f"{place}: {key} stands twice")
        seen.add(key)
        yield key, (place, _plain(value, f"{place}: {key}"))


def _pairs(node: yaml.Node | None, path: str, what: str) -> Iterator[tuple[str, str, yaml.Node]]:
    """(place, name, value) of a mapping of the file; nothing for an empty file or section: the defaults."""
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
        return
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {what} must hold settings")
    for name, value in node.value:
        place = f"{path}:{name.start_mark.line + 1}"
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError(f"{place}: a setting's name must be text")
        yield place, name.value, value


def _plain(node: yaml.Node, place: str) -> object:
    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError(f"{place}: {' '.join(str(error).split())}") from error


def _from_overrides(overrides: Iterable[str]) -> Iterator[tuple[str, tuple[str, object]]]:
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected key.path=value")
        try:
            yield key.strip(), (f"--set {text}", yaml.safe_load(value))
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"--set {text}: not YAML: {' '.join(str(error).split())}") from error


def _checked(leaf: Setting, raw: object, place: str) -> object:
    """The raw value as the setting's type; ConfigError when it is of another kind or out of bounds."""
    value = _converted(leaf.kind, raw, place)
    if isinstance(value, tuple) and leaf.least is not None:
        for each in value:
            _bounded(leaf, each, each, place)
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        return value
    return _bounded(leaf, value, raw, place)


def _bounded(leaf: Setting, value: float | timedelta, raw: object, place: str) -> object:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    unit = " seconds" if isinstance(value, timedelta) else ""
    if leaf.least is not None and not number >= leaf.least:
        raise ConfigError(f"{place}: must be at least {leaf.least}{unit}, not {raw}")
    if leaf.most is not None and not number <= leaf.most:
        raise ConfigError(f"{place}: must be at most {leaf.most}{unit}, not {raw}")
    return value


def _converted(kind: Any, raw: object, place: str) -> object:
    if kind == tuple[tuple[str, ...], ...]:
        return _groups(raw, place)
    if get_origin(kind) is tuple:
        return _list(get_args(kind)[0], raw, place)
    if get_origin(kind) is Literal:
        allowed = get_args(kind)
        return _expect(isinstance(raw, str) and raw in allowed, raw, raw, f"one of {', '.join(allowed)}", place)
    if kind in (Machine, Quota):
        return _entry(kind, raw, place)
    if kind in (str | None, Size | None) and raw is None:
        return None
    if kind in (str, str | None):
        return _expect(isinstance(raw, str), raw, raw, "text", place)
    if kind is bool:
        return _expect(isinstance(raw, bool), raw, raw, "true or false", place)
    whole = isinstance(raw, int) and not isinstance(raw, bool)
    if kind is int:
        return _expect(whole, raw, raw, "a whole number", place)
    if kind is float:
        number = isinstance(raw, float) or whole
        return _expect(number, float(raw) if isinstance(raw, int | float) else None, raw, "a number", place)
    if kind is timedelta:
        return _duration(raw, place)
    if kind in (Size, Size | None):
        return _size(raw, place)
    raise TypeError(f"no reader for settings of type {kind}")


def _expect(holds: bool, value: object, raw: object, expected: str, place: str) -> object:  # noqa: FBT001
    if not holds:
        raise ConfigError(f"{place}: expected {expected}, not {raw!r}")
    return value


def _list(kind: Any, raw: object, place: str) -> tuple[object, ...]:
    if get_origin(kind) is Literal:
        return _choices(get_args(kind), raw, place)
    what = {str: "texts", int: "whole numbers", timedelta: "durations", Machine: "machines", Quota: "quotas"}[kind]
    if not isinstance(raw, list):
        raise ConfigError(f"{place}: expected a list of {what}, not {raw!r}")
    found = tuple(_converted(kind, each, f"{place}[{number}]") for number, each in enumerate(raw))
    if kind is Machine:
        names = [machine.name for machine in found if isinstance(machine, Machine)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"{place}: two machines of the name {twice[0]}")
        return found
    return found if kind is timedelta else tuple(dict.fromkeys(found))


def _entry(kind: type[Machine] | type[Quota], raw: object, place: str) -> Machine | Quota:
    hints = get_type_hints(kind)
    needed = [each.name for each in fields(kind) if each.default is MISSING]
    if not isinstance(raw, dict):
        raise ConfigError(f"{place}: expected a mapping with {' and '.join(needed)}, not {raw!r}")
    if unknown := [key for key in raw if key not in hints]:
        raise ConfigError(f"{place}: unknown key {unknown[0]} (there are {', '.join(hints)})")
    values: dict[str, Any] = {}
    for key, each in raw.items():
        if each is not None:
            hint = next((part for part in get_args(hints[key]) if get_origin(part) is tuple), hints[key])
            values[key] = _converted(int if key == "port" else hint, each, f"{place}.{key}")
    if lacking := [key for key in needed if not values.get(key)]:
        raise ConfigError(f"{place}: {lacking[0]} is missing")
    if not 0 < values.get("port", 1) < 1 << 16:
        raise ConfigError(f"{place}.port: must be 1 to 65535, not {values['port']}")
    return kind(**values)


def _choices(allowed: Sequence[str], raw: object, place: str) -> tuple[str, ...]:
    if not isinstance(raw, list) or any(each not in allowed for each in raw):
        raise ConfigError(f"{place}: expected a list of {', '.join(allowed)}, not {raw!r}")
    return tuple(dict.fromkeys(raw))


def _groups(raw: object, place: str) -> tuple[tuple[str, ...], ...]:
    """Lists of two texts or more."""
    groups: list[object] = raw if isinstance(raw, list) else [raw]
    found: list[tuple[str, ...]] = []
    for group in groups:
        names = [name for name in group if isinstance(name, str) and name] if isinstance(group, list) else []
        if not isinstance(raw, list) or not isinstance(group, list) or len(names) < max(2, len(group)):
            raise ConfigError(f"{place}: expected a list of lists of two names or more, not {raw!r}")
        found.append(tuple(names))
    return tuple(found)


DURATION_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_S = 100 * 366 * 86400  # a century: times of packets plus a duration stay dates
SIZE_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _duration(raw: object, place: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)", raw) if isinstance(raw, str) else None
    if not found:
        raise ConfigError(f"{place}: expected a duration like 500ms, 60s, 15m, 12h or 7d, not {raw!r}")
    seconds = float(found[1]) * DURATION_UNITS[found[2]]
    if seconds > LONGEST_S:
        raise ConfigError(f"{place}: {raw} is too long a time")
    return timedelta(seconds=seconds)


def _size(raw: object, place: str) -> Size:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return Size(raw)
    found = re.fullmatch(r"(\d{1,15})(|KiB|MiB|GiB|TiB)", raw) if isinstance(raw, str) else None
    if not found:
        raise ConfigError(f"{place}: expected bytes, like 1048576 or 16MiB, not {raw!r}")
    return Size(int(found[1]) * SIZE_UNITS[found[2]])
