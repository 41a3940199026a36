"""Codes: numbers from 0 on that stand for values, ``NONE`` for no value. Equal values have equal codes.

Codes are in no order that has a meaning. There are at most as many as rows, so that a code times a number of rows fits
into 64 bits. All functions take time in proportion to the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from udfs.array_types import Bools, Ints
from udfs.columns.absent import ABSENT, AFTER_ALL, NONE
from udfs.columns.arrays import Column, from_ints, one_array, to_ints


def dictionary_codes(column: Column) -> Ints:
    """Return the code of each value, as they come first; ``NONE`` for null."""
    return to_ints(_encoded(column).indices, NONE)


def codes_and_values(column: Column) -> tuple[Ints, list[Any]]:
    """Return the code of each value, ``NONE`` for null, and the values in the order of their codes."""
    encoded = _encoded(column)
    return to_ints(encoded.indices, NONE), encoded.dictionary.to_pylist()


def _encoded(column: Column) -> pa.DictionaryArray:
    return one_array(one_array(column).dictionary_encode())  # texts of more than 2 GB stay in chunks


def number_codes(numbers: Ints, absent: int = ABSENT) -> Ints:
    """Return the code of each number; ``NONE`` for ``absent``."""
    return dictionary_codes(from_ints(numbers, absent))


def codes_of_both(one: Column, other: Column) -> tuple[Ints, Ints]:
    """Return the codes of two columns of texts: equal texts have one code in both; ``NONE`` for null."""
    codes = dictionary_codes(_behind(one, other))
    return codes[: len(one)], codes[len(one) :]


def _behind(one: Column, other: Column) -> pa.ChunkedArray:
    chunks = [each.chunks if isinstance(each, pa.ChunkedArray) else [each] for each in (one, other)]
    return pa.chunked_array([chunk.cast(pa.string()) for chunk in chain.from_iterable(chunks)], pa.string())


def combine_codes(*codes: Ints) -> Ints:
    """Return a code for each combination of codes of a row; ``NONE`` where one of them is ``NONE``."""
    return _combined(codes, np.logical_or.reduce([each < 0 for each in codes]))


def row_codes(columns: Iterable[Column | np.ndarray[Any, Any]]) -> Ints:
    """Return a code for each row, from 0 on without a gap: rows that are equal in all columns, or arrays, have one.

    Nulls are equal.
    """
    arrays = (pa.array(each) if isinstance(each, np.ndarray) else each for each in columns)
    return _combined([dictionary_codes(each) + 1 for each in arrays])


def row_codes_of_both(columns: Sequence[Column], others: Sequence[Column]) -> tuple[Ints, Ints]:
    """Return a code for each row of two tables, of columns of texts: equal rows have one in both. Nulls are equal.

    ``columns`` are of the one table, ``others`` those of the other one that they are compared with.
    """
    codes = row_codes(map(_behind, columns, others))
    return codes[: len(columns[0])], codes[len(columns[0]) :]


def _combined(codes: Sequence[Ints], lacks: Bools | None = None) -> Ints:
    """Return a code for each combination of codes, from 0 on without a gap; ``NONE`` for rows that lack one."""
    found, count = codes[0], int(codes[0].max(initial=0)) + 1
    for each in codes[1:]:
        more = int(each.max(initial=0)) + 1
        if count * more > AFTER_ALL:
            found = dictionary_codes(pa.array(found))
            count = int(found.max(initial=0)) + 1
        found, count = found * more + each, count * more
    return dictionary_codes(pa.array(found, mask=lacks))


def either_code(condition: Bools, yes: Ints, no: Ints) -> Ints:
    """Return one of two codes for each row, so that no code of the one kind is one of the other; ``NONE`` stays."""
    return np.where(np.where(condition, yes, no) < 0, NONE, np.where(condition, 2 * yes + 1, 2 * no))
