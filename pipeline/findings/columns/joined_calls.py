"""Calls with what silver decoded of them, joined by call key: in memory, or very many in files. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import encode_texts
from pipeline.findings.columns.stored_calls import StoredCalls


def join_by_call_key(calls: pa.Table, parts: Iterable[pa.Table]) -> pa.Table:
    """Return calls with the columns of other tables' rows of the same ``call_key``; the first that is not null.

    Texts are dictionaries then, but for the key.

    ``calls`` has ``CALL_COLUMNS`` and, where stubs are stored, request_bytes, request_head, request_tail,
    response_head, request_stub and response_stub. Two columns have other names here: ``action`` of a management call, a
    text, is ``action_text``, and ``errors`` of a message is ``message_errors``.
    """
    calls = encode_texts(calls, "call_key")
    columns = dict(zip(calls.column_names, calls.columns, strict=True))
    for part in parts:
        add_columns(columns, part["call_key"], [part])
    return pa.table(columns)


def add_columns(
    columns: MutableMapping[str, pa.ChunkedArray] | StoredCalls, keys: pa.ChunkedArray, tables: Iterable[pa.Table]
) -> None:
    """Add columns of another table to those of calls (``join_by_call_key``): it has calls with some keys.

    Its columns may come in several tables: of each only what is added stays in memory.
    """
    places = pc.index_in(columns["call_key"], keys.combine_chunks())
    for table in tables:
        for name in table.column_names:
            if name != "call_key":
                column = encode_texts(table.select([name])).column(0).take(places)
                known = columns.get(name)
                columns[name] = column if known is None else pc.coalesce(known, column.cast(known.type))
