"""Read the headers of a column of COMQC message bodies, check the rules of [MC-COMQC] 2.2, and find the method calls.

First the header chain (signature and Size), the n-th header of all bodies together; then all checks over the headers of
all bodies as flat columns. A message that violates a rule is rejected (3.1.5) with the first violation in the order of
its bytes. For a body captured in part, missing bytes are no violation.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from udfs.array_types import Bools, Ints, Octets
from udfs.columns.groups import is_group_start
from udfs.comqc import container_layout
from udfs.comqc.container_layout import CHDR, METH, PART, SECD, SECR, SMTH, TRAILER
from udfs.comqc.variant_text import bstr_texts
from udfs.stubs.arrow_primitives import guid_strings
from udfs.stubs.column_cursors import AnyArray

# The first 32 headers of a body are read for all bodies together, further ones while more than 32 bodies have them.
_COLUMNWISE_HEADERS: Final = 32
_SORTED_SIGNATURES: Final = np.array(sorted(container_layout.HEADER_KINDS), np.int64)
_KIND_BY_SIGNATURE: Final = np.array(
    [container_layout.HEADER_KINDS[int(signature)] for signature in _SORTED_SIGNATURES], np.int8
)
_MIN_HEADER_BYTES: Final = np.array(container_layout.MIN_HEADER_BYTES, np.int64)
_MAY_FOLLOW: Final = np.zeros((8, 8), np.bool_)
for _before, _after in container_layout.MAY_FOLLOW.items():
    _MAY_FOLLOW[_before, list(_after)] = True
# A UUID of 36 characters, [C706] 3.1.17: positions of its hyphens and of its digits, and the hexadecimal digits.
_UUID_HYPHENS: Final = [8, 13, 18, 23]
_UUID_DIGITS: Final = [place for place in range(36) if place not in _UUID_HYPHENS]
_IS_HEX: Final = np.isin(np.arange(1 << 16), [ord(digit) for digit in "0123456789abcdefABCDEF"])


class BodyColumn(NamedTuple):
    """Message bodies in one buffer: start, end of the captured bytes, and end by the declared size."""

    data: Octets
    start: Ints
    captured_end: Ints
    end: Ints


class BodyVerdicts:
    """For each body the violated rule (0: none) and its offset, and where the captured bytes end (-1: complete)."""

    def __init__(self, bodies: int) -> None:
        self.reason = np.zeros(bodies, np.int8)
        self.offset = np.zeros(bodies, np.int64)
        self.truncated_at = np.full(bodies, -1, np.int64)

    def reject(self, rows: Ints, reason: int | AnyArray, offset: int | Ints) -> None:
        """Reject ``rows``, unless they are already rejected."""
        new = self.reason[rows] == 0
        self.reason[rows[new]] = reason if isinstance(reason, int) else reason[new]
        self.offset[rows[new]] = offset if isinstance(offset, int) else offset[new]


class CallTargets(NamedTuple):
    """The call target of each body with calls: CLSID, target text and partition hold for all its calls."""

    clsid: Octets  # (messages, 16)
    text_at: Ints
    text_bytes: Ints
    partition: Octets
    has_partition: Bools


class Deviations(NamedTuple):
    """What bodies that are not rejected do not follow: one row for each body and recommendation, in this order."""

    body: Ints
    number: Ints  # of container_layout.DEVIATION_TEXTS
    offset: Ints  # in the body, of the first place
    places: Ints  # how many there are


class RecordedCalls(NamedTuple):
    """The recorded method calls of all bodies that are not rejected, in order; offsets ``*_at`` are into the buffer."""

    body: Ints
    call_index: Ints  # in its body, from 0
    header_at: Ints
    has_short_header: Bools  # SMTH
    opnum: AnyArray
    data_representation: AnyArray
    flags: AnyArray
    marshaled_at: Ints
    marshaled_bytes: Ints
    interface: Octets  # (methods, 16)
    security_at: Ints
    security_bytes: Ints  # of Security Data
    security_index: Ints
    targets: CallTargets
    target_index: Ints  # index into targets


def _read_uint32(data: Octets, at: Ints, ok: Bools | None = None) -> Ints:
    """Return the little-endian 32-bit numbers at offsets ``at``; undefined where not ``ok``."""
    view = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))
    values: Ints = view[at if ok is None else np.where(ok, at, 0)].astype(np.int64)
    return values


def _read_octets(data: Octets, at: Ints, size: int, ok: Bools | None = None) -> Octets:
    view = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))
    octets: Octets = view[at if ok is None else np.where(ok, at, 0)].view(np.uint8)
    return octets.reshape(-1, size)


def _equals_guid(data: Octets, at: Ints, guid: bytes) -> Bools:
    same: Bools = (_read_octets(data, at, 16) == np.frombuffer(guid, np.uint8)).all(axis=1)
    return same


def _header_kinds(signatures: Ints) -> AnyArray:
    place = np.minimum(np.searchsorted(_SORTED_SIGNATURES, signatures), len(_SORTED_SIGNATURES) - 1)
    kinds: AnyArray = np.where(_SORTED_SIGNATURES[place] == signatures, _KIND_BY_SIGNATURE[place], 0).astype(np.int8)
    return kinds


def _is_uuid(data: Octets, at: Ints) -> Bools:
    units = np.ascontiguousarray(_read_octets(data, at, 72)).view("<u2")
    good: Bools = (units[:, _UUID_HYPHENS] == ord("-")).all(axis=1) & _IS_HEX[units[:, _UUID_DIGITS]].all(axis=1)
    return good


def _valid_target_strings(data: Octets, at: Ints, size: Ints) -> Bools:
    """Return the mask of valid Target ID Strings: empty, a UUID or a UUID in braces, then a NUL; 2.2.2.1."""
    good = np.zeros(len(at), np.bool_)
    empty = np.flatnonzero(size == 2)
    good[empty] = (_read_octets(data, at[empty], 2) == 0).all(axis=1)
    bare = np.flatnonzero(size == 74)
    good[bare] = _is_uuid(data, at[bare]) & (_read_octets(data, at[bare] + 72, 2) == 0).all(axis=1)
    braced = np.flatnonzero(size == 78)
    first = np.ascontiguousarray(_read_octets(data, at[braced], 2)).view("<u2")[:, 0] == ord("{")
    last = np.ascontiguousarray(_read_octets(data, at[braced] + 74, 4)).view("<u4")[:, 0] == ord("}")
    good[braced] = first & last & _is_uuid(data, at[braced] + 2)
    return good


def _check_container_headers(bodies: BodyColumn, verdict: BodyVerdicts) -> Ints:
    """Check the container headers, 2.2.2; returns the bodies whose further headers are to be read."""
    data, start = bodies.data, bodies.start
    seen, whole = bodies.captured_end - start, bodies.end - start
    rows = np.arange(len(start))
    verdict.reject(rows[whole < 8], container_layout.NO_CONTAINER, 0)
    cut = (whole >= 8) & (seen < 8)
    verdict.truncated_at[cut] = 0
    rows = rows[~cut & (whole >= 8)]
    headed = _header_kinds(_read_uint32(data, start[rows])) == CHDR
    verdict.reject(rows[~headed], container_layout.NO_CONTAINER, 0)
    rows = rows[headed]
    size = _read_uint32(data, start[rows] + 4)
    verdict.reject(rows[size % 8 != 0], container_layout.SIZE_NOT_MULTIPLE_OF_8, 4)
    verdict.reject(rows[size < container_layout.MIN_HEADER_BYTES[CHDR] + 40], container_layout.CONTAINER_TOO_SHORT, 4)
    verdict.reject(rows[size > whole[rows]], container_layout.SIZE_BEYOND_MESSAGE, 4)
    sound = verdict.reason[rows] == 0
    rows, size = rows[sound], size[sound]
    whole_header = size <= seen[rows]
    verdict.truncated_at[rows[~whole_header]] = 0
    rows, size = rows[whole_header], size[whole_header]
    at = start[rows]
    verdict.reject(
        rows[~_equals_guid(data, at + 8, container_layout.MESSAGE_SIGNATURE_GUID)],
        container_layout.BAD_MESSAGE_SIGNATURE,
        8,
    )
    versions = (_read_uint32(data, at + 24) == 1) & (_read_uint32(data, at + 28) == 1)
    verdict.reject(rows[~versions], container_layout.BAD_VERSION, 24)
    verdict.reject(rows[_read_uint32(data, at + 32) != whole[rows]], container_layout.BAD_MESSAGE_SIZE, 32)
    target = _read_uint32(data, at + 68)
    verdict.reject(rows[(target % 8 != 0) | (target != size - 80)], container_layout.BAD_TARGET_SIZE, 68)
    verdict.reject(
        rows[~_equals_guid(data, at + 80, container_layout.TARGET_STRUCTURE_GUID)], container_layout.BAD_TARGET_ID, 80
    )
    text = _read_uint32(data, at + 112)
    fits = text <= size - 116
    verdict.reject(rows[~fits], container_layout.BAD_TARGET_STRING, 112)
    rows, at, text = rows[fits], at[fits], text[fits]
    verdict.reject(rows[~_valid_target_strings(data, at + 116, text)], container_layout.BAD_TARGET_STRING, 116)
    good: Ints = rows[verdict.reason[rows] == 0]
    return good


class _HeaderChain(NamedTuple):
    body: Ints
    at: Ints
    kind: AnyArray
    size: Ints
    reason: AnyArray


def _walk_headers(bodies: BodyColumn, rows: Ints, verdict: BodyVerdicts) -> _HeaderChain:
    """Read signature and Size of all headers behind the container headers of ``rows``; sorted by body and offset."""
    data = bodies.data
    at = bodies.start[rows] + _read_uint32(data, bodies.start[rows] + 4)
    parts: list[tuple[Ints, Ints, Ints, Ints, AnyArray]] = []
    steps = 0
    while len(rows) and (steps < _COLUMNWISE_HEADERS or len(rows) > _COLUMNWISE_HEADERS):
        steps += 1
        left, seen = bodies.end[rows] - at, bodies.captured_end[rows] - at
        more = left > 0
        cut = more & (seen < np.minimum(left, 8))
        verdict.truncated_at[rows[cut]] = (at - bodies.start[rows])[cut]
        more &= ~cut
        rows, at, left, seen = rows[more], at[more], left[more], seen[more]
        headed = left >= 8
        signature = np.where(headed, _read_uint32(data, at, headed), -1)
        size = np.where(headed, _read_uint32(data, at + 4, headed), 0)
        reason = _size_violations(_header_kinds(signature), size, left)
        good = reason == 0
        whole = good & (size <= seen)
        verdict.truncated_at[rows[good & ~whole]] = (at - bodies.start[rows])[good & ~whole]
        keep = ~good | whole
        parts.append((rows[keep], at[keep], signature[keep], size[keep], reason[keep]))
        rows, at = rows[whole], (at + size)[whole]
    parts += [_walk_one_body(bodies, int(row), int(place), verdict) for row, place in zip(rows, at, strict=True)]
    if not parts:
        none = np.zeros(0, np.int64)
        return _HeaderChain(none, none, none.astype(np.int8), none, none.astype(np.int8))
    body, place, signature, size, reason = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((place, body))
    return _HeaderChain(body[order], place[order], _header_kinds(signature)[order], size[order], reason[order])


def _size_violations(kind: AnyArray, size: Ints, left: Ints) -> AnyArray:
    """Return the violation of each header by its signature, its Size and the bytes left (0: none), 2.2.1."""
    wrong = np.where(size > left, container_layout.SIZE_BEYOND_MESSAGE, 0)
    wrong = np.where(size < _MIN_HEADER_BYTES[kind], container_layout.SIZE_TOO_SMALL, wrong)
    wrong = np.where((kind == PART) & (size != 0x18), container_layout.BAD_PARTITION_SIZE, wrong)
    wrong = np.where((kind == SECR) & (size != 0x10), container_layout.BAD_REFERENCE_SIZE, wrong)
    wrong = np.where(size % 8 != 0, container_layout.SIZE_NOT_MULTIPLE_OF_8, wrong)
    wrong = np.where(kind == CHDR, container_layout.SECOND_CONTAINER, wrong)
    wrong = np.where(kind == 0, container_layout.UNKNOWN_SIGNATURE, wrong)
    return np.where(left < 8, container_layout.HEADER_TRUNCATED, wrong).astype(np.int8)


def _walk_one_body(
    bodies: BodyColumn, row: int, at: int, verdict: BodyVerdicts
) -> tuple[Ints, Ints, Ints, Ints, AnyArray]:
    """Read the remaining headers of one body that has more of them than others."""
    base, seen, end = int(bodies.start[row]), int(bodies.captured_end[row]), int(bodies.end[row])
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
        if signature not in container_layout.HEADER_KINDS or size < 8 or size % 8 or size > seen - at:
            break
        at += size
    place, size_of = np.array(places, np.int64), np.array(sizes, np.int64)
    signature_of = np.array(signatures, np.int64)
    reason = _size_violations(_header_kinds(signature_of), size_of, end - place)
    count = len(places)
    if at < end and seen < end and (at + 8 > seen or not reason[-1]):  # the last header was captured in part
        verdict.truncated_at[row] = at - base
        count -= 1
    return np.full(count, row), place[:count], signature_of[:count], size_of[:count], reason[:count]


def _check_headers(bodies: BodyColumn, chain: _HeaderChain) -> tuple[AnyArray, Ints, Ints]:
    """Return for each header its violation (0: none), and the indices of its SECD and of the last METH before it."""
    data, count = bodies.data, len(chain.body)
    index = np.arange(count)
    first = is_group_start(chain.body)
    begin = np.maximum.accumulate(np.where(first, index, 0))  # index of the first header of the same body
    kind = np.where((chain.kind == PART) & ~first, TRAILER, chain.kind)
    before = np.where(first, CHDR, np.roll(kind, 1))
    reason = chain.reason.copy()

    def breach(which: Bools, number: int) -> None:
        reason[which & (reason == 0)] = number

    is_method = (kind == METH) | (kind == SMTH)
    last_secd = np.maximum.accumulate(np.where(kind == SECD, index, -1))
    last_meth = np.maximum.accumulate(np.where(kind == METH, index, -1))
    breach((is_method | (kind == SECR)) & (last_secd < begin), container_layout.NO_SECURITY)
    breach(~_MAY_FOLLOW[before, kind], container_layout.HEADER_OUT_OF_ORDER)
    breach((kind == SMTH) & (last_meth < begin), container_layout.FIRST_METHOD_WITHOUT_INTERFACE)
    ok = reason == 0

    at, size = chain.at, chain.size
    secd = ok & (kind == SECD)
    breach(secd & (_read_uint32(data, at + 8, secd) > size - 16), container_layout.BAD_SECURITY_DATA_SIZE)
    method = ok & is_method
    breach(method & (_read_uint32(data, at + 12, method) != 0x10), container_layout.BAD_DATA_REPRESENTATION)
    breach(method & (_read_uint32(data, at + 16, method) != 0x1000), container_layout.BAD_FLAGS)
    breach(
        method & (_read_uint32(data, at + 20, method) > size - _MIN_HEADER_BYTES[kind]),
        container_layout.BAD_MARSHALED_SIZE,
    )
    breach(method & (_read_uint32(data, at + 24, method) != 1), container_layout.BAD_RESERVED)

    # A reference must point to an earlier SECD of the same body.
    secr = np.flatnonzero(ok & (kind == SECR))
    wanted = bodies.start[chain.body[secr]] + _read_uint32(data, at[secr] + 8)
    secds = np.flatnonzero(kind == SECD)
    found = np.full(len(secr), -1, np.int64)
    if len(secds) and len(secr):
        # Bodies are in row order in the buffer: headers sorted by body and offset are sorted by offset.
        place = np.minimum(np.searchsorted(at[secds], wanted), len(secds) - 1)
        hit = (at[secds[place]] == wanted) & (secds[place] < secr) & (secds[place] >= begin[secr])
        found = np.where(hit, secds[place], -1)
    bad = np.zeros(count, np.bool_)
    bad[secr[found < 0]] = True
    breach(bad, container_layout.BAD_REFERENCE_OFFSET)
    resolved = index.copy()
    resolved[secr] = found
    setter = np.maximum.accumulate(np.where((kind == SECD) | (kind == SECR), index, 0))
    return reason, resolved[setter], last_meth


def read_recorded_calls(bodies: BodyColumn) -> tuple[RecordedCalls, BodyVerdicts, Deviations]:
    """Return the recorded method calls of all bodies, the verdict on each body, and what bodies do not follow.

    The bodies must be in row order in the buffer. Rejected bodies give no calls, bodies captured in part give their
    complete calls.
    """
    verdict = BodyVerdicts(len(bodies.start))
    rows = _check_container_headers(bodies, verdict)
    chain = _walk_headers(bodies, rows, verdict)
    reason, security, interface = _check_headers(bodies, chain)
    bad = np.flatnonzero(reason)
    body, first = np.unique(chain.body[bad], return_index=True)
    at = chain.at[bad[first]] - bodies.start[body]
    verdict.reject(body, reason[bad[first]], at)
    _check_ends(bodies, rows, chain, verdict)
    verdict.truncated_at[verdict.reason != 0] = -1
    calls = _collect_calls(bodies, chain, security, interface, verdict)
    return calls, verdict, _find_deviations(bodies, rows[verdict.reason[rows] == 0], chain, security, interface)


def _check_ends(bodies: BodyColumn, rows: Ints, chain: _HeaderChain, verdict: BodyVerdicts) -> None:
    """Reject completely captured bodies that end without a method call or behind a security header."""
    rows = rows[(verdict.truncated_at[rows] < 0) & (verdict.reason[rows] == 0)]
    size = bodies.end[rows] - bodies.start[rows]
    methods = np.bincount(chain.body[chain.kind >= METH], minlength=len(bodies.start))[rows]
    verdict.reject(rows[methods == 0], container_layout.NO_METHOD_CALL, size[methods == 0])
    last = np.searchsorted(chain.body, rows, side="right") - 1
    if len(chain.body):
        hanging = np.isin(chain.kind[last], (SECD, SECR))
        verdict.reject(rows[hanging], container_layout.SECURITY_WITHOUT_METHOD, size[hanging])


def _find_deviations(
    bodies: BodyColumn, rows: Ints, chain: _HeaderChain, security: Ints, interface: Ints
) -> Deviations:
    """Find where bodies (``rows``, with a whole container header and not rejected) do not follow a recommendation."""
    data, start, kind = bodies.data, bodies.start, chain.kind
    follows = np.zeros(len(kind), np.bool_)  # another header of the same body
    follows[1:] = chain.body[1:] == chain.body[:-1]
    follows &= np.isin(chain.body, rows)

    meth = np.flatnonzero(follows & (kind == METH))
    earlier = interface[meth - 1]
    known = (earlier >= 0) & (chain.body[earlier] == chain.body[meth])
    meth, earlier = meth[known], earlier[known]
    same = _read_octets(data, chain.at[meth] + 32, 16) == _read_octets(data, chain.at[earlier] + 32, 16)
    behind_call = np.roll(kind >= METH, 1)
    later = np.flatnonzero(follows & behind_call & ((kind == SECD) | (kind == SECR)))
    original = _original_security_headers(data, chain, np.isin(chain.body, chain.body[later]))
    repeated = (kind[later] == SECD) & (original[later] != later)
    not_needed = (kind[later] == SECR) & (original[security[later]] == original[security[later - 1]])

    target = rows[_target_string_differs(data, start[rows])]
    found = [(target, np.full(len(target), container_layout.TARGET_STRING_DIFFERS), start[target] + 116)]
    for which, number in (
        (later[repeated], container_layout.SECURITY_REPEATED),
        (later[not_needed], container_layout.REFERENCE_NOT_NEEDED),
        (meth[same.all(axis=1)], container_layout.INTERFACE_REPEATED),
    ):
        found.append((chain.body[which], np.full(len(which), number), chain.at[which]))
    body, numbers, at = (np.concatenate(part) for part in zip(*found, strict=True))
    kinds = len(container_layout.DEVIATION_TEXTS)
    order = np.lexsort((at, numbers, body))
    keys, first, places = np.unique((body * kinds + numbers)[order], return_index=True, return_counts=True)
    return Deviations(keys // kinds, keys % kinds, at[order][first] - start[keys // kinds], places)


def _target_string_differs(data: Octets, container: Ints) -> Bools:
    """Return whether the Target ID Strings of container headers are other UUIDs than the Target IDs, 2.2.2.1."""
    texts = bstr_texts(data, container + 116, _read_uint32(data, container + 112) - 2)
    named = pc.utf8_lower(pc.utf8_trim(texts, "{}"))
    target = guid_strings(_read_octets(data, container + 96, 16))
    differs = pc.and_(pc.not_equal(named, ""), pc.not_equal(named, target))
    mask: Bools = differs.to_numpy(zero_copy_only=False)
    return mask


def _original_security_headers(data: Octets, chain: _HeaderChain, which: Bools) -> Ints:
    """Return for each header its index, but for SECDs of ``which`` that of the body's first one with the same data."""
    original = np.arange(len(chain.body))
    seen: dict[tuple[int, bytes], int] = {}
    for header in np.flatnonzero(which & (chain.kind == SECD)).tolist():
        begin = int(chain.at[header]) + container_layout.MIN_HEADER_BYTES[SECD]
        size = int.from_bytes(data[begin - 8 : begin - 4].tobytes(), "little")
        security_data = data[begin : begin + size].tobytes()
        original[header] = seen.setdefault((int(chain.body[header]), security_data), header)
    return original


