"""Benchmark of gold.message_transfers: silver tables of a million messages, then a thousand more.

Run from the project's folder: ``python -m bench.message_transfers [messages]``. Half of the messages are transactional,
of a thousand sequences; one in twenty is sent twice, and one in fifty is acknowledged by a message of its own. Measured
is the update, with reading and the commit.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from bench.measure import Measure, format_report
from bench.sequences import no_spark, table_of, timestamps
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from pipeline.transfers.messages import update_messages
from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from udfs.keys import keys_of_texts

MESSAGES_COUNT = 1_000_000
MORE = 1_000
_BEGIN_US = 1_700_000_000_000_000
_EVERY_US = 1_000
_SEQUENCES = 1_000
_CONNECTIONS = 50
_RESENT, _ACK_EVERY, _ADMINISTRATION_ACKS = 20, 7, 50
_SOURCE, _TARGET = "11111111-0000-0000-0000-000000000000", "22222222-0000-0000-0000-000000000000"


def fill(lake: Lake, first: int, count: int) -> None:
    """Append messages and what acknowledges them, each millisecond one."""
    number = np.arange(first, first + count)
    again = number[number % _RESENT == 0]
    which = np.concatenate([number, again])  # the message that each sending carries
    at = _BEGIN_US + which * _EVERY_US + np.where(np.arange(len(which)) < count, 0, 5_000)
    keys = _keys("packet", np.arange(len(which)) + 2 * first)
    transactional = which % 2 == 0
    connections = [f"{each % _CONNECTIONS:032x}" for each in which.tolist()]
    sequence = pa.array((7 << 32) + which % _SEQUENCES, mask=~transactional).cast(pa.decimal128(20, 0))
    common = {"packet_key": keys, "connection_id": connections, "event_at": at}
    message = {
        "sighting_key": keys, "seen_in": "binary_protocol", "seen_at": timestamps(at),
        "message_key": _keys("message", which), "message_id": [f"{_SOURCE}\\{each}" for each in which.tolist()],
        "message_ordinal": which, "message_kind": "application", "class": np.zeros(len(which), np.int32),
        "class_name": "MQMSG_CLASS_NORMAL", "source_queue_manager": _SOURCE, "destination_queue": r"srv\q",
        "destination_queue_manager": _TARGET, "sent_at": timestamps(at), "body_bytes": np.full(len(which), 300),
        "transactional": transactional, "transaction_sequence_id": sequence,
        "transaction_number": pa.array(which // _SEQUENCES + 1, mask=~transactional), "errors": _no_errors(len(which)),
    }  # fmt: skip
    header = _keys("header", which // 16)
    sending = {
        "capture_id": "capture", "server_address": "10.0.0.2", "sent_by": "client", "sender_address": "10.0.0.1",
        "receiver_address": "10.0.0.2", "sender_queue_manager": _SOURCE, "receiver_queue_manager": _TARGET,
        "sent_at": timestamps(at), "length_bytes": np.full(len(which), 500), "transmit_ms": np.full(len(which), 0.1),
        "session_number": which + 1, "session_acked_at": timestamps(at + 100), "session_acked_by": header,
        "session_acked_in": "capture",
        **dict.fromkeys(("complete", "handshake_seen"), np.ones(len(which), np.bool_)),
    }  # fmt: skip
    acked = number[(number % 2 == 0) & (number // _SEQUENCES % _ACK_EVERY == 0)]
    order_ack = {
        "packet_key": _keys("ack", acked), "kind": "order_ack", "sent_by": "server", "client_address": "10.0.0.1",
        "server_address": "10.0.0.2", "sent_at": timestamps(_BEGIN_US + acked * _EVERY_US + 500),
        "queue_manager": _TARGET, "acknowledged_queue_manager": _SOURCE, "capture_id": "capture",
        "transaction_sequence_id": pa.array((7 << 32) + acked % _SEQUENCES).cast(pa.decimal128(20, 0)),
        "transaction_number": acked // _SEQUENCES + 1, "event_at": _BEGIN_US + acked * _EVERY_US,
    }  # fmt: skip
    answered = number[number % _ADMINISTRATION_ACKS == 0]
    answer = {
        "sighting_key": _keys("answer", answered), "call_key": _keys("answer", answered), "seen_in": "RemoteRead",
        "seen_at": timestamps(_BEGIN_US + answered * _EVERY_US + 900), "message_kind": "administration_ack",
        "class": np.full(len(answered), 2), "class_name": "MQMSG_CLASS_ACK_REACH_QUEUE",
        "correlation_id": [f"{_SOURCE}\\{each}" for each in answered.tolist()], "errors": _no_errors(len(answered)),
        "event_at": _BEGIN_US + answered * _EVERY_US,
    }  # fmt: skip
    capture = {
        "capture_id": [str(first)],
        "servers": [["10.0.0.2"]],
        "last_packet_at": timestamps(at.max(keepdims=True)),
    }
    for table, columns in (
        (MESSAGES, {**common, **message}), (MESSAGES, answer), (SENDINGS, {**common, **sending}),
        (ORDER_ACKS, order_ack), (CAPTURE_FILES, {**capture, "event_at": at[-1:]}),
    ):  # fmt: skip
        if len(columns["event_at"]):
            lake.append(table, table_of(table, columns))


def _keys(kind: str, numbers: np.ndarray) -> list[str]:
    return keys_of_texts(f"{kind} {each}" for each in numbers.tolist())


def _no_errors(count: int) -> pa.Array:
    return pa.array([[]] * count, pa.list_(pa.null()))


def _sessions(lake: Lake) -> None:
    names = [f"{each:032x}" for each in range(_CONNECTIONS)]
    at = np.full(_CONNECTIONS, _BEGIN_US)
    columns = {
        "connection_id": names, "client_address": "10.0.0.1", "server_address": "10.0.0.2",
        "initiator_queue_manager": _SOURCE, "acceptor_queue_manager": _TARGET, "establish_requested_at": timestamps(at),
        "establish_answered_at": timestamps(at), "event_at": at,
    }  # fmt: skip
    lake.append(SESSIONS, table_of(SESSIONS, columns))


def _timed_update(lake: Lake) -> float:
    begin = time.perf_counter()
    update_messages.update(lake, "run")
    return time.perf_counter() - begin


def measure(rows: int = MESSAGES_COUNT) -> Iterator[Measure]:
    """Measure the first update, and one after ``MORE`` more messages."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(LazySession(no_spark, engine="local"), folder)
        _sessions(lake)
        fill(lake, 0, rows)
        yield Measure(f"{rows:,} messages", _timed_update(lake), "s", 60, 30, higher_is_better=False)
        fill(lake, rows, MORE)
        yield Measure(f"  {MORE:,} more", _timed_update(lake), "s", 10, 5, higher_is_better=False)


def main(arguments: Sequence[str]) -> None:
    """Print the measures."""
    print(format_report([*measure(int(arguments[0]) if arguments else MESSAGES_COUNT)]))


if __name__ == "__main__":
    main(sys.argv[1:])
