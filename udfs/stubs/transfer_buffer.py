"""CACTransferBufferV1 and V2, [MS-MQMP] 2.2.3.2 and 2.2.3.3: declaration of their members, and the column reader.

Only time-out, action and cursor of a receive are stored. The rest is parsed to find what follows, and to check that
the stub ends where it should.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from udfs.stubs.column_cursors import MALFORMED_CODE, AnyArray, ColumnCursors
from udfs.stubs.idl import NdrType, Parameter
from udfs.stubs.ndr_types import read_queue_format


class TransferMember(NamedTuple):
    """One member of a transfer buffer.

    ``depth`` is the number of pointers: 0 is an integer of ``size`` octets in place. ``size`` 0 is a QUEUE_FORMAT.
    With ``counted_by`` (the name of the counting member, or a number) the innermost pointee is a conformant array with
    elements of ``size`` octets; with ``sent_by`` it is varying too, and that member counts the elements sent. ``align``
    is the alignment of the pointee, ``column`` the column for a receive's value.
    """

    name: str
    size: int
    depth: int = 0
    align: int = 1
    counted_by: str | int | None = None
    sent_by: str | int | None = None
    column: str | None = None


def _u32_member(name: str, column: str | None = None) -> TransferMember:
    return TransferMember(name, 4, 0, 4, column=column)


def _u8_pointer(name: str) -> TransferMember:
    return TransferMember(name, 1, 1)


def _u32_pointer(name: str) -> TransferMember:
    return TransferMember(name, 4, 1, 4)


def _array_pointer(name: str, count: str | int, *, length: str | int | None = None, unit: int = 1) -> TransferMember:
    return TransferMember(name, unit, 2, unit, count, length)


def _format_name_members(kind: str) -> tuple[TransferMember, ...]:
    size = f"ul{kind}FormatNameLen"
    return (
        _u32_member(size),
        _array_pointer(f"pp{kind}FormatName", size, unit=2),
        _u32_pointer(f"pul{kind}FormatNameLenProp"),
    )


# The union arms by uTransferType (TRANSFER_TYPE, [MS-MQMP] 2.2.2.1).
UNION_ARMS: Final[dict[int, tuple[TransferMember, ...]]] = {
    0: (TransferMember("pAdminQueueFormat", 0, 1), TransferMember("pResponseQueueFormat", 0, 1)),
    1: (
        _u32_member("RequestTimeout", "timeout_ms"),
        _u32_member("Action", "action"),
        _u32_member("Asynchronous"),
        _u32_member("Cursor", "cursor_handle"),
        *_format_name_members("Response"),
        *_format_name_members("Admin"),
        *_format_name_members("Dest"),
        *_format_name_members("Ordering"),
    ),
    2: (_u32_member("hCursor", "cursor_handle"), _u32_member("srv_hACQueue"), _u32_member("cli_pQMQueue")),
}

MEMBERS_V1: Final = (
    TransferMember("pClass", 2, 1, 2),
    TransferMember("ppMessageID", 20, 2, 4),
    _array_pointer("ppCorrelationID", 20, length=20),
    _u32_pointer("pSentTime"),
    _u32_pointer("pArrivedTime"),
    _u8_pointer("pPriority"),
    _u8_pointer("pDelivery"),
    _u8_pointer("pAcknowledge"),
    _u8_pointer("pAuditing"),
    _u32_pointer("pApplicationTag"),
    _array_pointer("ppBody", "ulAllocBodyBufferInBytes", length="ulBodyBufferSizeInBytes"),
    _u32_member("ulBodyBufferSizeInBytes"),
    _u32_member("ulAllocBodyBufferInBytes"),
    _u32_pointer("pBodySize"),
    _array_pointer("ppTitle", "ulTitleBufferSizeInWCHARs", length="ulTitleBufferSizeInWCHARs", unit=2),
    _u32_member("ulTitleBufferSizeInWCHARs"),
    _u32_pointer("pulTitleBufferSizeInWCHARs"),
    _u32_member("ulAbsoluteTimeToQueue"),
    _u32_pointer("pulRelativeTimeToQueue"),
    _u32_member("ulRelativeTimeToLive"),
    _u32_pointer("pulRelativeTimeToLive"),
    _u8_pointer("pTrace"),
    _u32_pointer("pulSenderIDType"),
    _array_pointer("ppSenderID", "uSenderIDLen"),
    _u32_pointer("pulSenderIDLenProp"),
    _u32_pointer("pulPrivLevel"),
    _u32_member("ulAuthLevel"),
    _u8_pointer("pAuthenticated"),
    _u32_pointer("pulHashAlg"),
    _u32_pointer("pulEncryptAlg"),
    _array_pointer("ppSenderCert", "ulSenderCertLen"),
    _u32_member("ulSenderCertLen"),
    _u32_pointer("pulSenderCertLenProp"),
    _array_pointer("ppwcsProvName", "ulProvNameLen", unit=2),
    _u32_member("ulProvNameLen"),
    _u32_pointer("pulAuthProvNameLenProp"),
    _u32_pointer("pulProvType"),
    _u32_member("fDefaultProvider"),
    _array_pointer("ppSymmKeys", "ulSymmKeysSize"),
    _u32_member("ulSymmKeysSize"),
    _u32_pointer("pulSymmKeysSizeProp"),
    TransferMember("bEncrypted", 1),
    TransferMember("bAuthenticated", 1),
    TransferMember("uSenderIDLen", 2),
    _array_pointer("ppSignature", "ulSignatureSize"),
    _u32_member("ulSignatureSize"),
    _u32_pointer("pulSignatureSizeProp"),
    TransferMember("ppSrcQMID", 16, 2, 4),
    TransferMember("pUow", 16, 1),
    _array_pointer("ppMsgExtension", "ulMsgExtensionBufferInBytes", length="ulMsgExtensionBufferInBytes"),
    _u32_member("ulMsgExtensionBufferInBytes"),
    _u32_pointer("pMsgExtensionSize"),
    TransferMember("ppConnectorType", 16, 2, 4),
    _u32_pointer("pulBodyType"),
    _u32_pointer("pulVersion"),
)
MEMBERS_ADDED_BY_V2: Final = (
    _u8_pointer("pbFirstInXact"),
    _u8_pointer("pbLastInXact"),
    TransferMember("ppXactID", 20, 2, 4),
)


def members_after_union(kind: NdrType) -> tuple[TransferMember, ...]:
    """Return the members behind the union: V2 has three more than V1."""
    return (*MEMBERS_V1, *MEMBERS_ADDED_BY_V2) if kind is NdrType.TRANSFER_2 else MEMBERS_V1


def read_transfer_buffer(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a transfer buffer; with ``column`` "receive", store the receive's time-out, action and cursor."""
    name = param.name
    cursors.align_struct()
    at = cursors.position
    kind = cursors.read_uint(4, f"{name}.uTransferType")
    cursors.fail(kind > max(UNION_ARMS), MALFORMED_CODE, f"{name}.uTransferType", at)
    cursors.align_struct()
    at = cursors.position
    tag = cursors.read_uint(4, f"{name}.tag")
    cursors.fail(tag != kind, MALFORMED_CODE, f"{name}.tag", at)
    cursors.align_struct()
    values: dict[str, AnyArray] = {}
    for arm, members in UNION_ARMS.items():
        index, part = cursors.subset(kind == arm)
        if not len(index):
            continue
        for name_of, read in _read_members(part, param, members).items():
            values[name_of] = np.zeros(len(kind), read.dtype)
            values[name_of][index] = read
        cursors.merge_subset(index, part)
    after = members_after_union(param.ndr_type)
    values.update(_read_members(cursors, param, after))
    for member in (*(member for members in UNION_ARMS.values() for member in members), *after):
        if member.depth and member.name in values:
            _skip_pointee(cursors, f"{name}.{member.name}", member, values)