def _collect_calls(
    bodies: BodyColumn, chain: _HeaderChain, security: Ints, interface: Ints, verdict: BodyVerdicts
) -> RecordedCalls:
    data = bodies.data
    good = verdict.reason[chain.body] == 0
    which = np.flatnonzero(good & (chain.kind >= METH))
    body, at = chain.body[which], chain.at[which]
    number = np.arange(len(which))
    head = is_group_start(body)
    short = chain.kind[which] == SMTH
    # The order of a SECD within its body: SECDs before it, less those of earlier bodies.
    secds = np.cumsum(chain.kind == SECD) - 1
    of_message = secds - (chain.kind == SECD) + 1  # SECDs before this header
    begin = np.searchsorted(chain.body, body)
    applies = security[which]
    # The first PART of a body: normally behind the container header, else the one at the end.
    parts = np.flatnonzero(good & (chain.kind == PART))
    owner, first = np.unique(chain.body[parts], return_index=True)
    part_at = np.full(len(bodies.start), -1, np.int64)
    part_at[owner] = chain.at[parts[first]]
    messages, target = np.unique(body, return_inverse=True)
    container = bodies.start[messages]
    has_partition = part_at[messages] >= 0
    targets = CallTargets(
        clsid=_read_octets(data, container + 96, 16),
        text_at=container + 116,
        text_bytes=_read_uint32(data, container + 112) - 2,
        partition=_read_octets(data, part_at[messages] + 8, 16, has_partition),
        has_partition=has_partition,
    )
    fixed = np.where(short, container_layout.MIN_HEADER_BYTES[SMTH], container_layout.MIN_HEADER_BYTES[METH])
    return RecordedCalls(
        body=body,
        call_index=number - np.maximum.accumulate(np.where(head, number, 0)),
        header_at=at,
        has_short_header=short,
        opnum=_read_uint32(data, at + 8),
        data_representation=_read_uint32(data, at + 12),
        flags=_read_uint32(data, at + 16),
        marshaled_at=at + fixed,
        marshaled_bytes=_read_uint32(data, at + 20),
        interface=_read_octets(data, chain.at[interface[which]] + 32, 16),
        security_at=chain.at[applies],
        security_bytes=_read_uint32(data, chain.at[applies] + 8),
        security_index=secds[applies] - of_message[begin],
        targets=targets,
        target_index=target,
    )
