"""Read the parameters of a column of stubs in IDL order: a reader for each NDR type, and the check at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from udfs.array_types import Bools
from udfs.stubs import ndr_types, propvariant_arrays, transfer_buffer
from udfs.stubs.column_cursors import MALFORMED_CODE, TRUNCATED_CODE, ColumnCursors
from udfs.stubs.idl import OBJECT_TYPES, NdrType, Parameter


def read_inline_string(cursors: ColumnCursors, param: Parameter) -> None:
    """Read an inline string (rules N11, N14)."""
    cursors.align_struct()
    _store_strings(cursors, param, ndr_types.read_strings(cursors, param.name))


def _store_strings(cursors: ColumnCursors, param: Parameter, texts: list[str | None]) -> None:
    if param.column:
        ndr_types.set_string_values(cursors, param.column, texts)


def read_action(cursors: ColumnCursors, param: Parameter) -> None:
    """Read lpwszAction: a string, although the IDL has no [string]; a single character is read, with an error (D1)."""
    alone = cursors.end - cursors.position == 2
    index, part = cursors.subset(alone)
    at = part.position - part.start
    units = part.read_uint(2, param.name)
    _store_strings(part, param, [unit.to_bytes(2, "little").decode("utf-16-le", "replace") for unit in units.tolist()])
    part.out.note_deviation(part.rows[part.live], f"{param.name} (one character)", at[part.live])
    index_of_rest, rest = cursors.subset(~alone)
    read_inline_string(rest, param)
    cursors.merge_subset(index, part)
    cursors.merge_subset(index_of_rest, rest)


def read_double_pointer_string(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a string behind two pointers, [MS-MQMP] 3.1.4.1 and 3.1.4.17 (rules N13, N15).

    Some peers send one referent only: then the string's counts stand in place of the second referent. The pattern
    count, 0, count gives them away. Such a string is read too, with an error (doubt D32).
    """
    outer = cursors.read_word(param.name)
    index, part = cursors.subset(outer != 0)
    one = _has_one_pointer(part)
    at = part.position
    index_of_two, two = part.subset(~one)
    inner = two.read_word(f"*{param.name}")
    index_of_text, text = two.subset(inner != 0)
    _store_strings(text, param, ndr_types.read_strings(text, f"**{param.name}"))
    two.merge_subset(index_of_text, text)
    index_of_one, single = part.subset(one)
    _store_strings(single, param, ndr_types.read_strings(single, f"**{param.name}"))
    single.out.note_deviation(
        single.rows[single.live], f"{param.name} (one pointer)", (at - part.start)[index_of_one][single.live]
    )
    part.merge_subset(index_of_two, two)
    part.merge_subset(index_of_one, single)
    cursors.merge_subset(index, part)


def _has_one_pointer(cursors: ColumnCursors) -> Bools:
    """Return the mask of rows where max_count, 0 and the same count stand in place of the second referent."""
    word = 8 if cursors.ndr64 else 4
    there = cursors.end - cursors.position >= 3 * word
    index, ahead = cursors.subset(there)
    first, second, third = (ahead.read_word("") for _ in range(3))  # cannot fail: the bytes are there
    out: Bools = np.zeros(len(cursors.rows), np.bool_)
    out[index] = (second == 0) & (first == third) & (first != 0)
    return out


