"""How the tables' Parquet files are made, whoever writes them; no import, for the session's settings say it too."""

from __future__ import annotations

from typing import Final

# Columns of which hardly any value comes twice. Parquet would build a dictionary of each, outgrow it and throw it away:
# a sixth of the time of captures -> bronze.rpc_calls, and not one byte saved.
DISTINCT_VALUED_COLUMNS: Final = (
    "call_key", "sighting_key", "message_key", "message_id", "attempt_key", "body_sha256", "request_stub",
    "response_stub", "request_signed_bytes", "response_signed_bytes", "packet", "body", "extension", "marshaled",
    "call_id", "request_packet", "response_packet", "byte_offset", "request_sequence", "response_sequence",
    "lookup_id", "request_at", "request_done_at", "response_at", "response_done_at", "requested_at", "responded_at",
    "seen_at",
)  # fmt: skip
STUB_COLUMNS: Final = ("request_stub", "response_stub")  # of which nobody asks for the least and the greatest
# Keys by which rows are looked for in whole tables. A Bloom filter of each row group says which ones it does not have;
# of some thousand that are looked for, hardly one is taken to be there that is not. The texts of a table's layout have
# one too: of names a row group has few.
LOOKED_UP_COLUMNS: Final = (
    "call_key", "connection_id", "attempt_key", "sighting_key", "sequence_key", "packet_key", "quarantine_key",
)  # fmt: skip
BLOOM_ERROR_RATE: Final = 1e-6
# What a change touches is looked for in whole tables: row groups without it are not read.
MAX_ROW_GROUP_ROWS: Final = 20_000
MAX_ROW_GROUP_NAMES: Final = 1_000  # of queues or queue managers; of more, the filter tells less
MAX_ROW_GROUP_ROWS_WITH_BYTES: Final = 1_000  # where a writer counts no bytes, and rows hold stubs or bodies
GROUP_BYTES: Final = 8 << 20  # of stubs: memory has to hold what is being written
