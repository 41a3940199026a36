"""Coverage gaps: the measures of gold.coverage that count what was not captured or not decoded."""

from __future__ import annotations

from typing import Final, NamedTuple


class GapMeasure(NamedTuple):
    """A measure of gold.coverage that counts a gap. ``total_measures`` are the measures whose sum is the whole."""

    layer: str
    measure: str
    meaning: str
    total_measures: tuple[str, ...]


GAP_MEASURES: Final = tuple(
    GapMeasure(layer, measure, meaning, tuple(of.split()))
    for layer, measure, meaning, of in (
        ("capture", "packets_dropped", "packets lost by the capturing machine", "packets packets_dropped"),
        ("capture", "packets_damaged", "packets whose headers cannot be read", "packets"),
        ("capture", "packets_not_read", "packets of protocols that are not read, or over a limit", "packets"),
        ("capture", "packets_truncated", "packets captured shorter than they were", "packets"),
        ("capture", "files_partial", "captures that end or are damaged inside a record", "files"),
        ("capture", "files_unreadable", "captures that could not be read", "files"),
        ("capture", "files_times_go_back", "captures in which times go back or leave time out, or may have", "files"),
        ("transport", "bytes_missing", "payload bytes in no capture", "bytes bytes_missing"),
        ("transport", "quarantined", "bytes that belong to nothing", "bytes"),
        ("transport", "connections_half_seen", "connections whose beginning was not captured", "connections"),
        ("transport", "connections_one_direction", "connections of which one direction was not captured",
         "connections"),
        ("rpc", "calls_half_seen", "calls of which a half was not seen", "calls"),
        ("rpc", "calls_unbound", "calls whose bind was not captured", "calls"),
        ("rpc", "sealed", "calls encrypted and not opened", "calls"),
        ("stub", "undecoded", "calls that did not decode", "decoded undecoded"),
        ("session", "packets_incomplete", "packets of TCP 1801 not seen whole", "packets"),
        ("session", "messages_unnumbered", "messages on their way of which it is not known who acknowledged them",
         "messages"),
        ("session", "quarantined", "bytes of TCP 1801 that are no packet", "bytes quarantined"),
        ("message", "undecoded", "messages that did not decode", "messages"),
        ("message", "unidentified", "messages without a key of their own", "messages"),
        ("message", "bodies_incomplete", "messages not seen whole", "messages"),
        ("message", "queue_unknown", "messages whose queue is not known", "messages"),
        ("snapshot", "snapshots_missing", "snapshots without an answer", "snapshots_expected"),
        ("snapshot", "quarantined", "lines of snapshot files that are no snapshots", "snapshots_expected quarantined"),
    )
)  # fmt: skip
GAP_MEANINGS: Final = {(each.layer, each.measure): each.meaning for each in GAP_MEASURES}
"""The meaning of each gap measure, by layer and measure."""
