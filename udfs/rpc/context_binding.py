"""What the presentation contexts of calls mean, as their binds say it: a batch at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from udfs.dcerpc.interfaces import BY_UUID
from udfs.files.container import Ints
from udfs.rpc.association import Context
from udfs.rpc.calls import association, bind_level
from udfs.rpc.schema import chosen_of
from udfs.tcp.flows import Connection


class _Texts:
    """A column of few different texts: indexes into a list, -1 for null."""

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
        return chosen_of(self._values, self._index[rows])


class Contexts:
    """What the presentation contexts of calls mean, row by row."""

    def __init__(self, size: int) -> None:
        self.interface, self.name, self.syntax = _Texts(size), _Texts(size), _Texts(size)
        self.bound = np.zeros(size, bool)
        self.ours = np.zeros(size, bool)
        self.unknown = np.zeros(size, bool)
        self.auth_type, self.auth_level = np.full(size, -1), np.full(size, -1)

    def set(self, rows: Ints, context: Context) -> None:
        """Give calls a context that a bind declared; one of another interface is none of ours."""
        self.bound[rows] = True
        interface = BY_UUID.get(context.interface)
        if interface is None:
            return
        self.ours[rows] = True
        self.interface.set(rows, interface.uuid)
        self.name.set(rows, interface.name)
        self.syntax.set(rows, context.syntax)
        auth_type, auth_level = bind_level(context)
        if auth_type is not None and auth_level is not None:
            self.auth_type[rows], self.auth_level[rows] = auth_type, auth_level


def contexts_of(owner: Ints, context: Ints, place: Ints, connections: list[Connection]) -> Contexts:
    """Resolve context ids, once for each context of each connection where it has one meaning only."""
    pairs, inverse = np.unique(owner << 17 | context, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.append(np.searchsorted(inverse[order], np.arange(len(pairs))), len(order))
    found = Contexts(len(owner))
    for number, pair in enumerate(pairs.tolist()):
        known = association(connections[pair >> 17])
        rows = order[bounds[number] : bounds[number + 1]]
        bound = known.contexts.get(pair & 0x1FFFF, [])
        if not bound:
            found.unknown[rows] = not known.foreign
        elif len(bound) == 1 and bool((place[rows] >= bound[0].offset).all()):
            found.set(rows, bound[0])
        else:
            for row in rows.tolist():
                one = known.context(pair & 0x1FFFF, int(place[row]))
                if one is None:
                    found.unknown[row] = not known.foreign
                else:
                    found.set(np.array([row]), one)
    return found
