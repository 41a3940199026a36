"""What an ingest reads, rule by rule, and that the order of files and the number of runs do not matter."""

from __future__ import annotations

import gzip
import io
import json
import struct
from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bronze.ledger.simulation import HEADER, IngestSimulation, capture, expected, first_end, record, unpacked
from example_counts import examples
from ledgers import ledger_of
from pcapgen.model import key
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import InputFile, find_file, list_files
from pipeline.bronze.ledger_entries import CaptureFileSet, CaptureFileState, LedgerEntry, PlannedRead
from udfs.files.capture_file import CaptureFileReader
from udfs.files.capture_fingerprint import capture_key
from udfs.files.file_source import FileSource

AB, ABC, ABD, X = capture("a", "b"), capture("a", "bc"), capture("a", "bd"), capture("x", "yz")
A_KEY = key(capture("a"))


def last_plan(simulation: IngestSimulation) -> list[str]:
    return [*simulation.plans[-1].describe()]


def test_a_new_file_is_read_and_then_known():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC)
    assert [read.file.path for read in simulation.run().reads] == ["/c/1"]
    simulation.opened.clear()
    second = simulation.run()
    assert (bool(second), second.skipped_files, simulation.opened) == (False, 1, [])
    assert simulation.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_known_files_are_never_opened_whatever_comes_beside_them():
    simulation = IngestSimulation()
    for number in range(50):
        simulation.put(f"/c/{number}", capture(chr(65 + number), "known"))
    simulation.run()
    simulation.put("/c/new", capture("~", "new"))
    simulation.opened.clear()
    simulation.run()
    assert set(simulation.opened) == {"/c/new"}


def test_a_copy_is_known_as_the_same_and_then_never_opened():
    simulation = IngestSimulation()
    simulation.put("/c/b", ABC)
    simulation.run()
    simulation.put("/c/a", ABC)
    simulation.put("/c/z", ABC)
    copies = simulation.run()
    assert copies.reads == []
    assert simulation.captures() == {A_KEY: ("/c/a", ("/c/b", "/c/z"), ABC)}
    simulation.opened.clear()
    assert not simulation.run()
    assert simulation.opened == []


def test_a_compressed_copy_of_a_file_that_is_gone_is_the_same_capture():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC)
    simulation.run()
    del simulation.files["/c/1"]
    simulation.put("/c/1.gz", gzip.compress(ABC))
    assert simulation.run().reads == []
    assert simulation.captures() == {A_KEY: ("/c/1", ("/c/1.gz",), ABC)}


def test_a_compressed_copy_that_goes_on_is_read_on():
    simulation = IngestSimulation()
    simulation.put("/c/1", AB)
    simulation.run()
    del simulation.files["/c/1"]
    simulation.put("/c/1.gz", gzip.compress(ABC))
    (read,) = simulation.run().reads
    assert (read.file.path, read.start_offset) == ("/c/1.gz", len(AB))
    assert simulation.captures() == {A_KEY: ("/c/1.gz", ("/c/1",), ABC)}
    assert simulation.ledger[A_KEY].file.compression == "gzip"


def test_a_file_that_has_grown_is_read_on_from_where_it_was():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC[:-5])
    simulation.run()
    simulation.put("/c/1", ABC)
    (read,) = simulation.run().reads
    assert (read.capture_id, read.start_offset) == (A_KEY, len(AB))
    assert simulation.plans[-1].replaced_captures == set()
    assert simulation.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_a_file_that_was_only_touched_is_not_read():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC)
    simulation.run()
    simulation.put("/c/1", ABC)
    touched = simulation.run()
    assert (touched.reads, list(touched.changed_file_sets)) == ([], [A_KEY])
    simulation.opened.clear()
    assert not simulation.run()
    assert simulation.opened == []


def test_a_ring_buffers_name_with_new_content_is_a_new_capture():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC)
    simulation.run()
    simulation.put("/c/1", X)
    done = simulation.run()
    assert (
        [read.start_offset for read in done.reads],
        done.replaced_captures,
        done.renamed_captures,
        done.changed_file_sets,
    ) == ([0], set(), {}, {})
    assert simulation.captures() == {A_KEY: ("/c/1", (), ABC), key(capture("x")): ("/c/1", (), X)}
    assert not simulation.run()