def read_queue_format_pointer(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a unique pointer to a QUEUE_FORMAT and the structure behind it (rule N14)."""
    referent = cursors.read_word(param.name)
    index, part = cursors.subset(referent != 0)
    ndr_types.read_queue_format(part, param)
    cursors.merge_subset(index, part)


def read_managed_object(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a MGMT_OBJECT, [MS-MQMR] 2.2.1.2: its type, stored as ``object_type``, and the queue format of a queue."""
    size = 4 if cursors.ndr64 else 2
    cursors.align_struct()
    at = cursors.position
    kind = cursors.read_uint(size, f"{param.name}.type")
    if cursors.ndr64:
        cursors.align(8)
    known = np.isin(kind, list(OBJECT_TYPES))
    cursors.fail(~known, MALFORMED_CODE, f"{param.name}.type", at)
    at = cursors.position
    tag = cursors.read_uint(size, f"{param.name}.tag")
    cursors.fail(tag != kind, MALFORMED_CODE, f"{param.name}.tag", at)
    cursors.store("object_type", kind)
    cursors.align_struct()
    index, queue = cursors.subset(kind == 2)
    referent = queue.read_word(f"{param.name}.pQueueFormat")
    index_of_format, part = queue.subset(referent != 0)
    ndr_types.read_queue_format(part, param)
    queue.merge_subset(index_of_format, part)
    index_of_others, others = cursors.subset(kind != 2)
    others.read_uint(4, f"{param.name}.Reserved")
    if others.ndr64:
        others.align(8)
    cursors.merge_subset(index, queue)
    cursors.merge_subset(index_of_others, others)


def read_number_array(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a conformant array of 32-bit integers whose length is an earlier parameter (rule N10)."""
    counts = cursors.sizes[param.size_is or ""].astype(np.int64)
    cursors.align_struct()
    at = cursors.position
    max_count = cursors.read_word(f"{param.name}.max_count")
    cursors.fail(max_count.astype(np.uint64) != counts.astype(np.uint64), MALFORMED_CODE, f"{param.name}.max_count", at)
    start = cursors.advance((counts * 4).astype(np.uint64), param.name)
    if param.column is None:
        return
    counts = np.where(cursors.live, counts, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    big = None if cursors.big_endian is None else cursors.big_endian[owner]
    items = ColumnCursors(cursors.data, cursors.rows[owner], start[owner], cursors.end[owner], cursors.out, big=big)
    items.position = start[owner] + 4 * place
    values = items.read_uint(4, param.name)  # cannot fail: the array is there
    cursors.out.append_elements(param.column, cursors.rows[owner], values)
    cursors.store(param.column, np.zeros(len(counts), np.uint8))


def skip_rest(cursors: ColumnCursors, param: Parameter) -> None:
    """Skip a whole request (parameter "in"), or all of a response before its last 4 octets, the return value."""
    if param.name == "in":
        cursors.position = cursors.end.copy()
        return
    size = cursors.end - cursors.start
    cursors.fail(size < 4, TRUNCATED_CODE, param.name)
    cursors.position = np.where(cursors.live, cursors.end - 4, cursors.end)
    cursors.fail(size % 4 != 0, MALFORMED_CODE, param.name)


def check_end_of_stub(cursors: ColumnCursors) -> None:
    """Set an error in rows with a stub too short or too long; padding to 4 octets is allowed ([MS-RPCE] 2.2.2.13)."""
    left = cursors.end - cursors.position
    cursors.fail(left < 0, TRUNCATED_CODE, "end of stub")
    cursors.fail((left > 0) & (left != (cursors.start - cursors.position) % 4), MALFORMED_CODE, "end of stub")


ColumnReader = Callable[[ColumnCursors, Parameter], None]
PARAMETER_READERS: Final[dict[NdrType, ColumnReader]] = {
    NdrType.OCTETS: ndr_types.skip_octets,
    NdrType.QUEUE_FORMAT: ndr_types.read_queue_format,
    NdrType.READ_DESC: ndr_types.read_remote_read_desc,
    NdrType.READ_DESC2: ndr_types.read_remote_read_desc2,
    NdrType.SECTIONS: ndr_types.read_sections,
    NdrType.STRING: read_inline_string,
    NdrType.NAME: read_double_pointer_string,
    NdrType.ACTION: read_action,
    NdrType.QUEUE_FORMAT_POINTER: read_queue_format_pointer,
    NdrType.MANAGED_OBJECT: read_managed_object,
    NdrType.NUMBERS: read_number_array,
    NdrType.VARIANTS: propvariant_arrays.read_propvariant_array,
    NdrType.TRANSFER_1: transfer_buffer.read_transfer_buffer,
    NdrType.TRANSFER_2: transfer_buffer.read_transfer_buffer,
    NdrType.REST: skip_rest,
}


def read_parameters(
    cursors: ColumnCursors, params: tuple[Parameter, ...], further_readers: Mapping[NdrType, ColumnReader] | None = None
) -> None:
    """Read the parameters of all stubs in IDL order, and check that no octets are left.

    ``further_readers`` are those of types that ``PARAMETER_READERS`` does not have.
    """
    readers = {**PARAMETER_READERS, **(further_readers or {})}
    for param in params:
        readers.get(param.ndr_type, ndr_types.read_primitive)(cursors, param)
    check_end_of_stub(cursors)
    live: Bools = np.zeros(cursors.out.rows, np.bool_)
    live[cursors.rows[cursors.live]] = True
    cursors.out.report_deviations(live)
