"""Resolves the presentation contexts of a batch of calls to interfaces and transfer syntaxes, from the binds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from udfs.array_types import Ints
from udfs.columns.groups import group_bounds
from udfs.dcerpc.interfaces import INTERFACES_BY_UUID
from udfs.rpc.association_state import BoundContext
from udfs.rpc.call_assembly import association_of, auth_if_connect_level
from udfs.rpc.call_schema import lookup_column
from udfs.tcp.connections import TcpConnection


class _TextColumn:
    """A dictionary-encoded text column under construction: indexes into a list of values, -1 for null."""

    def __init__(self, size: int) -> None:
        self._values: list[str] = []
        self._index = np.full(size, -1)

    def set(self, rows: Ints, value: str | None) -> None:
        if value is None:
            return
        if value not in self._values:
            self._values.append(value)
        self._index[rows] = self._values.index(value)

    def column(self, rows: Ints) -> pa.Array:
        return lookup_column(self._values, self._index[rows])


class CallContexts:
    """Interface, transfer syntax and security of the presentation context of each call, as columns.

    ``bind_seen``: the context's bind was captured; ``is_msmq``: it asked for a known interface; ``is_unbound``: no
    bind was captured, and the connection may be MSMQ. ``auth_type`` and ``auth_level`` are -1 where unknown.
    """

    def __init__(self, size: int) -> None:
        self.interface_uuid, self.interface_name, self.transfer_syntax = (
            _TextColumn(size),
            _TextColumn(size),
            _TextColumn(size),
        )
        self.bind_seen = np.zeros(size, bool)
        self.is_msmq = np.zeros(size, bool)
        self.is_unbound = np.zeros(size, bool)
        self.auth_type, self.auth_level = np.full(size, -1), np.full(size, -1)

    def assign(self, rows: Ints, context: BoundContext) -> None:
        """Set the context of some calls from a bind; other interfaces than those of MSMQ are only marked as bound.

        A context that the server refused has no interface, but its calls are rows.
        """
        self.bind_seen[rows] = True
        interface = INTERFACES_BY_UUID.get(context.interface_uuid)
        if interface is None:
            return
        self.is_msmq[rows] = True
        if context.refused:
            return
        self.interface_uuid.set(rows, interface.uuid)
        self.interface_name.set(rows, interface.name)
        self.transfer_syntax.set(rows, context.transfer_syntax)
        auth_type, auth_level = auth_if_connect_level(context)
        if auth_type is not None and auth_level is not None:
            self.auth_type[rows], self.auth_level[rows] = auth_type, auth_level


def resolve_contexts(owner: Ints, context: Ints, place: Ints, connections: list[TcpConnection]) -> CallContexts:
    """Resolve the context ids of calls, for all calls at once where a context has only one meaning.

    ``owner``: index of each call's connection; ``place``: its position in the client's stream.
    """
    pairs, inverse = np.unique(owner << 17 | context, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = group_bounds(inverse[order], len(pairs))
    found = CallContexts(len(owner))
    for number, pair in enumerate(pairs.tolist()):
        known = association_of(connections[pair >> 17])
        rows = order[bounds[number] : bounds[number + 1]]
        bound = known.contexts.get(pair & 0x1FFFF, [])
        if not bound:
            found.is_unbound[rows] = not known.has_only_other_interfaces
        elif len(bound) == 1 and bool((place[rows] >= bound[0].stream_offset).all()):
            found.assign(rows, bound[0])
        else:
            for row in rows.tolist():
                one = known.context_at(pair & 0x1FFFF, int(place[row]))
                if one is None:
                    found.is_unbound[row] = not known.has_only_other_interfaces
                else:
                    found.assign(np.array([row]), one)
    return found
