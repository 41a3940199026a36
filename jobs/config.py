"""Settings of the jobs: a tree of frozen dataclasses, read from YAML and checked at start.

The dataclasses are the only list of settings. Each field has a type, a default and a meaning; conf/local.yml shows all
of them with the same texts. An unknown setting, a duplicate one, or a value of the wrong type is a ConfigError with its
location: file, line and key, or the ``--set`` argument. The pipeline never sees a Config: each job passes the values
that a function needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import yaml

from pipeline.local_paths import local_path


class ConfigError(Exception):
    """Wrong usage or configuration: the job prints the message as one line and exits with code 2."""


class ByteSize(int):
    """A number of bytes. In YAML it is a whole number, or text with KiB, MiB, GiB or TiB."""

    __slots__ = ()


RedactableField = Literal["labels", "queues", "hosts", "addresses", "senders"]
LakeStore = Literal["auto", "delta-rs", "spark"]
LakeReadLog = Literal["auto", "files", "spark"]
RunEngine = Literal["spark", "local"]
FileAccess = Literal["owner", "group_read", "group_write", "all_read"]
DiscoverySources = Literal["active", "private"]
AuthenticationMethod = Literal["none", "ntlm", "kerberos"]
TunnelKind = Literal["vxlan", "vxlan_gpe", "geneve"]


@dataclass(frozen=True, slots=True)
class CollectorMachine:
    """A queue manager to collect from: an entry of ``collector.machines``. None means the collector's own setting."""

    name: str
    address: str
    port: int | None = None
    queues: tuple[str, ...] = ()
    discover: tuple[DiscoverySources, ...] | None = None
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TunnelPort:
    """A UDP port of tunnels and what they are: an entry of ``capture.tunnel_ports``."""

    port: int
    kind: TunnelKind


@dataclass(frozen=True, slots=True)
class QueueQuota:
    """The quotas of one queue and of its journal: an entry of ``quotas.queues``. ``queue`` is the normal form."""

    queue: str
    messages: ByteSize | None = None
    journal: ByteSize | None = None


@dataclass(frozen=True, slots=True)
class MachineQuota:
    """The quota of one queue manager: an entry of ``quotas.machines``. ``machine`` is its name in gold."""

    machine: str
    bytes: ByteSize


_ListEntry: TypeAlias = CollectorMachine | QueueQuota | MachineQuota | TunnelPort


