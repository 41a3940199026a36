"""NDR types a column at a time: each a function that moves a vector of cursors and stores what it read.

[C706] 14 and [MS-RPCE] 2.2.4 and 2.2.5; rules N1 to N22 are those of the project's fact sheet on RPC interfaces.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from udfs.queues.format_names import QueueFormat, format_name
from udfs.queues.normal_form import normal_text
from udfs.stubs.column import Bools, Column, Cursors, Ints
from udfs.stubs.method import QUEUE_FORMAT_ARMS, READ_DESC_MEMBERS, Kind, Param
from udfs.stubs.text import GUID_BIG, HANDLE_BIG, guid_text

_TRUNCATED: Final = 1
_MALFORMED: Final = 2
_SIZE: Final = {Kind.U8: 1, Kind.U16: 2, Kind.U32: 4, Kind.U64: 8}


def _little(cursors: Cursors, raw: Column, order: list[int]) -> Column:
    """Return bytes in their little-endian form: those of big-endian rows permuted by ``order``."""
    if cursors.big is None:
        return raw
    return np.where(cursors.big[:, None], raw[:, order], raw)


def _primitive(cursors: Cursors, param: Param, field: str) -> Column:
    """Read and store a value of fixed size. GUIDs and handles are bytes in little-endian form, (rows, 16 or 20)."""
    kind = param.kind
    if kind in _SIZE:
        values = cursors.uint(_SIZE[kind], field)
    elif kind is Kind.BOOL:
        values = (cursors.uint(4, field) != 0).astype(np.uint8)
    elif kind is Kind.ENUM:
        values = cursors.uint(4 if cursors.ndr64 else 2, field)
    elif kind is Kind.UOW:
        values = cursors.raw(16, field)
    elif kind is Kind.GUID:
        cursors.align(4)
        values = _little(cursors, cursors.raw(16, field), GUID_BIG)
    else:
        cursors.align(4)
        values = _little(cursors, cursors.raw(20, field), HANDLE_BIG)
    cursors.put(param.column, values)
    return values


def primitive(cursors: Cursors, param: Param) -> None:
    """Read a parameter of fixed size; numbers stay at hand for a later ``size_is``."""
    values = _primitive(cursors, param, param.name)
    if values.ndim == 1:
        cursors.seen[param.name] = values


def token(cursors: Cursors, param: Param) -> None:
    """Read over a conformant array of octets whose length an earlier parameter gave (rule N10)."""
    size = cursors.seen[param.size_is or ""]
    cursors.struct_align()
    at = cursors.position
    most = cursors.word(f"{param.name}.max_count")
    cursors.fail(most != size, _MALFORMED, f"{param.name}.max_count", at)
    cursors.take(size, param.name)


def strings(cursors: Cursors, field: str) -> list[str | None]:
    """Read conformant varying strings of wchar_t with their NUL (rule N11)."""
    most = cursors.word(f"{field}.max_count")
    at = cursors.position
    first = cursors.word(f"{field}.offset")
    count = cursors.word(f"{field}.actual_count")
    cursors.fail((first != 0) | (count == 0) | (count > most), _MALFORMED, f"{field}.actual_count", at)
    # A count of 2^63 or more doubles to something small: bound it first, no stub has so many octets.
    size = np.minimum(count.astype(np.uint64), np.uint64(1 << 62)) * np.uint64(2)
    start = cursors.take(size, field)
    texts: list[str | None] = [None] * len(start)
    bad = np.zeros(len(start), np.bool_)
    for row in np.flatnonzero(cursors.live):
        raw = cursors.data[start[row] : start[row] + int(size[row])].tobytes()
        big = cursors.big is not None and bool(cursors.big[row])
        text = raw.decode("utf-16-be" if big else "utf-16-le", "replace")
        bad[row] = text.find("\0") != len(text) - 1
        texts[row] = text[:-1]
    cursors.fail(bad, _MALFORMED, field, start)
    return texts


def queue_format(cursors: Cursors, param: Param) -> None:
    """Read a QUEUE_FORMAT and its string; store its type, its format name and, where asked, its normal form."""
    read_queue_format(cursors, param, keep=True)


def read_queue_format(cursors: Cursors, param: Param, *, keep: bool) -> None:
    """Read a QUEUE_FORMAT and its string, [MS-MQMQ] 2.2.7; nothing is stored unless ``keep``."""
    name = param.name
    cursors.struct_align()
    at = cursors.position
    qft = cursors.uint(1, f"{name}.m_qft")
    if keep:
        cursors.put("queue_format_type", qft)
    suffix = cursors.uint(1, f"{name}.m_SuffixAndFlags")
    cursors.uint(2, f"{name}.m_reserved")
    cursors.fail(qft > max(QUEUE_FORMAT_ARMS), _MALFORMED, f"{name}.m_qft", at)
    if cursors.ndr64:
        cursors.align(8)
    at = cursors.position
    tag = cursors.uint(1, f"{name}.tag")
    cursors.fail(tag != qft, _MALFORMED, f"{name}.tag", at)
    if cursors.ndr64:
        cursors.align(8)
    for arm in np.unique(qft[cursors.live]).tolist():
        index, part = cursors.subset(qft == arm)
        _queue_format_arm(part, param, arm, suffix[index], keep=keep)
        cursors.join(index, part)


def _queue_format_arm(cursors: Cursors, param: Param, arm: int, suffix: Column, *, keep: bool) -> None:
    members, string = QUEUE_FORMAT_ARMS[arm]
    guids: list[str | None] = [None] * len(suffix)
    numbers: list[Column] = []
    for member in members:
        values = _primitive(cursors, member, f"{param.name}.{member.name}")
        if member.kind is Kind.GUID:
            guids = guid_text(values).to_pylist()
        else:
            numbers.append(values)
    texts: list[str | None] = [None] * len(suffix)
    if string:
        referent = cursors.word(f"{param.name}.{string}")
        index, part = cursors.subset(referent != 0)
        for row, text in zip(index.tolist(), strings(part, f"{param.name}.{string}"), strict=True):
            texts[row] = text
        cursors.join(index, part)
    else:
        cursors.struct_end()
    if not keep or not cursors.live.any():
        return
    none = np.zeros(len(suffix), np.uint32)
    first, second = (part.tolist() for part in [*numbers, none, none][:2])
    names = [
        format_name(QueueFormat(arm, *fields))
        for fields in zip(suffix.tolist(), guids, first, second, texts, strict=True)
    ]
    put_texts(cursors, "queue_format_name", names)
    if param.column == "queue":
        put_texts(cursors, "queue", [normal_text(text) for text in names])


def put_texts(cursors: Cursors, column: str, texts: list[str | None]) -> None:
    """Store texts of the live rows, by row of the cursors; None is none."""
    values = np.empty(len(texts), object)
    values[:] = texts
    at = cursors.live & np.array([text is not None for text in texts], np.bool_)
    cursors.out.put(column, cursors.rows[at], values[at])


def read_desc(cursors: Cursors, param: Param) -> None:
    """Read a REMOTEREADDESC and its lpBuffer, [MS-MQQP] 2.2.2.1: size_is and length_is are both dwSize."""
    name = param.name
    cursors.struct_align()
    size: Column = np.zeros(0, np.uint32)
    for member in READ_DESC_MEMBERS:
        values = _primitive(cursors, member, f"{name}.{member.name}")
        if member.name == "dwSize":
            size = values
    referent = cursors.word(f"{name}.lpBuffer")
    if not referent.any():
        return
    index, part = cursors.subset(referent != 0)
    size = size[index]
    at = part.position
    most = part.word(f"{name}.lpBuffer.max_count")
    first = part.word(f"{name}.lpBuffer.offset")
    count = part.word(f"{name}.lpBuffer.actual_count")
    part.fail((most != size) | (first != 0) | (count != size), _MALFORMED, f"{name}.lpBuffer.max_count", at)
    start = part.take(size, f"{name}.lpBuffer")
    part.put("packet_bytes", size)
    part.out.add("spans", part.rows[part.live], start[part.live], size[part.live].astype(np.int64))
    cursors.join(index, part)


def read_desc2(cursors: Cursors, param: Param) -> None:
    """Read a REMOTEREADDESC2, [MS-MQQP] 2.2.2.2: a pointer to the descriptor, and the message's identifier."""
    cursors.align(8)
    referent = cursors.word(f"{param.name}.pRemoteReadDesc")
    cursors.put("sequence_id", cursors.uint(8, f"{param.name}.SequentialId"))
    index, part = cursors.subset(referent != 0)
    read_desc(part, param)
    cursors.join(index, part)


