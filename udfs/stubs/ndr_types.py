"""Column readers of NDR types: integers, GUIDs, handles, strings, QUEUE_FORMAT, REMOTEREADDESC, packet sections.

Each function moves the cursors of all rows and stores the values. [C706] 14, [MS-RPCE] 2.2.4 and 2.2.5; rules N1 to N22
are those of the project's fact sheet on RPC interfaces.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from udfs.array_types import Bools, Ints
from udfs.queues.normal_form import normalize_queue_name
from udfs.queues.queue_format import QueueFormat, build_format_name
from udfs.stubs.arrow_primitives import GUID_BIG_ENDIAN_ORDER, HANDLE_BIG_ENDIAN_ORDER, guid_strings
from udfs.stubs.column_cursors import MALFORMED_CODE, TRUNCATED_CODE, AnyArray, ColumnCursors
from udfs.stubs.idl import QUEUE_FORMAT_ARMS, READ_DESC_MEMBERS, NdrType, Parameter

_SIZE: Final = {NdrType.U8: 1, NdrType.U16: 2, NdrType.U32: 4, NdrType.U64: 8}


def _to_little_endian(cursors: ColumnCursors, raw: AnyArray, order: list[int]) -> AnyArray:
    """Return bytes in little-endian form: those of big-endian rows are permuted by ``order``."""
    if cursors.big_endian is None:
        return raw
    return np.where(cursors.big_endian[:, None], raw[:, order], raw)


def _read_fixed_size(cursors: ColumnCursors, param: Parameter, field: str) -> AnyArray:
    """Read and store a value of fixed size; GUIDs and handles as little-endian bytes, shape (rows, 16 or 20)."""
    kind = param.ndr_type
    if kind in _SIZE:
        values = cursors.read_uint(_SIZE[kind], field)
    elif kind is NdrType.BOOL:
        values = (cursors.read_uint(4, field) != 0).astype(np.uint8)
    elif kind is NdrType.ENUM:
        values = cursors.read_uint(4 if cursors.ndr64 else 2, field)
    elif kind is NdrType.UOW:
        values = cursors.read_bytes(16, field)
    elif kind is NdrType.GUID:
        cursors.align(4)
        values = _to_little_endian(cursors, cursors.read_bytes(16, field), GUID_BIG_ENDIAN_ORDER)
    else:
        cursors.align(4)
        values = _to_little_endian(cursors, cursors.read_bytes(20, field), HANDLE_BIG_ENDIAN_ORDER)
    cursors.store(param.column, values)
    return values


def read_primitive(cursors: ColumnCursors, param: Parameter) -> None:
    """Read and store a parameter of fixed size; numbers are kept in ``sizes`` for a later ``size_is``."""
    values = _read_fixed_size(cursors, param, param.name)
    if values.ndim == 1:
        cursors.sizes[param.name] = values


def skip_octets(cursors: ColumnCursors, param: Parameter) -> None:
    """Skip a conformant array of octets whose length is an earlier parameter (rule N10)."""
    size = cursors.sizes[param.size_is or ""]
    cursors.align_struct()
    at = cursors.position
    max_count = cursors.read_word(f"{param.name}.max_count")
    cursors.fail(max_count != size, MALFORMED_CODE, f"{param.name}.max_count", at)
    cursors.advance(size, param.name)


def read_strings(cursors: ColumnCursors, field: str) -> list[str | None]:
    """Read a conformant varying string of wchar_t per row and return it without its NUL (rule N11)."""
    max_count = cursors.read_word(f"{field}.max_count")
    at = cursors.position
    first = cursors.read_word(f"{field}.offset")
    count = cursors.read_word(f"{field}.actual_count")
    cursors.fail((first != 0) | (count == 0) | (count > max_count), MALFORMED_CODE, f"{field}.actual_count", at)
    # Doubling a count of 2^63 or more would overflow: bound it first.
    size = np.minimum(count.astype(np.uint64), np.uint64(1 << 62)) * np.uint64(2)
    start = cursors.advance(size, field)
    texts: list[str | None] = [None] * len(start)
    bad = np.zeros(len(start), np.bool_)
    for row in np.flatnonzero(cursors.live):
        raw = cursors.data[start[row] : start[row] + int(size[row])].tobytes()
        big = cursors.big_endian is not None and bool(cursors.big_endian[row])
        text = raw.decode("utf-16-be" if big else "utf-16-le", "replace")
        bad[row] = text.find("\0") != len(text) - 1
        texts[row] = text[:-1]
    cursors.fail(bad, MALFORMED_CODE, field, start)
    return texts


def read_queue_format(cursors: ColumnCursors, param: Parameter, *, keep: bool = True) -> None:
    """Read a QUEUE_FORMAT and its string, [MS-MQMQ] 2.2.7; store type, format name and normal form if ``keep``."""
    name = param.name
    cursors.align_struct()
    at = cursors.position
    qft = cursors.read_uint(1, f"{name}.m_qft")
    if keep:
        cursors.store("queue_format_type", qft)
    suffix = cursors.read_uint(1, f"{name}.m_SuffixAndFlags")
    cursors.read_uint(2, f"{name}.m_reserved")
    cursors.fail(qft > max(QUEUE_FORMAT_ARMS), MALFORMED_CODE, f"{name}.m_qft", at)
    if cursors.ndr64:
        cursors.align(8)
    at = cursors.position
    tag = cursors.read_uint(1, f"{name}.tag")
    cursors.fail(tag != qft, MALFORMED_CODE, f"{name}.tag", at)
    if cursors.ndr64:
        cursors.align(8)
    for arm in np.unique(qft[cursors.live]).tolist():
        index, part = cursors.subset(qft == arm)
        _read_queue_format_arm(part, param, arm, suffix[index], keep=keep)
        cursors.merge_subset(index, part)


def _read_queue_format_arm(cursors: ColumnCursors, param: Parameter, arm: int, suffix: AnyArray, *, keep: bool) -> None:
    members, string = QUEUE_FORMAT_ARMS[arm]
    guids: list[str | None] = [None] * len(suffix)
    numbers: list[AnyArray] = []
    for member in members:
        values = _read_fixed_size(cursors, member, f"{param.name}.{member.name}")
        if member.ndr_type is NdrType.GUID:
            guids = guid_strings(values).to_pylist()
        else:
            numbers.append(values)
    texts: list[str | None] = [None] * len(suffix)
    if string:
        referent = cursors.read_word(f"{param.name}.{string}")
        index, part = cursors.subset(referent != 0)
        for row, text in zip(index.tolist(), read_strings(part, f"{param.name}.{string}"), strict=True):
            texts[row] = text
        cursors.merge_subset(index, part)
    else:
        cursors.skip_struct_padding()
    if not keep or not cursors.live.any():
        return
    none = np.zeros(len(suffix), np.uint32)
    first, second = (part.tolist() for part in [*numbers, none, none][:2])
    names = [
        build_format_name(QueueFormat(arm, *fields))
        for fields in zip(suffix.tolist(), guids, first, second, texts, strict=True)
    ]
    set_string_values(cursors, "queue_format_name", names)
    if param.column == "queue":
        set_string_values(cursors, "queue", [normalize_queue_name(text) for text in names])


def set_string_values(cursors: ColumnCursors, column: str, texts: list[str | None]) -> None:
    """Store texts of the live rows in a column; None leaves the row null."""
    values = np.empty(len(texts), object)
    values[:] = texts
    at = cursors.live & np.array([text is not None for text in texts], np.bool_)
    cursors.out.store(column, cursors.rows[at], values[at])


def read_remote_read_desc(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a REMOTEREADDESC and its lpBuffer, [MS-MQQP] 2.2.2.1: size_is and length_is are both dwSize.

    The octets that are there are those of actual_count; counts that differ are an error, but end nothing.
    """
    name = param.name
    cursors.align_struct()
    size: AnyArray = np.zeros(0, np.uint32)
    for member in READ_DESC_MEMBERS:
        values = _read_fixed_size(cursors, member, f"{name}.{member.name}")
        if member.name == "dwSize":
            size = values
    referent = cursors.read_word(f"{name}.lpBuffer")
    if not referent.any():
        return
    index, part = cursors.subset(referent != 0)
    size = size[index]
    at = part.position
    max_count = part.read_word(f"{name}.lpBuffer.max_count")
    first = part.read_word(f"{name}.lpBuffer.offset")
    count = part.read_word(f"{name}.lpBuffer.actual_count")
    _note_counts(part, (max_count != size) | (first != 0) | (count != size), f"{name}.lpBuffer.max_count", at)
    start = part.advance(count, f"{name}.lpBuffer")
    part.store("packet_bytes", count)
    part.out.append_elements("spans", part.rows[part.live], start[part.live], count[part.live].astype(np.int64))
    cursors.merge_subset(index, part)


