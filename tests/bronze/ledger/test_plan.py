"""What a run reads, rule by rule, and that it does not matter in which order and in how many runs files come."""

from __future__ import annotations

import gzip
import json
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bronze.ledger.world import BOUNDS, HEADER, World, capture, expected, first_end, record, unpacked
from pcapgen.model import key
from pipeline.bronze.ingest_plan import plan
from pipeline.bronze.input_files import Listed, find_file, list_files
from pipeline.bronze.ledger_entries import Known, Names, Read, Sighting
from udfs.files import identity
from udfs.files.identity import identify
from udfs.files.sources import Source

AB, ABC, ABD, X = capture("a", "b"), capture("a", "bc"), capture("a", "bd"), capture("x", "yz")
A_KEY = key(capture("a"))


def told(world: World) -> list[str]:
    return [*world.plans[-1].lines()]


def test_a_new_file_is_read_and_then_known():
    world = World()
    world.put("/c/1", ABC)
    assert [read.file.path for read in world.run().read] == ["/c/1"]
    world.opened.clear()
    second = world.run()
    assert (bool(second), second.known, world.opened) == (False, 1, [])
    assert world.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_known_files_are_never_opened_whatever_comes_beside_them():
    world = World()
    for number in range(50):
        world.put(f"/c/{number}", capture(chr(65 + number), "known"))
    world.run()
    world.put("/c/new", capture("~", "new"))
    world.opened.clear()
    world.run()
    assert set(world.opened) == {"/c/new"}


def test_a_copy_is_known_as_the_same_and_then_never_opened():
    world = World()
    world.put("/c/b", ABC)
    world.run()
    world.put("/c/a", ABC)
    world.put("/c/z", ABC)
    copies = world.run()
    assert copies.read == []
    assert world.captures() == {A_KEY: ("/c/a", ("/c/b", "/c/z"), ABC)}
    world.opened.clear()
    assert not world.run()
    assert world.opened == []


def test_a_compressed_copy_of_a_file_that_is_gone_is_the_same_capture():
    world = World()
    world.put("/c/1", ABC)
    world.run()
    del world.files["/c/1"]
    world.put("/c/1.gz", gzip.compress(ABC))
    assert world.run().read == []
    assert world.captures() == {A_KEY: ("/c/1", ("/c/1.gz",), ABC)}


def test_a_compressed_copy_that_goes_on_is_read_on():
    world = World()
    world.put("/c/1", AB)
    world.run()
    del world.files["/c/1"]
    world.put("/c/1.gz", gzip.compress(ABC))
    (read,) = world.run().read
    assert (read.file.path, read.start) == ("/c/1.gz", len(AB))
    assert world.captures() == {A_KEY: ("/c/1.gz", ("/c/1",), ABC)}
    assert world.ledger[A_KEY].file.compression == "gzip"


def test_a_file_that_has_grown_is_read_on_from_where_it_was():
    world = World()
    world.put("/c/1", ABC[:-5])
    world.run()
    world.put("/c/1", ABC)
    (read,) = world.run().read
    assert (read.capture_id, read.start) == (A_KEY, len(AB))
    assert world.plans[-1].replaced == set()
    assert world.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_a_file_that_was_only_touched_is_not_read():
    world = World()
    world.put("/c/1", ABC)
    world.run()
    world.put("/c/1", ABC)
    touched = world.run()
    assert (touched.read, list(touched.paths)) == ([], [A_KEY])
    world.opened.clear()
    assert not world.run()
    assert world.opened == []


def test_a_ring_buffers_name_with_new_content_is_a_new_capture():
    world = World()
    world.put("/c/1", ABC)
    world.run()
    world.put("/c/1", X)
    done = world.run()
    assert ([read.start for read in done.read], done.replaced, done.renamed, done.paths) == ([0], set(), {}, {})
    assert world.captures() == {A_KEY: ("/c/1", (), ABC), key(capture("x")): ("/c/1", (), X)}
    assert not world.run()


