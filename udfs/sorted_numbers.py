"""Numbers in order, each once."""

from __future__ import annotations

import numpy as np

from udfs.array_types import Ints


def sorted_distinct(numbers: Ints) -> Ints:
    """Return the different numbers in order, as ``numpy.unique`` does: that takes far longer for very many of them."""
    ordered = np.sort(numbers)
    found: Ints = ordered[np.append(True, np.diff(ordered) != 0)[: len(ordered)]]
    return found