def _note_counts(cursors: ColumnCursors, differ: Bools, field: str, at: Ints) -> None:
    """Record counts that differ from the declared one, at a buffer offset: the array is read by its own count."""
    which = differ & cursors.live
    cursors.out.note_deviation(cursors.rows[which], field, (at - cursors.start)[which])


def read_remote_read_desc2(cursors: ColumnCursors, param: Parameter) -> None:
    """Read a REMOTEREADDESC2, [MS-MQQP] 2.2.2.2: a pointer to the descriptor, and the sequential id of the message."""
    cursors.align(8)
    referent = cursors.read_word(f"{param.name}.pRemoteReadDesc")
    cursors.store("sequence_id", cursors.read_uint(8, f"{param.name}.SequentialId"))
    index, part = cursors.subset(referent != 0)
    read_remote_read_desc(part, param)
    cursors.merge_subset(index, part)


def read_sections(cursors: ColumnCursors, param: Parameter) -> None:
    """Read SectionBuffer structures, [MS-MQRR] 2.2.6, as one pointer to one conformant array (doubt D2)."""
    name = param.name
    counts = cursors.sizes[param.size_is or ""]
    referent = cursors.read_word(name)
    index, part = cursors.subset(referent != 0)
    _read_section_array(part, name, counts[index].astype(np.int64))
    cursors.merge_subset(index, part)


