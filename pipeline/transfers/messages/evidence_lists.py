"""Lists of evidence: the keys of what each row rests on, sorted, each once, the last ones by time. No Spark."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.array_types import Ints
from udfs.columns.absent import NONE
from udfs.columns.arrays import from_groups, to_ints
from udfs.columns.groups import group_bounds, is_group_start


@dataclass(slots=True)
class EvidenceLists:
    """Keys of rows, as they are added; of each row the ``most`` with the latest times are kept."""

    rows: int
    most: int
    _row: list[Ints] = field(default_factory=list)
    _at: list[Ints] = field(default_factory=list)
    _keys: list[pa.Array] = field(default_factory=list)

    def add(self, row: Ints, at: Ints, keys: pa.Array) -> None:
        """Add a key, with its time, to each of some rows; null is no key."""
        self._row.append(row)
        self._at.append(at)
        self._keys.append(keys.cast(pa.string()))

    def arrays(self) -> pa.Array:
        """Return a list of keys for each row."""
        row, at = np.concatenate(self._row), np.concatenate(self._at)
        encoded = pa.chunked_array(self._keys, pa.string()).combine_chunks().dictionary_encode()
        texts = encoded.dictionary
        sorting = np.asarray(pc.sort_indices(texts), np.int64)
        rank = np.empty(len(texts) + 1, np.int64)
        rank[sorting] = np.arange(len(texts))
        rank[-1] = NONE  # of null
        place = rank[to_ints(encoded.indices, NONE)]
        combined = row * (len(texts) + 1) + place
        order = np.lexsort((at, combined)) if len(row) else np.zeros(0, np.int64)
        order = order[place[order] != NONE]
        order = order[is_group_start(combined[order[::-1]])[::-1]]  # of one key, its latest time
        order = order[self._latest(row[order], at[order])]
        names = texts.take(pa.array(sorting[place[order]]))
        return from_groups(group_bounds(row[order], self.rows), names)

    def _latest(self, row: Ints, at: Ints) -> Ints:
        """Return the places of the latest keys of each row, in their order; ``row`` ascends."""
        count = np.bincount(row, minlength=self.rows)
        if not (count > self.most).any():
            return np.arange(len(row))
        by_time = np.lexsort((at, row))
        ends = np.cumsum(count)
        from_end = ends[row[by_time]] - np.arange(len(row))
        return np.sort(by_time[from_end <= self.most])
