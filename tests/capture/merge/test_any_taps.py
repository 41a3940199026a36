"""Two capturing machines, each with some files of a conversation, in any order and number of runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from capture.in_memory import read_captures
from capture.merge.comparing import OF_FILES, OF_THE_RUN, PLACES, Tables, differences, equal
from capture.merge.cutting import cut, layout
from capture.merge.traffic import alone, foreign, sealed
from example_counts import examples
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.scenarios import interleaved_dialogue, remote_read_dialogue, secured_dialogue
from udfs.capture.capture_reader import read_capture

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
DIALOGUES = (remote_read_dialogue, interleaved_dialogue, secured_dialogue, sealed, alone, foreign)
# Packets are counted by capture. What a tap begins with may look like a repetition of what the other one has.
BY_CAPTURE = {"observations", "packets", "last_packet_at", "retransmitted_bytes", "clocks"}


@st.composite
def taps(draw: st.DrawFn) -> tuple[list[c.Record], list[bytes], int]:
    """A conversation, the files of two machines that together have all of it, and the offset of the second clock."""
    make = draw(st.sampled_from(DIALOGUES))
    dialogue = (
        remote_read_dialogue(size=draw(st.integers(0, 9000)), cuts=(1000, 1000))
        if make is remote_read_dialogue
        else make()
    )
    parts = t.segments(
        dialogue.script,
        mss=draw(st.sampled_from([1460, 536, 150])),
        opened=draw(st.booleans()),
        closed=draw(st.booleans()),
        acks=draw(st.booleans()),
    )
    begin, end = draw(st.integers(0, len(parts) // 2)), draw(st.integers(0, len(parts) // 4))
    if draw(st.booleans()):
        parts = parts[begin : len(parts) - end]
    records = t.records(dialogue.flow, parts)
    assume(len(records) > 2)
    low = draw(st.integers(0, len(records) - 2))
    high = draw(st.integers(low + 1, len(records) - 1))
    one, two = draw(
        st.sampled_from([(records[:high], records[low:]), (records, records), (records, records[low:high])])
    )
    ahead = draw(st.sampled_from([0, 0, 1000, 30_000_000]))
    two = [replace(record, time_ns=record.time_ns + ahead) for record in two]
    files = []
    for taken, container in (
        (one, c.pcap(one, magic=c.NANOSECONDS)),
        (two, c.pcapng(two, tsresol=9)),
    ):
        places = draw(st.sets(st.integers(1, len(taken) - 1), max_size=2)) if len(taken) > 1 else set()
        files += cut(container.data, places)
    note(f"{make.__name__}, {len(records)} records, {low}, {high}, {ahead} ns ahead, {len(files)} files")
    return records, files, ahead


def as_one_saw_it(found: Tables, whole: Tables, *told: str) -> None:
    """Fail with a description unless the facts are those of one capture of everything."""
    lines = differences(found, whole, left_out=PLACES | OF_THE_RUN | BY_CAPTURE, not_compared=OF_FILES)
    assert lines == [], "\n".join([*told, *lines])


def seen_twice(data: st.DataObject) -> None:
    records, files, ahead = data.draw(taps())
    assume(len({layout(each).units[0].data for each in files}) == len(files))
    order = data.draw(st.permutations(range(len(files))))
    ends = sorted(data.draw(st.sets(st.integers(1, len(files)), max_size=3)) | {len(files)})
    found = read_captures([files])
    equal(read_captures([[files[index] for index in order[a:b]] for a, b in pairwise([0, *ends])]), found)
    if ahead:
        return  # what one machine has half may end by the other one's clock
    whole = read_capture(c.pcap(records, magic=c.NANOSECONDS).data)
    as_one_saw_it(found, whole)


def test_what_one_machine_saw_the_end_of_has_ended_wherever_the_other_stopped():
    dialogue = interleaved_dialogue()
    parts = t.segments(dialogue.script, mss=150, opened=False, closed=False, acks=False)
    records = t.records(dialogue.flow, parts[len(parts) // 2 :])
    all_of_it = c.pcap(records, magic=c.NANOSECONDS).data
    whole = read_capture(all_of_it)
    for high in range(2, len(records)):
        found = read_captures([[c.pcapng(records[:high], tsresol=9).data, all_of_it]])
        as_one_saw_it(found, whole)


def test_a_machine_that_came_between_the_fragments_of_several_calls_adds_none():
    """Fragments of other calls lie between the first and the last fragment of a response."""
    dialogue = interleaved_dialogue()
    records = t.records(dialogue.flow, t.segments(dialogue.script, mss=150, opened=False, closed=False, acks=False))
    all_of_it = c.pcap(records, magic=c.NANOSECONDS).data
    whole = read_capture(all_of_it)
    for low in range(5, len(records) - 3, 2):
        found = read_captures([[all_of_it, c.pcapng(records[low:-2], tsresol=9).data]])
        as_one_saw_it(found, whole, f"from record {low}:")


@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_any_two_machines_give_one_row_for_each_fact(data):
    seen_twice(data)


@pytest.mark.long
@settings(max_examples=examples(3000), deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_many_machines_give_one_row_for_each_fact(data):
    seen_twice(data)
