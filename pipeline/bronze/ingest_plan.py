"""Plan which captures a run reads, by comparing files with the ledger ``bronze.capture_files``. Runs without Spark.

Files that the ledger knows by path, size and time are not opened. Of every other file the beginning is read, which
gives its key: that of its first packet. Only where several files share a key are their lengths and last bytes compared.
Files that begin alike, and are equal before the shorter one's end, are one capture, of which the longest content
counts.

The plan depends on what was seen (paths and contents), not on the order in which it was seen: whenever a file is new,
all files that share its key are grouped again, and stored captures whose key changes are renamed. If the longer file is
gone, nothing can be compared and the shorter one becomes a capture of its own: a call may be observed twice, but none
is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from pipeline.bronze.input_files import FindFile, InputFile, find_file
from pipeline.bronze.ledger import Ledger
from pipeline.bronze.ledger_entries import (
    CaptureFileSet,
    CaptureFileState,
    DateRange,
    IngestPlan,
    LedgerEntry,
    PlannedRead,
    ReprocessSelector,
    midnight_ns,
    resume_offset,
)
from udfs.columns.absent import NO_TIME
from udfs.files import capture_fingerprint
from udfs.files.capture_file import CaptureFileReader, NotACaptureError
from udfs.files.capture_fingerprint import CaptureStart
from udfs.files.file_source import FileSource
from udfs.keys import key
from udfs.times import DAY_NS

REMOTE_FILE_THREADS: Final = 16  # that open files on an object store: they mostly wait
LOCAL_THREADS: Final = 4
_SEARCH_BLOCK_BYTES: Final = 1 << 20  # read at a time, where packets of some days are looked for
OpenSource = Callable[[InputFile], FileSource]


def plan_ingest(
    files: Sequence[InputFile],
    ledger: Ledger,
    *,
    open_source: OpenSource = InputFile.capture_source,
    find_file: FindFile = find_file,
    max_expansion: int = capture_fingerprint.MAX_EXPANSION_RATIO,
    max_expanded_bytes: int = capture_fingerprint.MAX_EXPANDED_BYTES,
) -> IngestPlan:
    """Plan what to read of the files, each path given once. Never raises for what the files hold.

    ``find_file`` gives the current state of a file of the ledger that a new file has to be compared with.
    """
    with ThreadPoolExecutor(_thread_count(files)) as pool:
        planner = _IngestPlanner(ledger, open_source, find_file, (max_expansion, max_expanded_bytes), pool)
        return planner.plan(files)


def plan_reprocessing(
    plan: IngestPlan, ledger: Ledger, selector: ReprocessSelector, *, find_file: FindFile = find_file
) -> int:
    """Add to a plan that selected captures are read again from their beginning, and all their rows replaced.

    A capture is read from its file, or from a copy of the same content, if one is unchanged since the ledger noted it,
    whether or not it is among the run's files. Else it keeps its rows and is noted in ``plan.missing_captures``.
    Returns how many captures of the ledger were selected.
    """
    reads = {read.capture_id: number for number, read in enumerate(plan.reads)}
    selected = ledger.selected(selector)
    for entry in selected:
        old = entry.capture_id
        new = plan.renamed_captures.get(old, old)
        if old in plan.replaced_captures:
            continue  # read again already, or now part of another capture
        files = plan.changed_file_sets.get(new, CaptureFileSet(entry.file, entry.other_files))
        if new in reads:  # it has grown
            plan.reads[reads[new]] = replace(plan.reads[reads[new]], start_offset=0, resume_state=None)
        elif (file := _find_unchanged_file(files, find_file)) is not None:
            plan.reads.append(
                PlannedRead(
                    new, file, files, entry.first_key,
                    reread_endpoints=entry.reread_endpoints, ingested_us=entry.ingested_us,
                )
            )  # fmt: skip
            plan.changed_file_sets.pop(new, None)
        else:
            plan.missing_captures.append(entry)
            continue
        plan.replaced_captures.add(old)
        plan.renamed_captures.pop(old, None)
    plan.reads.sort(key=lambda read: (read.file.path, read.capture_id))
    return len(selected)


def _find_unchanged_file(files: CaptureFileSet, find_file: FindFile) -> InputFile | None:
    """Return a file with the whole content of a capture, unchanged since the ledger noted it; None if there is none."""
    complete = [files.file]
    if files.file.tail_key is not None:
        content = (files.file.content_bytes, files.file.tail_key)
        complete += [state for state in files.other_files if (state.content_bytes, state.tail_key) == content]
    return next((state.input_file for state in complete if find_file(state.path) == state.input_file), None)


def files_on_days(
    files: Sequence[InputFile],
    ledger: Ledger,
    days: DateRange,
    *,
    open_source: OpenSource = InputFile.capture_source,
    max_expansion: int = capture_fingerprint.MAX_EXPANSION_RATIO,
    max_expanded_bytes: int = capture_fingerprint.MAX_EXPANDED_BYTES,
) -> list[InputFile]:
    """Return the files that a run limited to some days gives to ``plan_ingest``.

    These are files that the ledger knows unchanged (they are not read anyway), new files that were modified on these
    days or have a packet on them, and files that cannot be opened. Only a file that begins before the days and was
    modified after them is searched for such a packet; else its first packet decides.
    """
    unknown, entries = ledger.unknown_files(files)
    known = {*files}.difference(unknown).union(state.input_file for entry in entries for state in entry.all_files)

    def is_wanted(file: InputFile) -> bool:
        if file in known or days.contains(file.modified_us):
            return True
        source = open_source(file)
        beginning = capture_fingerprint.read_capture_start(source, max_expansion, max_expanded_bytes)
        if beginning.error is not None:
            return True  # the run that reads it reports why it cannot be read
        first_us = None if beginning.first_packet_ns is None else beginning.first_packet_ns // 1000
        if days.contains(first_us) or first_us is None:
            return first_us is not None
        spans_days = file.modified_us is None or days.overlaps(first_us, file.modified_us)
        return spans_days and _has_packet_on(source, days, (max_expansion, max_expanded_bytes))

    with ThreadPoolExecutor(_thread_count(files)) as pool:
        return [file for file, wanted in zip(files, pool.map(is_wanted, files), strict=True) if wanted]


def _has_packet_on(source: FileSource, days: DateRange, bounds: tuple[int, int]) -> bool:
    """Whether a capture has a packet on these days."""
    try:
        with source.open_decompressed(*bounds) as stream:
            for records in CaptureFileReader(stream, _SEARCH_BLOCK_BYTES).read_blocks():
                times = records.time_ns[records.time_ns != NO_TIME]
                since, until = midnight_ns(days.first), midnight_ns(days.last) + DAY_NS
                if ((times >= since) & (times < until)).any():
                    return True
    except NotACaptureError:
        return False
    except Exception:  # noqa: BLE001
        return True  # the run that reads the file reports why it cannot be read
    return False


@dataclass(slots=True, eq=False)
class _ComparedFile:
    """A file in a comparison. ``entry``: its capture in the ledger; ``is_content``: the capture was read from it."""

    state: CaptureFileState
    entry: LedgerEntry | None = None
    is_content: bool = False

    @property
    def length(self) -> int:
        """Decompressed bytes; stored bytes where these are unknown: of files that are damaged inside, and gone."""
        return self.state.size if self.state.content_bytes is None else self.state.content_bytes


_Cluster = list[_ComparedFile]  # the files of one capture, the one whose content counts first


@dataclass(slots=True)
class _IngestPlanner:
    """Builds a plan; ``bounds`` are the limits of decompression."""

    ledger: Ledger
    open_source: OpenSource
    find_file: FindFile
    bounds: tuple[int, int]
    pool: ThreadPoolExecutor
    result: IngestPlan = field(default_factory=IngestPlan)

    def plan(self, files: Sequence[InputFile]) -> IngestPlan:
        """Return the plan for the files."""
        unknown, entries = self.ledger.unknown_files(files)
        index = {state.input_file: entry for entry in entries for state in entry.all_files}
        fresh = [file for file in unknown if (entry := index.get(file)) is None or _was_unreachable(entry)]
        if fresh:
            beginnings = self.pool.map(self._read_start, fresh)
            self._plan_fresh_files(dict(zip(fresh, beginnings, strict=True)), index)
        self.result.reads.sort(key=lambda read: (read.file.path, read.capture_id))
        self.result.skipped_files = len(files) - len({read.file.path for read in self.result.reads})
        return self.result

    def _plan_fresh_files(self, fresh: Mapping[InputFile, CaptureStart], seen_before: Collection[InputFile]) -> None:
        """Group new files, and captures of the ledger, by their first packet; plan each group."""
        path_keys = {file: key(file.path) for file in fresh}  # of captures without a packet
        first_keys = {beginning.key for beginning in fresh.values() if beginning.key is not None}
        stored = self.ledger.captures(path_keys.values(), first_keys=first_keys)
        ids = {entry.capture_id for entry in stored}
        groups: dict[str, dict[InputFile, CaptureStart]] = defaultdict(dict)
        for file, beginning in fresh.items():
            path_key = path_keys[file]
            if beginning.key is not None:
                groups[beginning.key][file] = beginning
            elif beginning.error is not None and file in seen_before:
                continue  # still unreachable
            else:
                state = CaptureFileState(file.path, file.size, file.modified_us, compression=beginning.compression)
                self.result.reads.append(PlannedRead(path_key, file, CaptureFileSet(state)))
            if path_key in ids:
                self.result.replaced_captures.add(path_key)
        entries: dict[str, list[LedgerEntry]] = defaultdict(list)
        for entry in stored:
            if entry.first_key in groups:
                entries[entry.first_key or ""].append(entry)
        for first_key, files in groups.items():
            self._plan_group(first_key, files, entries.get(first_key, []))

    def _plan_group(self, first_key: str, files: Mapping[InputFile, CaptureStart], entries: list[LedgerEntry]) -> None:
        """Plan the files and captures that begin with the same packet."""
        if not entries and len(files) == 1:
            ((file, beginning),) = files.items()
            state = CaptureFileState(file.path, file.size, file.modified_us, compression=beginning.compression)
            self.result.reads.append(PlannedRead(first_key, file, CaptureFileSet(state), first_key))
            return
        fresh = [_ComparedFile(state) for state in self.pool.map(lambda each: self._measure(*each), files.items())]
        stored = [file for entry in entries for file in self._files_of(entry)]
        clusters = self._cluster([*fresh, *stored])
        current = {file.state.path: file for file in fresh}
        grown = {file for file in stored if self._has_grown(file, current.get(file.state.path))}
        prefixes = (beginning.first_packet_hash for beginning in files.values())
        prefix = next(prefix for prefix in prefixes if prefix is not None)
        taken: set[str] = set()
        for number, cluster in enumerate(clusters):
            state = cluster[0].state
            capture_id = prefix.key_with_fields(state.path) if number else first_key
            if capture_id in taken:  # one path held several captures that begin alike: their ends tell them apart
                capture_id = prefix.key_with_fields(state.path, state.tail_key or str(state.size))
            taken.add(capture_id)
            others = sorted((file.state for file in cluster[1:] if file not in grown), key=_file_order)
            self._plan_capture(capture_id, first_key, cluster, CaptureFileSet(state, tuple(others)))

    def _read_start(self, file: InputFile) -> CaptureStart:
        return capture_fingerprint.read_capture_start(self.open_source(file), *self.bounds)

    def _measure(self, file: InputFile, beginning: CaptureStart) -> CaptureFileState:
        content = capture_fingerprint.fingerprint_content(self.open_source(file), *self.bounds)
        size, tail = (None, None) if content is None else (content.size_bytes, content.tail_key)
        return CaptureFileState(file.path, file.size, file.modified_us, size, tail, beginning.compression)

    def _files_of(self, entry: LedgerEntry) -> Iterator[_ComparedFile]:
        """Yield the files of a capture of the ledger. A capture that could not be read at all is replaced."""
        if entry.status == "unreadable":
            self.result.replaced_captures.add(entry.capture_id)
        for state in entry.all_files:
            if state.tail_key is None and self.find_file(state.path) == state.input_file:
                content = capture_fingerprint.fingerprint_content(self.open_source(state.input_file), *self.bounds)
                if content is not None:
                    state = replace(state, content_bytes=content.size_bytes, tail_key=content.tail_key)  # noqa: PLW2901
            if entry.status != "unreadable":
                yield _ComparedFile(state, entry, is_content=state.input_file == entry.file.input_file)
            elif state.input_file != entry.file.input_file:
                yield _ComparedFile(state, entry)

    def _cluster(self, files: list[_ComparedFile]) -> list[_Cluster]:
        """Group files that are one capture. Groups, and the files of each, come by length, the longest first."""
        clusters: list[_Cluster] = []
        for file in sorted(files, key=lambda each: (-each.length, each.state.path, each.entry is not None)):
            home = next((cluster for cluster in clusters if self._is_beginning(file, cluster)), None)
            if home is None:
                clusters.append([file])
            else:
                home.append(file)
        return clusters

    def _is_beginning(self, short: _ComparedFile, cluster: _Cluster) -> bool:
        """Whether a file is the beginning of a capture that is at least as long."""
        if short.entry is not None and short.entry is cluster[0].entry:
            return True
        if short.state.tail_key is None:
            # Damaged inside and changed since: the file at its path now counts as a later state of it.
            return any(file.entry is None and file.state.path == short.state.path for file in cluster)
        for long in cluster:
            if long.length < short.length:
                break
            if long.length == short.length and long.state.tail_key is not None:
                return long.state.tail_key == short.state.tail_key
            if (found := self._tail_key_at(long, short.length)) is not None:
                return found == short.state.tail_key
        return False

    def _tail_key_at(self, file: _ComparedFile, end: int) -> str | None:
        """Return the key of a file's bytes before an offset; None if it is gone or its content was replaced."""
        current = file.state.input_file if file.entry is None else self.find_file(file.state.path)
        if current is None:
            return None
        source, known = self.open_source(current), file.state.tail_key
        if current != file.state.input_file and (
            known is None or capture_fingerprint.compute_tail_key(source, file.length, *self.bounds) != known
        ):
            return None  # it has changed, and nothing shows that it only grew
        return capture_fingerprint.compute_tail_key(source, end, *self.bounds)

    def _has_grown(self, file: _ComparedFile, current: _ComparedFile | None) -> bool:
        """Whether a file of the ledger is an earlier state of the file now at its path."""
        return current is not None and current.length >= file.length and self._is_beginning(file, [current])

    def _plan_capture(self, capture_id: str, first_key: str, cluster: _Cluster, files: CaptureFileSet) -> None:
        """Plan one capture: whether to read it, from where, and what happens to its entries in the ledger."""
        content, plan = cluster[0], self.result
        stored = sorted(
            ((file, file.entry) for file in cluster if file.is_content and file.entry is not None),
            key=lambda each: (-each[0].length, each[1].capture_id != capture_id, each[1].capture_id),
        )
        plan.replaced_captures.update(entry.capture_id for _, entry in stored[1:])
        if not stored:
            plan.reads.append(PlannedRead(capture_id, files.file.input_file, files, first_key))
            return
        base, entry = stored[0]
        start = resume_offset(entry.resume)
        read = PlannedRead(capture_id, files.file.input_file, files, first_key, reread_endpoints=entry.reread_endpoints)
        if base is content or (base.length == content.length and base.state.tail_key is not None):
            if files != CaptureFileSet(entry.file, tuple(sorted(entry.other_files, key=_file_order))):
                plan.changed_file_sets[capture_id] = files
        elif start and base.state.tail_key is not None:
            plan.reads.append(replace(read, start_offset=start, resume_state=entry.resume))
        else:
            plan.replaced_captures.add(entry.capture_id)
            plan.reads.append(read)
            return
        plan.beginnings |= {short.capture_id: entry.capture_id for _, short in stored[1:]}
        if entry.capture_id != capture_id:
            plan.renamed_captures[entry.capture_id] = capture_id


def _thread_count(files: Sequence[InputFile]) -> int:
    return REMOTE_FILE_THREADS if any("://" in file.path for file in files) else LOCAL_THREADS


def _was_unreachable(entry: LedgerEntry) -> bool:
    """Whether storage refused a file: that may change while the file's size and time stay the same."""
    return entry.status == "unreadable" and entry.damage == "unreadable"


def _file_order(state: CaptureFileState) -> tuple[str, int, int]:
    return state.path, state.size, state.modified_us or 0
