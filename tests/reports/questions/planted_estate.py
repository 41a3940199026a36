"""A planted estate: rows of tables, and what the views of the estate are to say of them, counted in another way."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from reports.questions.in_memory_lake import rows
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.sessions import SENDINGS
from schemas.table import Table

MINUTES = 2_000
CAPTURED = ((0, 700), (700.5, 1_000), (1_500, 1_999.9))  # from when to when captures ran, minutes
READS_FROM, SHARE_READ = 3, 0.4


class Machine(NamedTuple):
    name: str
    guid: str
    address: str


class Sent(NamedTuple):
    """A message as its sender made it: the minutes of its sendings by hop."""

    key: str
    queue: str
    source: Machine
    hops: list[tuple[Machine, Machine, list[float]]]
    reads: list[tuple[float, Machine, bool, bool]]  # when, who, whether it took it, whether in a transaction
    said: dict[str, Any]


MACHINES = [
    Machine(f"host{number}", f"5f0c2b1a-9d3e-4c77-8a10-00000000000{number}", f"10.1.0.{number}") for number in range(6)
]
ROUTER = MACHINES[5]


def plant(seed: int, queues: int = 5, messages: int = 400) -> list[Sent]:
    """Return messages of some queues; some are routed, sent again, read remotely, or read and never sent."""
    chance = random.Random(seed)
    captured = [at for first, last in CAPTURED for at in range(int(first) + 1, int(last))]
    planted = []
    for number in range(messages):
        queue = chance.randrange(queues)
        owner, source = MACHINES[queue % 4], chance.choice(MACHINES[:4])
        at = chance.choice(captured[: len(captured) // (1 + number % 4)]) + chance.random() / 2
        way = [source, ROUTER, owner] if chance.random() < 0.3 else [source, owner]
        hops = [
            (sender, receiver, [at + 0.01 * hop + 0.05 * again for again in range(chance.choice((1, 1, 1, 3)))])
            for hop, (sender, receiver) in enumerate(pairwise(way))
        ]
        reads = [
            (at + chance.random(), chance.choice(MACHINES), chance.random() < 0.7, chance.random() < 0.2)
            for _ in range(chance.choice((0, 0, 1, 2)))
        ]
        if reads and chance.random() < 0.2:
            hops = []
        transactional = chance.random() < 0.3
        said = {
            "body_bytes": chance.choice((0, 17, 500, 4_000, chance.randrange(100_000))),
            "delivery": "recoverable" if transactional else chance.choice(("express", "recoverable")),
            "transactional": transactional,
            "transaction_sequence_id": chance.randrange(1, 4) if transactional else None,
            "first_in_transaction": chance.random() < 0.8 if transactional else None,
            "last_in_transaction": True if transactional else None,
            "priority": chance.choice((0, 3, 3, 7)),
            "time_to_be_received_s": chance.choice((None, 60, 3_600)),
            "time_to_reach_queue_s": chance.choice((None, 20, 40)),
            "journaling": chance.randrange(4),
            "acknowledgement_requested": chance.choice((0, 0, 1, 6, 15)),
            "correlation_id": chance.choice((None, "a1\\5")),
            "response_queue": chance.choice((None, "host1\\private$\\answers", "10.1.0.1\\private$\\answers")),
            "admin_queue": chance.choice((None, "host2\\private$\\admin")),
            "authenticated": (signed := chance.random() < 0.2),
            "signed": signed,
            "hash_algorithm": 0x800C if signed else None,
            "sender_certificate_bytes": 900 if signed else 0,
            "encrypted": (encrypted := chance.random() < 0.1),
            "encryption_algorithm": 0x6610,
            "is_comqc": chance.random() < 0.1,
            "is_srmp": False,
            "traced": False,
            "framework": chance.choice((None, "Rebus", "NServiceBus")),
            "body_format": None if encrypted else chance.choice(("json", "xml", "gzip")),
            "sent_types": [f"Sales.Type{chance.randrange(40)}, Sales"],
            "message_kind": chance.choice(("application", "application", "administration_ack")),
        }
        said["body_bytes_seen"] = said["body_bytes"]
        planted.append(Sent(f"m{number:05}", f"host{queue % 4}\\private$\\q{queue}", source, hops, reads, said))
    return planted


def size_of(sent: Sent, hop: int) -> int:
    """Return the bytes of a packet of a message: it grows on its way."""
    return sent.said["body_bytes"] + 300 + 10 * hop


def tables_of(planted: list[Sent]):
    """Return the tables that captures of these messages make."""
    sightings, sendings, attempts = [], [], []
    for sent in planted:
        headers = sent.said | {
            "message_key": sent.key, "source_queue_manager": sent.source.guid, "destination_queue": sent.queue,
        }  # fmt: skip
        for hop, (sender, receiver, times) in enumerate(sent.hops):
            for again, at in enumerate(times):
                packet = f"{sent.key} {hop} {again}"
                sightings.append(headers | {
                    "sighting_key": packet, "packet_key": packet, "seen_at": at, "hop_count": hop,
                    "destination_queue_manager": MACHINES[int(sent.queue[4])].guid,
                })  # fmt: skip
                sendings.append({
                    "packet_key": packet, "capture_id": "0", "sent_at": at, "sender_address": sender.address,
                    "receiver_address": receiver.address, "receiver_queue_manager": receiver.guid,
                    "length_bytes": size_of(sent, hop),
                })  # fmt: skip
        for number, (at, reader, takes, transactional) in enumerate(sent.reads):
            call = f"{sent.key} read {number}"
            sightings.append(headers | {"sighting_key": call, "call_key": call, "seen_at": at, "queue": sent.queue})
            attempts.append({
                "attempt_key": call, "message_key": sent.key, "queue": sent.queue, "started_at": at, "returned_at": at,
                "server_address": MACHINES[int(sent.queue[4])].address, "client_address": reader.address,
                "is_receive": takes, "transactional": transactional, "message_bytes": sent.said["body_bytes"],
                "action_name": "MQ_ACTION_RECEIVE" if takes else "MQ_LOOKUP_PEEK_CURRENT",
            })  # fmt: skip
    captures = [
        {"capture_id": str(number), "packets": 9, "first_packet_at": first, "last_packet_at": last}
        for number, (first, last) in enumerate(CAPTURED)
    ]
    hosts = [
        {"host_key": each.guid, "queue_manager_id": each.guid, "host_name": each.name, "address": each.address,
         "source": "snapshot", "first_seen_at": 1, "last_seen_at": 2}
        for each in MACHINES
    ]  # fmt: skip
    aliases = [
        {"queue": f"{host}\\private$\\answers", "canonical_queue": "host1\\private$\\answers", "evidence": "open"}
        for host in ("host1", "10.1.0.1")
    ]
    found = {MESSAGES: sightings, SENDINGS: sendings, RECEIVE_ATTEMPTS: attempts, CAPTURE_FILES: captures,
             HOSTS: hosts, QUEUE_ALIASES: aliases}  # fmt: skip
    return {table: rows(table, *each) for table, each in found.items()}


def by_queue(planted: list[Sent]) -> dict[str, list[Sent]]:
    """Return the messages of each queue."""
    found = defaultdict[str, list[Sent]](list)
    for sent in planted:
        found[sent.queue].append(sent)
    return found


def captured_minutes() -> set[int]:
    """Return the minutes in which a capture ran."""
    return {minute for first, last in CAPTURED for minute in range(int(first), int(last) + 1)}


def percentile(values: list[int], percent: int) -> int:
    """Return the smallest value that so many percent of the values do not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def rates_of(sent: list[Sent]) -> dict[str, Any]:
    """Return what the sendings of a queue's messages on their last hops come to."""
    times = [at for each in sent if each.hops for at in each.hops[-1][2]]
    per_minute = Counter(int(at) for at in times)
    every = [per_minute[minute] for minute in captured_minutes()]
    most = max(per_minute.values())
    return {
        "sendings": len(times),
        "sent_bytes": sum(size_of(each, len(each.hops) - 1) * len(each.hops[-1][2]) for each in sent if each.hops),
        "resendings": len(times) - sum(bool(each.hops) for each in sent),
        "captured_minutes": len(every),
        "mean_per_minute": len(times) / len(every),
        "p95_per_minute": percentile(every, 95),
        "peak_per_minute": most,
        "peak_at": min(minute for minute, count in per_minute.items() if count == most),
    }


