"""Events of a message between queue managers (TCP 1801): sendings, their acknowledgements, and reports on its route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.reports.trace.events import EventBuilder, TimelineEvent
from udfs.rows import RowMapping


@dataclass(slots=True)
class TransferRows:
    """Rows about the requested messages on TCP 1801, as dictionaries by column."""

    transfers: Sequence[RowMapping] = ()  # gold.message_transfers, with `refused` (pipeline.reports.views.refused)
    sendings: Mapping[str, RowMapping] = field(default_factory=dict)  # silver.sendings, by packet_key
    order_acks: Mapping[str, RowMapping] = field(default_factory=dict)  # silver.order_acks, by packet_key
    reports: Sequence[RowMapping] = ()  # silver.messages of kind report that the transfers name
    packets: Mapping[str, RowMapping] = field(default_factory=dict)  # bronze.session_packets, by packet_key


_SUMMED: Final = ("sendings", "sessions", "acknowledged_sendings")


def transfers_once_per_hop(transfers: Sequence[RowMapping]) -> Iterator[dict[str, Any]]:
    """Yield a row for each queue and ``hop_key`` of a message, in order of time: the one that was sent first.

    It has the sendings of all rows of the hop; ``other_addresses`` are those of the others, as `sender -> receiver`.
    """
    hops: dict[tuple[str | None, ...], list[RowMapping]] = {}
    for row in sorted(transfers, key=lambda row: (row["first_sent_at"], row["transfer_key"])):
        hops.setdefault((row["destination_queue"], row["hop_key"]), []).append(row)
    for first, *others in hops.values():
        rows = [first, *others]
        yield {
            **first,
            **{name: sum(row[name] or 0 for row in rows) for name in _SUMMED},
            "last_sent_at": max(row["last_sent_at"] for row in rows),
            "refused": any(row["refused"] for row in rows),
            "other_addresses": [f"{row['sender_address']} -> {row['receiver_address']}" for row in others],
        }


def sending_events(
    events: EventBuilder, rows: TransferRows, transfers: Sequence[RowMapping], sightings: Sequence[RowMapping]
) -> Iterator[TimelineEvent]:
    """Yield each sending of a message, and what acknowledged it in its session. Sightings are in order of time."""
    times_sent: Counter[tuple[str | None, ...]] = Counter()
    sendings = rows.sendings
    names = ("destination_queue", "sender_address", "receiver_address")
    hop_keys = {tuple(row[name] for name in names): row["hop_key"] for row in transfers}
    for sighting in sightings:
        sending = sendings.get(sighting["packet_key"])
        if sending is None:
            continue
        ends = sighting["destination_queue"], sending["sender_address"], sending["receiver_address"]
        hop = ends[0], hop_keys.get(ends)
        times_sent[hop] += 1
        yield events.sighting_event("sending", sighting, _sending_text(sighting, sending, times_sent[hop]))
        receiver = sending["receiver_address"]
        for kind, name, text in (
            ("session ack", "session_acked", f"{receiver} has it"),
            ("stored", "stored", f"{receiver} has it on disk"),
        ):
            if sending[f"{name}_at"] is not None:
                yield events.packet_event(kind, sending[f"{name}_by"], sending[f"{name}_at"], text)


def acknowledgement_events(
    events: EventBuilder, rows: TransferRows, transfers: Sequence[RowMapping]
) -> Iterator[TimelineEvent]:
    """Yield the order and final acknowledgements and the reports that rows of gold.message_transfers name."""
    named = sorted({key for row in transfers for key in row["evidence"] or ()})
    for key in named:
        if (ack := rows.order_acks.get(key)) is not None:
            kind, text = "order ack", f"all up to number {ack['transaction_number']} of its sequence are in their queue"
            if ack["kind"] == "final_ack":
                kind, text = "final ack", ack["class_name"] or "class not seen"
            yield events.packet_event(kind, key, ack["sent_at"], f"{text}, by {ack['queue_manager'] or '?'}")
    itself = {row["message_key"] for row in transfers}  # which may be a report
    for sighting in rows.reports:
        if {sighting["packet_key"], sighting["call_key"]}.isdisjoint(named) or sighting["message_key"] in itself:
            continue
        report = sighting["report"] or {}
        text = f"passed {sighting['source_queue_manager'] or '?'}, hop {report.get('hop_count', '?')}"
        text += f", next {report['next_hop']}" if report.get("next_hop") else ""
        yield events.sighting_event("report", sighting, text)


def _sending_text(sighting: RowMapping, sending: RowMapping, times_sent: int) -> str:
    number = sending["session_number"]
    parts = ["number in its session unknown" if number is None else f"number {number} in its session"]
    if number is None and sending["surely_acknowledged"]:
        parts.append("surely acknowledged")
    if sighting["transaction_number"] is not None:
        parts.append(f"number {sighting['transaction_number']} of its sequence")
    parts += [] if times_sent == 1 else [f"sending {times_sent} on this hop"]
    parts += [] if sending["complete"] else ["not captured whole"]
    parts += ["not fully decoded"] if sighting["errors"] else []
    return ", ".join(parts)