def _read_members(cursors: ColumnCursors, param: Parameter, members: tuple[TransferMember, ...]) -> dict[str, AnyArray]:
    """Read the members in place, integers and pointer referents; returns them by member name."""
    out = {}
    for member in members:
        field = f"{param.name}.{member.name}"
        out[member.name] = cursors.read_word(field) if member.depth else cursors.read_uint(member.size, field)
        if member.column and param.column == "receive":
            cursors.store(member.column, out[member.name])
    return out


def _skip_pointee(cursors: ColumnCursors, field: str, member: TransferMember, values: dict[str, AnyArray]) -> None:
    """Skip what a pointer member points to, in rows where it is not NULL, through both levels (rule N13)."""
    referent = values[member.name]
    index, part = cursors.subset(referent != 0)
    if not len(index):
        return
    if not member.size:
        read_queue_format(part, Parameter(field, NdrType.QUEUE_FORMAT), keep=False)
        cursors.merge_subset(index, part)
        return
    if member.depth == 2:
        inner = part.read_word(f"*{field}")
        index_of_inner, target = part.subset(inner != 0)
        _skip_target(target, f"**{field}", member, values, index[index_of_inner])
        part.merge_subset(index_of_inner, target)
    else:
        _skip_target(part, f"*{field}", member, values, index)
    cursors.merge_subset(index, part)


def _skip_target(
    cursors: ColumnCursors, field: str, member: TransferMember, values: dict[str, AnyArray], index: AnyArray
) -> None:
    """Skip the innermost pointee: a value, or an array whose counts must agree with the counting members."""
    if member.counted_by is None:
        cursors.align(member.align)
        cursors.advance(member.size, field)
        return

    def declared(count: str | int) -> AnyArray:
        return np.full(len(index), count, np.uint32) if isinstance(count, int) else values[count][index]

    cursors.align_struct()
    at = cursors.position
    max_count = cursors.read_word(f"{field}.max_count")
    sent = count = declared(member.counted_by)
    bad = max_count != count
    if member.sent_by is not None:
        first = cursors.read_word(f"{field}.offset")
        sent = cursors.read_word(f"{field}.actual_count")
        bad = bad | (first != 0) | (sent != declared(member.sent_by)) | (sent > max_count)
    cursors.fail(bad, MALFORMED_CODE, f"{field}.max_count", at)
    # No overflow: counts that passed the check are at most 32 bits wide.
    size = np.where(bad, 0, sent).astype(np.uint64) * np.uint64(member.size)
    cursors.advance(size, field)
