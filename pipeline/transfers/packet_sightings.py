"""How message packets of the binary protocol were seen: those columns of ``silver.messages`` that bytes do not give."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from udfs.keys import keys_of_texts
from udfs.messages.header_layouts import PROTOCOL_BINARY


def packet_sightings(packets: pa.Table) -> dict[str, pa.Array]:
    """Return the columns of ``silver.messages`` that say how packets were seen, but for their numbers and the run.

    ``packets`` has these columns of ``bronze.session_packets``: packet_key, connection_id, sent_at, sent_by,
    client_address, server_address.
    """
    rows = packets.num_rows
    nulls = pa.nulls(rows, pa.string())
    by_client = pc.equal(packets["sent_by"], "client")
    return {
        "sighting_key": pa.array(keys_of_texts(packets["packet_key"].to_pylist()), pa.string()),
        "seen_in": pa.repeat(pa.scalar(PROTOCOL_BINARY), rows),
        **dict.fromkeys(("call_key", "queue", "inferred_queue"), nulls),
        "connection_id": packets["connection_id"].combine_chunks(),
        "packet_key": packets["packet_key"].combine_chunks(),
        "seen_at": packets["sent_at"].combine_chunks(),
        "lookup_id": pa.nulls(rows, pa.decimal128(20, 0)),
        "arrived_at": pa.nulls(rows, pa.timestamp("us", tz="UTC")),
        "sender_address": pc.if_else(by_client, packets["client_address"], packets["server_address"]).combine_chunks(),
    }
