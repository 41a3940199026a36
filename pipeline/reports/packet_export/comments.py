"""Comments on exported packets: the method or the kind of packet, its parameters in short, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.text import format_cell
from udfs.rows import RowMapping

_OF_KEYS: Final = "WHERE call_key IN {keys} OR connection_id IN {keys}"
CALL_FACTS_SQL: Final = f"""
SELECT call_key AS fact_key, method, NULL AS object, queue_format_name AS queue, action_name AS action, timeout_ms,
  request_id, CAST(lookup_id AS string) AS lookup_id, ack_name AS ack, hresult_name, fault_name
FROM {{reads}} {_OF_KEYS}
UNION ALL SELECT call_key, method, object_type, queue_format_name, action, NULL, NULL, NULL, NULL, hresult_name,
  fault_name
FROM {{managements}} {_OF_KEYS}
UNION ALL SELECT call_key, method, NULL, queue_format_name, CAST(action AS string), timeout_ms, NULL, NULL, NULL,
  hresult_name, fault_name
FROM {{clients}} {_OF_KEYS}"""
"""What silver says of the calls whose keys, or those of their connections, are ``{keys}``."""

_OF_PACKETS: Final = "WHERE packet_key IN {keys} OR connection_id IN {keys}"
PACKET_FACTS_SQL: Final = f"""
SELECT m.packet_key AS fact_key, m.label, m.message_id, m.destination_queue AS queue, m.class_name,
  s.session_number, m.transaction_number,
  CASE WHEN s.packet_key IS NOT NULL THEN s.session_acked_at IS NOT NULL END AS is_acknowledged
FROM (SELECT * FROM {{messages}} {_OF_PACKETS}) AS m
LEFT JOIN (SELECT * FROM {{sendings}} {_OF_PACKETS}) AS s ON s.packet_key = m.packet_key
UNION ALL SELECT packet_key, NULL, acknowledged_message_id, destination_queue, class_name, session_number,
  transaction_number, NULL
FROM {{order_acks}} {_OF_PACKETS}"""
"""What silver says of packets of the binary protocol, likewise."""

_CALL_PARAMETERS: Final = ("object", "queue", "action", "timeout_ms", "request_id", "lookup_id", "ack", "label")
_PACKET_PARAMETERS: Final = ("label", "queue", "message_id", "session_number", "transaction_number")


def describe_call(row: RowMapping) -> str:
    """Return the comment on the packets of a call: of bronze.rpc_calls with ``CALL_FACTS_SQL`` and a label."""
    method = row["method"] or ("unknown method" if row["opnum"] is None else f"opnum {row['opnum']}")
    result = [row["hresult_name"] or row["fault_name"], row["outcome"]]
    call = f"{row['interface_name'] or 'unknown interface'} {method}"
    return _joined(call, {name: row[name] for name in _CALL_PARAMETERS}, result, f"call {row['call_key']}")


def describe_packet(row: RowMapping) -> str:
    """Return the comment on a packet of the binary protocol: of bronze.session_packets with ``PACKET_FACTS_SQL``."""
    acknowledged = {True: "acknowledged", False: "not acknowledged"}.get(row["is_acknowledged"])
    parameters = {name: row[name] for name in _PACKET_PARAMETERS}
    return _joined(row["kind"], parameters, [row["class_name"], acknowledged], f"packet {row['packet_key']}")


def _joined(what: str, parameters: Mapping[str, object], result: list[str | None], key: str) -> str:
    """Return the parts of a comment; texts of the wire are cut, and what is not printable in them is escaped."""
    given = ", ".join(f"{name}={format_cell(value)}" for name, value in parameters.items() if value is not None)
    outcome = ", ".join(format_cell(each) for each in result if each is not None)
    return f"{what}{f'({given})' if given else ''}{f' -> {outcome}' if outcome else ''}; {key}"