def test_where_bytes_differ_the_longest_keeps_the_key():
    world = World()
    world.put("/c/1", AB)
    world.run()
    longer = capture("a", "xyz")
    world.put("/c/2", longer)
    done = world.run()
    other = key(capture("a"), "/c/1")
    assert done.renamed == {A_KEY: other}
    assert world.captures() == {A_KEY: ("/c/2", (), longer), other: ("/c/1", (), AB)}
    world.put("/c/1", AB + capture("a", "more")[24:])  # now it is the longest, and names are swapped
    done = world.run()
    assert done.renamed == {other: A_KEY, A_KEY: key(capture("a"), "/c/2")}
    assert [(read.capture_id, read.start) for read in done.read] == [(A_KEY, len(AB))]
    assert world.ledger.keys() == {A_KEY, key(capture("a"), "/c/2")}


def test_a_longer_capture_shows_that_two_were_one():
    """The file of the first is gone when its beginning comes: nothing shows that they are one until a third does."""
    world = World()
    world.put("/c/1", ABC)
    world.run()
    del world.files["/c/1"]
    world.put("/c/2", AB)
    world.run()
    assert len(world.ledger) == 2
    world.put("/c/3", ABC + capture("a", "more")[24:])
    done = world.run()
    assert done.replaced == {key(capture("a"), "/c/2")}
    assert [read.start for read in done.read] == [len(ABC)]
    assert {name: facts[:2] for name, facts in world.captures().items()} == {A_KEY: ("/c/3", ("/c/1", "/c/2"))}


def test_a_file_that_vanished_stays_in_the_ledger():
    world = World()
    world.put("/c/1", ABC)
    world.run()
    del world.files["/c/1"]
    world.put("/c/2", X)
    world.run()
    assert world.captures()[A_KEY] == ("/c/1", (), ABC)


@pytest.mark.parametrize("before", [b"", b"rubbish", ABC[:10], ABC[:24], ABC[:40]])
def test_a_file_without_a_packet_goes_when_it_becomes_readable(before):
    world = World()
    world.put("/c/1", before)
    (read,) = world.run().read
    assert (read.capture_id, read.first_key) == (key("/c/1"), None)
    assert not world.run()
    world.put("/c/1", ABC)
    done = world.run()
    assert (done.replaced, [read.capture_id for read in done.read]) == ({key("/c/1")}, [A_KEY])
    assert world.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_a_file_that_stays_unreadable_is_tried_when_it_changes():
    world = World()
    world.put("/c/1", b"rubbish")
    world.run()
    world.put("/c/1", b"more rubbish")
    done = world.run()
    assert ([read.capture_id for read in done.read], done.replaced) == ([key("/c/1")], {key("/c/1")})


def test_what_becomes_a_copy_goes_without_being_read():
    world = World()
    world.put("/c/1", ABC)
    world.put("/c/2", b"")
    world.run()
    world.put("/c/2", ABC)
    done = world.run()
    assert (done.read, done.replaced) == ([], {key("/c/2")})
    assert world.captures() == {A_KEY: ("/c/1", ("/c/2",), ABC)}


def test_a_capture_damaged_inside_that_goes_on_is_read_anew():
    damaged = AB + b"\xff" * 16 + bytes(100)
    world = World()
    world.put("/c/1", damaged)
    world.run()
    assert world.ledger[A_KEY].file.tail_key is None
    world.put("/c/1", damaged + bytes(50))
    done = world.run()
    assert (done.replaced, [(read.capture_id, read.start) for read in done.read]) == ({A_KEY}, [(A_KEY, 0)])
    assert world.captures() == {A_KEY: ("/c/1", (), damaged + bytes(50))}


def test_a_copy_of_a_capture_damaged_inside_is_the_same():
    damaged = AB + b"\xff" * 16 + bytes(100)
    world = World()
    world.put("/c/1", damaged)
    world.run()
    world.put("/c/2", damaged)
    assert world.run().read == []
    assert world.captures() == {A_KEY: ("/c/1", ("/c/2",), damaged)}
    assert not world.run()


def test_a_shorter_capture_in_the_place_of_a_damaged_one_is_another():
    damaged = AB + b"\xff" * 16 + bytes(100)
    world = World()
    world.put("/c/1", damaged)
    world.run()
    world.put("/c/1", ABD)
    assert [read.file.size for read in world.run().read] == [len(ABD)]
    assert sorted(rows for _, _, rows in world.captures().values()) == sorted([ABD, damaged])


