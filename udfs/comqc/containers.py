"""A column of COMQC messages to their headers: the chain is walked and the rules judged for all messages at once.

First the chain alone (signature and Size of each header), one header of every message at a time; then everything else
over all headers of all messages as flat columns. A message that breaks a rule of [MC-COMQC] 2.2 is rejected (3.1.5)
with the first breach in the order of its bytes. A body of which not all was seen is judged by what was: what is cut is
no breach.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from udfs.comqc import layout
from udfs.comqc.layout import CHDR, METH, PART, SECD, SECR, SMTH, TRAILER
from udfs.stubs.column import Bools, Column, Ints

_TOGETHER: Final = 32  # headers of a message that all messages walk together, and how few messages are walked so
_KINDS: Final = np.array(sorted(layout.SIGNATURES), np.int64)
_KIND_OF: Final = np.array([layout.SIGNATURES[int(signature)] for signature in _KINDS], np.int8)
_FIXED: Final = np.array(layout.FIXED, np.int64)
_FOLLOWS: Final = np.zeros((8, 8), np.bool_)
for _before, _after in layout.FOLLOWS.items():
    _FOLLOWS[_before, list(_after)] = True
# A UUID of 36 characters, [C706] 3.1.17: where its hyphens are, and what else may stand there.
_HYPHENS: Final = [8, 13, 18, 23]
_DIGITS: Final = [place for place in range(36) if place not in _HYPHENS]
_IS_HEX: Final = np.isin(np.arange(1 << 16), [ord(digit) for digit in "0123456789abcdefABCDEF"])


class Bodies(NamedTuple):
    """Messages in one buffer: where each begins and what was seen of it ends, and where it ends as a whole."""

    data: npt.NDArray[np.uint8]
    start: Ints
    seen: Ints
    end: Ints


class Verdict:
    """Per message: the rule it breaks (0: none), and the offset in it; and where what was not seen begins, or -1."""

    def __init__(self, bodies: int) -> None:
        self.reason = np.zeros(bodies, np.int8)
        self.offset = np.zeros(bodies, np.int64)
        self.cut_at = np.full(bodies, -1, np.int64)

    def refuse(self, rows: Ints, reason: int | Column, offset: int | Ints) -> None:
        """Reject ``rows``, each once, unless they are already rejected."""
        new = self.reason[rows] == 0
        self.reason[rows[new]] = reason if isinstance(reason, int) else reason[new]
        self.offset[rows[new]] = offset if isinstance(offset, int) else offset[new]


class Targets(NamedTuple):
    """What a message says once for all its calls, of the messages that have any."""

    clsid: npt.NDArray[np.uint8]  # (messages, 16)
    text_at: Ints
    text_bytes: Ints
    partition: npt.NDArray[np.uint8]
    has_partition: Bools


class Methods(NamedTuple):
    """Recorded method calls of all messages that are not rejected, in order; offsets ``at`` are into the buffer."""

    body: Ints
    order: Ints  # in its message, from 0
    at: Ints
    short: Bools  # SMTH
    opnum: Column
    data_representation: Column
    flags: Column
    marshaled_at: Ints
    marshaled_bytes: Ints
    interface: npt.NDArray[np.uint8]  # (methods, 16)
    security_at: Ints
    security_index: Ints
    targets: Targets
    target: Ints  # which of them


def _u32(data: npt.NDArray[np.uint8], at: Ints, ok: Bools | None = None) -> Ints:
    """Return the little-endian numbers of 32 bits at offsets ``at``; where not ``ok`` any number."""
    view = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))
    values: Ints = view[at if ok is None else np.where(ok, at, 0)].astype(np.int64)
    return values


def _octets(data: npt.NDArray[np.uint8], at: Ints, size: int, ok: Bools | None = None) -> npt.NDArray[np.uint8]:
    view = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))
    octets: npt.NDArray[np.uint8] = view[at if ok is None else np.where(ok, at, 0)].view(np.uint8)
    return octets.reshape(-1, size)


def _equal(data: npt.NDArray[np.uint8], at: Ints, guid: bytes) -> Bools:
    same: Bools = (_octets(data, at, 16) == np.frombuffer(guid, np.uint8)).all(axis=1)
    return same


def _kinds(signatures: Ints) -> Column:
    place = np.minimum(np.searchsorted(_KINDS, signatures), len(_KINDS) - 1)
    kinds: Column = np.where(_KINDS[place] == signatures, _KIND_OF[place], 0).astype(np.int8)
    return kinds


def _is_uuid(data: npt.NDArray[np.uint8], at: Ints) -> Bools:
    units = np.ascontiguousarray(_octets(data, at, 72)).view("<u2")
    good: Bools = (units[:, _HYPHENS] == ord("-")).all(axis=1) & _IS_HEX[units[:, _DIGITS]].all(axis=1)
    return good


def _target_strings(data: npt.NDArray[np.uint8], at: Ints, size: Ints) -> Bools:
    """Tell which Target ID Strings are nothing, a UUID or a braced one, ended by a NUL; 2.2.2.1."""
    good = np.zeros(len(at), np.bool_)
    empty = np.flatnonzero(size == 2)
    good[empty] = (_octets(data, at[empty], 2) == 0).all(axis=1)
    bare = np.flatnonzero(size == 74)
    good[bare] = _is_uuid(data, at[bare]) & (_octets(data, at[bare] + 72, 2) == 0).all(axis=1)
    braced = np.flatnonzero(size == 78)
    first = np.ascontiguousarray(_octets(data, at[braced], 2)).view("<u2")[:, 0] == ord("{")
    last = np.ascontiguousarray(_octets(data, at[braced] + 74, 4)).view("<u4")[:, 0] == ord("}")
    good[braced] = first & last & _is_uuid(data, at[braced] + 2)
    return good


def _containers(bodies: Bodies, verdict: Verdict) -> Ints:
    """Judge the container headers, 2.2.2; return the messages whose chain goes on behind theirs."""
    data, start = bodies.data, bodies.start
    seen, whole = bodies.seen - start, bodies.end - start
    rows = np.arange(len(start))
    verdict.refuse(rows[whole < 8], layout.NO_CONTAINER, 0)
    cut = (whole >= 8) & (seen < 8)
    verdict.cut_at[cut] = 0
    rows = rows[~cut & (whole >= 8)]
    headed = _kinds(_u32(data, start[rows])) == CHDR
    verdict.refuse(rows[~headed], layout.NO_CONTAINER, 0)
    rows = rows[headed]
    size = _u32(data, start[rows] + 4)
    verdict.refuse(rows[size % 8 != 0], layout.SIZE_UNEVEN, 4)
    verdict.refuse(rows[size < layout.FIXED[CHDR] + 40], layout.SHORT_CONTAINER, 4)
    verdict.refuse(rows[size > whole[rows]], layout.SIZE_BEYOND, 4)
    sound = verdict.reason[rows] == 0
    rows, size = rows[sound], size[sound]
    whole_header = size <= seen[rows]
    verdict.cut_at[rows[~whole_header]] = 0
    rows, size = rows[whole_header], size[whole_header]
    at = start[rows]
    verdict.refuse(rows[~_equal(data, at + 8, layout.MESSAGE_SIGNATURE)], layout.MESSAGE_SIGNATURE_WRONG, 8)
    versions = (_u32(data, at + 24) == 1) & (_u32(data, at + 28) == 1)
    verdict.refuse(rows[~versions], layout.VERSION, 24)
    verdict.refuse(rows[_u32(data, at + 32) != whole[rows]], layout.MESSAGE_SIZE, 32)
    target = _u32(data, at + 68)
    verdict.refuse(rows[(target % 8 != 0) | (target != size - 80)], layout.TARGET_SIZE, 68)
    verdict.refuse(rows[~_equal(data, at + 80, layout.TARGET_STRUCTURE)], layout.TARGET_ID, 80)
    text = _u32(data, at + 112)
    fits = text <= size - 116
    verdict.refuse(rows[~fits], layout.TARGET_STRING, 112)
    rows, at, text = rows[fits], at[fits], text[fits]
    verdict.refuse(rows[~_target_strings(data, at + 116, text)], layout.TARGET_STRING, 116)
    good: Ints = rows[verdict.reason[rows] == 0]
    return good


class _Chain(NamedTuple):
    body: Ints
    at: Ints
    kind: Column
    size: Ints
    reason: Column


def _chain(bodies: Bodies, rows: Ints, verdict: Verdict) -> _Chain:
    """Walk the headers behind the container headers of ``rows``; sorted by message and offset."""
    data = bodies.data
    at = bodies.start[rows] + _u32(data, bodies.start[rows] + 4)
    parts: list[tuple[Ints, Ints, Ints, Ints, Column]] = []
    steps = 0
    while len(rows) and (steps < _TOGETHER or len(rows) > _TOGETHER):
        steps += 1
        left, seen = bodies.end[rows] - at, bodies.seen[rows] - at
        more = left > 0
        cut = more & (seen < np.minimum(left, 8))
        verdict.cut_at[rows[cut]] = (at - bodies.start[rows])[cut]
        more &= ~cut
        rows, at, left, seen = rows[more], at[more], left[more], seen[more]
        headed = left >= 8
        signature = np.where(headed, _u32(data, at, headed), -1)
        size = np.where(headed, _u32(data, at + 4, headed), 0)
        reason = _size_reasons(_kinds(signature), size, left)
        good = reason == 0
        whole = good & (size <= seen)
        verdict.cut_at[rows[good & ~whole]] = (at - bodies.start[rows])[good & ~whole]
        keep = ~good | whole
        parts.append((rows[keep], at[keep], signature[keep], size[keep], reason[keep]))
        rows, at = rows[whole], (at + size)[whole]
    parts += [_alone(bodies, int(row), int(place), verdict) for row, place in zip(rows, at, strict=True)]
    if not parts:
        none = np.zeros(0, np.int64)
        return _Chain(none, none, none.astype(np.int8), none, none.astype(np.int8))
    body, place, signature, size, reason = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((place, body))
    return _Chain(body[order], place[order], _kinds(signature)[order], size[order], reason[order])


def _size_reasons(kind: Column, size: Ints, left: Ints) -> Column:
    """Return what is wrong with a header as such, if anything, by its signature, its Size and what is left, 2.2.1."""
    wrong = np.where(size > left, layout.SIZE_BEYOND, 0)
    wrong = np.where(size < _FIXED[kind], layout.SIZE_SMALL, wrong)
    wrong = np.where((kind == PART) & (size != 0x18), layout.PARTITION_SIZE, wrong)
    wrong = np.where((kind == SECR) & (size != 0x10), layout.REFERENCE_SIZE, wrong)
    wrong = np.where(size % 8 != 0, layout.SIZE_UNEVEN, wrong)
    wrong = np.where(kind == CHDR, layout.CONTAINER_AGAIN, wrong)
    wrong = np.where(kind == 0, layout.SIGNATURE, wrong)
    return np.where(left < 8, layout.HEADER_CUT, wrong).astype(np.int8)


def _alone(bodies: Bodies, row: int, at: int, verdict: Verdict) -> tuple[Ints, Ints, Ints, Ints, Column]:
    """Walk the rest of one message that has more headers than others; the same rules in plain numbers."""
    base, seen, end = int(bodies.start[row]), int(bodies.seen[row]), int(bodies.end[row])
    memory = bodies.data[base:seen].tobytes()
    places, signatures, sizes = [], [], []
    while at < end:
        signature, size = -1, 0  # too few bytes for a header
        if at + 8 <= seen:
            signature = int.from_bytes(memory[at - base : at - base + 4], "little")
            size = int.from_bytes(memory[at - base + 4 : at - base + 8], "little")
        places.append(at)
        signatures.append(signature)
        sizes.append(size)
        if signature not in layout.SIGNATURES or size < 8 or size % 8 or size > seen - at:
            break
        at += size
    place, size_of = np.array(places, np.int64), np.array(sizes, np.int64)
    signature_of = np.array(signatures, np.int64)
    reason = _size_reasons(_kinds(signature_of), size_of, end - place)
    count = len(places)
    if at < end and seen < end and (at + 8 > seen or not reason[-1]):  # the last one was not seen whole
        verdict.cut_at[row] = at - base
        count -= 1
    return np.full(count, row), place[:count], signature_of[:count], size_of[:count], reason[:count]


def _judge(bodies: Bodies, chain: _Chain) -> tuple[Column, Ints, Ints]:
    """Return each header's breach (0: none), the header index of the SECD that applies to it, and of the last METH."""
    data, count = bodies.data, len(chain.body)
    index = np.arange(count)
    first = np.ones(count, np.bool_)
    first[1:] = chain.body[1:] != chain.body[:-1]
    begin = np.maximum.accumulate(np.where(first, index, 0))  # index of the first header of the same message
    kind = np.where((chain.kind == PART) & ~first, TRAILER, chain.kind)
    before = np.where(first, CHDR, np.roll(kind, 1))
    reason = chain.reason.copy()

    def breach(which: Bools, number: int) -> None:
        reason[which & (reason == 0)] = number

    is_method = (kind == METH) | (kind == SMTH)
    last_secd = np.maximum.accumulate(np.where(kind == SECD, index, -1))
    last_meth = np.maximum.accumulate(np.where(kind == METH, index, -1))
    breach((is_method | (kind == SECR)) & (last_secd < begin), layout.NO_SECURITY)
    breach(~_FOLLOWS[before, kind], layout.ORDER)
    breach((kind == SMTH) & (last_meth < begin), layout.FIRST_SHORT)
    ok = reason == 0

    at, size = chain.at, chain.size
    secd = ok & (kind == SECD)
    breach(secd & (_u32(data, at + 8, secd) > size - 16), layout.SECURITY_SIZE)
    method = ok & is_method
    breach(method & (_u32(data, at + 12, method) != 0x10), layout.DATA_REPRESENTATION)
    breach(method & (_u32(data, at + 16, method) != 0x1000), layout.FLAGS)
    breach(method & (_u32(data, at + 20, method) > size - _FIXED[kind]), layout.MARSHALED_SIZE)
    breach(method & (_u32(data, at + 24, method) != 1), layout.RESERVED)

    # A reference must point at a SECD before it, in the same message. Headers are sorted by where they lie.
    secr = np.flatnonzero(ok & (kind == SECR))
    wanted = bodies.start[chain.body[secr]] + _u32(data, at[secr] + 8)
    secds = np.flatnonzero(kind == SECD)
    found = np.full(len(secr), -1, np.int64)
    if len(secds) and len(secr):
        # Bodies lie in the buffer in their order, so that headers are sorted by offset alone.
        place = np.minimum(np.searchsorted(at[secds], wanted), len(secds) - 1)
        hit = (at[secds[place]] == wanted) & (secds[place] < secr) & (secds[place] >= begin[secr])
        found = np.where(hit, secds[place], -1)
    bad = np.zeros(count, np.bool_)
    bad[secr[found < 0]] = True
    breach(bad, layout.REFERENCE_OFFSET)
    resolved = index.copy()
    resolved[secr] = found
    setter = np.maximum.accumulate(np.where((kind == SECD) | (kind == SECR), index, 0))
    return reason, resolved[setter], last_meth


