"""The same packets in two captures, by two machines or in overlapping files: each fact is one row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import OF_FILES, OF_THE_RUN, PLACES, differences, equal
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.scenarios import interleaved_dialogue, remote_read_dialogue, secured_dialogue
from udfs.capture.capture_reader import read_capture

MILLISECOND = 1_000_000
DIALOGUES = {
    "reads": remote_read_dialogue(size=9000, cuts=(4000, 4000)),
    "interleaved": interleaved_dialogue(),
    "secured": secured_dialogue(),
}
# Packets are counted by capture; the latest time is of whichever clock is ahead.
BY_CAPTURE = {"observations", "packets", "last_packet_at", "clocks"}


def shifted(records: list[c.Record], nanoseconds: int) -> list[c.Record]:
    """Return the packets as a machine with a fast clock captured them."""
    return [replace(record, time_ns=record.time_ns + nanoseconds) for record in records]


def one_row_each(captures: list[bytes], whole: bytes) -> dict:
    """Check that the tables of the captures, in any order and number of runs, equal those of the whole one."""
    found = read_captures([captures])
    for runs in ([captures[::-1]], [[each] for each in captures], [[each] for each in captures[::-1]]):
        equal(read_captures(runs), found)
    lines = differences(found, read_capture(whole), left_out=PLACES | OF_THE_RUN | BY_CAPTURE, not_compared=OF_FILES)
    assert lines == [], "\n".join(lines)
    return found


@pytest.mark.parametrize("ahead", [1000, 30 * MILLISECOND, 5000 * MILLISECOND])
@pytest.mark.parametrize("name", DIALOGUES)
def test_two_machines_saw_everything(name, ahead):
    """The row is the earlier sighting; nothing counts as retransmitted."""
    dialogue = DIALOGUES[name]
    records = t.records(dialogue.flow, t.segments(dialogue.script))
    one, two = c.pcap(records, magic=c.NANOSECONDS), c.pcapng(shifted(records, ahead), tsresol=9)
    found = one_row_each([one.data, two.data], one.data)
    assert set(found["rpc_calls"]["observations"].to_pylist()) == {2}


@pytest.mark.parametrize("name", DIALOGUES)
@pytest.mark.parametrize(("begin", "end"), [(0.3, 0.6), (0.1, 0.9), (0.5, 0.5)])
def test_files_that_overlap(name, begin, end):
    """The second file begins before the first one ends: each packet counts once."""
    dialogue = DIALOGUES[name]
    records = t.records(dialogue.flow, t.segments(dialogue.script, mss=536))
    first, last = int(len(records) * end), int(len(records) * begin)
    captures = [c.pcap(records[:first]).data, c.pcap(records[last:]).data]
    one_row_each(captures, c.pcap(records).data)


@pytest.mark.parametrize("sides", [(t.CLIENT, t.SERVER), (t.SERVER, t.CLIENT)])
@pytest.mark.parametrize("name", DIALOGUES)
def test_each_machine_saw_one_direction(name, sides):
    """A request in one capture and its response in another are one call, each seen once."""
    dialogue = DIALOGUES[name]
    parts = t.segments(dialogue.script)
    captures = [c.pcap(t.records(dialogue.flow, t.one_side(parts, side))).data for side in sides]
    found = one_row_each(captures, c.pcap(t.records(dialogue.flow, parts)).data)
    assert set(found["rpc_calls"]["observations"].to_pylist()) == {1}


@pytest.mark.parametrize("name", DIALOGUES)
def test_what_one_machine_lost_the_other_shows(name):
    """Each capture has gaps where the other has none: together they are whole, nothing is quarantined."""
    dialogue = DIALOGUES[name]
    parts = t.segments(dialogue.script, mss=536)
    data = t.data_indexes(parts)
    whole = t.records(dialogue.flow, parts)
    one = [record for index, record in enumerate(whole) if index not in data[3::4]]
    two = [record for index, record in enumerate(shifted(whole, 1000)) if index not in data[1::4]]
    found = read_captures([[c.pcap(one).data], [c.pcap(two).data]])
    expected = read_capture(c.pcap(whole).data)
    assert found["quarantine"].num_rows == 0
    assert sorted(found["rpc_calls"]["outcome"].to_pylist()) == sorted(expected["rpc_calls"]["outcome"].to_pylist())
    stubs = ("request_stub", "response_stub")
    for stub in stubs:
        assert sorted(filter(None, found["rpc_calls"][stub].to_pylist())) == sorted(
            filter(None, expected["rpc_calls"][stub].to_pylist())
        )
    (connection,) = found["connections"].to_pylist()
    assert (connection["missing_bytes"], connection["retransmitted_bytes"]) == (0, 0)