def setting_field(default: object, meaning: str, *, minimum: float | None = None, maximum: float | None = None) -> Any:
    """Return a dataclass field for one setting: its default, its meaning, and the bounds of its value.

    Bounds apply to numbers, to durations (in seconds) and to sizes (in bytes).
    """
    return field(default=default, metadata={"meaning": meaning, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """Where the tables are, and how long a run waits for the lease."""

    catalog: str | None = setting_field(None, "catalog of the tables; null: Delta tables in the folder of --lake")
    prefix: str = setting_field("", "text before the layer's name in the catalog: <catalog>.<prefix>bronze.rpc_calls")
    store: LakeStore = setting_field(
        "auto",
        "what stores the tables of a new lake; it holds from then on. auto: spark in a catalog, behind Spark Connect "
        "and on Databricks, else delta-rs",
    )
    read_log: LakeReadLog = setting_field(
        "auto",
        "who reads the logs of tables that Spark stores: this process in the tables' folders (files), or Spark "
        "(spark). auto: this process where it reaches the folders, never for a catalog other than spark_catalog",
    )
    lease_wait: timedelta = setting_field(
        timedelta(minutes=10), "how long a run waits for another run on the same lake before it gives up", minimum=0
    )


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What computes."""

    engine: RunEngine = setting_field(
        "spark",
        "what reads captures and computes many rows: Spark's tasks (spark), or the same tasks one after the other in "
        "this process, without Java (local)",
    )


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """What captures and snapshots have in common."""

    max_time_ahead: timedelta = setting_field(
        timedelta(days=1),
        "how much later than the clock of the machine that reads them packets and snapshots may say that they were "
        "made. Beyond it, a packet is read without its time and a snapshot goes to bronze.quarantine",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """How captures are read, and the limits for hostile ones."""

    reorder_window_s: float = setting_field(
        2.0, "seconds that a missing TCP segment may arrive late", minimum=0, maximum=3600
    )
    max_clock_skew: timedelta = setting_field(
        timedelta(minutes=5), "most that the clocks of two captures of one conversation may differ", minimum=0
    )
    tunnel_ports: tuple[TunnelPort, ...] = setting_field(
        (),
        "UDP ports of tunnels beside 4789, 8472 (vxlan), 4790 (vxlan_gpe) and 6081 (geneve): entries of port and kind",
    )
    spool_bytes: ByteSize = setting_field(
        ByteSize(16 << 30), "maximum bytes copied from standard input or a named pipe to <lake>/_spool", minimum=1
    )
    max_expansion: int = setting_field(
        1100, "maximum decompressed bytes per compressed byte of a capture (gzip can reach 1032)", minimum=1
    )
    max_expanded_bytes: ByteSize = setting_field(
        ByteSize(256 << 30), "maximum decompressed bytes of one capture", minimum=1
    )
    block_bytes: ByteSize = setting_field(
        ByteSize(16 << 20), "bytes of a capture in memory at a time", minimum=64 << 10, maximum=1 << 30
    )
    alone_memory_bytes: ByteSize = setting_field(
        ByteSize(4 << 30), "maximum memory for a capture that is read again alone, after a task ended at it", minimum=1
    )
    alone_file_bytes: ByteSize = setting_field(
        ByteSize(64 << 30), "maximum bytes of each file that reading it alone writes", minimum=1
    )
    alone_timeout: timedelta = setting_field(timedelta(hours=1), "how long reading it alone may take", minimum=1)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Which content of messages the tables keep."""

    stubs: bool = setting_field(
        True, "keep stubs in bronze (they contain message bodies); false empties them once silver is written"
    )
    bodies: bool = setting_field(False, "keep message bodies (messages.body, comqc_calls.marshaled)")
    packets: bool = setting_field(False, "keep message packets (remote_read_calls.packet)")


@dataclass(frozen=True, slots=True)
class ComqcConfig:
    """Calls of COM+ queued components."""

    interfaces: Path | None = setting_field(
        None,
        "file that declares methods of COM+ interfaces and classes, so that recorded calls get names and arguments. "
        "Silver is decoded again when its declarations change",
    )


@dataclass(frozen=True, slots=True)
class PendingConfig:
    """Connections that a capture could not finish."""

    expire: timedelta = setting_field(
        timedelta(days=7), "how long bronze.pending waits for more of a connection that is silent", minimum=0
    )


@dataclass(frozen=True, slots=True)
class ReadsConfig:
    """Loss risks of remote reads."""

    lost_after: timedelta = setting_field(
        timedelta(seconds=60),
        "a reader whose connection ends within this time of an acknowledgement is a loss risk",
        minimum=0,
    )
    poison_after: int = setting_field(3, "number of returns that make a message a poison message", minimum=1)


@dataclass(frozen=True, slots=True)
class QueuesConfig:
    """Names of queues that captures do not show."""

    aliases: tuple[tuple[str, ...], ...] = setting_field(
        (), "groups of names; all names of a group (format, path or direct names) mean the same queue"
    )


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Queue histories."""

    max_gap: timedelta = setting_field(
        timedelta(minutes=15), "how long an observation of a queue is valid; after that its state is UNKNOWN", minimum=1
    )


@dataclass(frozen=True, slots=True)
class EodConfig:
    """Exactly-once delivery."""

    resend_rise: int = setting_field(
        1, "increase of the resend count that means that a transfer is resending", minimum=1
    )
    resend_ladder: tuple[timedelta, ...] = setting_field(
        tuple(timedelta(seconds=each) for each in (30, 30, 30, 300, 300, 300, 1800, 1800, 1800, 21600)),
        "waiting times before the first resend, the second, ...; the last one repeats. Equal times in a row are one "
        "step of the ladder",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class SessionsConfig:
    """Sessions of the binary protocol (TCP 1801)."""

    idle: timedelta = setting_field(
        timedelta(seconds=120),
        "how long nothing was sent before the end of a session that ended because it was idle (Windows: 300 to 600 s, "
        "routing servers 120 to 240 s)",
        minimum=0,
    )
    silent_after: timedelta = setting_field(
        timedelta(minutes=10),
        "a connection without an end is taken for gone after this time without a packet (Windows closes an idle "
        "session within 10 minutes)",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class TransfersConfig:
    """Messages on their way between queue managers (TCP 1801)."""

    stall_after: timedelta = setting_field(
        timedelta(seconds=30),
        "a sequence whose messages wait so long for an order acknowledgement stalls (the first step of the resend "
        "ladder)",
        minimum=0,
    )
    window_full_after: timedelta = setting_field(
        timedelta(seconds=10),
        "how long in all one side's window may be full of unacknowledged packets within a session",
        minimum=0,
    )
    slow_after: timedelta = setting_field(
        timedelta(seconds=60),
        "how long a message may take from its first sending to the session acknowledgement of the next machine",
        minimum=0,
    )
    wait: timedelta = setting_field(
        timedelta(days=30), "how long rows on transfers take in what comes later", minimum=0
    )


@dataclass(frozen=True, slots=True)
class TimersConfig:
    """Timers of queue managers that are not visible on the wire."""

    cleanup: timedelta = setting_field(
        timedelta(minutes=5), "the queue managers' clean-up timer for pending receives", minimum=0
    )


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """Thresholds of the alert conditions; docs/reference/alerts.md says which condition uses which."""

    merge_within: timedelta = setting_field(
        timedelta(minutes=5), "a condition that starts again within this time of its end is the same alert", minimum=0
    )
    error_after: timedelta = setting_field(
        timedelta(hours=1), "a warning about a stalled queue or transfer becomes an error after this time", minimum=0
    )
    disconnected_after: timedelta = setting_field(
        timedelta(minutes=5), "how long an outgoing queue may have no connection", minimum=0
    )
    machine_disconnected_after: timedelta = setting_field(
        timedelta(minutes=5), "how long a queue manager may be disconnected from network and directory", minimum=0
    )
    on_hold_after: timedelta = setting_field(
        timedelta(minutes=30), "how long an outgoing queue with messages may be on hold", minimum=0
    )
    stuck_after: timedelta = setting_field(
        timedelta(minutes=15), "how long messages may wait in a local queue without a sign that any is read", minimum=0
    )
    unacked_after: timedelta = setting_field(
        timedelta(minutes=30), "maximum age of a message that is sent and not acknowledged", minimum=0
    )
    unread_after: timedelta = setting_field(
        timedelta(hours=4),
        "how long messages may stay unread at their receiver, as the sender knows from acknowledgements",
        minimum=0,
    )
    stalled_after: timedelta = setting_field(
        timedelta(minutes=2), "how long an exactly-once transfer may make no progress", minimum=0
    )
    rejected_messages: int = setting_field(
        3, "messages of one sequence rejected since the last accepted one that mean a gap", minimum=1
    )
    failure_window: timedelta = setting_field(
        timedelta(hours=1),
        "failures and negative acknowledgements that are no further apart than this are one alert",
        minimum=60,
    )
    refused_sessions: int = setting_field(
        1,
        "sessions and connections from one machine to another, refused or not answered, that raise an alert",
        minimum=1,
    )
    refused_for: timedelta = setting_field(
        timedelta(minutes=5),
        "how long connections from one machine to another must fail, three or more and none opened between, to be an "
        "error",
        minimum=0,
    )
    scan_targets: int = setting_field(
        20,
        "a client that failed at more servers than this within an hour, and opened nothing, is one alert (info)",
        minimum=1,
    )
    refused_messages: int = setting_field(
        1, "messages waiting behind a number that the receiver of a sequence refuses that raise an alert", minimum=1
    )
    resends: int = setting_field(20, "resends from one machine to another within resend_window", minimum=1)
    resend_share: float = setting_field(
        0.1, "share of resends among the sendings of resend_window", minimum=0, maximum=1
    )
    resend_window: timedelta = setting_field(
        timedelta(minutes=10), "time window for the number and share of resends, in whole minutes", minimum=60
    )
    negative_acknowledgements: int = setting_field(
        1, "negative acknowledgements of one class from one sender that raise an alert", minimum=1
    )
    rejected_containers: int = setting_field(
        1, "messages of COM+ queued components from one sender that servers must reject that raise an alert", minimum=1
    )
    growth_window: timedelta = setting_field(
        timedelta(days=1),
        "time window for the growth of dead-letter queues and journals; an alert about clocks ends after this time "
        "without a difference",
        minimum=60,
    )
    dead_letters: int = setting_field(1, "additional dead letters within growth_window that raise an alert", minimum=1)
    journal_messages: int = setting_field(
        1000, "additional messages in a journal within growth_window that raise an alert", minimum=1
    )
    full_within: timedelta = setting_field(
        timedelta(days=7), "a quota that will be used up within this time, at the rate of growth_window", minimum=0
    )
    machine_full_share: float = setting_field(
        0.9, "share of a queue manager's quota that its messages may take", minimum=0, maximum=1
    )
    unacknowledged_read_after: timedelta = setting_field(
        timedelta(minutes=5),
        "how long a reader may hold a message without acknowledging it or giving it back",
        minimum=0,
    )
    failed_calls: int = setting_field(
        5, "failures of one method at one server with one result that raise an alert", minimum=1
    )
    ignored_results: tuple[int, ...] = setting_field(
        (0xC00E001B, 0xC00E0004, 0xC00E0008, 0xC00E0088, 0xC0000225, 0x400E03E9, 0x1C00000D),
        "results that do not count as failures: timed out, queue not active, cancelled, message not found, cancelled "
        "too late, read cancelled by its client, fault of a cancelled call",
        minimum=1,
    )
    max_clock_difference: timedelta = setting_field(
        timedelta(seconds=5),
        "how much the clocks of two machines may differ; by one that differs more no message expires for certain",
        minimum=0,
    )
    max_lost_share: float = setting_field(
        0.01, "share of a server's bytes that may be missing from captures in an hour", minimum=0, maximum=1
    )
    silence_after: timedelta | None = setting_field(
        None,
        "how long a folder of captures or a collected queue manager that brought evidence in five runs may bring none, "
        "by the clock; null: three times the median of its intervals, at least 1h",
        minimum=1,
    )
    event_hold: timedelta = setting_field(
        timedelta(days=1),
        "how old a single event (ends_refused, containers_rejected) may be, by the clock, to be told when it is first "
        "read although it has ended",
        minimum=0,
    )
    repeat_after: timedelta = setting_field(
        timedelta(hours=4), "targets of notices are told again of what is still there after this time", minimum=60
    )
    notify_after_run: bool = setting_field(
        False, "run_all tells the targets in the file named by MSMQ_NOTIFY_FILE, like alerts --notify"
    )


@dataclass(frozen=True, slots=True)
class QuotasConfig:
    """Quotas of queues and of whole queue managers. The management interface of queue managers does not report them."""

    queue: ByteSize | None = setting_field(None, "quota of each queue; null: unknown", minimum=1)
    journal: ByteSize | None = setting_field(None, "quota of each journal; null: unknown", minimum=1)
    queues: tuple[QueueQuota, ...] = setting_field(
        (), "quotas of single queues, by the names of queues in gold; each entry has messages, journal or both"
    )
    machine: ByteSize | None = setting_field(
        None, "quota of all messages of each queue manager; null: unknown", minimum=1
    )
    machines: tuple[MachineQuota, ...] = setting_field(
        (), "quotas of single queue managers, by their names in gold; each entry has machine and bytes"
    )


@dataclass(frozen=True, slots=True)
class NamesConfig:
    """Names of machines that people see. Keys and columns keep the names that they have."""

    machines: Path | None = setting_field(
        None,
        "CSV file with the columns address, queue_manager_id and name: names of machines by IP address, by the GUID of "
        "their queue manager, or both; they count before those of collector.machines, snapshots and captures",
    )


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """Which queue managers the collector queries, how often, and as which user. Passwords are never settings."""

    machines: tuple[CollectorMachine, ...] = setting_field(
        (),
        "queue managers to query. An entry has name and address (host name or IP), and optionally port (without it, "
        "the endpoint mapper is asked), queues (format or path names that are always queried), discover, include and "
        "exclude",
    )
    discover: tuple[DiscoverySources, ...] = setting_field(
        ("active", "private"), "lists of a machine from which queues are discovered"
    )
    include: tuple[str, ...] = setting_field(
        ("*",), "patterns (*, ?); discovered queues whose names match one are queried, case is ignored"
    )
    exclude: tuple[str, ...] = setting_field((), "patterns; discovered queues whose names match one are not queried")
    properties: tuple[int, ...] = setting_field(
        tuple(range(1, 28)),
        "identifiers of the queue properties to query, also vendor-specific ones ([MS-MQMQ] 2.3.12)",
        minimum=1,
        maximum=(1 << 32) - 1,
    )
    endpoint_mapper_port: int = setting_field(
        135, "TCP port of the endpoint mapper, for machines without a port", minimum=1, maximum=65535
    )
    authentication: AuthenticationMethod = setting_field(
        "none",
        "none, ntlm or kerberos; the password comes from MSMQ_COLLECTOR_PASSWORD, from password_file, or from the "
        "terminal",
    )
    user: str = setting_field("", "user to authenticate as")
    domain: str = setting_field("", "domain of the user; for Kerberos the realm")
    kdc: str | None = setting_field(None, "host of the Kerberos key distribution centre; null: the name of the realm")
    password_file: Path | None = setting_field(None, "file with the password in its first line")
    privacy: bool = setting_field(False, "encrypt requests and responses (packet privacy); needs ntlm or kerberos")
    timeout: timedelta = setting_field(
        timedelta(seconds=10), "time limit for connecting, and for each request", minimum=0.001
    )
    retries: int = setting_field(
        2, "retries after a temporary failure (no response in time, no connection, a lost one)", minimum=0, maximum=100
    )
    backoff: timedelta = setting_field(
        timedelta(seconds=1), "wait before the first retry; it doubles each time", minimum=0
    )
    max_parallel: int = setting_field(8, "number of machines queried in parallel", minimum=1, maximum=256)
    max_objects: int = setting_field(
        10_000,
        "number of objects (the machine and its queues) that a round queries at one machine; the other queues are "
        "recorded as limit_objects",
        minimum=1,
        maximum=1_000_000,
    )
    max_bytes: ByteSize = setting_field(
        ByteSize(128 << 20),
        "bytes of answers that a round takes from one machine; what is left is recorded as limit_bytes",
        minimum=1,
    )
    max_time: timedelta = setting_field(
        timedelta(minutes=15),
        "time that a round takes at one machine; what is left is recorded as limit_seconds",
        minimum=0.001,
    )
    interval: timedelta = setting_field(
        timedelta(seconds=60), "time between the starts of two rounds at a machine", minimum=0
    )
    rounds: int = setting_field(1, "number of rounds at each machine; 0: until the collector is stopped", minimum=0)


@dataclass(frozen=True, slots=True)
class QualityConfig:
    """Checks of the tables against expectations."""

    in_runs: bool = setting_field(
        False, "run_all also checks the rows that it changed; a failed expectation of severity error is exit code 1"
    )
    suites: Path | None = setting_field(
        None,
        "folder of the expectation suites; null: the folder quality beside the settings file, else the bundled one",
    )


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """Redaction of names, and who may read the files that jobs write."""

    redact: tuple[RedactableField, ...] = setting_field(
        (),
        "any of labels, queues, hosts, addresses, senders: the tables show pseudonyms for them. The key comes from "
        "--redact-key, MSMQ_REDACT_KEY_FILE or MSMQ_REDACT_KEY. Stubs, packets, bodies and samples are then not kept",
    )
    scratch_folder: Path | None = setting_field(
        None,
        "folder for temporary files and for the working files of a redacting run, which are removed when it ends. All "
        "workers must reach it. null: the folder that SPARK_LOCAL_DIRS names, else the system's folder for temporary "
        "files",
    )
    file_access: FileAccess = setting_field(
        "owner",
        "owner, group_read, group_write or all_read: who but their owner may use the files that a job writes, of the "
        "lake and all others (docs/guides/privacy.md)",
    )


@dataclass(frozen=True, slots=True)
class GovernanceConfig:
    """Who may read the tables of a catalog, and what apply_governance marks and leaves out of its views.

    Principals are users, service principals and groups of Unity Catalog, by their names.
    """

    owner: str | None = setting_field(
        None,
        "principal that owns the tables and the views; null: their owners stay. Whoever runs jobs must be it, or be in "
        "it",
    )
    readers: tuple[str, ...] = setting_field((), "principals that may read all tables")
    view_readers: tuple[str, ...] = setting_field((), "principals that may read the views alone")
    view_schema: str | None = setting_field(
        None, "schema of the views in the catalog; null: shared, after lake.prefix. It holds nothing else"
    )
    views_without: tuple[RedactableField, ...] = setting_field(
        ("labels", "queues", "hosts", "addresses", "senders"),
        "any of labels, queues, hosts, addresses, senders: the views leave out columns that hold such names. The names "
        "and addresses of machines in the names of queues stay if queues is not among them",
    )
    tag: str = setting_field("msmq_data", "name of the tag of columns: its value is personal or body")


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, by section. ``Config()`` holds the defaults; ``Config.load`` reads a file and overrides."""

    lake: LakeConfig = LakeConfig()
    run: RunConfig = RunConfig()
    ingest: IngestConfig = IngestConfig()
    capture: CaptureConfig = CaptureConfig()
    store: StoreConfig = StoreConfig()
    comqc: ComqcConfig = ComqcConfig()
    pending: PendingConfig = PendingConfig()
    reads: ReadsConfig = ReadsConfig()
    queues: QueuesConfig = QueuesConfig()
    history: HistoryConfig = HistoryConfig()
    eod: EodConfig = EodConfig()
    sessions: SessionsConfig = SessionsConfig()
    transfers: TransfersConfig = TransfersConfig()
    timers: TimersConfig = TimersConfig()
    alerts: AlertsConfig = AlertsConfig()
    quotas: QuotasConfig = QuotasConfig()
    names: NamesConfig = NamesConfig()
    collector: CollectorConfig = CollectorConfig()
    quality: QualityConfig = QualityConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    governance: GovernanceConfig = GovernanceConfig()

    @classmethod
    def load(cls, path: str | Path | None, overrides: Iterable[str] = ()) -> Config:
        """Read a YAML file (None: only defaults) and apply ``key.path=value`` overrides; ConfigError if invalid."""
        given = dict(_read_file(Path(path))) if path is not None else {}
        given.update(_read_overrides(overrides))
        return _build_config(given)


SECTIONS: dict[str, type] = {
    name: tree for name, tree in get_type_hints(Config).items() if is_dataclass(tree) and isinstance(tree, type)
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Description of one setting: dotted key, type, default, meaning and bounds."""

    key: str
    value_type: Any
    default: object
    meaning: str
    minimum: float | None
    maximum: float | None


def list_settings() -> dict[str, Setting]:
    """Return all settings by dotted key, in the order of the dataclasses."""
    found: dict[str, Setting] = {}
    for section, tree in SECTIONS.items():
        hints = get_type_hints(tree)
        for each in fields(tree):
            key = f"{section}.{each.name}"
            found[key] = _setting_from_field(key, hints[each.name], each)
    return found


def _setting_from_field(key: str, value_type: object, each: Field[Any]) -> Setting:
    meta: Mapping[str, Any] = each.metadata
    return Setting(key, value_type, each.default, meta["meaning"], meta["minimum"], meta["maximum"])


def _build_config(given: Mapping[str, tuple[str, object]]) -> Config:
    """Build the Config from ``{dotted key: (location, raw value)}``; ConfigError for an unknown key or wrong value."""
    known = list_settings()
    config = Config()
    for key, (location, raw) in given.items():
        if key not in known:
            raise ConfigError(f"{location}: unknown setting {key}{_known_names(key)}")
        value = _convert_and_check(known[key], raw, f"{location}: {key}")
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


def _convert_and_check(setting: Setting, raw: object, location: str) -> object:
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


SECONDS_PER_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_DURATION_S = 100 * 366 * 86400  # a century: a packet time plus a duration stays a valid date
BYTES_PER_UNIT = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


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
