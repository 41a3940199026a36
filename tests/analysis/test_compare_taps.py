"""`msmq compare_taps`: captures of recordings with packets taken out, sent again and delayed, and with clocks set."""

import json
from dataclasses import dataclass, replace
from io import BytesIO

import numpy as np
import pytest

from capture.rewritten import capture_of, records_of
from engines import without_spark
from example_counts import one_in
from jobs import run_all
from jobs.analysis import compare_taps as command
from pipeline.lake.lake import Lake
from pipeline.reports.taps.comparison import Tap, compare_taps
from pipeline.reports.taps.lost_bytes import lacking_bytes
from pipeline.reports.taps.tap_items import read_items
from pipeline.reports.taps.tap_streams import Segments, read_segments
from schemas.bronze import CAPTURE_FILES, RPC_CALLS
from schemas.sessions import SESSION_PACKETS
from udfs.capture.capture_reader import ReadOptions
from udfs.files.capture_file import CaptureFileReader
from udfs.files.file_source import FileSource
from udfs.tcp.four_tuples import packed_endpoints
from udfs.tcp.packet_decoder import PacketDecoder

SESSIONS, CALLS = "transfers/07-several-queues.pcap", "sample/01-remoteread-ndr.pcap"
STEP_US = 100_000  # between packets: more than any delay
MS = 1_000_000  # in ns
NOTHING = {"lost_by_capture": 0, "on_the_way": 0, "unknown": 0}


@dataclass
class Packet:
    """A record: when, its bytes behind the time, whether the host with the smaller address sent it, its TCP numbers."""

    at: int
    rest: bytes
    answers: bool
    pair: frozenset
    sequence: int
    size: int


def later(packet, by_us):
    """The same packet at another time."""
    return replace(packet, at=packet.at + by_us)


def packets_of(capture):
    """The TCP packets of a recording, one every tenth of a second."""
    (block,) = CaptureFileReader(BytesIO(capture), 1 << 24).read_blocks()
    s, records = PacketDecoder().decode_block(block), records_of(capture)
    found = []
    for row, index in enumerate(s.record_index.tolist()):
        source, target = packed_endpoints(s, row)
        rest = records[index][1]
        answers = source[1] < target[1]
        numbers = int(s.sequence[row]), int(s.payload_length[row])
        found.append(Packet(records[0][0] + len(found) * STEP_US, rest, answers, frozenset((source, target)), *numbers))
    return found


@pytest.fixture
def recording(project):
    """Read a recording; return its packets, and a function that makes a capture of some of them."""

    def read(name):
        capture = (project / "data" / name).read_bytes()

        def made(packets, *, toward_us=0, back_us=0):
            moved = ((each.at + (back_us if each.answers else toward_us), each.rest) for each in packets)
            return capture_of(capture, sorted(moved, key=lambda record: record[0]))

        return packets_of(capture), made

    return read


def tap_of(captures):
    options, sources = ReadOptions(), [FileSource.from_bytes(each, "memory") for each in captures]
    found = [read_items(source, options) for source in sources]
    directions = found[0].directions | found[1].directions
    return [Tap(each, read_segments(source, options, directions)) for each, source in zip(found, sources, strict=True)]


def compared(*captures):
    return compare_taps(*tap_of(captures))


def reasons(lacking, kind):
    return [each.reason for each in lacking.items if each.item.kind == kind]


def with_answer(packets):
    """The place of a packet with payload, whose bytes the other end acknowledges later; not the first ones."""
    return next(
        place for place, each in enumerate(packets)
        if place > 20 and each.size > 200
        and any(later.pair == each.pair and later.answers != each.answers for later in packets[place + 1 :])
    )  # fmt: skip


@pytest.mark.parametrize("name", [SESSIONS, CALLS])
def test_a_capture_lacks_nothing_of_itself(recording, name):
    packets, made = recording(name)
    found = compared(made(packets), made(packets))
    for lacking in (found.lacking_in_a, found.lacking_in_b):
        assert (lacking.items, lacking.bytes) == ([], NOTHING)
    assert [(each.least_ns, each.most_ns, each.is_interval) for each in found.clocks] == [(0, 0, True)]
    assert found.in_both["message"] > 0


