"""What names connections and calls in the tables: their keys, and the facts that these are made of."""

from __future__ import annotations

import hashlib
import ipaddress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from udfs.files.container import NO_TIME, Ints
from udfs.keys import hash_key, key_bytes
from udfs.tcp.flows import Connection


class Identity(NamedTuple):
    """What names a connection in the tables: ``made_of`` says from which facts, for these may still change."""

    made_of: tuple[int, int]
    four_tuple: tuple[str, int, str, int]
    connection_id: str
    prefix: bytes  # the four-tuple as keys are made of it


def identity(connection: Connection) -> Identity:
    """Return a connection's names and its key, that of its four-tuple and the time of its first packet in the file."""
    made_of = (connection.likely_client(), connection.named_at)
    known = connection.identity
    if isinstance(known, Identity) and known.made_of == made_of:
        return known
    (_, one, port), (_, two, other) = connection.endpoints[made_of[0]], connection.endpoints[made_of[0] ^ 1]
    names = (str(ipaddress.ip_address(one)), port, str(ipaddress.ip_address(two)), other)
    prefix = key_bytes(*names)
    time = None if made_of[1] == NO_TIME else made_of[1] // 1000
    connection.identity = found = Identity(made_of, names, hash_key(prefix + key_bytes(time)), prefix)
    return found


def four_tuple(connection: Connection) -> tuple[str, int, str, int]:
    """Return client address, client port, server address, server port."""
    return identity(connection).four_tuple


def connection_id(connection: Connection) -> str:
    """Return the key of a connection."""
    return identity(connection).connection_id


def per_connection(owner: Ints, connections: list[Connection]) -> tuple[dict[str, pa.Array], dict[str, Ints]]:
    """Return the columns that a connection gives all its calls, and per call the bases of both directions."""
    unique, number = np.unique(owner, return_inverse=True)
    identities = [identity(connections[index]) for index in unique.tolist()]
    tuples = [one.four_tuple for one in identities]
    bases = np.zeros((len(unique), 2), np.int64)
    for row, index in enumerate(unique.tolist()):
        connection = connections[index]
        client = connection.likely_client()
        bases[row] = [connection.sides[side].base or 0 for side in (client, client ^ 1)]
    take = pa.array(number)
    prefix = np.array([one.prefix for one in identities], object)
    columns = {
        "connection_id": pa.array([one.connection_id for one in identities], pa.string()).take(take),
        "client_address": pa.array([names[0] for names in tuples], pa.string()).take(take),
        "client_port": pa.array([names[1] for names in tuples], pa.int32()).take(take),
        "server_address": pa.array([names[2] for names in tuples], pa.string()).take(take),
        "server_port": pa.array([names[3] for names in tuples], pa.int32()).take(take),
    }
    return columns, {"base": bases[number], "prefix": prefix, "number": number}


def call_keys(prefix: Ints, number: Ints, call_id: Ints, sequence: Ints, at: Ints) -> list[str]:
    """Return the keys of calls: four-tuple, call id, sequence number of the first byte, and its time in us."""
    sha, keys = hashlib.sha256, []
    null = b"\xff\xff\xff\xff"
    starts = list(prefix)
    for which, one, two, three in zip(
        number.tolist(), call_id.tolist(), sequence.tolist(), (at // 1000).tolist(), strict=True
    ):
        a, b, c = b"%d" % one, b"%d" % two, b"%d" % three
        moment = b"%c\0\0\0%b" % (len(c), c) if three != NO_TIME // 1000 else null
        keys.append(sha(b"%b%c\0\0\0%b%c\0\0\0%b%b" % (starts[which], len(a), a, len(b), b, moment)).hexdigest()[:32])
    return keys