def test_where_bytes_differ_the_longest_keeps_the_key():
    simulation = IngestSimulation()
    simulation.put("/c/1", AB)
    simulation.run()
    longer = capture("a", "xyz")
    simulation.put("/c/2", longer)
    done = simulation.run()
    other = key(capture("a"), "/c/1")
    assert done.renamed_captures == {A_KEY: other}
    assert simulation.captures() == {A_KEY: ("/c/2", (), longer), other: ("/c/1", (), AB)}
    simulation.put("/c/1", AB + capture("a", "more")[24:])  # now it is the longest, and names are swapped
    done = simulation.run()
    assert done.renamed_captures == {other: A_KEY, A_KEY: key(capture("a"), "/c/2")}
    assert [(read.capture_id, read.start_offset) for read in done.reads] == [(A_KEY, len(AB))]
    assert simulation.ledger.keys() == {A_KEY, key(capture("a"), "/c/2")}


def test_a_longer_capture_shows_that_two_were_one():
    """The file of the first is gone when its beginning comes: nothing shows that they are one until a third does."""
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC)
    simulation.run()
    del simulation.files["/c/1"]
    simulation.put("/c/2", AB)
    simulation.run()
    assert len(simulation.ledger) == 2
    simulation.put("/c/3", ABC + capture("a", "more")[24:])
    done = simulation.run()
    assert done.replaced_captures == {key(capture("a"), "/c/2")}
    assert [read.start_offset for read in done.reads] == [len(ABC)]
    assert {name: facts[:2] for name, facts in simulation.captures().items()} == {A_KEY: ("/c/3", ("/c/1", "/c/2"))}


def test_a_file_that_vanished_stays_in_the_ledger():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC)
    simulation.run()
    del simulation.files["/c/1"]
    simulation.put("/c/2", X)
    simulation.run()
    assert simulation.captures()[A_KEY] == ("/c/1", (), ABC)


@pytest.mark.parametrize("before", [b"", b"rubbish", ABC[:10], ABC[:24], ABC[:40]])
def test_a_file_without_a_packet_goes_when_it_becomes_readable(before):
    simulation = IngestSimulation()
    simulation.put("/c/1", before)
    (read,) = simulation.run().reads
    assert (read.capture_id, read.first_key) == (key("/c/1"), None)
    assert not simulation.run()
    simulation.put("/c/1", ABC)
    done = simulation.run()
    assert (done.replaced_captures, [read.capture_id for read in done.reads]) == ({key("/c/1")}, [A_KEY])
    assert simulation.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_a_file_that_stays_unreadable_is_tried_when_it_changes():
    simulation = IngestSimulation()
    simulation.put("/c/1", b"rubbish")
    simulation.run()
    simulation.put("/c/1", b"more rubbish")
    done = simulation.run()
    assert ([read.capture_id for read in done.reads], done.replaced_captures) == ([key("/c/1")], {key("/c/1")})


def test_what_becomes_a_copy_goes_without_being_read():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC)
    simulation.put("/c/2", b"")
    simulation.run()
    simulation.put("/c/2", ABC)
    done = simulation.run()
    assert (done.reads, done.replaced_captures) == ([], {key("/c/2")})
    assert simulation.captures() == {A_KEY: ("/c/1", ("/c/2",), ABC)}


def test_a_capture_damaged_inside_that_goes_on_is_read_anew():
    damaged = AB + b"\xff" * 16 + bytes(100)
    simulation = IngestSimulation()
    simulation.put("/c/1", damaged)
    simulation.run()
    assert simulation.ledger[A_KEY].file.tail_key is None
    simulation.put("/c/1", damaged + bytes(50))
    done = simulation.run()
    assert (done.replaced_captures, [(read.capture_id, read.start_offset) for read in done.reads]) == (
        {A_KEY},
        [(A_KEY, 0)],
    )
    assert simulation.captures() == {A_KEY: ("/c/1", (), damaged + bytes(50))}


