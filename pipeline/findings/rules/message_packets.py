"""Rules on message packets, as a read returned them: T22 to T33. No Spark.

The server sent the packet, so it is the party that the findings name; the queue manager that made the packet may be
another one (``silver.messages.source_queue_manager``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pipeline.findings.columns.association_calls import AssociationCalls
from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask
from pipeline.findings.columns.call_history import QM2QM_READS, REMOTE_READ_READS, AssociationHistory, CapturedCall
from pipeline.findings.rules.registry import ViolatingCalls, association_call_rule, call_rule
from pipeline.queues.history import DEAD_LETTER_QUEUE_PATTERN
from udfs.dcerpc.interfaces import REMOTE_READ_NAME
from udfs.messages.header_layouts import MAX_PACKET_BYTES, MESSAGE_HEADER_NAMES, NO_NAME_TYPE
from udfs.times import DAY_US

_READS: Final = (*QM2QM_READS, *REMOTE_READ_READS)
MAX_HOP_COUNT: Final = 0x1D
_EXPIRY_SLACK_US: Final = 5_000_000
_DIFFERENT_CLOCKS_US: Final = 30 * DAY_US  # a message that is so late shows a wrong clock
_POSITIVE_CLASSES: Final = (0x0002, 0x4000)  # arrived, received
_NEGATIVE_CLASS: Final = 0x8000
_HEADERS_BEYOND_PACKET_SIZE: Final = frozenset(MESSAGE_HEADER_NAMES[MESSAGE_HEADER_NAMES.index("SessionHeader") :])
_FIELDS_READ_ON: Final = frozenset({"BaseHeader.PacketSize", "UserHeader.Flags.MP", "SecurityHeader.SecurityID"})
"""The fields whose wrong value does not end the reading of a packet."""
_RC_ALGORITHMS: Final = frozenset({0x6602, 0x6801})  # RC2, RC4
_AES_ALGORITHMS: Final = frozenset({0x660E, 0x660F, 0x6610})
_ENHANCED_LEVEL_OF_MQMP: Final = 2  # [MS-MQMP] has 2 for what is 3 in packets (doubt D17)
_ALGORITHMS_BY_LEVEL: Final = {1: _RC_ALGORITHMS, 2: _RC_ALGORITHMS, 3: _RC_ALGORITHMS, 5: _AES_ALGORITHMS}


_LIMITS: Final = (("TimeToReachQueue", "time_to_reach_queue_s"), ("TimeToBeReceived", "time_to_be_received_s"))
_OPTIONS: Final = (
    ("Flags", "acknowledgement_requested"), ("JP and JN", "journaling"), ("PrivacyLevel", "privacy_level"),
)  # fmt: skip
"""What an acknowledgement message must not have: names in findings, and columns."""


def _has_negative_class(calls: AssociationCallColumns) -> Mask:
    result: Mask = calls.numbers("class") & _NEGATIVE_CLASS != 0
    return result


def _wrong_fields(calls: AssociationCallColumns, *fields: str) -> ViolatingCalls:
    """Return the packets in which one of some fields has a wrong value."""
    found = calls.first_of_elements(
        "message_errors", lambda error: error["field"] if error["field"] in fields else None
    )
    return ViolatingCalls(found[0], "{} is wrong", (found[1],))


def _lacks_header(calls: AssociationCallColumns, name: str) -> Mask:
    """Tell which packets certainly do not have a header: they were read to their end."""
    unread, _ = calls.first_of_elements(
        "message_errors", lambda error: (error["field"] or "") not in _FIELDS_READ_ON or None
    )
    return ~unread & ~calls.map_has("header_sizes", name)


@call_rule("T22", *_READS, needs="ok")
def transaction_number_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The number in the sequence is 0, or the preceding number is not below it."""
    number, previous = calls.numbers("transaction_number"), calls.numbers("previous_transaction_number")
    wrong = calls.has("transaction_number") & ((number == 0) | (previous >= number))
    actual = "TxSequenceNumber {transaction_number}, PreviousTxSequenceNumber {previous_transaction_number}"
    yield ViolatingCalls(wrong, actual)