def features_of(sent: list[Sent]) -> dict[str, Any]:
    """Return what the messages of a queue say."""
    said = [each.said for each in sent]

    def count(name, accepts=bool):
        return sum(bool(accepts(each[name])) for each in said)

    def numbers(name):
        return [each[name] for each in said if each[name] is not None]

    def frequent(values):
        return [value for value, _ in sorted(Counter(values).items(), key=lambda found: (-found[1], found[0]))][:20]

    def seen(each):
        return sum(len(times) for _, _, times in each.hops) + len(each.reads)

    def listed(name, rename=lambda value: value):
        return frequent(
            rename(each.said[name]) for each in sent for _ in range(seen(each)) if each.said[name] is not None
        )

    sizes = [each["body_bytes"] for each in said]
    return {
        "messages": len(sent),
        "headers_known": len(sent), "properties_known": len(sent), "security_known": len(sent),
        "body_p50_bytes": percentile(sizes, 50), "body_p99_bytes": percentile(sizes, 99),
        "largest_body_bytes": max(sizes),
        "express": count("delivery", lambda mode: mode == "express"),
        "recoverable": count("delivery", lambda mode: mode == "recoverable"),
        "transactional": count("transactional"),
        "in_larger_transactions": count("first_in_transaction", lambda first: first is False),
        "sequences": len({(e.source, e.said["transaction_sequence_id"]) for e in sent if e.said["transactional"]}),
        "priorities": sorted(set(numbers("priority"))),
        "smallest_time_to_live_s": min(numbers("time_to_be_received_s")),
        "largest_time_to_live_s": max(numbers("time_to_be_received_s")),
        "without_time_to_live": count("time_to_be_received_s", lambda live: live is None),
        "smallest_time_to_reach_s": min(numbers("time_to_reach_queue_s")),
        "largest_time_to_reach_s": max(numbers("time_to_reach_queue_s")),
        "without_time_to_reach": count("time_to_reach_queue_s", lambda reach: reach is None),
        "source_journal": count("journaling", lambda kind: kind >= 2),
        "dead_letter_asked": count("journaling", lambda kind: kind in (1, 3)),
        "ack_arrival": count("acknowledgement_requested", lambda asked: asked in (1, 15)),
        "ack_receive": count("acknowledgement_requested", lambda asked: asked in (6, 15)),
        "ack_not_arrived": count("acknowledgement_requested", lambda asked: asked in (6, 15)),
        "ack_not_received": count("acknowledgement_requested", lambda asked: asked == 15),
        "acks_asked": count("acknowledgement_requested"),
        "with_response_queue": count("response_queue"), "with_correlation": count("correlation_id"),
        "response_queues": ["host1\\private$\\answers"], "admin_queues": ["host2\\private$\\admin"],
        "authenticated": count("authenticated"), "signed": count("signed"), "with_certificate": count("signed"),
        "hash_algorithms": ["32780"] * any(numbers("hash_algorithm")), "encrypted": count("encrypted"),
        "encryption_algorithms": ["26128"] * any(numbers("encrypted")),
        "comqc": count("is_comqc"), "http_messages": 0, "traced": 0, "multicast_messages": 0, "list_messages": 0,
        "format_names": ["direct_name"],
        "frameworks": listed("framework"), "body_formats": listed("body_format"),
        "bodies_known": count("body_bytes"),
        "binary_bodies": sum(e["body_bytes"] > 0 and e["body_format"] not in ("json", "xml") for e in said),
        "message_types": listed("sent_types", lambda types: types[0].removesuffix(", Sales")),
        "acknowledgement_messages": count("message_kind", lambda kind: kind != "application"),
        "undecoded_messages": 0,
    }  # fmt: skip