def _read_section_array(cursors: ColumnCursors, name: str, counts: Ints) -> None:
    at = cursors.position
    max_count = cursors.read_word(f"{name}.max_count")
    cursors.fail(max_count.astype(np.uint64) != counts.astype(np.uint64), MALFORMED_CODE, f"{name}.max_count", at)
    stride = 24 if cursors.ndr64 else 16
    # Compare the count with the octets that are there before allocating by it.
    short = counts * stride > cursors.end - cursors.position
    cursors.fail(short, TRUNCATED_CODE, f"{name}.SectionBufferType")
    counts = np.where(cursors.live, counts, 0)
    heads = _read_section_heads(cursors, name, counts, stride)
    cursors.position = np.where(cursors.live, cursors.position + counts * stride, cursors.end)
    _read_section_buffers(cursors, name, counts, heads)


class _SectionHeads(NamedTuple):
    """The fixed parts of all sections, sorted by row; ``first`` is the index of each row's first section."""

    owner: Ints
    first: Ints
    kind: AnyArray
    allocated: AnyArray
    size: AnyArray
    present: Bools


def _read_section_heads(cursors: ColumnCursors, name: str, counts: Ints, stride: int) -> _SectionHeads:
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    place = np.arange(len(owner)) - first[owner]
    big = None if cursors.big_endian is None else cursors.big_endian[owner]
    # One cursor per section. They cannot fail: the length of the array was checked.
    heads = ColumnCursors(
        cursors.data, cursors.rows[owner], cursors.start[owner], cursors.end[owner], cursors.out,
        ndr64=cursors.ndr64, big=big,
    )  # fmt: skip
    heads.position = cursors.position[owner] + place * stride
    kind = heads.read_uint(4 if heads.ndr64 else 2, f"{name}.SectionBufferType")
    allocated = heads.read_uint(4, f"{name}.SectionSizeAlloc")
    size = heads.read_uint(4, f"{name}.SectionSize")
    present = heads.read_word(f"{name}.pSectionBuffer") != 0
    return _SectionHeads(owner, first, kind, allocated, size, present)