@pytest.mark.parametrize("name", [SESSIONS, CALLS])
def test_the_difference_of_clocks_lies_between_the_bounds_of_both_directions(recording, name):
    packets, made = recording(name)
    near, far = made(packets, toward_us=-2000, back_us=3000), made(packets, toward_us=5_000_000, back_us=5_000_000)
    (clock,) = compared(near, far).clocks
    assert (clock.least_ns, clock.most_ns, clock.is_interval) == (4997 * MS, 5002 * MS, True)
    (clock,) = compared(far, near).clocks
    assert (clock.least_ns, clock.most_ns, clock.is_interval) == (-5002 * MS, -4997 * MS, True)


def test_packets_of_one_direction_give_the_bound_alone(recording):
    packets, made = recording(SESSIONS)
    toward = [each for each in packets if not each.answers]
    half = len(toward) // 2
    slow = [*toward[:half], *(later(each, 4000) for each in toward[half:])]
    (clock,) = compared(made(packets), made(slow, toward_us=7000)).clocks
    assert (clock.most_ns, clock.least_ns, clock.is_interval) == (7 * MS, 11 * MS, False)


def test_a_clock_that_was_set_has_a_difference_for_each_part_of_the_time(recording):
    packets, made = recording(SESSIONS)
    stretched = [later(each, place * 3_000_000) for place, each in enumerate(packets)]
    half = len(stretched) // 2
    set_forward = [later(each, 9_000_000 * (place >= half)) for place, each in enumerate(stretched)]
    clocks = compared(made(stretched), made(set_forward)).clocks
    assert {(each.least_ns, each.most_ns) for each in (clocks[0], clocks[-1])} == {(0, 0), (9000 * MS, 9000 * MS)}
    assert clocks[0].since_ns < clocks[-1].since_ns


def test_bytes_whose_acknowledgement_it_has_were_lost_by_the_capture(recording):
    packets, made = recording(SESSIONS)
    place = with_answer(packets)
    found = compared(made(packets), made(packets[:place] + packets[place + 1 :]))
    assert found.lacking_in_b.bytes == {**NOTHING, "lost_by_capture": packets[place].size}
    assert set(reasons(found.lacking_in_b, "packet")) == {"lost_by_capture"}
    assert (found.lacking_in_a.items, found.lacking_in_a.bytes) == ([], NOTHING)
    lacking = found.lacking_in_b.items[0].item.place
    assert (lacking.sequence, lacking.at_us) == (packets[place].sequence, packets[place].at)


