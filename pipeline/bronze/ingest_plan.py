"""What a run reads: its files against the ledger ``bronze.capture_files``; decided without Spark, reading little.

A file that the ledger knows by path, size and time is not opened. Of every other one the beginning is read, which
gives its key. Only where several share a key are their lengths and last bytes compared: what begins alike and is equal
before the shorter one's end is one capture, of which the longest content counts.

The decision is a function of what was seen (paths and contents), not of the order in which it was seen: files that
share a key are grouped anew whenever one of them is new, and captures that were read under another key than they now
have are renamed. Where a longer capture's file is gone, so that nothing can be compared, a shorter one is a capture of
its own: rather a call observed twice than one that is never read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from pipeline.bronze.input_files import Listed, find_file
from pipeline.bronze.ledger_entries import (
    _DAY_NS,
    Days,
    Known,
    Names,
    Plan,
    Read,
    Reprocess,
    Sighting,
    _midnight,
    _offset,
)
from udfs.files import identity
from udfs.files.container import NO_TIME, Container, NotACaptureError
from udfs.files.identity import Beginning
from udfs.files.sources import Source
from udfs.keys import key

REMOTE_THREADS: Final = 16  # that open files on an object store: they wait more than they compute
LOCAL_THREADS: Final = 4
_SEARCHED: Final = 1 << 20  # bytes at a time, where packets of some days are looked for
OpenSource = Callable[[Listed], Source]
Find = Callable[[str], Listed | None]


def plan(
    files: Sequence[Listed],
    ledger: Iterable[Known],
    *,
    source: OpenSource = Listed.source,
    find: Find = find_file,
    max_expansion: int = identity.MAX_EXPANSION,
    max_expanded_bytes: int = identity.MAX_EXPANDED,
) -> Plan:
    """Decide what is read of the files, each path given once. Never raises for what the files hold.

    ``source`` opens a file; ``find`` tells how the file at a path is now, None when there is none: it is asked for
    files of the ledger that a new one has to be compared with.
    """
    with ThreadPoolExecutor(_threads(files)) as pool:
        return _Planner(list(ledger), source, find, (max_expansion, max_expanded_bytes), pool).plan(files)


def reprocess(planned: Plan, ledger: Iterable[Known], choice: Reprocess, *, find: Find = find_file) -> int:
    """Add to a plan that chosen captures are read again from their beginning, all their rows replaced.

    A capture is read from its file, or from a copy of the same content, if one stands as the ledger knows it, whether
    or not it is among the run's files; else it keeps its rows and is noted in ``missing``. Returns how many captures
    of the ledger were chosen.
    """
    reads = {read.capture_id: number for number, read in enumerate(planned.read)}
    chosen = [known for known in ledger if choice.chooses(known)]
    for known in chosen:
        old = known.capture_id
        new = planned.renamed.get(old, old)
        if old in planned.replaced:
            continue  # read again already, or now part of another
        names = planned.paths.get(new, Names(known.file, known.other_files))
        if new in reads:  # it has grown
            planned.read[reads[new]] = replace(planned.read[reads[new]], start=0, resume=None)
        elif (file := _standing(names, find)) is not None:
            planned.read.append(Read(new, file, names, known.first_key))
            planned.paths.pop(new, None)
        else:
            planned.missing.append(known)
            continue
        planned.replaced.add(old)
        planned.renamed.pop(old, None)
    planned.read.sort(key=lambda read: (read.file.path, read.capture_id))
    return len(chosen)


def _standing(names: Names, find: Find) -> Listed | None:
    """Return a file with the whole content of a capture, unchanged since it was looked at; None when all are gone."""
    whole = [names.file]
    if names.file.tail_key is not None:
        content = (names.file.content_bytes, names.file.tail_key)
        whole += [seen for seen in names.other_files if (seen.content_bytes, seen.tail_key) == content]
    return next((seen.listed for seen in whole if find(seen.path) == seen.listed), None)


def within(
    files: Sequence[Listed],
    ledger: Iterable[Known],
    days: Days,
    *,
    source: OpenSource = Listed.source,
    max_expansion: int = identity.MAX_EXPANSION,
    max_expanded_bytes: int = identity.MAX_EXPANDED,
) -> list[Listed]:
    """Return the files that a run limited to some days looks at, to be given to ``plan``.

    These are the ones that the ledger knows as they are (they are not read anyway), and of the others those with a
    packet, or last modified, on these days. Only a file that begins before the days and was modified after them is
    searched for such a packet; of the others the beginning is enough.
    """
    known = {seen.listed for capture in ledger for seen in capture.sightings}

    def wanted(file: Listed) -> bool:
        if file in known or days.hold(file.modified_us):
            return True
        opened = source(file)
        begun = identity.beginning(opened, max_expansion, max_expanded_bytes)
        first_us = None if begun.first_ns is None else begun.first_ns // 1000
        if days.hold(first_us) or first_us is None:
            return first_us is not None
        spans = file.modified_us is None or days.meet(first_us, file.modified_us)
        return spans and _has_packet(opened, days, (max_expansion, max_expanded_bytes))

    with ThreadPoolExecutor(_threads(files)) as pool:
        return [file for file, yes in zip(files, pool.map(wanted, files), strict=True) if yes]


def _has_packet(opened: Source, days: Days, bounds: tuple[int, int]) -> bool:
    """Whether a capture has a packet on these days."""
    try:
        with opened.open(*bounds) as stream:
            for records in Container(stream, _SEARCHED).blocks():
                known = records.time[records.time != NO_TIME]
                since, until = _midnight(days.first), _midnight(days.last) + _DAY_NS
                if ((known >= since) & (known < until)).any():
                    return True
    except (OSError, NotACaptureError):
        return False  # whoever asks for its days learns why it cannot be read
    return False


@dataclass(slots=True, eq=False)
class _Item:
    """A file in a comparison; ``capture`` is what the ledger counts it to, ``whole`` that it is what was read of it."""

    seen: Sighting
    capture: Known | None = None
    whole: bool = False

    @property
    def length(self) -> int:
        """Decompressed bytes; the bytes stored where that is not known: of what is damaged inside, and gone."""
        return self.seen.size if self.seen.content_bytes is None else self.seen.content_bytes


_Cluster = list[_Item]  # the files of one capture, the one whose content counts first


class _Planner:
    def __init__(
        self,
        ledger: list[Known],
        source: OpenSource,
        find: Find,
        bounds: tuple[int, int],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._ledger = ledger
        self._source = source
        self._find = find
        self._bounds = bounds
        self._pool = pool
        self._plan = Plan()

    def plan(self, files: Sequence[Listed]) -> Plan:
        """Return what to do."""
        index = {seen.listed: known for known in self._ledger for seen in known.sightings}
        fresh = [file for file in files if (known := index.get(file)) is None or _unreached(known)]
        if fresh:
            begun = self._pool.map(lambda file: identity.beginning(self._source(file), *self._bounds), fresh)
            self._settle(dict(zip(fresh, begun, strict=True)), index.keys())
        self._plan.read.sort(key=lambda read: (read.file.path, read.capture_id))
        self._plan.known = len(files) - len({read.file.path for read in self._plan.read})
        return self._plan

    def _settle(self, fresh: Mapping[Listed, Beginning], looked_at: Iterable[Listed]) -> None:
        """Name each new file by its beginning, and bring those together that begin alike."""
        ids, seen_before = {known.capture_id for known in self._ledger}, set(looked_at)
        groups: dict[str, dict[Listed, Beginning]] = defaultdict(dict)
        for file, begun in fresh.items():
            without_packet = key(file.path)
            if begun.key is not None:
                groups[begun.key][file] = begun
            elif begun.error is not None and file in seen_before:
                continue  # as unreachable as it was
            else:
                seen = Sighting(file.path, file.size, file.modified_us, compression=begun.compression)
                self._plan.read.append(Read(without_packet, file, Names(seen)))
            if without_packet in ids:
                self._plan.replaced.add(without_packet)
        known: dict[str, list[Known]] = defaultdict(list)
        for capture in self._ledger:
            if capture.first_key in groups:
                known[capture.first_key or ""].append(capture)
        for first, files in groups.items():
            self._group(first, files, known.get(first, []))

    def _group(self, first: str, files: Mapping[Listed, Beginning], known: list[Known]) -> None:
        """Settle the files and captures that begin with the same packet."""
        if not known and len(files) == 1:
            ((file, begun),) = files.items()
            seen = Sighting(file.path, file.size, file.modified_us, compression=begun.compression)
            self._plan.read.append(Read(first, file, Names(seen), first))
            return
        fresh = [_Item(seen) for seen in self._pool.map(lambda each: self._measured(*each), files.items())]
        items = [item for capture in known for item in self._items(capture)]
        clusters = self._clusters([*fresh, *items])
        now = {item.seen.path: item for item in fresh}
        grown = {item for item in items if self._goes_on(item, now.get(item.seen.path))}
        prefix = next(begun.prefix for begun in files.values() if begun.prefix is not None)
        taken: set[str] = set()
        for number, cluster in enumerate(clusters):
            seen = cluster[0].seen
            capture_id = prefix.key_with(seen.path) if number else first
            if capture_id in taken:  # one path held several captures that begin alike: their ends tell them apart
                capture_id = prefix.key_with(seen.path, seen.tail_key or str(seen.size))
            taken.add(capture_id)
            others = (item.seen for item in cluster[1:] if item not in grown)
            self._capture(capture_id, first, cluster, Names(seen, tuple(sorted(others, key=_by_path))))

    def _measured(self, file: Listed, begun: Beginning) -> Sighting:
        content = identity.measure(self._source(file), *self._bounds)
        size, tail = (None, None) if content is None else (content.size, content.tail_key)
        return Sighting(file.path, file.size, file.modified_us, size, tail, begun.compression)

    def _items(self, capture: Known) -> Iterator[_Item]:
        """Return the files of a capture of the ledger; what could not be read at all goes."""
        if capture.status == "unreadable":
            self._plan.replaced.add(capture.capture_id)
        for seen in capture.sightings:
            if seen.tail_key is None and self._find(seen.path) == seen.listed:
                content = identity.measure(self._source(seen.listed), *self._bounds)
                if content is not None:
                    seen = replace(seen, content_bytes=content.size, tail_key=content.tail_key)  # noqa: PLW2901
            if capture.status != "unreadable":
                yield _Item(seen, capture, whole=seen.listed == capture.file.listed)
            elif seen.listed != capture.file.listed:
                yield _Item(seen, capture)

    def _clusters(self, items: list[_Item]) -> list[_Cluster]:
        """Group what is one capture, the longest first in each group and of the groups."""
        clusters: list[_Cluster] = []
        for item in sorted(items, key=lambda each: (-each.length, each.seen.path, each.capture is not None)):
            home = next((cluster for cluster in clusters if self._begins(item, cluster)), None)
            if home is None:
                clusters.append([item])
            else:
                home.append(item)
        return clusters

    def _begins(self, short: _Item, cluster: _Cluster) -> bool:
        """Whether a file is the beginning of a capture that is at least as long."""
        if short.capture is not None and short.capture is cluster[0].capture:
            return True
        if short.seen.tail_key is None:
            # Damaged inside and changed since: what stands at its path now is a later state of it.
            return any(item.capture is None and item.seen.path == short.seen.path for item in cluster)
        for long in cluster:
            if long.length < short.length:
                break
            if long.length == short.length and long.seen.tail_key is not None:
                return long.seen.tail_key == short.seen.tail_key
            if (found := self._tail(long, short.length)) is not None:
                return found == short.seen.tail_key
        return False

    def _tail(self, item: _Item, end: int) -> str | None:
        """Return the key of a file's bytes before an offset; None when it is gone or holds other bytes by now."""
        now = item.seen.listed if item.capture is None else self._find(item.seen.path)
        if now is None:
            return None
        source, known = self._source(now), item.seen.tail_key
        if now != item.seen.listed and (
            known is None or identity.tail_key(source, item.length, *self._bounds) != known
        ):
            return None  # it has changed, and for all that is known not by growing
        return identity.tail_key(source, end, *self._bounds)

    def _goes_on(self, item: _Item, now: _Item | None) -> bool:
        """Whether a file of the ledger is an earlier state of the same path's file."""
        return now is not None and now.length >= item.length and self._begins(item, [now])

    def _capture(self, capture_id: str, first: str, cluster: _Cluster, names: Names) -> None:
        """Decide what becomes of one capture and of those that the ledger has of it."""
        content, done = cluster[0], self._plan
        whole = sorted(
            ((item, item.capture) for item in cluster if item.whole and item.capture is not None),
            key=lambda each: (-each[0].length, each[1].capture_id != capture_id, each[1].capture_id),
        )
        done.replaced.update(capture.capture_id for _, capture in whole[1:])
        if not whole:
            done.read.append(Read(capture_id, names.file.listed, names, first))
            return
        base, capture = whole[0]
        start = _offset(capture.resume)
        if base is content or (base.length == content.length and base.seen.tail_key is not None):
            if names != Names(capture.file, tuple(sorted(capture.other_files, key=_by_path))):
                done.paths[capture_id] = names
        elif start and base.seen.tail_key is not None:
            done.read.append(Read(capture_id, names.file.listed, names, first, start, capture.resume))
        else:
            done.replaced.add(capture.capture_id)
            done.read.append(Read(capture_id, names.file.listed, names, first))
            return
        if capture.capture_id != capture_id:
            done.renamed[capture.capture_id] = capture_id


def _threads(files: Sequence[Listed]) -> int:
    return REMOTE_THREADS if any("://" in file.path for file in files) else LOCAL_THREADS


def _unreached(known: Known) -> bool:
    """Whether the storage would not give a file: that may change without the file's size and time telling."""
    return known.status == "unreadable" and known.damage == "unreadable"


def _by_path(seen: Sighting) -> tuple[str, int, int]:
    return seen.path, seen.size, seen.modified_us or 0