def test_a_copy_of_a_capture_damaged_inside_is_the_same():
    damaged = AB + b"\xff" * 16 + bytes(100)
    simulation = IngestSimulation()
    simulation.put("/c/1", damaged)
    simulation.run()
    simulation.put("/c/2", damaged)
    assert simulation.run().reads == []
    assert simulation.captures() == {A_KEY: ("/c/1", ("/c/2",), damaged)}
    assert not simulation.run()


@pytest.mark.parametrize("whole", [ABC, ABC + bytes(500), capture("a", "bcd" + "x" * 50)])
@pytest.mark.parametrize("written", [len(AB), len(AB) + 16, len(AB) + 5, len(AB) - 1])
def test_a_file_whose_space_was_reserved_is_one_capture_when_it_is_whole(written, whole):
    """Seen while the bytes from ``written`` on were zero: what was read then is replaced by what it is in the end."""
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC[:written] + bytes(300))
    simulation.run()
    assert not simulation.run()
    simulation.put("/c/1", whole)
    (read,) = simulation.run().reads
    assert (read.capture_id, read.start_offset) == (A_KEY, 0)
    assert simulation.captures() == {A_KEY: ("/c/1", (), whole)}
    assert not simulation.run()


def test_a_copy_of_a_file_that_ends_in_zeros_is_the_same():
    simulation = IngestSimulation()
    simulation.put("/c/1", AB + bytes(300))
    simulation.run()
    simulation.put("/c/2", AB + bytes(300))
    assert simulation.run().reads == []
    assert simulation.captures() == {A_KEY: ("/c/1", ("/c/2",), AB + bytes(300))}
    assert not simulation.run()


def test_a_shorter_capture_in_the_place_of_a_damaged_one_is_another():
    damaged = AB + b"\xff" * 16 + bytes(100)
    simulation = IngestSimulation()
    simulation.put("/c/1", damaged)
    simulation.run()
    simulation.put("/c/1", ABD)
    assert [read.file.size for read in simulation.run().reads] == [len(ABD)]
    assert sorted(rows for _, _, rows in simulation.captures().values()) == sorted([ABD, damaged])


def test_one_path_that_held_captures_that_begin_alike():
    simulation = IngestSimulation()
    contents = [capture("a", "1"), capture("a", "22"), capture("a", "333"), capture("a", "4")]
    for content in contents:
        simulation.put("/c/1", content)
        simulation.run()
    assert sorted(rows for _, _, rows in simulation.captures().values()) == sorted(contents)
    assert not simulation.run()


def test_what_storage_would_not_give_is_tried_until_it_does(tmp_path):
    path = tmp_path / "1.pcap"
    path.write_bytes(ABC)
    (file,) = list_files([str(path)])
    seen = CaptureFileState(file.path, file.size, file.modified_us)
    row = LedgerEntry(key(file.path), seen, status="unreadable", damage="unreadable")

    def refuse():
        raise PermissionError("not for you")

    refused = plan_ingest(
        [file], ledger_of([row]), open_source=lambda listed: FileSource(listed.path, listed.size, None, refuse)
    )
    assert (bool(refused), refused.skipped_files) == (False, 1)
    done = plan_ingest([file], ledger_of([row]))
    assert ([read.capture_id for read in done.reads], done.replaced_captures) == ([A_KEY], {row.capture_id})


def test_a_file_that_cannot_be_opened_is_read_to_be_a_row():
    gone = InputFile("/none/such.pcap", 10, 1)
    (read,) = plan_ingest([gone], ledger_of()).reads
    assert (read.capture_id, read.file) == (key("/none/such.pcap"), gone)


def test_contents_longer_than_what_is_compared(tmp_path):
    """Only the last 64 KiB before the shorter one's end are compared, of plain and of compressed files."""
    begin = capture("a", "b" * 30_000)
    more = begin + capture("c", "c" * 90)[24:]
    other = begin[:-4] + b"zzzz" + more[len(begin) :]
    for name, content in [("1", begin), ("2.gz", gzip.compress(more)), ("3", other)]:
        (tmp_path / name).write_bytes(content)
    done = plan_ingest(list_files([str(tmp_path)]), ledger_of())
    other_paths = {
        read.file.path.rsplit("/", 1)[1]: [*map(len, [read.capture_files.other_paths])] for read in done.reads
    }
    assert other_paths == {"2.gz": [1], "3": [0]}
    assert find_file(str(tmp_path / "none")) is None


