"""The parameters of a stub in IDL order: which reader reads which NDR type, and what must hold at the end.

The readers of ``types.py``, ``variants.py`` and ``transfer.py``, and those small ones that are made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from udfs.errors import MALFORMED, TRUNCATED
from udfs.stubs import transfer, types, variants
from udfs.stubs.column import CODES, Bools, Cursors
from udfs.stubs.method import OBJECT_TYPES, Kind, Param

_TRUNCATED: Final = CODES.index(TRUNCATED)
_MALFORMED: Final = CODES.index(MALFORMED)


def string(cursors: Cursors, param: Param) -> None:
    """Read a string in line (rules N11, N14)."""
    cursors.struct_align()
    _put_strings(cursors, param, types.strings(cursors, param.name))


def _put_strings(cursors: Cursors, param: Param, texts: list[str | None]) -> None:
    if param.column:
        types.put_texts(cursors, param.column, texts)


def action(cursors: Cursors, param: Param) -> None:
    """Read lpwszAction: a string, though the IDL leaves [string] out; a lone character is taken and noted (D1)."""
    alone = cursors.end - cursors.position == 2
    index, part = cursors.subset(alone)
    at = part.position - part.start
    units = part.uint(2, param.name)
    _put_strings(part, param, [unit.to_bytes(2, "little").decode("utf-16-le", "replace") for unit in units.tolist()])
    part.out.note(part.rows[part.live], f"{param.name} (one character)", at[part.live])
    index_of_rest, rest = cursors.subset(~alone)
    string(rest, param)
    cursors.join(index, part)
    cursors.join(index_of_rest, rest)


def name(cursors: Cursors, param: Param) -> None:
    """Read a string behind two pointers, [MS-MQMP] 3.1.4.1 and 3.1.4.17 (rules N13, N15).

    A peer whose stubs were made of one pointer only sends one referent: then the string's counts stand where the
    second one belongs, the offset 0 among them, which no count of a string is. Read so, and noted (doubt D32).
    """
    outer = cursors.word(param.name)
    index, part = cursors.subset(outer != 0)
    one = _one_pointer(part)
    at = part.position
    index_of_two, two = part.subset(~one)
    inner = two.word(f"*{param.name}")
    index_of_text, text = two.subset(inner != 0)
    _put_strings(text, param, types.strings(text, f"**{param.name}"))
    two.join(index_of_text, text)
    index_of_one, single = part.subset(one)
    _put_strings(single, param, types.strings(single, f"**{param.name}"))
    single.out.note(
        single.rows[single.live], f"{param.name} (one pointer)", (at - part.start)[index_of_one][single.live]
    )
    part.join(index_of_two, two)
    part.join(index_of_one, single)
    cursors.join(index, part)


def _one_pointer(cursors: Cursors) -> Bools:
    """Tell the rows where max_count, 0 and the same count again stand in place of the second referent."""
    word = 8 if cursors.ndr64 else 4
    there = cursors.end - cursors.position >= 3 * word
    index, ahead = cursors.subset(there)
    first, second, third = (ahead.word("") for _ in range(3))  # cannot fail: the bytes are there
    out: Bools = np.zeros(len(cursors.rows), np.bool_)
    out[index] = (second == 0) & (first == third) & (first != 0)
    return out


def queue_format_pointer(cursors: Cursors, param: Param) -> None:
    """Read a unique pointer to a QUEUE_FORMAT and the structure right after it (rule N14)."""
    referent = cursors.word(param.name)
    index, part = cursors.subset(referent != 0)
    types.queue_format(part, param)
    cursors.join(index, part)


def managed_object(cursors: Cursors, param: Param) -> None:
    """Read a MGMT_OBJECT, [MS-MQMR] 2.2.1.2: its type, and the queue format of a queue; fills ``object_type``."""
    size = 4 if cursors.ndr64 else 2
    cursors.struct_align()
    at = cursors.position
    kind = cursors.uint(size, f"{param.name}.type")
    if cursors.ndr64:
        cursors.align(8)
    known = np.isin(kind, list(OBJECT_TYPES))
    cursors.fail(~known, _MALFORMED, f"{param.name}.type", at)
    at = cursors.position
    tag = cursors.uint(size, f"{param.name}.tag")
    cursors.fail(tag != kind, _MALFORMED, f"{param.name}.tag", at)
    cursors.put("object_type", kind)
    cursors.struct_align()
    index, queue = cursors.subset(kind == 2)
    referent = queue.word(f"{param.name}.pQueueFormat")
    index_of_format, part = queue.subset(referent != 0)
    types.queue_format(part, param)
    queue.join(index_of_format, part)
    index_of_others, others = cursors.subset(kind != 2)
    others.uint(4, f"{param.name}.Reserved")
    if others.ndr64:
        others.align(8)
    cursors.join(index, queue)
    cursors.join(index_of_others, others)


def numbers(cursors: Cursors, param: Param) -> None:
    """Read a conformant array of 32-bit integers that an earlier parameter counts (rule N10)."""
    counts = cursors.seen[param.size_is or ""].astype(np.int64)
    cursors.struct_align()
    at = cursors.position
    most = cursors.word(f"{param.name}.max_count")
    cursors.fail(most.astype(np.uint64) != counts.astype(np.uint64), _MALFORMED, f"{param.name}.max_count", at)
    start = cursors.take((counts * 4).astype(np.uint64), param.name)
    if param.column is None:
        return
    counts = np.where(cursors.live, counts, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    big = None if cursors.big is None else cursors.big[owner]
    items = Cursors(cursors.data, cursors.rows[owner], start[owner], cursors.end[owner], cursors.out, big=big)
    items.position = start[owner] + 4 * place
    values = items.uint(4, param.name)  # cannot fail: the array is there
    cursors.out.add(param.column, cursors.rows[owner], values)
    cursors.put(param.column, np.zeros(len(counts), np.uint8))


def rest(cursors: Cursors, param: Param) -> None:
    """Pass over what stands before the last 4 octets of a response, or over a whole request (method tables say)."""
    if param.name == "in":
        cursors.position = cursors.end.copy()
        return
    size = cursors.end - cursors.start
    cursors.fail(size < 4, _TRUNCATED, param.name)
    cursors.position = np.where(cursors.live, cursors.end - 4, cursors.end)
    cursors.fail(size % 4 != 0, _MALFORMED, param.name)


def end_of_stub(cursors: Cursors) -> None:
    """Flag rows whose stub ends before its padding or goes on; padding to 4 may stay ([MS-RPCE] 2.2.2.13)."""
    left = cursors.end - cursors.position
    cursors.fail(left < 0, _TRUNCATED, "end of stub")
    cursors.fail((left > 0) & (left != (cursors.start - cursors.position) % 4), _MALFORMED, "end of stub")


STRUCTURES: Final[dict[Kind, Callable[[Cursors, Param], None]]] = {
    Kind.OCTETS: types.token,
    Kind.QUEUE_FORMAT: types.queue_format,
    Kind.READ_DESC: types.read_desc,
    Kind.READ_DESC2: types.read_desc2,
    Kind.SECTIONS: types.sections,
    Kind.STRING: string,
    Kind.NAME: name,
    Kind.ACTION: action,
    Kind.QUEUE_FORMAT_POINTER: queue_format_pointer,
    Kind.MANAGED_OBJECT: managed_object,
    Kind.NUMBERS: numbers,
    Kind.VARIANTS: variants.variants,
    Kind.TRANSFER_1: transfer.transfer_buffer,
    Kind.TRANSFER_2: transfer.transfer_buffer,
    Kind.REST: rest,
}


def read(cursors: Cursors, params: tuple[Param, ...]) -> None:
    """Read all parameters of a stub in IDL order, and make sure that nothing is left."""
    for param in params:
        STRUCTURES.get(param.kind, types.primitive)(cursors, param)
    end_of_stub(cursors)
    live: Bools = np.zeros(cursors.out.rows, np.bool_)
    live[cursors.rows[cursors.live]] = True
    cursors.out.settle(live)