def test_what_was_sent_again_was_lost_on_the_way(recording):
    packets, made = recording(SESSIONS)
    place = with_answer(packets)
    again = later(packets[place], STEP_US // 2)
    found = compared(made([*packets, again]), made(packets[:place] + packets[place + 1 :] + [again]))
    assert found.lacking_in_b.bytes == {**NOTHING, "on_the_way": packets[place].size}
    assert (found.lacking_in_b.items, found.lacking_in_a.items) == ([], [])
    assert found.lacking_in_a.bytes == NOTHING


@pytest.mark.parametrize(("copies", "cause"), [(1, "unknown"), (2, "on_the_way")])
def test_of_bytes_without_acknowledgement_only_sending_again_tells(recording, copies, cause):
    packets, made = recording(SESSIONS)
    place = with_answer(packets)
    lost = packets[place]
    others = [each for each in packets if each.pair != lost.pair]
    without = [*others, *(each for each in packets[:place] if each.pair == lost.pair)]
    whole = [*without, *(later(lost, number * STEP_US // 3) for number in range(copies))]
    found = compared(made(whole), made(without))
    assert found.lacking_in_b.bytes == {**NOTHING, cause: lost.size}
    assert set(reasons(found.lacking_in_b, "packet")) <= {cause}


def test_a_request_and_a_response_that_one_capture_lacks(recording):
    packets, made = recording(CALLS)
    for answers, half in ((False, "request"), (True, "response")):
        places = [place for place, each in enumerate(packets) if each.answers == answers and each.size > 60]
        place = places[len(places) // 2]
        found = compared(made(packets[:place] + packets[place + 1 :]), made(packets))
        assert found.lacking_in_a.bytes["lost_by_capture"] == packets[place].size
        lacking = [each for each in found.lacking_in_a.items if each.item.kind == "call"]
        assert [(each.item.text.split()[0], each.item.place.sequence, each.reason) for each in lacking] == [
            (half, packets[place].sequence, "lost_by_capture")
        ]
        assert found.lacking_in_b.items == []


def test_what_passed_before_and_after_a_capture_is_not_lost(recording):
    packets, made = recording(CALLS)
    third = len(packets) // 3
    found = compared(made(packets), made(packets[third : 2 * third], toward_us=9_000_000, back_us=9_000_000))
    assert found.lacking_in_b.bytes == NOTHING
    assert set(reasons(found.lacking_in_b, "call")) == {"other_hours"}
    assert found.lacking_in_b.count("call") > 10
    assert found.lacking_in_a.bytes == NOTHING


def test_other_traffic_has_nothing_in_common(recording):
    found = compared(*(made(packets) for packets, made in map(recording, (SESSIONS, CALLS))))
    assert (found.clocks, found.in_both) == ([], {"call": 0, "packet": 0, "message": 0})
    assert found.lacking_in_a.bytes == found.lacking_in_b.bytes == NOTHING


def segments(*begins, size=1000, acknowledges=-1):
    count = len(begins)
    columns = range(count), [begin % 2**32 for begin in begins], [acknowledges] * count, [size] * count
    return Segments(*(np.array(column, np.int64) for column in columns))


def test_sequence_numbers_count_from_0_again():
    """Six GiB, a segment every half of a GiB; one of them is lacking."""
    begins = [2**32 - 500 + place * 2**29 for place in range(12)]
    here, there = segments(*begins[:10], *begins[11:]), segments(*begins)
    acknowledging = replace(segments(*range(12)), acknowledgement=here.sequence[[*range(11), 10]] + 1000)
    found = lacking_bytes(here, there, acknowledging)
    assert found.count() == {**NOTHING, "lost_by_capture": 1000}
    assert found.cause_of(begins[10] % 2**32, 1) == "lost_by_capture"
    assert found.cause_of(begins[9] % 2**32, 1000) is None
    assert lacking_bytes(here, there, None).count() == {**NOTHING, "unknown": 1000}


def test_segments_may_be_cut_in_another_way():
    """Network cards of the sender join segments: a capture there has fewer and larger ones."""
    assert lacking_bytes(segments(0, 1000, 2000), segments(0, size=3000), None).count() == NOTHING
    assert lacking_bytes(segments(0, 2000), segments(0, size=3000), None).count() == {**NOTHING, "unknown": 1000}


def _lake(folder):
    return Lake(without_spark(), str(folder / "lake"))


@pytest.mark.parametrize(
    "name", one_in(2, [SESSIONS, "transfers/10-mid-stream.pcap", "sample/06-mid-stream.pcap", CALLS])
)
def test_what_is_compared_is_what_a_lake_has_of_the_capture(project, tmp_path, name):
    path = str(project / "data" / name)
    assert run_all.main(["--lake", str(tmp_path / "lake"), "--captures", path]) == 0
    lake = _lake(tmp_path)
    found = read_items(FileSource.from_path(path), ReadOptions())
    calls = lake.select(RPC_CALLS, "TRUE").to_pylist()
    halves = sum(row[f"{half}_sequence"] is not None for row in calls for half in ("request", "response"))
    assert len(found.items["call"]) == halves
    assert len(found.items["packet"]) == lake.select(SESSION_PACKETS, "TRUE").num_rows
    assert halves + len(found.items["packet"]) > 10


def test_captures_are_named_by_id_or_path(project, tmp_path, capsys):
    path = str(project / "data" / CALLS)
    lake = ["--lake", str(tmp_path / "lake")]
    assert run_all.main([*lake, "--captures", path]) == 0
    (name,) = _lake(tmp_path).select(CAPTURE_FILES, "TRUE")["capture_id"].to_pylist()
    capsys.readouterr()
    assert command.main([name, path, *lake]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"A  {path}: 147 packets, 2026-11-21 05:22:20 to ")
    assert any(line.startswith("clocks: B is ahead of A by 0.000 to 0.000 ms (") for line in lines)
    assert json.loads(summary)["lacking"] == {name: {"call": 0, "packet": 0, "message": 0} for name in "AB"}
    assert command.main(["0" * 32, path, *lake]) == 2
    assert capsys.readouterr().err == f"compare_taps: no capture of {tmp_path}/lake: {'0' * 32}\n"


def test_captures_of_a_redacted_lake_are_not_named_by_id(project, tmp_path, capsys, monkeypatch):
    path, lake = str(project / "data" / CALLS), ["--lake", str(tmp_path / "lake")]
    monkeypatch.setenv("MSMQ_REDACT_KEY", "0123456789abcdef0123")
    assert run_all.main([*lake, "--set", "privacy.redact=[labels,queues,hosts]", "--captures", path]) == 0
    capsys.readouterr()
    assert command.main([path, path, *lake]) == 2
    assert "names are redacted, and captures are not: give paths, no lake" in capsys.readouterr().err
    assert command.main([path, path]) == 0


def test_what_cannot_be_read_is_said_and_exit_3(project, tmp_path, capsys):
    path = str(project / "data" / CALLS)
    (tmp_path / "no \x1b[31m capture").write_bytes(b"\0" * 100)
    (tmp_path / "empty.pcap").write_bytes(b"")
    for other, said in (
        ("missing.pcap", "missing.pcap: No such file or directory"),
        ("no \x1b[31m capture", "<U+001B>[31m capture: unreadable: its first 24 bytes are zero"),
        ("empty.pcap", "empty"),
        ("", "no such file"),
    ):
        assert command.main([path, str(tmp_path / other)]) == 3
        streams = capsys.readouterr()
        assert said in streams.err
        assert "\x1b" not in streams.err + streams.out
        assert json.loads(streams.out)["exit_code"] == 3


def test_a_capture_that_is_cut_short_is_compared_as_far_as_it_goes(project, tmp_path, capsys):
    path = project / "data" / CALLS
    (tmp_path / "cut.pcap").write_bytes(path.read_bytes()[:-10])
    assert command.main([str(path), str(tmp_path / "cut.pcap"), "--json"]) == 0
    streams = capsys.readouterr()
    assert f"{tmp_path}/cut.pcap: partial: " in streams.err
    assert json.loads(streams.out.splitlines()[-1])["lacking"]["A"] == {"call": 0, "packet": 0, "message": 0}


def test_names_of_the_wire_are_escaped_and_rows_are_limited(recording, tmp_path, capsys):
    packets, made = recording(SESSIONS)
    one, other = tmp_path / "one.pcap", tmp_path / "other.pcap"
    one.write_bytes(made(packets).replace(b"s\0e\0s\0s\0", b"\x1b\0[\0\x2e\x20s\0"))
    other.write_bytes(made(packets[::3]))
    assert command.main([str(one), str(other), "--most", "5"]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert "more: --most, or --json for all" in out
    assert command.main([str(one), str(other), "--json"]) == 0
    *rows, summary = map(json.loads, capsys.readouterr().out.splitlines())
    counted = summary["lacking"]["B"]
    assert {kind: sum(row["kind"] == kind and row["lacking_in"] == "B" for row in rows) for kind in counted} == counted