def test_a_plan_says_what_it_does():
    simulation = IngestSimulation()
    simulation.put("/c/1", ABC[:-5])
    simulation.put("/c/2", b"")
    simulation.run()
    assert last_plan(simulation) == [f"read /c/1 ({len(ABC) - 5} bytes)", "read /c/2 (0 bytes)"]
    simulation.put("/c/1", ABC)
    simulation.put("/c/2", ABC[:-5])
    simulation.put("/c/3", X)
    simulation.run()
    assert last_plan(simulation) == [
        f"read /c/1 (from byte {len(AB)})", f"read /c/3 ({len(X)} bytes)", f"remove capture {key('/c/2')}",
    ]  # fmt: skip


# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_every_order_of_a_beginning_a_copy_and_two_that_differ(order):
    seen = [("/c/4", AB), ("/c/3", ABC), ("/c/2", ABD), ("/c/1", ABC)]
    simulation = IngestSimulation()
    for number in order:
        simulation.put(*seen[number])
        simulation.run(seen[number][0])
    assert simulation.captures() == expected(seen)


contents = st.builds(
    lambda first, rest, cut: capture(first, rest)[: len(capture(first, rest)) - cut],
    st.sampled_from("ab"), st.text("xy", max_size=3), st.sampled_from([0, 0, 0, 5, 17, 40]),
)  # fmt: skip


@settings(max_examples=examples(240), deadline=None)
@given(st.data())
def test_what_comes_out_does_not_depend_on_order_or_runs(data):
    """Files that stay and grow: seen in any order, in any runs, at any state of growth."""
    final = data.draw(st.dictionaries(st.sampled_from([f"/c/{name}" for name in "abcdef"]), contents, min_size=1))
    steps = [
        (path, content[:cut])
        for path, content in final.items()
        for cut in sorted({*data.draw(st.lists(st.integers(0, len(content)), max_size=2)), len(content)})
    ]
    order = data.draw(st.permutations(range(len(steps))))
    by_path = {path: [step for step in steps if step[0] == path] for path in final}
    steps = [by_path[steps[number][0]].pop(0) for number in order]  # any order, but a file only grows
    simulation, held = IngestSimulation(), []
    for path, content in steps:
        simulation.put(path, gzip.compress(content) if data.draw(st.booleans()) else content)
        held.append(path)
        if data.draw(st.booleans()):
            simulation.run(*held)
            held = []
    if held:
        simulation.run(*held)
    assert simulation.captures() == expected([*final.items()])
    simulation.opened.clear()
    again = simulation.run()
    assert (bool(again), simulation.opened) == (False, [])


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("abcdef"), st.text("xy", max_size=2))))
def test_names_used_again_and_again(steps):
    """Ring buffers: each name holds one capture after the other, with first packets of their own."""
    simulation, seen = IngestSimulation(), []
    for number, (path, first, rest) in enumerate(steps):
        content = HEADER + record(f"{number}{first}".encode()) + capture("a", rest)[24:]
        simulation.put(path, content)
        seen.append((path, content))
        simulation.run()
    assert simulation.captures() == expected(seen)


CLAIMS_16_MB = AB[: first_end(AB)] + struct.pack("<IIII", 1, 0, (16 << 20) + 1, 1) + b"x"  # in its second record
paths = st.sampled_from(["/c/1", "/c/2", "/c/3"])
happenings = st.one_of(
    st.tuples(st.just("put"), paths, contents, st.booleans()),
    st.tuples(st.just("grow"), paths, st.text("xy", max_size=2)),
    st.tuples(st.just("remove"), paths),
    st.tuples(st.just("run")),
    st.tuples(st.just("run"), paths),
)


