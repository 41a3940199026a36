"""gold.coverage: what was seen, and what was not."""

from __future__ import annotations

from schemas.table import BIGINT, STRING, TIMESTAMP, Column, Table, run_columns

COVERAGE = Table(
    "gold",
    "coverage",
    "One row per hour, server, layer and measure: how much was seen, lost, ignored, quarantined, sealed, undecoded.",
    key=("coverage_key",),
    event_date_columns=("hour",),
    columns=(
        Column("coverage_key", STRING, "key of hour, server_address, layer and measure"),
        Column("hour", TIMESTAMP, "beginning of the hour, UTC; of a capture or connection that of its first packet"),
        Column("server_address", STRING, "IP address of the server; null where a number is of no single one"),
        Column("layer", STRING, "capture, transport, rpc, stub, session, message, snapshot"),
        Column("measure", STRING, "what is counted, see docs/reference/quality.md"),
        Column("value", BIGINT, "how many: packets, bytes, calls, messages or snapshots, as the measure's name says"),
        *run_columns("gold", "hour"),
    ),
)

TABLES = (COVERAGE,)
