"""CACTransferBufferV1 and V2, [MS-MQMP] 2.2.3.2 and 2.2.3.3: the members as data, and their column reader.

Nothing of them is kept but what a receive asks for: they are read so that what follows them is found, and so that a
stub is used up to its last byte.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from udfs.errors import MALFORMED
from udfs.stubs.column import CODES, Column, Cursors
from udfs.stubs.method import Kind, Param
from udfs.stubs.types import read_queue_format

_MALFORMED: Final = CODES.index(MALFORMED)


class Member(NamedTuple):
    """One member. ``depth`` 0: an integer of ``size`` octets in place; 1: a pointer to that; 2: to a pointer to that.

    With ``counted_by``, the innermost pointee is a conformant array of so many elements of ``size`` octets: the name of
    the member that counts them, or a number; with ``sent_by`` it varies too, and that member tells the elements sent.
    ``size`` 0 is a QUEUE_FORMAT. ``align`` is the pointee's alignment, ``column`` where a receive's value is kept.
    """

    name: str
    size: int
    depth: int = 0
    align: int = 1
    counted_by: str | int | None = None
    sent_by: str | int | None = None
    column: str | None = None


def _u32(name: str, column: str | None = None) -> Member:
    return Member(name, 4, 0, 4, column=column)


def _p8(name: str) -> Member:
    return Member(name, 1, 1)


def _p32(name: str) -> Member:
    return Member(name, 4, 1, 4)


def _array(name: str, count: str | int, *, length: str | int | None = None, unit: int = 1) -> Member:
    return Member(name, unit, 2, unit, count, length)


def _format_name(kind: str) -> tuple[Member, ...]:
    size = f"ul{kind}FormatNameLen"
    return _u32(size), _array(f"pp{kind}FormatName", size, unit=2), _p32(f"pul{kind}FormatNameLenProp")


# The arms of the union by uTransferType (TRANSFER_TYPE, [MS-MQMP] 2.2.2.1).
ARMS: Final[dict[int, tuple[Member, ...]]] = {
    0: (Member("pAdminQueueFormat", 0, 1), Member("pResponseQueueFormat", 0, 1)),
    1: (
        _u32("RequestTimeout", "timeout_ms"),
        _u32("Action", "action"),
        _u32("Asynchronous"),
        _u32("Cursor", "cursor_handle"),
        *_format_name("Response"),
        *_format_name("Admin"),
        *_format_name("Dest"),
        *_format_name("Ordering"),
    ),
    2: (_u32("hCursor", "cursor_handle"), _u32("srv_hACQueue"), _u32("cli_pQMQueue")),
}

MEMBERS: Final = (
    Member("pClass", 2, 1, 2),
    Member("ppMessageID", 20, 2, 4),
    _array("ppCorrelationID", 20, length=20),
    _p32("pSentTime"),
    _p32("pArrivedTime"),
    _p8("pPriority"),
    _p8("pDelivery"),
    _p8("pAcknowledge"),
    _p8("pAuditing"),
    _p32("pApplicationTag"),
    _array("ppBody", "ulAllocBodyBufferInBytes", length="ulBodyBufferSizeInBytes"),
    _u32("ulBodyBufferSizeInBytes"),
    _u32("ulAllocBodyBufferInBytes"),
    _p32("pBodySize"),
    _array("ppTitle", "ulTitleBufferSizeInWCHARs", length="ulTitleBufferSizeInWCHARs", unit=2),
    _u32("ulTitleBufferSizeInWCHARs"),
    _p32("pulTitleBufferSizeInWCHARs"),
    _u32("ulAbsoluteTimeToQueue"),
    _p32("pulRelativeTimeToQueue"),
    _u32("ulRelativeTimeToLive"),
    _p32("pulRelativeTimeToLive"),
    _p8("pTrace"),
    _p32("pulSenderIDType"),
    _array("ppSenderID", "uSenderIDLen"),
    _p32("pulSenderIDLenProp"),
    _p32("pulPrivLevel"),
    _u32("ulAuthLevel"),
    _p8("pAuthenticated"),
    _p32("pulHashAlg"),
    _p32("pulEncryptAlg"),
    _array("ppSenderCert", "ulSenderCertLen"),
    _u32("ulSenderCertLen"),
    _p32("pulSenderCertLenProp"),
    _array("ppwcsProvName", "ulProvNameLen", unit=2),
    _u32("ulProvNameLen"),
    _p32("pulAuthProvNameLenProp"),
    _p32("pulProvType"),
    _u32("fDefaultProvider"),
    _array("ppSymmKeys", "ulSymmKeysSize"),
    _u32("ulSymmKeysSize"),
    _p32("pulSymmKeysSizeProp"),
    Member("bEncrypted", 1),
    Member("bAuthenticated", 1),
    Member("uSenderIDLen", 2),
    _array("ppSignature", "ulSignatureSize"),
    _u32("ulSignatureSize"),
    _p32("pulSignatureSizeProp"),
    Member("ppSrcQMID", 16, 2, 4),
    Member("pUow", 16, 1),
    _array("ppMsgExtension", "ulMsgExtensionBufferInBytes", length="ulMsgExtensionBufferInBytes"),
    _u32("ulMsgExtensionBufferInBytes"),
    _p32("pMsgExtensionSize"),
    Member("ppConnectorType", 16, 2, 4),
    _p32("pulBodyType"),
    _p32("pulVersion"),
)
MEMBERS_2: Final = (_p8("pbFirstInXact"), _p8("pbLastInXact"), Member("ppXactID", 20, 2, 4))


def members_after(kind: Kind) -> tuple[Member, ...]:
    """Return what follows the union: V2 is V1 with three members more."""
    return (*MEMBERS, *MEMBERS_2) if kind is Kind.TRANSFER_2 else MEMBERS


def transfer_buffer(cursors: Cursors, param: Param) -> None:
    """Read a transfer buffer; ``column`` "receive" keeps what a receive asks for: its time-out, action and cursor."""
    name = param.name
    cursors.struct_align()
    at = cursors.position
    kind = cursors.uint(4, f"{name}.uTransferType")
    cursors.fail(kind > max(ARMS), _MALFORMED, f"{name}.uTransferType", at)
    cursors.struct_align()
    at = cursors.position
    tag = cursors.uint(4, f"{name}.tag")
    cursors.fail(tag != kind, _MALFORMED, f"{name}.tag", at)
    cursors.struct_align()
    values: dict[str, Column] = {}
    for arm, members in ARMS.items():
        index, part = cursors.subset(kind == arm)
        if not len(index):
            continue
        for name_of, read in _fixed(part, param, members).items():
            values[name_of] = np.zeros(len(kind), read.dtype)
            values[name_of][index] = read
        cursors.join(index, part)
    after = members_after(param.kind)
    values.update(_fixed(cursors, param, after))
    for member in (*(member for members in ARMS.values() for member in members), *after):
        if member.depth and member.name in values:
            _pointee(cursors, f"{name}.{member.name}", member, values)


def _fixed(cursors: Cursors, param: Param, members: tuple[Member, ...]) -> dict[str, Column]:
    """Read members in place: integers, and the referents of pointers."""
    out = {}
    for member in members:
        field = f"{param.name}.{member.name}"
        out[member.name] = cursors.word(field) if member.depth else cursors.uint(member.size, field)
        if member.column and param.column == "receive":
            cursors.put(member.column, out[member.name])
    return out


def _pointee(cursors: Cursors, field: str, member: Member, values: dict[str, Column]) -> None:
    """Follow one pointer of the rows that have it, a pointer to a pointer down to its end (rule N13)."""
    referent = values[member.name]
    index, part = cursors.subset(referent != 0)
    if not len(index):
        return
    if not member.size:
        read_queue_format(part, Param(field, Kind.QUEUE_FORMAT), keep=False)
        cursors.join(index, part)
        return
    if member.depth == 2:
        inner = part.word(f"*{field}")
        index_of_inner, target = part.subset(inner != 0)
        _target(target, f"**{field}", member, values, index[index_of_inner])
        part.join(index_of_inner, target)
    else:
        _target(part, f"*{field}", member, values, index)
    cursors.join(index, part)


def _target(cursors: Cursors, field: str, member: Member, values: dict[str, Column], index: Column) -> None:
    """Read over what a pointer points to: a value, or an array whose counts must be those of its members."""
    if member.counted_by is None:
        cursors.align(member.align)
        cursors.take(member.size, field)
        return

    def said(count: str | int) -> Column:
        return np.full(len(index), count, np.uint32) if isinstance(count, int) else values[count][index]

    cursors.struct_align()
    at = cursors.position
    most = cursors.word(f"{field}.max_count")
    sent = count = said(member.counted_by)
    bad = most != count
    if member.sent_by is not None:
        first = cursors.word(f"{field}.offset")
        sent = cursors.word(f"{field}.actual_count")
        bad = bad | (first != 0) | (sent != said(member.sent_by)) | (sent > most)
    cursors.fail(bad, _MALFORMED, f"{field}.max_count", at)
    # Two octets a unit: 32-bit counts cannot overflow 64 bits, and those of NDR64 equal a 32-bit one by now.
    size = np.where(bad, 0, sent).astype(np.uint64) * np.uint64(member.size)
    cursors.take(size, field)
