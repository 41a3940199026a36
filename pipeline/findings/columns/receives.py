"""Receives and what ends them, as columns: which do not simply follow each other. No Spark.

A receive of RemoteRead is ended by an End or a cancel with its request id on its context, one of qm2qm by an End with
its handle. Almost all calls are such pairs, and no rule on receives is broken by them. All calls of a request id, or of
a handle, that are no such pairs are suspects together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pipeline.findings.columns.association_calls import QM2QM_END, REMOTE_READ_ENDS, AssociationCalls
from pipeline.findings.columns.call_columns import Mask, Numbers
from pipeline.findings.columns.call_history import (
    CLEANUP_TIMEOUT_US,
    QM2QM_READS,
    REMOTE_READ_READS,
    TIMER_SLACK_US,
)
from udfs.codes import RR_ACK
from udfs.columns.absent import AFTER_ALL
from udfs.columns.codes import row_codes
from udfs.columns.groups import Groups
from udfs.dcerpc.interfaces import REMOTE_READ_NAME

_CANCEL: Final = (REMOTE_READ_NAME, 8)
_NONE, _RECEIVE, _FAILED_RECEIVE, _READ, _END, _CANCELS = range(6)


class RequestGroups(NamedTuple):
    """The reads, Ends and cancels of RemoteRead by context and request id, in order of time.

    ``unpaired``: for each row, whether its group is not only receives that are ended once before the next one.
    ``pending_until``: when the receive of a row was ended or had failed.
    """

    groups: Groups
    unpaired: Mask
    pending_until: Numbers


def request_groups(calls: AssociationCalls) -> RequestGroups:
    """Return the groups of the calls; computed once."""
    return calls.share("request groups", lambda: _request_groups(calls))


def _request_groups(calls: AssociationCalls) -> RequestGroups:
    rows = np.nonzero(calls.of(*REMOTE_READ_READS, *REMOTE_READ_ENDS, _CANCEL))[0]
    groups = Groups(rows, calls.keys("context_handle", "request_id")[rows], calls.started_at[rows])
    ours = groups.rows
    started, responded = calls.started_at[ours], calls.responded_at[ours]
    is_read = calls.of(*REMOTE_READ_READS)[ours]
    is_receive, failed = is_read & calls.is_receive[ours], calls.failed[ours]
    kind = np.full(len(ours), _END)
    kind[calls.of(_CANCEL)[ours]] = _CANCELS
    kind[is_read] = _READ
    kind[is_receive] = _RECEIVE
    kind[is_receive & failed] = _FAILED_RECEIVE

    def previous(*kinds: int) -> Mask:
        return np.isin(groups.before(kind, _NONE), kinds)

    is_end = kind == _END
    was_answered_at = groups.before(responded, 0)
    methods = calls.numbers("opnum")[ours]
    other_method = (groups.before(methods, 0) == REMOTE_READ_READS[0][1]) != (methods == REMOTE_READ_ENDS[0][1])
    late = (was_answered_at < AFTER_ALL) & (started - was_answered_at > CLEANUP_TIMEOUT_US + TIMER_SLACK_US)
    follows_receive = previous(_RECEIVE)
    wrong = (
        (is_end & (failed | ~follows_receive | other_method | late))
        | (follows_receive & ~is_end & (kind != _CANCELS))
        | (previous(_END) & (kind == _CANCELS))
        | (previous(_END, _CANCELS) & (is_read & (was_answered_at > started)))
        | (~groups.is_first & (groups.before(started, 0) == started))
        | (responded < started)
    )
    following = groups.after(kind, _NONE)
    wrong |= (kind == _RECEIVE) & (following == _NONE) & calls.succeeded[ours]
    ended_at = np.where(np.isin(following, (_END, _CANCELS)), groups.after(responded, AFTER_ALL), AFTER_ALL)
    until = np.where(failed, np.minimum(responded, ended_at), ended_at)
    return RequestGroups(groups, groups.any(wrong), until)


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
    """Return calls with all that have the context and request id, or the handle, of one of them."""
    found = mask.copy()
    for groups in (request_groups(calls).groups, handle_groups(calls).groups):
        found[groups.rows[groups.any(mask[groups.rows])]] = True
    return found


def earliest_possible_ack_at(calls: AssociationCalls) -> Numbers:
    """Return the time at which each receive may have been acknowledged, at the earliest; ``AFTER_ALL`` without."""
    accepted = calls.succeeded & calls.equals("ack", RR_ACK) & calls.of(QM2QM_END, *REMOTE_READ_ENDS)
    at = np.where(accepted, calls.responded_at, AFTER_ALL)
    found = np.full(calls.count, AFTER_ALL)
    groups = request_groups(calls).groups
    found[groups.rows] = groups.smallest_from(at[groups.rows])
    groups = handle_groups(calls).groups
    found[groups.rows] = groups.smallest(at[groups.rows])
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