def read_methods(bodies: Bodies) -> tuple[Methods, Verdict]:
    """Return the recorded method calls of all messages, and what is to be said of each message.

    Messages lie in their buffer one behind the other in the order of rows. Rejected ones give no calls; one of which
    not all was seen gives those that were seen whole.
    """
    verdict = Verdict(len(bodies.start))
    rows = _containers(bodies, verdict)
    chain = _chain(bodies, rows, verdict)
    reason, security, interface = _judge(bodies, chain)
    bad = np.flatnonzero(reason)
    body, first = np.unique(chain.body[bad], return_index=True)
    at = chain.at[bad[first]] - bodies.start[body]
    verdict.refuse(body, reason[bad[first]], at)
    _judge_ends(bodies, rows, chain, verdict)
    verdict.cut_at[verdict.reason != 0] = -1
    return _methods(bodies, chain, security, interface, verdict), verdict


def _judge_ends(bodies: Bodies, rows: Ints, chain: _Chain, verdict: Verdict) -> None:
    """Reject messages that end without a method call, or behind a security header; those seen to their end."""
    rows = rows[(verdict.cut_at[rows] < 0) & (verdict.reason[rows] == 0)]
    size = bodies.end[rows] - bodies.start[rows]
    methods = np.bincount(chain.body[chain.kind >= METH], minlength=len(bodies.start))[rows]
    verdict.refuse(rows[methods == 0], layout.NO_METHOD, size[methods == 0])
    last = np.searchsorted(chain.body, rows, side="right") - 1
    if len(chain.body):
        hanging = np.isin(chain.kind[last], (SECD, SECR))
        verdict.refuse(rows[hanging], layout.SECURITY_WITHOUT_METHOD, size[hanging])


