"""Four-tuples of connections, each as one text, the same whichever side is the client: connections merge within one."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.queries.inputs import BoundQuery
from pipeline.lake.stage_groups import bucket_sql

FOUR_TUPLE: Final = "four_tuple"
"""The name of a column with such texts, as ``four_tuple_key`` makes them."""
_ONE, _TWO = (f"concat_ws('|', {side}_address, {side}_port)" for side in ("client", "server"))
FOUR_TUPLE_SQL: Final = f"concat_ws(' ', least({_ONE}, {_TWO}), greatest({_ONE}, {_TWO}))"


def four_tuples(rows: pa.Table) -> pa.Array:
    """Return the four-tuple of each row, which has address and port of client and server."""
    one, two = (
        pc.binary_join_element_wise(rows[f"{side}_address"], rows[f"{side}_port"].cast(pa.string()), "|")
        for side in ("client", "server")
    )
    found = pc.binary_join_element_wise(pc.min_element_wise(one, two), pc.max_element_wise(one, two), " ")
    return pa.chunked_array(found.chunks, pa.string()).combine_chunks()


def by_four_tuple(query: BoundQuery, four_tuple: str = FOUR_TUPLE_SQL) -> BoundQuery:
    """Return a query with a column for the bucket of each row's four-tuple, which is given as SQL."""
    return query.wrap(f"SELECT *, {bucket_sql(four_tuple)} FROM {{answer}} AS answer")