def use_of(sent: list[Sent]) -> dict[str, Any]:
    """Return who uses a queue."""
    reads = [read for each in sent for read in each.reads]
    return {
        "senders": {each.source.name for each in sent},
        "readers": {reader.name for _, reader, _, _ in reads},
        "holders": {sent[0].queue.partition("\\")[0]},
        "sent_messages": sum(bool(each.hops) for each in sent),
        "read_messages": sum(bool(each.reads) for each in sent),
        "receives": sum(takes for _, _, takes, _ in reads),
        "transactional_receives": sum(takes and transactional for _, _, takes, transactional in reads),
        "peeks": sum(not takes for _, _, takes, _ in reads),
        "lookups": sum(not takes for _, _, takes, _ in reads),
        "largest_packet_bytes": max(size_of(each, len(each.hops) - 1) for each in sent if each.hops),
    }


def _columns(table: Table, columns: dict[str, Any]) -> pa.Table:
    """Return a table with some columns; all others are null."""
    count = len(next(iter(columns.values())))
    schema = table.schema()
    made = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(made, schema=schema)


def large_tables(machines: int, queues: int, messages: int) -> dict[Table, pa.Table]:
    """Return the tables of an estate in which each message is sent once, over 30 days."""
    chance = np.random.default_rng(3)
    sources, targets = chance.integers(0, machines, messages), chance.permutation(np.arange(messages) % queues)
    guids = np.array([f"5f0c2b1a-9d3e-4c77-8a10-{each:012x}" for each in range(machines)])
    addresses = np.array([f"10.1.{each // 250}.{each % 250 + 1}" for each in range(machines)])
    names = np.array([f"host{each % machines}\\private$\\q{each}" for each in range(queues)])
    sent_at = chance.integers(0, 30 * 86_400 * 10**6, messages)
    keys = [f"{each:032x}" for each in range(messages)]
    said = {"message_key": keys, "sighting_key": keys, "packet_key": keys, "seen_at": sent_at,
            "source_queue_manager": guids[sources], "destination_queue": names[targets],
            "body_bytes": chance.integers(0, 10**6, messages), "priority": chance.integers(0, 8, messages),
            "body_root": [f"Type{each % 50}" for each in range(messages)],
            "body_format": ["xml"] * messages}  # fmt: skip
    packets = {"packet_key": keys, "capture_id": ["c"] * messages, "sent_at": sent_at,
               "sender_address": addresses[sources],
               "receiver_address": addresses[targets % machines], "length_bytes": [900] * messages}  # fmt: skip
    hosts = {"queue_manager_id": guids, "address": addresses, "host_name": [f"host{each}" for each in range(machines)]}
    captures = {"capture_id": ["c"], "packets": [9], "first_packet_at": [0], "last_packet_at": [30 * 86_400 * 10**6]}
    made = {MESSAGES: said, SENDINGS: packets, HOSTS: hosts, CAPTURE_FILES: captures}
    return {table: _columns(table, columns) for table, columns in made.items()}