def test_one_path_that_held_captures_that_begin_alike():
    world = World()
    contents = [capture("a", "1"), capture("a", "22"), capture("a", "333"), capture("a", "4")]
    for content in contents:
        world.put("/c/1", content)
        world.run()
    assert sorted(rows for _, _, rows in world.captures().values()) == sorted(contents)
    assert not world.run()


def test_what_storage_would_not_give_is_tried_until_it_does(tmp_path):
    path = tmp_path / "1.pcap"
    path.write_bytes(ABC)
    (file,) = list_files([str(path)])
    seen = Sighting(file.path, file.size, file.modified_us)
    row = Known(key(file.path), seen, status="unreadable", damage="unreadable")

    def refuse():
        raise PermissionError("not for you")

    refused = plan([file], [row], source=lambda listed: Source(listed.path, listed.size, None, refuse))
    assert (bool(refused), refused.known) == (False, 1)
    done = plan([file], [row])
    assert ([read.capture_id for read in done.read], done.replaced) == ([A_KEY], {row.capture_id})


def test_a_file_that_cannot_be_opened_is_read_to_be_a_row():
    gone = Listed("/none/such.pcap", 10, 1)
    (read,) = plan([gone], []).read
    assert (read.capture_id, read.file) == (key("/none/such.pcap"), gone)


def test_contents_longer_than_what_is_compared(tmp_path):
    """Only the last 64 KiB before the shorter one's end are compared, of plain and of compressed files."""
    begin = capture("a", "b" * 30_000)
    more = begin + capture("c", "c" * 90)[24:]
    other = begin[:-4] + b"zzzz" + more[len(begin) :]
    for name, content in [("1", begin), ("2.gz", gzip.compress(more)), ("3", other)]:
        (tmp_path / name).write_bytes(content)
    done = plan(list_files([str(tmp_path)]), [])
    told = {read.file.path.rsplit("/", 1)[1]: [*map(len, [read.names.other_paths])] for read in done.read}
    assert told == {"2.gz": [1], "3": [0]}
    assert find_file(str(tmp_path / "none")) is None


def test_a_plan_says_what_it_does():
    world = World()
    world.put("/c/1", ABC[:-5])
    world.put("/c/2", b"")
    world.run()
    assert told(world) == [f"read /c/1 ({len(ABC) - 5} bytes)", "read /c/2 (0 bytes)"]
    world.put("/c/1", ABC)
    world.put("/c/2", ABC[:-5])
    world.put("/c/3", X)
    world.run()
    assert told(world) == [
        f"read /c/1 (from byte {len(AB)})", f"read /c/3 ({len(X)} bytes)", f"take out capture {key('/c/2')}",
    ]  # fmt: skip


# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_every_order_of_a_beginning_a_copy_and_two_that_differ(order):
    seen = [("/c/4", AB), ("/c/3", ABC), ("/c/2", ABD), ("/c/1", ABC)]
    world = World()
    for number in order:
        world.put(*seen[number])
        world.run(seen[number][0])
    assert world.captures() == expected(seen)


contents = st.builds(
    lambda first, rest, cut: capture(first, rest)[: len(capture(first, rest)) - cut],
    st.sampled_from("ab"), st.text("xy", max_size=3), st.sampled_from([0, 0, 0, 5, 17, 40]),
)  # fmt: skip


@settings(max_examples=600, deadline=None)
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
    world, held = World(), []
    for path, content in steps:
        world.put(path, gzip.compress(content) if data.draw(st.booleans()) else content)
        held.append(path)
        if data.draw(st.booleans()):
            world.run(*held)
            held = []
    if held:
        world.run(*held)
    assert world.captures() == expected([*final.items()])
    world.opened.clear()
    again = world.run()
    assert (bool(again), world.opened) == (False, [])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("abcdef"), st.text("xy", max_size=2))))
