"""What one pass over a capture file found, to be made into rows by ``tables`` once the pass is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from udfs.capture.open_connections import Edge
from udfs.files.container import Container
from udfs.files.identity import Prefix
from udfs.files.sources import Source
from udfs.rpc.rows import Made, Meanings
from udfs.tcp.flows import Connection


@dataclass(slots=True)
class Reading:
    """What one pass over a file found."""

    connections: list[Connection] = field(default_factory=list)
    container: Container | None = None
    source: Source | None = None
    capture_id: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    links: set[int] = field(default_factory=set)
    first_time: int | None = None
    last_time: int | None = None
    error: tuple[str, str] | None = None
    learnt: dict[tuple[bytes, int], set[str]] = field(default_factory=dict)
    taught: dict[int, set[tuple[bytes, int, str]]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)  # connections that are better read again, from their first byte on
    meanings: Meanings = field(default_factory=dict)
    made: Made = field(default_factory=Made)
    prefix: Prefix = field(default_factory=Prefix)
    edges: list[Edge] = field(default_factory=list)  # connections that may go on in another capture
    followed: tuple[str, ...] = ()