def sections(cursors: Cursors, param: Param) -> None:
    """Read the sections of a packet, [MS-MQRR] 2.2.6: one pointer to one conformant array of structures (doubt D2)."""
    name = param.name
    counts = cursors.seen[param.size_is or ""]
    referent = cursors.word(name)
    index, part = cursors.subset(referent != 0)
    _section_array(part, name, counts[index].astype(np.int64))
    cursors.join(index, part)


def _section_array(cursors: Cursors, name: str, counts: Ints) -> None:
    at = cursors.position
    most = cursors.word(f"{name}.max_count")
    cursors.fail(most.astype(np.uint64) != counts.astype(np.uint64), _MALFORMED, f"{name}.max_count", at)
    stride = 24 if cursors.ndr64 else 16
    # The array is bounded by what is there before anything of its size is made.
    short = counts * stride > cursors.end - cursors.position
    cursors.fail(short, _TRUNCATED, f"{name}.SectionBufferType")
    counts = np.where(cursors.live, counts, 0)
    heads = _section_heads(cursors, name, counts, stride)
    cursors.position = np.where(cursors.live, cursors.position + counts * stride, cursors.end)
    _section_buffers(cursors, name, counts, heads)


class _Heads(NamedTuple):
    """The fixed parts of all sections of all rows, row after row: ``first`` is each row's first section."""

    owner: Ints
    first: Ints
    kind: Column
    allocated: Column
    size: Column
    present: Bools


