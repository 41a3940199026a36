"""Messages that receives returned, as columns, and whole exchanges of receives and what ends them. No Spark."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.findings.columns.association_calls import QM2QM_END, REMOTE_READ_ENDS, AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Numbers
from pipeline.findings.columns.call_history import QM2QM_READS, REMOTE_READ_READS
from pipeline.findings.columns.exchanges import exchanges
from udfs.codes import RR_ACK
from udfs.columns.absent import AFTER_ALL
from udfs.columns.codes import row_codes
from udfs.columns.groups import Groups


class HandleGroups(NamedTuple):
    """The reads of qm2qm that returned a handle, and the Ends that name one, by handle.

    ``unpaired``: for each row, whether its group is not one read and at most one End after it.
    """

    groups: Groups
    unpaired: Mask


def handle_groups(calls: AssociationCalls) -> HandleGroups:
    """Return the groups of the calls; computed once."""
    return calls.share("handle groups", lambda: _handle_groups(calls))


def _handle_groups(calls: AssociationCalls) -> HandleGroups:
    is_end = calls.of(QM2QM_END) & calls.has("remote_read_handle")
    is_read = calls.of(*QM2QM_READS) & calls.succeeded & calls.has("remote_read_handle")
    rows = np.nonzero(is_end | is_read)[0]
    groups = Groups(rows, calls.keys("remote_read_handle")[rows], calls.ended_at[rows])
    ours = groups.rows
    reads, ends = is_read[ours], is_end[ours]
    held_at = groups.largest(np.where(reads, calls.ended_at[ours], 0))
    early = ends & (calls.started_at[ours] < held_at)
    wrong = (groups.counts(reads) > 1) | (groups.counts(ends) > 1) | groups.any(early) | ~groups.any(reads)
    return HandleGroups(groups, wrong)


def with_whole_exchanges(calls: AssociationCalls, mask: Mask) -> Mask:
    """Return calls with all that are in one exchange with one of them."""
    groups = exchanges(calls)
    return mask | calls.at(groups.rows[groups.any(mask[groups.rows])])


def earliest_possible_ack_at(calls: AssociationCalls) -> Numbers:
    """Return the time at which each receive may have been acknowledged, at the earliest; ``AFTER_ALL`` without."""
    accepted = calls.succeeded & calls.equals("ack", RR_ACK) & calls.of(QM2QM_END, *REMOTE_READ_ENDS)
    at, found = np.where(accepted, calls.responded_at, AFTER_ALL), np.full(calls.count, AFTER_ALL)
    groups = exchanges(calls)
    found[groups.rows] = groups.smallest_from(at[groups.rows])
    return np.where(calls.is_receive, found, AFTER_ALL)


def message_keys(calls: AssociationCalls) -> tuple[Numbers, Numbers]:
    """Return the reads that returned a numbered message of a known queue, and a number for each message.

    The queue is the opened one's name, or the context, of RemoteRead, and the number of qm2qm.
    """
    return calls.share("message keys", lambda: _message_keys(calls))


def _message_keys(calls: AssociationCalls) -> tuple[Numbers, Numbers]:
    numbered = calls.lookup_id_number != 0
    remote = calls.of(*REMOTE_READ_READS) & calls.context.is_known
    local = calls.of(*QM2QM_READS) & calls.has("queue_handle")
    rows = np.nonzero(numbered & (remote | local))[0]
    names = calls.at_open(calls.dictionary_codes("queue"), -1)
    queues = np.where(remote, names, calls.numbers("queue_handle"))
    contexts = np.where(remote & (names < 0), calls.dictionary_codes("context_handle"), -1)
    parts = (calls.association, remote.astype(np.int64), queues, contexts, calls.lookup_id_number)
    return rows, row_codes(part[rows] for part in parts)