def _read_section_buffers(cursors: ColumnCursors, name: str, counts: Ints, heads: _SectionHeads) -> None:
    """Read the deferred octets of the sections, the n-th section of all rows together.

    max_count says where the octets end, SectionSize how many are the section's (doubt D28).
    """
    total = np.zeros(len(counts), np.int64)
    spans: list[tuple[Ints, Ints, Ints]] = []
    for ordinal in range(min(int(counts.max(initial=0)), _COLUMNWISE_SECTIONS)):
        has = counts > ordinal
        has[has] = heads.present[heads.first[has] + ordinal]
        index, part = cursors.subset(has)
        size = heads.size[heads.first[index] + ordinal]
        part.align_struct()
        at = part.position
        max_count = part.read_word(f"{name}.pSectionBuffer.max_count")
        _note_counts(part, max_count != size, f"{name}.pSectionBuffer.max_count", at)
        start = part.advance(max_count, f"{name}.pSectionBuffer")
        kept = np.where(part.live, np.minimum(max_count, size), 0).astype(np.int64)
        total[index] += kept
        spans.append((index[part.live], start[part.live], kept[part.live]))
        cursors.merge_subset(index, part)
    for row in np.flatnonzero(cursors.live & (counts > _COLUMNWISE_SECTIONS)).tolist():
        first = int(heads.first[row])
        present = np.flatnonzero(heads.present[first + _COLUMNWISE_SECTIONS : first + int(counts[row])])
        sizes = heads.size[first + _COLUMNWISE_SECTIONS + present].tolist()
        found = np.array(_walk_further_sections(cursors, f"{name}.pSectionBuffer", row, sizes), np.int64).reshape(-1, 2)
        total[row] += found[:, 1].sum()
        spans.append((np.full(len(found), row), found[:, 0], found[:, 1]))
    cursors.store("sections", np.zeros(len(counts), np.uint8))
    cursors.store("packet_bytes", total.astype(np.uint64))
    keep = cursors.live[heads.owner]
    cursors.out.append_elements(
        "sections", cursors.rows[heads.owner][keep], heads.kind[keep], heads.allocated[keep], heads.size[keep]
    )
    for index, start, size in spans:
        keep = cursors.live[index]
        cursors.out.append_elements("spans", cursors.rows[index][keep], start[keep], size[keep])


_COLUMNWISE_SECTIONS: Final = 4  # sections read for all rows together; packets have one or two, malicious ones more


def _walk_further_sections(cursors: ColumnCursors, name: str, row: int, sizes: list[int]) -> list[tuple[int, int]]:
    """Read the sections of one row behind the first ``_COLUMNWISE_SECTIONS``; returns offset and number of octets."""
    word = 8 if cursors.ndr64 else 4
    big = cursors.big_endian is not None and bool(cursors.big_endian[row])
    begin, end, position = int(cursors.start[row]), int(cursors.end[row]), int(cursors.position[row])
    found: list[tuple[int, int]] = []
    error = 0
    for size in sizes:
        position += (begin - position) % word
        raw = cursors.data[position : min(position + word, end)].tobytes()
        if len(raw) < word:
            error = TRUNCATED_CODE
            name += ".max_count"
            break
        max_count = int.from_bytes(raw, "big" if big else "little")
        if max_count != size:
            at = np.array([position - begin])
            cursors.out.note_deviation(cursors.rows[row : row + 1], f"{name}.max_count", at)
        position += word
        if max_count > end - position:
            error = TRUNCATED_CODE
            break
        found.append((position, min(max_count, size)))
        position += max_count
    cursors.position[row] = position
    if error:
        cursors.fail(np.arange(len(cursors.rows)) == row, error, name)
    return found
