"""Messages that an association read more than once, or rejected, as columns. No Spark."""

from __future__ import annotations

import numpy as np

from pipeline.findings.columns.association_calls import QM2QM_END, REMOTE_READ_ENDS, AssociationCalls, Suspects
from pipeline.findings.columns.call_columns import Mask, Method, Numbers
from pipeline.findings.columns.call_history import QM2QM_READS
from pipeline.findings.columns.receives import (
    earliest_possible_ack_at,
    handle_groups,
    message_keys,
    with_whole_exchanges,
)
from udfs.codes import RR_NACK
from udfs.columns.absent import AFTER_ALL
from udfs.columns.codes import row_codes
from udfs.columns.groups import Groups
from udfs.columns.time_index import TimeIndex
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

_MOVE, _CLASS, _TRANSACTIONAL_READ = (REMOTE_READ_NAME, 10), (REMOTE_READ_NAME, 14), (REMOTE_READ_NAME, 13)
_PURGE = (QM2QM_NAME, 6)


def _messages(calls: AssociationCalls) -> Groups:
    rows, keys = message_keys(calls)
    return Groups(rows, keys, calls.started_at[rows])


def _rows(calls: AssociationCalls, rows: Numbers) -> Mask:
    found = calls.nothing()
    found[rows] = True
    return found


def repeated_deliveries(calls: AssociationCalls) -> Suspects:
    """Return the reads, with their Ends, of messages received twice, or read after they were acknowledged."""
    return calls.share("repeated deliveries", lambda: _repeated_deliveries(calls))


def _repeated_deliveries(calls: AssociationCalls) -> Suspects:
    groups = _messages(calls)
    rows = groups.rows
    gone_at = groups.smallest(np.where(calls.has("transaction_id"), AFTER_ALL, earliest_possible_ack_at(calls))[rows])
    started = calls.started_at[rows]
    again = (groups.counts(calls.is_receive[rows]) > 1) | groups.any(started > gone_at)
    again |= groups.any(calls.responded_at[rows] < started)  # by clocks that differ
    return Suspects(with_whole_exchanges(calls, _rows(calls, rows[again])))


def purged_messages(calls: AssociationCalls) -> Suspects:
    """Return the reads of messages that were read more than once from a queue that was purged."""
    purges = calls.of(_PURGE) & calls.succeeded
    if not purges.any():
        return Suspects(purges)
    queues = calls.keys("queue_handle")
    groups = _messages(calls)
    rows = groups.rows
    ours = (calls.of(*QM2QM_READS) & np.isin(queues, queues[purges]))[rows]
    again = groups.counts(ours) > 1
    return Suspects(_rows(calls, rows[ours & again]))


def rejections(calls: AssociationCalls) -> Suspects:
    """Return Ends that reject a message; beside them what they end."""
    rejected = _rejecting(calls, QM2QM_END, *REMOTE_READ_ENDS)
    return Suspects(rejected, with_whole_exchanges(calls, rejected) if rejected.any() else None)


def _rejecting(calls: AssociationCalls, *ends: Method) -> Mask:
    return calls.of(*ends) & calls.succeeded & calls.equals("ack", RR_NACK)


def reads_after_rejection(calls: AssociationCalls) -> Suspects:
    """Return the next receive of the first message of a queue, after each End that rejects one; beside them those."""
    rejected = _rejecting(calls, QM2QM_END)
    if not rejected.any():
        return Suspects(rejected)
    firsts = calls.of(*QM2QM_READS) & calls.succeeded & calls.equals("action", 0) & (calls.lookup_id_number != 0)
    handles, unpaired = handle_groups(calls)
    rows = handles.rows
    rejected_at = handles.largest(np.where(rejected[rows], calls.responded_at[rows], -1))
    candidates = np.nonzero(firsts)[0]
    queues = calls.keys("queue_handle")
    reads = calls.of(*QM2QM_READS)[rows] & (rejected_at >= 0) & ~unpaired
    index = TimeIndex(queues[candidates], calls.started_at[candidates])
    following = index.first_after(queues[rows[reads]], rejected_at[reads])
    moments = row_codes([queues, calls.started_at])
    found = firsts & np.isin(moments, moments[candidates[following[following >= 0]]])
    of_unpaired = np.unique(calls.association[rows[unpaired & (rejected_at >= 0)]])
    found |= firsts & np.isin(calls.association, of_unpaired)
    return Suspects(found, with_whole_exchanges(calls, rejected))


def moves(calls: AssociationCalls) -> Suspects:
    """Return moves; beside them the reads, with their Ends, of the messages that they name."""
    return _calls_that_name_messages(calls, _MOVE)


def class_settings(calls: AssociationCalls) -> Suspects:
    """Return calls that set a class; beside them the transactional reads of the messages that they name.

    And of each association the reads that may have returned any message.
    """
    found = _calls_that_name_messages(calls, _CLASS)
    if found.related is None:
        return found
    reads = calls.of(_TRANSACTIONAL_READ) & np.isin(calls.association, np.unique(calls.association[found.calls]))
    unread = reads & ~calls.response_decoded & ~calls.failed
    return Suspects(found.calls, found.related | unread)


def _calls_that_name_messages(calls: AssociationCalls, method: Method) -> Suspects:
    named = calls.of(method)
    if not named.any():
        return Suspects(named)
    numbers = np.where(named, calls.requested_lookup_id, calls.lookup_id_number.astype(np.uint64))
    messages = row_codes([calls.association, numbers])
    reads = calls.has("action") & (calls.lookup_id_number != 0) & np.isin(messages, messages[named])
    return Suspects(named, with_whole_exchanges(calls, reads))