def _section_heads(cursors: Cursors, name: str, counts: Ints, stride: int) -> _Heads:
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    place = np.arange(len(owner)) - first[owner]
    big = None if cursors.big is None else cursors.big[owner]
    # One cursor per section, in the bounds of its stub; they cannot fail, the array's length was checked.
    heads = Cursors(
        cursors.data, cursors.rows[owner], cursors.start[owner], cursors.end[owner], cursors.out,
        ndr64=cursors.ndr64, big=big,
    )  # fmt: skip
    heads.position = cursors.position[owner] + place * stride
    kind = heads.uint(4 if heads.ndr64 else 2, f"{name}.SectionBufferType")
    allocated = heads.uint(4, f"{name}.SectionSizeAlloc")
    size = heads.uint(4, f"{name}.SectionSize")
    present = heads.word(f"{name}.pSectionBuffer") != 0
    return _Heads(owner, first, kind, allocated, size, present)


def _section_buffers(cursors: Cursors, name: str, counts: Ints, heads: _Heads) -> None:
    """Follow the deferred octets of each row's sections, one section of every row at a time."""
    total = np.zeros(len(counts), np.int64)
    spans: list[tuple[Ints, Ints, Ints]] = []
    for ordinal in range(min(int(counts.max(initial=0)), _VECTOR_SECTIONS)):
        has = counts > ordinal
        has[has] = heads.present[heads.first[has] + ordinal]
        index, part = cursors.subset(has)
        size = heads.size[heads.first[index] + ordinal]
        part.struct_align()
        at = part.position
        most = part.word(f"{name}.pSectionBuffer.max_count")
        part.fail(most != size, _MALFORMED, f"{name}.pSectionBuffer.max_count", at)
        start = part.take(size, f"{name}.pSectionBuffer")
        total[index] += size
        spans.append((index[part.live], start[part.live], size[part.live].astype(np.int64)))
        cursors.join(index, part)
    for row in np.flatnonzero(cursors.live & (counts > _VECTOR_SECTIONS)).tolist():
        first = int(heads.first[row])
        present = np.flatnonzero(heads.present[first + _VECTOR_SECTIONS : first + int(counts[row])])
        sizes = heads.size[first + _VECTOR_SECTIONS + present].tolist()
        starts = _many_sections(cursors, f"{name}.pSectionBuffer", row, sizes)
        total[row] += sum(sizes)
        spans.append((np.full(len(starts), row), np.array(starts, np.int64), np.array(sizes[: len(starts)], np.int64)))
    cursors.put("sections", np.zeros(len(counts), np.uint8))
    cursors.put("packet_bytes", total.astype(np.uint64))
    keep = cursors.live[heads.owner]
    cursors.out.add(
        "sections", cursors.rows[heads.owner][keep], heads.kind[keep], heads.allocated[keep], heads.size[keep]
    )
    for index, start, size in spans:
        keep = cursors.live[index]
        cursors.out.add("spans", cursors.rows[index][keep], start[keep], size[keep])


_VECTOR_SECTIONS: Final = 4  # a packet has one or two; more come from a peer of bad will, and are walked row by row


def _many_sections(cursors: Cursors, name: str, row: int, sizes: list[int]) -> list[int]:
    """Walk the sections of one row beyond those that all rows walk together; linear in the stub's length."""
    word = 8 if cursors.ndr64 else 4
    big = cursors.big is not None and bool(cursors.big[row])
    begin, end, position = int(cursors.start[row]), int(cursors.end[row]), int(cursors.position[row])
    starts: list[int] = []
    error = 0
    for size in sizes:
        position += (begin - position) % word
        most = cursors.data[position : min(position + word, end)].tobytes()
        error = _TRUNCATED if len(most) < word else 0
        if not error and int.from_bytes(most, "big" if big else "little") != size:
            error = _MALFORMED
        if error:
            name += ".max_count"
            break
        position += word
        if size > end - position:
            error = _TRUNCATED
            break
        starts.append(position)
        position += size
    cursors.position[row] = position
    if error:
        cursors.fail(np.arange(len(cursors.rows)) == row, error, name)
    return starts
