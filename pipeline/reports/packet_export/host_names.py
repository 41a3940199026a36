"""Names of the machines in exported packets, as they were at that time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

from pipeline.lake.lake import Lake
from schemas.hosts import HOSTS
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL
from udfs.files.capture_file import HostName

_SQL: Final = """
SELECT address, lower(host_name) AS name, unix_micros(min(first_seen_at)) AS first_us,
  unix_micros(max(last_seen_at)) AS last_us
FROM {hosts} WHERE host_name IS NOT NULL AND address IN {addresses}
GROUP BY address, lower(host_name) ORDER BY address, first_us, name"""


class NamesAtTime(NamedTuple):
    """Addresses that had one name in a time, and lists of names by address, of those that had several."""

    names: list[HostName]
    doubtful: dict[str, list[str]]


def find_names(lake: Lake, addresses: Collection[str], since_us: int, until_us: int) -> NamesAtTime:
    """Return the names in silver.hosts that addresses had between two times, both included, microseconds.

    A name holds from when it was first seen, the first one of an address also before that, until another name of the
    address was first seen after it was last seen.
    """
    seen = defaultdict[str, list[tuple[str, int, int]]](list)
    for row in lake.query(_SQL, hosts=HOSTS, addresses=addresses).to_pylist() if addresses else ():
        seen[row["address"]].append((row["name"], row["first_us"] or BEFORE_ALL, row["last_us"] or AFTER_ALL))
    found = NamesAtTime([], {})
    for address, spans in seen.items():
        names = [
            name for place, (name, first, last) in enumerate(spans)
            if (place == 0 or first <= until_us)
            and min((other for _, other, _ in spans if other > last), default=AFTER_ALL) > since_us
        ]  # fmt: skip
        if len(names) == 1:
            found.names.append(HostName(address, names[0]))
        elif names:
            found.doubtful[address] = names
    return found