def test_names_used_again_and_again(steps):
    """Ring buffers: each name holds one capture after the other, with first packets of their own."""
    world, seen = World(), []
    for number, (path, first, rest) in enumerate(steps):
        content = HEADER + record(f"{number}{first}".encode()) + capture("a", rest)[24:]
        world.put(path, content)
        seen.append((path, content))
        world.run()
    assert world.captures() == expected(seen)


paths = st.sampled_from(["/c/1", "/c/2", "/c/3"])
happenings = st.one_of(
    st.tuples(st.just("put"), paths, contents, st.booleans()),
    st.tuples(st.just("grow"), paths, st.text("xy", max_size=2)),
    st.tuples(st.just("remove"), paths),
    st.tuples(st.just("run")),
    st.tuples(st.just("run"), paths),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(happenings, max_size=14))
def test_whatever_happens_to_files_nothing_that_a_run_saw_is_lost_or_invented(steps):
    """Files replaced, grown, removed, brought back: what runs saw stands in some capture, as it was."""
    world, seen = World(), set()
    for what, *facts in [*steps, ("run",)]:
        if what == "put":
            path, content, packed = facts
            world.put(path, gzip.compress(content) if packed else content)
        elif what == "grow" and facts[0] in world.files:
            path, rest = facts
            world.put(path, unpacked(world.files[path][0]) + capture("a", rest)[40 + 1 :])
        elif what == "remove":
            world.files.pop(facts[0], None)
        elif what == "run":
            here = facts or [*world.files]
            contents_here = {unpacked(world.files[path][0]) for path in here if path in world.files}
            seen |= contents_here
            world.run(*here)
            rows = [*world.rows.values()]
            assert all(any(each.startswith(content) for each in rows) for content in contents_here)
            world.opened.clear()
            assert not world.run(*here)
            assert world.opened == []
    assert set(world.rows.values()) <= seen
    # Of what is damaged inside nobody can say that the file now at its path is not a later state of it: it goes.
    readable = {content for content in seen if first_end(content) is not None and not damaged_inside(content)}
    assert all(any(each.startswith(content) for each in world.rows.values()) for content in readable)


def damaged_inside(content: bytes) -> bool:
    return identity.measure(Source.of_bytes(content, "/c"), *BOUNDS) is None


# -- identity --------------------------------------------------------------------------------------------------------


@given(contents)
def test_the_identity_is_told_by_the_beginning(content):
    end = first_end(content)
    assert identify(Source.of_bytes(content, "/c/1")) == (key("/c/1") if end is None else key(content[:end]))
    assert identify(Source.of_bytes(gzip.compress(content), "/c/1")) == identify(Source.of_bytes(content, "/c/1"))


def test_the_other_files_survive_the_ledger():
    seen = Sighting("/c/2", 5, None, 7, "0" * 32, "gzip")
    names = Names(Sighting("/c/1", 1, 2), (seen,))
    row = {
        "capture_id": "k", "path": "/c/1", "size_bytes": 1, "modified_us": 2, "content_bytes": None, "tail_key": None,
        "compression": None, "first_key": "k", "other_paths": ["/c/2"], "other_files": names.other_files_json,
        "status": "complete", "damage": None, "resume": None, "decoder_version": "1", "first_us": None, "last_us": None,
        "followed": ["10.0.0.1|49700|qmmgmt"], "learnt": None,
    }  # fmt: skip
    known = Known.of(row)
    assert known.followed == ("10.0.0.1|49700|qmmgmt",)
    assert Names(known.file, known.other_files) == names
    assert known.other_paths == names.other_paths == ("/c/2",)
    assert names.columns() == {
        "path": "/c/1", "other_paths": ["/c/2"], "other_files": row["other_files"], "size_bytes": 1, "bytes_read": 1,
        "modified_us": 2, "compression": None,
    }  # fmt: skip


def test_what_is_read_survives_json():
    world = World()
    world.put("/c/1", AB)
    world.run()
    world.put("/c/1", ABC)
    world.put("/c/2", ABC[:-3])
    (read,) = world.run().read
    assert (read.start, len(read.names.other_files)) == (len(AB), 1)
    assert Read.of(json.loads(json.dumps(read.values()))) == read
