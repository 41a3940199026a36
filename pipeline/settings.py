"""The settings: what each is called, its type, default, meaning and bounds. One class for each section.

These classes are the only list of settings. What else has a setting's value by default takes it from here, as in
``TransfersConfig.wait``; so the classes have no slots. conf/local.yml shows all settings with the same texts, and
``jobs/command_line`` reads such files. A function of the pipeline takes the values that it needs, not all settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal


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
ApplicationHeaders = Literal["known", "all", "none"]
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


@dataclass(frozen=True, slots=True)
class Durations:
    """Settings that a computation rests on, all of them durations."""

    def as_provenance(self) -> dict[str, float]:
        """Return the settings as JSON values, in seconds: ``wait_s`` for ``wait``."""
        return {f"{each.name}_s": getattr(self, each.name).total_seconds() for each in fields(self)}


def setting_field(default: object, meaning: str, *, minimum: float | None = None, maximum: float | None = None) -> Any:
    """Return a dataclass field for one setting: its default, its meaning, and the bounds of its value.

    Bounds apply to numbers, to durations (in seconds) and to sizes (in bytes).
    """
    return field(default=default, metadata={"meaning": meaning, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class RunConfig:
    """What computes."""

    engine: RunEngine = setting_field(
        "spark",
        "what reads captures and computes many rows: Spark's tasks (spark), or the same tasks one after the other in "
        "this process, without Java (local)",
    )


@dataclass(frozen=True)
class IngestConfig:
    """What captures and snapshots have in common."""

    max_time_ahead: timedelta = setting_field(
        timedelta(days=1),
        "how much later than the clock of the machine that reads them packets and snapshots may say that they were "
        "made. Beyond it, a packet is read without its time and a snapshot goes to bronze.quarantine",
        minimum=0,
    )


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class StoreConfig:
    """Which content of messages the tables keep."""

    stubs: bool = setting_field(
        True, "keep stubs in bronze (they contain message bodies); false empties them once silver is written"
    )
    bodies: bool = setting_field(False, "keep message bodies (messages.body, comqc_calls.marshaled)")
    packets: bool = setting_field(False, "keep message packets (remote_read_calls.packet)")
    application_headers: ApplicationHeaders = setting_field(
        "known",
        "what silver.messages keeps of the application's headers and bodies. known: the columns; all: also all headers "
        "(messages.application_headers), with store.bodies what exceptions said too; none: framework alone",
    )


@dataclass(frozen=True)
class ComqcConfig:
    """Calls of COM+ queued components."""

    interfaces: Path | None = setting_field(
        None,
        "file that declares methods of COM+ interfaces and classes, so that recorded calls get names and arguments. "
        "Silver is decoded again when its declarations change",
    )


@dataclass(frozen=True)
class PendingConfig:
    """Connections that a capture could not finish."""

    expire: timedelta = setting_field(
        timedelta(days=7), "how long bronze.pending waits for more of a connection that is silent", minimum=0
    )


@dataclass(frozen=True)
class ReadsConfig:
    """Loss risks of remote reads."""

    lost_after: timedelta = setting_field(
        timedelta(seconds=60),
        "a reader whose connection ends within this time of an acknowledgement is a loss risk",
        minimum=0,
    )
    poison_after: int = setting_field(3, "number of returns that make a message a poison message", minimum=1)


@dataclass(frozen=True)
class QueuesConfig:
    """Names of queues that captures do not show."""

    aliases: tuple[tuple[str, ...], ...] = setting_field(
        (), "groups of names; all names of a group (format, path or direct names) mean the same queue"
    )


@dataclass(frozen=True)
class HistoryConfig:
    """Queue histories."""

    max_gap: timedelta = setting_field(
        timedelta(minutes=15), "how long an observation of a queue is valid; after that its state is UNKNOWN", minimum=1
    )


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class TimersConfig:
    """Timers of queue managers that are not visible on the wire."""

    cleanup: timedelta = setting_field(
        timedelta(minutes=5), "the queue managers' clean-up timer for pending receives", minimum=0
    )


@dataclass(frozen=True)
class AlertThresholds:
    """The settings of alerts that the rows of gold.alerts depend on."""

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
    failed_messages: int = setting_field(
        1, "messages that one endpoint could not process, with one exception, that raise an alert", minimum=1
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


@dataclass(frozen=True)
class ClockLimits:
    """The settings of alerts that are compared with the clock when alerts are printed or sent."""

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


@dataclass(frozen=True)
class AlertsConfig(ClockLimits, AlertThresholds):
    """Thresholds of the alert conditions; docs/reference/alerts.md says which condition uses which."""

    repeat_after: timedelta = setting_field(
        timedelta(hours=4), "targets of notices are told again of what is still there after this time", minimum=60
    )
    notify_after_run: bool = setting_field(
        False, "run_all tells the targets in the file named by MSMQ_NOTIFY_FILE, like alerts --notify"
    )


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class NamesConfig:
    """Names of machines that people see. Keys and columns keep the names that they have."""

    machines: Path | None = setting_field(
        None,
        "CSV file with the columns address, queue_manager_id and name: names of machines by IP address, by the GUID of "
        "their queue manager, or both; they count before those of collector.machines, snapshots and captures",
    )


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class QualityConfig:
    """Checks of the tables against expectations."""

    in_runs: bool = setting_field(
        False, "run_all also checks the rows that it changed; a failed expectation of severity error is exit code 1"
    )
    suites: Path | None = setting_field(
        None,
        "folder of the expectation suites; null: the folder quality beside the settings file, else the bundled one",
    )


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
