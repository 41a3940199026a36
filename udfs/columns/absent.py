"""What stands in arrays of numbers for what is not there, or is not known. Arrays of numpy have no null."""

from __future__ import annotations

from typing import Final

import numpy as np

NONE: Final = -1
"""No row, no code; and no number, where numbers are not negative."""
NO_TIME: Final = np.iinfo(np.int64).min
"""No time, where any other number is one: nanoseconds use the whole range. Before a sum, leave such rows out."""
ABSENT: Final = NO_TIME
"""No number, where negative ones are numbers. It is ``NO_TIME``, so that one function reads numbers and times."""
AFTER_ALL: Final = 1 << 62
"""A time after all others, microseconds. A span can be added to it. Also a number above all others."""
BEFORE_ALL: Final = -AFTER_ALL
"""A time before all others, microseconds. A span can be subtracted from it."""
NEVER_NS: Final = np.iinfo(np.int64).max
"""The time of an event that did not happen, nanoseconds: ``AFTER_ALL`` nanoseconds are in the year 2116."""
