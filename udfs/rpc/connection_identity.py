"""Keys and four-tuples of connections and calls, as the tables have them."""

from __future__ import annotations

import hashlib
import ipaddress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from udfs.array_types import Ints
from udfs.columns.absent import NO_TIME
from udfs.keys import encode_key_fields, hash_encoded_fields
from udfs.tcp.connections import TcpConnection


class ConnectionIdentity(NamedTuple):
    """Four-tuple and key of a connection.

    ``derived_from``: client side and time that they depend on; when these change, the identity is computed again.
    """

    derived_from: tuple[int, int]
    four_tuple: tuple[str, int, str, int]
    connection_id: str
    key_prefix: bytes  # the four-tuple, and the identifier of its tunnel if there is one, encoded for keys


def connection_identity(connection: TcpConnection) -> ConnectionIdentity:
    """Return the identity of a connection.

    Its key is that of the four-tuple, of the identifier of its tunnel if there is one, and of the time of the first
    packet.
    """
    made_of = (connection.likely_client_side(), connection.named_at_ns)
    known = connection.cached_identity
    if isinstance(known, ConnectionIdentity) and known.derived_from == made_of:
        return known
    (_, one, port), (_, two, other) = connection.endpoints[made_of[0]], connection.endpoints[made_of[0] ^ 1]
    names = (str(ipaddress.ip_address(one)), port, str(ipaddress.ip_address(two)), other)
    tunnel = connection.tunnel_identifier
    prefix = encode_key_fields(*names, *(() if tunnel is None else (tunnel,)))
    time = None if made_of[1] == NO_TIME else made_of[1] // 1000
    connection.cached_identity = found = ConnectionIdentity(
        made_of, names, hash_encoded_fields(prefix + encode_key_fields(time)), prefix
    )
    return found


def four_tuple(connection: TcpConnection) -> tuple[str, int, str, int]:
    """Return client address, client port, server address and server port of a connection."""
    return connection_identity(connection).four_tuple


def key_fields(connection: TcpConnection) -> tuple[str | int, ...]:
    """Return what keys of rows of a connection begin with: four-tuple, and identifier of the tunnel if it has one."""
    tunnel = connection.tunnel_identifier
    return four_tuple(connection) if tunnel is None else (*four_tuple(connection), tunnel)


def connection_id(connection: TcpConnection) -> str:
    """Return the key of a connection (bronze.connections.connection_id)."""
    return connection_identity(connection).connection_id


def connection_columns(owner: Ints, connections: list[TcpConnection]) -> tuple[dict[str, pa.Array], dict[str, Ints]]:
    """Return the connection columns of calls, and per call the base sequence numbers and the key prefix index.

    ``owner``: index of each call's connection. The second value has ``base`` (client's, server's base sequence number
    per call), ``prefix`` (encoded four-tuple per connection) and ``number`` (index into ``prefix`` per call).
    """
    unique, number = np.unique(owner, return_inverse=True)
    identities = [connection_identity(connections[index]) for index in unique.tolist()]
    tuples = [one.four_tuple for one in identities]
    bases = np.zeros((len(unique), 2), np.int64)
    for row, index in enumerate(unique.tolist()):
        connection: TcpConnection = connections[index]
        client = connection.likely_client_side()
        bases[row] = [connection.directions[side].base_sequence or 0 for side in (client, client ^ 1)]
    take = pa.array(number)
    prefix = np.array([one.key_prefix for one in identities], object)
    columns = {
        "connection_id": pa.array([one.connection_id for one in identities], pa.string()).take(take),
        "client_address": pa.array([names[0] for names in tuples], pa.string()).take(take),
        "client_port": pa.array([names[1] for names in tuples], pa.int32()).take(take),
        "server_address": pa.array([names[2] for names in tuples], pa.string()).take(take),
        "server_port": pa.array([names[3] for names in tuples], pa.int32()).take(take),
        "tunnel_identifier": pa.array(
            [connections[index].tunnel_identifier for index in unique.tolist()], pa.int64()
        ).take(take),
    }
    return columns, {"base": bases[number], "prefix": prefix, "number": number}


def compute_call_keys(prefix: Ints, number: Ints, call_id: Ints, sequence: Ints, at: Ints) -> list[str]:
    """Return the keys of calls: hashes of four-tuple, call id, sequence number of the first byte, its time in us.

    ``prefix`` and ``number`` are those of ``connection_columns``; ``at`` is in ns.
    """
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
