"""The alert conditions: what each means, what to do about it, and the thresholds that decide whether it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pipeline.queues.history import NOT_CONNECTED_STATES
from pipeline.settings import AlertThresholds, HistoryConfig, TimersConfig, TransfersConfig
from pipeline.silver.machine_names import DeclaredNames, names_digest
from udfs.capture.openings import ANSWER_NOT_CAPTURED, NO_ANSWER, RESET
from udfs.times import timedelta_to_us


class Condition(NamedTuple):
    """A kind of alert: the ``question`` of docs/reference/questions.md that it answers, its meaning, and what to do."""

    question: int
    meaning: str
    suggestion: str


_CONNECTION_ADVICE: Final = {
    NO_ANSWER: ("No answer", "See whether the host is up, and whether routes and firewalls let the port through."),
    RESET: ("Reset", "See whether its Message Queuing service runs, and whether a firewall rejects the port."),
    "refused": (
        "Session refused",
        (
            "Another queue manager answers at that address (asked_queue_manager and acceptor_queue_manager of "
            "silver.sessions differ: look at names, addresses and caches), or it is at its limit of connections."
        ),
    ),
    "unanswered": ("Session not answered", "See whether its service runs."),
}
CONNECTION_SUGGESTIONS: Final = {cause: advice for cause, (_, advice) in _CONNECTION_ADVICE.items()}
"""What to do where a machine cannot connect to another, by ``cause`` of gold.alerts."""

CONDITIONS: Final = {
    "queue_disconnected": Condition(
        1,
        f"an outgoing queue has no connection to its next hop ({', '.join(NOT_CONNECTED_STATES)}) "
        "for alerts.disconnected_after, and hands no message over (TCP 1801); info with neither messages in it nor "
        "messages sent and not acknowledged (eod_no_ack_count), else error after alerts.error_after",
        "Look at the connection's last error and next hops (connection_history); see whether the next hop's name "
        "resolves, its service runs and TCP 1801 reaches it.",
    ),
    "machine_disconnected": Condition(
        1,
        "a queue manager is disconnected from network and directory (CONNECTED is DISCONNECTED) for "
        "alerts.machine_disconnected_after; error after alerts.error_after",
        "Somebody took it offline (gold.management_actions has the DISCONNECT, if it was captured): it sends nothing "
        "until it is connected again.",
    ),
    "sessions_refused": Condition(
        1,
        "at least alerts.refused_sessions sessions (TCP 1801) or connections (also for remote reads) from one machine "
        "to another were refused, not answered or not established, no further apart than alerts.failure_window; error "
        "where connections to one port failed for alerts.refused_for, at least three and none opened between; info for "
        "a client that failed at more than alerts.scan_targets servers within an hour and opened nothing; a session "
        "that may yet be answered, or may have been by bytes that were not captured, does not count",
        " ".join(f"{heading}: {advice[0].lower()}{advice[1:]}" for heading, advice in _CONNECTION_ADVICE.values()),
    ),
    "queue_on_hold": Condition(
        1,
        "an outgoing queue with messages is on hold for alerts.on_hold_after: reported as ONHOLD, or by a captured "
        "pause or resume since",
        "Somebody paused it: resume it when the reason is gone.",
    ),
    "machine_nearly_full": Condition(
        3,
        "the messages in all queues of a queue manager take alerts.machine_full_share of its quota; error when it is "
        "used up; only where quotas.machine or quotas.machines set the quota",
        "Have its largest queues, journals and dead letters read or purged, or raise the quota: a full queue manager "
        "refuses messages.",
    ),
    "queue_stuck": Condition(
        4,
        "messages wait in a local queue, and for alerts.stuck_after nothing shows that any is read: no captured "
        "receive, move or purge, no acknowledgement on TCP 1801 that one was received, and neither their number nor "
        "their bytes ever fall; error after alerts.error_after. Time of which no report tells does not count for "
        "alerts.stuck_after. It has ended when messages were last known to wait",
        "See whether the reader runs, and whether it fails (receives_not_ended, calls_failing); a message that comes "
        "back again and again is in gold.ack_sequences (loss_risk poison).",
    ),
    "messages_unacknowledged": Condition(
        6,
        "the oldest message sent and not acknowledged is at least alerts.unacked_after old; until a later report or a "
        "captured order acknowledgement (TCP 1801) shows another",
        "See whether the receiver is reachable, and what gold.eod_sources says of the same sequence there.",
    ),
    "messages_unread": Condition(
        6,
        "messages arrived and were not read for alerts.unread_after, by the acknowledgements that the sender got: "
        "their number never falls, and no acknowledgement that a message of the queue was received is captured (TCP "
        "1801)",
        "See whether the receiving application runs; at the receiver the queue is then stuck too.",
    ),
    "transfer_stalled": Condition(
        7,
        "an exactly-once transfer makes no progress for alerts.stalled_after: messages wait, none is acknowledged, "
        "as reported or by a captured order acknowledgement (TCP 1801); error on the third step of the resend ladder, "
        "or after alerts.error_after",
        "Until the next try nothing moves: EOD_RESEND asks for one now. If tries fail, look at the receiver: its "
        "queue, its quota, and whether it disagrees about the next number (ends_disagree).",
    ),
    "order_acks_stalled": Condition(
        7,
        "messages of an exactly-once sequence were sent, and none was acknowledged by an order acknowledgement for "
        "transfers.stall_after (gold.transfer_sequences.stalls); error after alerts.error_after; it ends too where "
        "the sender begins another sequence or reports that they are acknowledged, or an acknowledgement of another "
        "kind says that they arrived",
        "Look at the receiver: its queue, its quota, its disk, and whether it can reach the sender: order "
        "acknowledgements travel back in a session that the receiver may have to open.",
    ),
    "sequence_refused": Condition(
        9,
        "a receiver refuses a number of an exactly-once sequence for ever: it was sent three times or more, and order "
        "acknowledgements do not reach it, while at least alerts.refused_messages messages wait; until the sender "
        "begins another sequence, or sender or receiver report that the number was accepted",
        "The number's predecessor is not what the receiver has: nothing gets better by waiting. "
        "Compare both ends (ends_disagree), save the outgoing messages, then have the sender begin a new sequence.",
    ),
    "sequence_gap": Condition(
        9,
        "a receiver rejected at least alerts.rejected_messages messages of one sequence since it last accepted one: "
        "they do not follow what it has",
        "Compare what the sender has (gold.eod_transfers, ends_disagree); a sender that was set up again or restored "
        "continues with other numbers.",
    ),
    "ends_disagree": Condition(
        11,
        "sender and receiver of a sequence disagree about the next number, so that the receiver rejects all messages",
        "Nothing gets better by waiting. Save the outgoing messages, then have the sender begin a new sequence (purge "
        "its outgoing queue) or restore the end that went back.",
    ),
    "window_full": Condition(
        12,
        "within one session, one side's unacknowledged packets filled the window for transfers.window_full_after in "
        "all, so that it could not send; it ends with the session",
        "The receiver acknowledges more slowly than the sender sends: look at its load and disk, and at the network "
        "between them (view transfer_latency).",
    ),
    "transfers_slow": Condition(
        12,
        "messages were acknowledged by the next machine transfers.slow_after or longer after they were first sent, no "
        "further apart than alerts.failure_window; messages that are not acknowledged have no time",
        "See whether they were sent again (view resent_messages) and whether sessions ended or were refused meanwhile "
        "(silver.sessions); a receiver may also hold acknowledgements back, up to half of ack_timeout_ms.",
    ),
    "resend_storm": Condition(
        13,
        "of the sendings from one machine to another within alerts.resend_window, at least alerts.resends and a share "
        "of alerts.resend_share were resends; it has ended if none came for alerts.resend_window",
        "See why the first sendings were not acknowledged: sessions that break (silver.sessions.ended), order "
        "acknowledgements that do not come (order_acks_stalled), a receiver that refuses (sequence_refused).",
    ),
    "negative_acknowledgements": Condition(
        14,
        "at least alerts.negative_acknowledgements acknowledgements of one class and sender, no further apart than "
        "alerts.failure_window: administration acknowledgements, on TCP 1801 or read remotely, and final "
        "acknowledgements of transactional messages",
        "The class says why (MQMSG_CLASS_NACK_...); the messages meant are those of correlation_id, or of "
        "acknowledged_message_id of silver.order_acks.",
    ),
    "dead_letters_growing": Condition(
        16,
        "a dead-letter queue, or the dead queue of a queued component, grew by alerts.dead_letters within "
        "alerts.growth_window",
        "Read a dead letter: its class or the reason of its sender's queue manager says why it died. Then remove them: "
        "they count against the machine's quota.",
    ),
    "journal_growing": Condition(
        17,
        "a journal grew by alerts.journal_messages within alerts.growth_window",
        "Nothing empties a journal by itself: remove what is no longer needed, or turn journaling off.",
    ),
    "nearly_full": Condition(
        17,
        "a journal or queue holds nine tenths of its quota (error), or will be full within alerts.full_within at the "
        "rate of alerts.growth_window; only where quotas.* or quotas.queues set the quota",
        "Empty the journal or have the queue read, or raise the quota: messages that find it full are refused.",
    ),
    "receives_not_ended": Condition(
        19,
        "a reader got a message and for alerts.unacknowledged_read_after neither acknowledged it nor gave it back, or "
        "disconnected while it held it; not where TCP 1801 says that the message was received, its queue is "
        "reported empty since, or the message was handed out again without a captured end",
        "See whether the reader hangs or crashes; the message is locked meanwhile and is read again afterwards.",
    ),
    "ends_refused": Condition(
        19,
        "the end of a receive was refused after the message had been handed out",
        "The application may have done its work, and the message may come again: see gold.ack_sequences (loss_risk).",
    ),
    "calls_failing": Condition(
        21,
        "a method at a server fails with one result at least alerts.failed_calls times, no further apart than "
        "alerts.failure_window; results in alerts.ignored_results do not count",
        "The result says why; the view failures lists clients and queues.",
    ),
    "duplicate_queue_manager": Condition(
        22,
        "two machines have the same queue manager identifier",
        "One of them was cloned: give it an identifier of its own (remove QMId and set Message Queuing up again).",
    ),
    "clocks_differ": Condition(
        23,
        "the clocks of two machines differ by at least alerts.max_clock_difference, as messages show that were read or "
        "captured before they were sent; or no message of a day was captured within 30 days of when it was sent",
        "Set the clocks: times to reach a queue and to be received, and tickets of Kerberos, depend on them.",
    ),
    "containers_rejected": Condition(
        24,
        "at least alerts.rejected_containers messages of COM+ queued components from one sender break one rule of the "
        "format, no further apart than alerts.failure_window: servers must reject them, and their calls are lost",
        "messages.comqc_rejected says which rule. Look at what wrote the message (source_queue_manager), and do its "
        "calls again: nothing else repeats them.",
    ),
    "capture_lost": Condition(
        25,
        "in one hour captures lack at least alerts.max_lost_share of a server's bytes",
        "What is not captured is not known: capture whole packets (-s 0), on a machine that can follow.",
    ),
    "snapshots_missing": Condition(
        25,
        "in one hour at least half of a queue manager's snapshots were not answered",
        "See bronze.snapshots_raw.error; until it answers the state of its queues is not known.",
    ),
    "application_failing": Condition(
        26,
        "an endpoint moved at least alerts.failed_messages messages that it could not process, with one exception, to "
        "one queue, no further apart than alerts.failure_window: their headers name the queue in which processing "
        "failed, or an exception, whatever the queue is called; error where they go on for alerts.error_after. "
        "Immediate retries and local reads make no traffic: nothing is known of them",
        "The exception says why; the view failed_messages lists types, and which are still there. Nothing tries "
        "these messages again by itself: when the reason is gone, return them to the queue in which they failed.",
    ),
}
"""All alert conditions, by their names in gold.alerts."""

EVIDENCE_STOPPED: Final = "evidence_stopped"
CLOCK_CONDITIONS: Final = {
    EVIDENCE_STOPPED: Condition(
        25,
        "a source (a folder of captures, or a collected queue manager) brought evidence in five runs or more, and none "
        "for alerts.silence_after, by the clock. It is no row of gold.alerts: those depend on evidence only",
        "See whether the capture or the collector runs, whether its files still reach the place that the runs read, "
        "whether the queue manager answers (bronze.snapshots_raw.error), and whether the runs themselves run "
        "(bronze.runs). What happened since then is not known.",
    ),
}
"""The conditions that depend on the clock of the machine that prints or sends alerts."""

SINGLE_EVENTS: Final = ("ends_refused", "containers_rejected")
"""Conditions of which one event is an error: it is told when it is first read, also if it has ended by then."""


FAILURE_CAUSES: Final = {
    NO_ANSWER: "no answer (network or host)",
    RESET: "reset (service not running, or a firewall that rejects)",
    ANSWER_NOT_CAPTURED: "no answer, or a reset that this capture cannot see",
}
"""Why connections were not established, by their code in bronze.connections; others are no failures."""


@dataclass(frozen=True)
class Thresholds(AlertThresholds):
    """The thresholds of alerts, and the other settings that alerts depend on. Quotas are in bytes, None: not known."""

    stall_after: timedelta = TransfersConfig.stall_after
    window_full_after: timedelta = TransfersConfig.window_full_after
    slow_after: timedelta = TransfersConfig.slow_after
    max_gap: timedelta = HistoryConfig.max_gap
    cleanup_interval: timedelta = TimersConfig.cleanup
    queue_quota_bytes: int | None = None
    journal_quota_bytes: int | None = None
    quotas: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """The quotas of a queue and of its journal, by queue."""
    machine_quota_bytes: int | None = None
    machine_quotas: Mapping[str, int] = field(default_factory=dict)
    """The quotas of queue managers, by their names in gold."""
    machine_names: DeclaredNames = ()
    """The declared names of machines, which texts have."""

    def as_provenance(self) -> dict[str, Any]:
        """Return the thresholds as JSON values for the provenance in a commit; durations in microseconds.

        Of declared names it has a digest.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        found = {
            name: timedelta_to_us(value) if isinstance(value, timedelta) else value for name, value in values.items()
        }
        found["ignored_results"] = sorted(self.ignored_results)
        found["machine_quotas"] = dict(sorted(self.machine_quotas.items()))
        found["quotas"] = {queue: list(sizes) for queue, sizes in sorted(self.quotas.items())}
        found["machine_names"] = names_digest(self.machine_names)
        return found