def _methods(bodies: Bodies, chain: _Chain, security: Ints, interface: Ints, verdict: Verdict) -> Methods:
    data = bodies.data
    good = verdict.reason[chain.body] == 0
    which = np.flatnonzero(good & (chain.kind >= METH))
    body, at = chain.body[which], chain.at[which]
    number = np.arange(len(which))
    head = np.ones(len(which), np.bool_)
    head[1:] = body[1:] != body[:-1]
    short = chain.kind[which] == SMTH
    # The order of a SECD among those of its message: all before it, less those of messages before.
    secds = np.cumsum(chain.kind == SECD) - 1
    of_message = secds - (chain.kind == SECD) + 1  # SECDs before this header
    begin = np.searchsorted(chain.body, body)
    applies = security[which]
    # The first PART of a message: as a rule that behind the container header, else the one at the end.
    parts = np.flatnonzero(good & (chain.kind == PART))
    owner, first = np.unique(chain.body[parts], return_index=True)
    part_at = np.full(len(bodies.start), -1, np.int64)
    part_at[owner] = chain.at[parts[first]]
    messages, target = np.unique(body, return_inverse=True)
    container = bodies.start[messages]
    has_partition = part_at[messages] >= 0
    targets = Targets(
        clsid=_octets(data, container + 96, 16),
        text_at=container + 116,
        text_bytes=_u32(data, container + 112) - 2,
        partition=_octets(data, part_at[messages] + 8, 16, has_partition),
        has_partition=has_partition,
    )
    fixed = np.where(short, layout.FIXED[SMTH], layout.FIXED[METH])
    return Methods(
        body=body,
        order=number - np.maximum.accumulate(np.where(head, number, 0)),
        at=at,
        short=short,
        opnum=_u32(data, at + 8),
        data_representation=_u32(data, at + 12),
        flags=_u32(data, at + 16),
        marshaled_at=at + fixed,
        marshaled_bytes=_u32(data, at + 20),
        interface=_octets(data, chain.at[interface[which]] + 32, 16),
        security_at=chain.at[applies],
        security_index=secds[applies] - of_message[begin],
        targets=targets,
        target=target,
    )