@settings(max_examples=examples(240), deadline=None)
@given(st.lists(happenings, max_size=14))
@example([("put", "/c/1", AB[:-5], False), ("grow", "/c/1", "xy"), ("run",), ("put", "/c/1", ABC, False), ("run",)])
@example([("put", "/c/1", CLAIMS_16_MB, False), ("run",), ("put", "/c/1", ABD + capture("a", "xxx")[24:], False)])
def test_whatever_happens_to_files_nothing_that_a_run_saw_is_lost_or_invented(steps):
    """Files replaced, grown, removed, brought back: what runs saw stands in some capture, as it was."""
    simulation, seen = IngestSimulation(), set()
    for what, *facts in [*steps, ("run",)]:
        if what == "put":
            path, content, packed = facts
            simulation.put(path, gzip.compress(content) if packed else content)
        elif what == "grow" and facts[0] in simulation.files:
            path, rest = facts
            simulation.put(path, unpacked(simulation.files[path][0]) + capture("a", rest)[40 + 1 :])
        elif what == "remove":
            simulation.files.pop(facts[0], None)
        elif what == "run":
            here = facts or [*simulation.files]
            contents_here = {unpacked(simulation.files[path][0]) for path in here if path in simulation.files}
            seen |= contents_here
            simulation.run(*here)
            rows = [*simulation.rows.values()]
            assert all(any(each.startswith(content) for each in rows) for content in contents_here)
            simulation.opened.clear()
            assert not simulation.run(*here)
            assert simulation.opened == []
    assert set(simulation.rows.values()) <= seen
    # What is at the path of a capture that is damaged inside counts as a later state of it (docs/internals/reader.md).
    readable = {content for content in seen if first_end(content) is not None and not damaged_inside(content)}
    assert all(any(each.startswith(content) for each in simulation.rows.values()) for content in readable)


def damaged_inside(content: bytes) -> bool:
    """Whether the reader stops before the end of a capture, so that its ledger entry says nothing about its end."""
    container = CaptureFileReader(io.BytesIO(content), 1 << 16)
    for _ in container.read_blocks():
        pass
    return container.damage is not None and container.damage.kind == "damaged"


# -- identity --------------------------------------------------------------------------------------------------------


@given(contents)
def test_the_identity_is_told_by_the_beginning(content):
    end = first_end(content)
    assert capture_key(FileSource.from_bytes(content, "/c/1")) == (key("/c/1") if end is None else key(content[:end]))
    assert capture_key(FileSource.from_bytes(gzip.compress(content), "/c/1")) == capture_key(
        FileSource.from_bytes(content, "/c/1")
    )


def test_the_other_files_survive_the_ledger():
    seen = CaptureFileState("/c/2", 5, None, 7, "0" * 32, "gzip")
    names = CaptureFileSet(CaptureFileState("/c/1", 1, 2), (seen,))
    row = {
        "capture_id": "k", "path": "/c/1", "size_bytes": 1, "modified_us": 2, "content_bytes": None, "tail_key": None,
        "compression": None, "first_key": "k", "other_paths": ["/c/2"], "other_files": names.other_files_json,
        "status": "complete", "damage": None, "resume": None, "decoder_version": "1", "first_us": None, "last_us": None,
        "reread_endpoints": ["10.0.0.1|49700|qmmgmt"], "learned_endpoints": None, "ingested_us": None,
    }  # fmt: skip
    known = LedgerEntry.from_row(row)
    assert known.reread_endpoints == ("10.0.0.1|49700|qmmgmt",)
    assert CaptureFileSet(known.file, known.other_files) == names
    assert known.other_paths == names.other_paths == ("/c/2",)
    assert names.ledger_columns() == {
        "path": "/c/1", "other_paths": ["/c/2"], "other_files": row["other_files"], "size_bytes": 1, "bytes_read": 1,
        "modified_us": 2, "compression": None,
    }  # fmt: skip


def test_what_is_read_survives_json():
    simulation = IngestSimulation()
    simulation.put("/c/1", AB)
    simulation.run()
    simulation.put("/c/1", ABC)
    simulation.put("/c/2", ABC[:-3])
    (read,) = simulation.run().reads
    assert (read.start_offset, len(read.capture_files.other_files)) == (len(AB), 1)
    assert PlannedRead.from_json_dict(json.loads(json.dumps(read.to_json_dict()))) == read
