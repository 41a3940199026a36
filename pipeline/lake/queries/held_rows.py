"""Rows that are kept in memory for the queries of a run: they are read once for each state of their table."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import NamedTuple

import pyarrow as pa


class _Held(NamedTuple):
    """The rows of an input as of a state of its table; None where they are too many for memory."""

    state: Hashable
    rows: pa.Table | None


class HeldRows:
    """Rows by what they are the rows of. Threads may use it side by side."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}
        self._locks: dict[Hashable, RLock] = {}
        self._lock = Lock()

    def _lock_of(self, key: Hashable) -> RLock:
        with self._lock:
            return self._locks.setdefault(key, RLock())

    def get(self, key: Hashable, state: Hashable, fetch: Callable[[], pa.Table | None]) -> pa.Table | None:
        """Return the rows as of a state; they are fetched where they are not known."""
        with self._lock_of(key):
            held = self._held.get(key)
            if held is None or held.state != state:
                held = self._held[key] = _Held(state, fetch())
            return held.rows

    def known(self, key: Hashable, state: Hashable) -> pa.Table | None:
        """Return the rows as of a state if they are in memory."""
        held = self._held.get(key)
        return held.rows if held is not None and held.state == state else None

    def put(self, key: Hashable, state: Hashable, rows: pa.Table | None) -> None:
        """Keep the rows as of a state; None: they are too many."""
        with self._lock_of(key):
            self._held[key] = _Held(state, rows)

    def drop(self, key: Hashable) -> None:
        """Forget the rows."""
        with self._lock_of(key):
            self._held.pop(key, None)