@call_rule("T24", *_READS, needs="ok")
def transactional_message_with_priority(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """A message with a TransactionHeader has a priority other than 0."""
    yield ViolatingCalls(calls.nonzero("transactional") & calls.nonzero("priority"), "priority {priority}")


@call_rule("T25", *_READS, needs="ok")
def user_header_flags_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """MP is 0, DQ or AQ is not allowed, a transactional message is not recoverable, or RC is above 0x1D."""
    yield _wrong_fields(calls, "UserHeader.Flags.MP", "UserHeader.Flags.DQ", "UserHeader.Flags.AQ")
    unrecoverable = calls.nonzero("transactional") & ~calls.text_in("delivery", {"recoverable"})
    yield ViolatingCalls(unrecoverable, "TH without DM = 1")
    yield ViolatingCalls(calls.numbers("hop_count") > MAX_HOP_COUNT, "RC 0x{hop_count:02X}")


def _queue_read(history: AssociationHistory, read: CapturedCall) -> str | None:
    """Return the name of the queue that a read reads from; None where its opening was not captured."""
    if read.method[0] == REMOTE_READ_NAME:
        lifetime = history.context_lifetime(read)
        return None if lifetime is None else lifetime.open_call["queue"]
    number = read["queue_handle"]
    return history.share(("queue", number), lambda: _only_queue_of(history, number))


def _only_queue_of(history: AssociationHistory, number: int | None) -> str | None:
    names = {call["queue"] for call in history.server.remote_queue_opens_before(number, history.openings_cutoff)}
    return names.pop() if len(names) == 1 else None


def _is_dead_letter(history: AssociationHistory, read: CapturedCall) -> bool:
    """Tell whether a message with the class of a negative acknowledgement may be a dead letter.

    A dead letter has such a class too, and keeps all other values of the message. It is in a dead-letter queue: one of
    the queue manager, or one that the message names, which only RemoteRead returns. Where neither is known, a message
    that correlates with no other is not known to be an acknowledgement.
    """
    queue = _queue_read(history, read)
    if queue is not None and DEAD_LETTER_QUEUE_PATTERN.search(queue) is not None:
        return True
    if queue is None or read.method[0] != REMOTE_READ_NAME:
        return read["correlation_id"] is None
    return read["dead_letter_queue"] is not None


@association_call_rule(
    "T27", *_READS, needs="ok",
    precondition="request and response were captured completely; the message is in no dead-letter queue",
)  # fmt: skip
def acknowledgement_message_invalid(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """An acknowledgement message has a time limit, asks for acknowledgements or journaling, or has a privacy level."""
    unexpected = [calls.has(column) for _, column in _LIMITS] + [calls.nonzero(column) for _, column in _OPTIONS]
    wrong = np.logical_or.reduce(unexpected)
    negative = _has_negative_class(calls) & wrong
    invalid = negative & ~calls.where(negative, _is_dead_letter)
    invalid |= calls.equals("class", *_POSITIVE_CLASSES) & wrong
    yield ViolatingCalls(invalid, lambda read: f"class 0x{read['class']:04X} with {', '.join(_unexpected(read))}")


@association_call_rule(
    "T26", *_READS, needs="ok",
    precondition="request, response and the opening of the queue were captured completely; "
    "the queue is its destination",
)  # fmt: skip
def message_arrived_after_expiry(calls: AssociationCalls) -> Iterator[ViolatingCalls]:
    """The message came to its queue more than 5 s, and less than 30 days, after its time to reach the queue had passed.

    Both times are of different clocks; more than 30 days are a wrong clock. Journals, dead-letter queues and subqueues
    are no destinations: messages come there later.
    """
    allowed = calls.numbers("time_to_reach_queue_s")
    timed = calls.has("sent_at") & calls.has("arrived_at") & calls.has("time_to_reach_queue_s") & (allowed >= 0)
    late = calls.numbers("arrived_at") - calls.numbers("sent_at") - allowed * 1_000_000
    expired = timed & (late > _EXPIRY_SLACK_US) & (late < _DIFFERENT_CLOCKS_US) & ~_has_negative_class(calls)
    wrong = calls.where(expired, _is_from_destination)
    yield ViolatingCalls(wrong, "arrived {:.0f} s after it expired", (late / 1e6,))


def _is_from_destination(history: AssociationHistory, read: CapturedCall) -> bool:
    """Tell whether a queue is known, and is one that messages are sent to."""
    queue = _queue_read(history, read)
    return queue is not None and ";" not in queue


def _unexpected(call: CapturedCall) -> list[str]:
    """Return what a returned message has and an acknowledgement message must not have."""
    wrong = [f"{name} {call[column]} s" for name, column in _LIMITS if call[column] is not None]
    return wrong + [f"{name} {call[column]}" for name, column in _OPTIONS if call[column]]


@call_rule("T30", *_READS, needs="ok")
def base_header_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The version or the signature is wrong, PacketSize is not the packet's size, or it is above 4 MiB."""
    yield _wrong_fields(calls, "BaseHeader.VersionNumber", "BaseHeader.Signature", "BaseHeader.PacketSize")
    if (calls.map_sums("header_sizes") > MAX_PACKET_BYTES).any():  # hardly ever, and quickly told
        size = calls.map_sums("header_sizes", *_HEADERS_BEYOND_PACKET_SIZE)
        yield ViolatingCalls(size > MAX_PACKET_BYTES, "PacketSize {}", (size,))


@call_rule("T31", *_READS, needs="ok")
def traced_without_debug_header(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """TR is set in a packet without a DebugHeader."""
    yield ViolatingCalls(calls.nonzero("traced") & _lacks_header(calls, "DebugHeader"))


@call_rule("T32", *_READS, needs="ok")
def acknowledgements_without_administration_queue(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The message asks for acknowledgements and names no administration queue, as Windows does."""
    names_none = calls.equals("admin_queue_type", NO_NAME_TYPE) & _lacks_header(calls, "MultiQueueFormatHeader")
    wrong = calls.nonzero("acknowledgement_requested") & names_none & ~calls.nonzero("is_srmp")
    yield ViolatingCalls(wrong, "Properties.Flags 0x{acknowledgement_requested:02X}, AQ 0")


@call_rule("T33", *_READS, needs="ok")
def encryption_algorithm_invalid(calls: AssociationCallColumns) -> Iterator[ViolatingCalls]:
    """The privacy level is none that exists, or the encryption algorithm is none of its level."""
    unknown = calls.nonzero("privacy_level") & ~calls.equals("privacy_level", *_ALGORITHMS_BY_LEVEL)
    yield ViolatingCalls(unknown, "PrivacyLevel {privacy_level}")
    other = "EncryptionAlgorithm 0x{encryption_algorithm:04X} at PrivacyLevel {privacy_level}"
    for level, algorithms in _ALGORITHMS_BY_LEVEL.items():
        ours = calls.equals("privacy_level", level)
        yield ViolatingCalls(ours & ~calls.equals("encryption_algorithm", *algorithms), other)
    of_mqmp = calls.equals("privacy_level", _ENHANCED_LEVEL_OF_MQMP)
    yield ViolatingCalls(of_mqmp, "PrivacyLevel {privacy_level}", severity="warning")
