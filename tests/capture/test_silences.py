"""Silences of captures: where TCP timestamps show that the clock was set forward in them, and where they do not."""

import random
import shutil
import struct
import subprocess
from dataclasses import dataclass

import pytest

from capture.in_memory import read_captures
from pcapgen import containers, frames
from pcapgen.containers import Record
from pcapgen.record import SAMPLE
from pipeline.bronze.ledger_entries import lines_on_times_that_go_back
from udfs.capture.capture_reader import VOID, ReadOptions, read_capture, read_capture_batches
from udfs.capture.record_order import CLOCK_SET
from udfs.files.capture_file import CaptureFileReader
from udfs.files.file_source import FileSource
from udfs.tcp.packet_decoder import PacketDecoder
from udfs.tcp.timestamps import timestamp_values

START_NS = 1_764_000_000_000_000_000
MS, SECOND = 1_000_000, 1_000_000_000
CLIENT, SERVER = "10.1.0.1", "10.1.0.2"
STEPS = [31, 60, 3 * 3600]  # seconds


@dataclass
class Packet:
    """When a packet was really captured (ns), and the packet."""

    at: int
    frame: bytes


def option(value, echo=0):
    return b"\x01\x01\x08\x0a" + struct.pack(">II", value & 0xFFFFFFFF, echo)


def exchange(times, ticks=(MS, MS), *, port=40000, base=(7_000, 90_000), values=None, delays=None, payload=b"x" * 20):
    """A connection in which client and server say something in turn at each of some times, in ns since the start.

    ``ticks``: of the TSval of each, ns; None: without. ``values``: instead of that, by side, of a time and a number;
    ``delays``: by number of a packet, how much longer it takes to the capture.
    """
    out, sent = [], [1000, 5000]
    for number, at in enumerate(times):
        side = number % 2
        ends = ((CLIENT, port), (SERVER, 445))
        (source, sport), (target, dport) = ends[side], ends[1 - side]
        value = values(side, at, number) if values else base[side] + at // ticks[side] if ticks else None
        options = b"" if value is None else option(value)
        segment = frames.tcp(
            source, target, sport, dport, sent[side], sent[1 - side], frames.ACK | frames.PSH, payload, options
        )
        sent[side] += len(payload)
        out.append(Packet(at + (delays or {}).get(number, 0), frames.ethernet(frames.ipv4(source, target, segment))))
    return out


def talk(*silences, each_ms=7, turns=60, begin=0):
    """Times of packets: some before, between and behind silences of so many seconds."""
    times, at = [], begin
    for silence in (*silences, 0):
        times += [at + turn * each_ms * MS for turn in range(turns)]
        at = times[-1] + int(silence * SECOND)
    return times


def capture_of(*connections, steps=()):
    """A capture of connections; ``steps``: since when its clock is how much ahead, both in ns."""
    packets = sorted((each for packets in connections for each in packets), key=lambda each: each.at)
    ahead = [sum(by for since, by in steps if each.at >= since) for each in packets]
    taken = [Record(START_NS + each.at + by, each.frame) for each, by in zip(packets, ahead, strict=True)]
    return containers.pcap(taken, magic=containers.NANOSECONDS).data


def steps_of(capture, **options):
    found = read_capture(capture, **options)["capture_files"]["times_go_back"][0].as_py()
    assert all(step["cause"] == CLOCK_SET for step in found or ())
    return [(step["packet"], -step["back_us"] / 1e6) for step in found or ()]


@pytest.mark.parametrize("by_s", STEPS)
@pytest.mark.parametrize("tick_ms", [1, 4, 10])
def test_a_step_forward_is_found(tick_ms, by_s):
    times = talk(0.05)
    packets = exchange(times, (tick_ms * MS, MS))
    place = 60
    capture = capture_of(packets, steps=[(times[place], by_s * SECOND)])
    ((packet, size),) = steps_of(capture)
    assert packet == place + 1
    assert size == pytest.approx(by_s, abs=0.2)


@pytest.mark.parametrize("silence_s", [2, *STEPS])
@pytest.mark.parametrize("tick_ms", [1, 4, 10, 100, 1000])
def test_a_real_silence_is_none(tick_ms, silence_s):
    times = talk(silence_s, silence_s, turns=80)
    assert steps_of(capture_of(exchange(times, (tick_ms * MS, tick_ms * MS)))) == []


@pytest.mark.parametrize("by_s", STEPS[1:])
def test_a_step_in_a_real_silence_counts_as_far_as_time_did_not_pass(by_s):
    times = talk(5, 20, 5)
    capture = capture_of(exchange(times), steps=[(times[120], by_s * SECOND)])
    ((packet, size),) = steps_of(capture)
    assert packet == 121
    assert size == pytest.approx(by_s, abs=2)


def test_several_steps_are_told_apart():
    times = talk(5, 0.1, 5, 0.1, 5, 5)
    capture = capture_of(exchange(times), steps=[(times[120], 60 * SECOND), (times[240], 40 * SECOND)])
    assert steps_of(capture) == [(121, pytest.approx(60, abs=0.3)), (241, pytest.approx(40, abs=0.3))]


def test_where_many_silences_contradict_the_timestamps_the_times_are_those_of_no_clock():
    """As in a recording whose pauses were made longer."""
    times = talk(5, 0.1, 5, 0.1, 5)
    steps = [(times[120], 60 * SECOND), (times[240], 40 * SECOND)]
    assert len(steps_of(capture_of(exchange(times), steps=steps[:1]))) == 1
    assert steps_of(capture_of(exchange(times), steps=steps)) == []


def test_a_small_step_is_left_as_it_is():
    times = talk(0.05)
    assert steps_of(capture_of(exchange(times), steps=[(times[60], 20 * SECOND)])) == []


def test_without_timestamps_nothing_is_known():
    times = talk(0.05)
    assert steps_of(capture_of(exchange(times, None), steps=[(times[60], 60 * SECOND)])) == []


def random_values(seed):
    rest = random.Random(seed)
    return lambda *_: rest.getrandbits(32)


HOSTILE = {
    "random": random_values(3),
    "constant": lambda *_: 77,
    "zero": lambda *_: 0,
    "falling": lambda _side, _at, number: 10**9 - number,
    "much too fast": lambda _side, at, _number: at // 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_values_that_are_no_clock_say_nothing(name):
    times = talk(60)
    rewritten = exchange(times, values=HOSTILE[name])
    assert steps_of(capture_of(rewritten)) == []
    good = [exchange([at + 2 * MS for at in times], port=port) for port in (40001, 40002)]
    assert steps_of(capture_of(rewritten, *good)) == []
    ahead = [(times[60], 3600 * SECOND)]
    assert steps_of(capture_of(rewritten, *good, steps=ahead)) == [(181, pytest.approx(3600, abs=30))]


def stands(side, at, number):
    """TSvals that stand still while nothing is captured for a minute, as if a middle box kept time."""
    return 7_000 + (at if at < 30 * SECOND else at - 60 * SECOND) // MS


def test_the_majority_of_connections_decides():
    times = talk(60)
    lying = [exchange([at + port * 100_000 for at in times], port=40000 + port, values=stands) for port in range(3)]
    good = [exchange([at + port * 100_000 for at in times], port=40000 + port) for port in range(10, 13)]
    assert len(steps_of(capture_of(*lying, *good[:2]))) == 1
    assert steps_of(capture_of(*lying[:2], *good)) == []
    assert steps_of(capture_of(*lying, *good)) == []  # a tie


def test_a_host_that_slept_is_no_step():
    """The TSval of one end stands still; that of the other one shows that time passed."""
    times = talk(60)
    slept = exchange(times, values=lambda side, at, number: stands(side, at, number) if side == 0 else at // MS)
    assert steps_of(capture_of(slept)) == []


def test_packets_that_were_held_up_are_no_step():
    """For two seconds nothing comes through to the capture; the server answers when it has."""
    times = talk(0.01)
    late = times[:60] + [at + 2 * SECOND for at in times[60:]]
    held_up = exchange(late, values=lambda _side, at, number: (times[60] if number == 60 else at) // MS)
    assert steps_of(capture_of(held_up)) == []


def test_the_timestamp_wraps_around():
    times = talk(0.05)
    near_the_end = (2**32 - 300, 2**32 - 500)
    plain = capture_of(exchange(times, base=near_the_end))
    assert steps_of(plain) == []
    stepped = capture_of(exchange(times, base=near_the_end), steps=[(times[60], 60 * SECOND)])
    assert steps_of(stepped) == [(61, pytest.approx(60, abs=0.2))]


def keep_alives(packets, every, *, value):
    """Keep-alives of the client: the byte before the next one again, with a TSval that stands still."""
    out = []
    for at in every:
        segment = frames.tcp(
            CLIENT, SERVER, 40000, 445, 1000 + 20 * 30 - 1, 5000 + 20 * 30, frames.ACK, b"", option(value)
        )
        out.append(Packet(at, frames.ethernet(frames.ipv4(CLIENT, SERVER, segment))))
    return [*packets, *out]


def test_keep_alives_whose_timestamp_stands_still_say_nothing():
    times = talk(60)
    last = 7_000 + times[58] // MS
    every = [times[59] + each * 10 * SECOND for each in range(1, 6)]
    assert steps_of(capture_of(keep_alives(exchange(times), every, value=last))) == []


def test_blocks_and_an_early_look_do_not_matter():
    times = talk(5, 0.1, 5, turns=400)
    capture = capture_of(exchange(times), steps=[(times[800], 60 * SECOND)])
    right = steps_of(capture)
    assert right == [(801, pytest.approx(60, abs=0.3))]
    for size in (700, 5000, 60_000):
        assert steps_of(capture, block_bytes=size) == right
    for early in (False, True):
        options = ReadOptions(block_bytes=5000, order_first=early)
        kinds = [kind for kind, _ in read_capture_batches(FileSource.from_bytes(capture, "x"), options)]
        assert kinds.count(VOID) == 1
        assert not early or kinds[0] == VOID


def test_a_clock_that_was_set_back_and_forward():
    times = talk(0.05, 0.05)
    ahead = [(times[60], -20 * SECOND), (times[120], 60 * SECOND)]
    found = steps_of(capture_of(exchange(times), steps=ahead))
    assert found == [(61, pytest.approx(-20, abs=0.1)), (121, pytest.approx(60, abs=0.2))]


def timestamps(path):
    """The TSval of each TCP packet of a file, as the decoder has them; None without one."""
    out, decoder = [], PacketDecoder()
    with path.open("rb") as stream:
        for records in CaptureFileReader(stream, 1 << 20).read_blocks():
            segments = decoder.decode_block(records)
            values, found = timestamp_values(segments, records)
            out += [value if there else None for value, there in zip(values.tolist(), found.tolist(), strict=True)]
    return out


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
@pytest.mark.parametrize("name", ["01-remoteread-ndr.pcap", "07-faults-cancels-groups.pcap", "12-lookups.pcap"])
def test_timestamps_are_those_that_tshark_shows(name):
    path = SAMPLE / name
    command = ["tshark", "-n", "-r", str(path), "-Y", "tcp", "-T", "fields", "-e", "tcp.options.timestamp.tsval"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = timestamps(path)
    assert found == [int(each) if each else None for each in shown]
    assert any(found)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (b"\x01\x01\x08\x0a" + struct.pack(">II", 5, 6), 5),
        (b"\x02\x04\x05\xb4\x04\x02\x08\x0a" + struct.pack(">II", 2**32 - 1, 0) + b"\x01\x03\x03\x07", 2**32 - 1),
        (b"\x00\x01\x08\x0a" + struct.pack(">II", 5, 6), None),  # behind the end of the options
        (b"\x05\x00\x08\x0a" + struct.pack(">II", 5, 6), None),  # an option without a length
        (b"\x01\x01\x08\x0b" + struct.pack(">II", 5, 6), None),
        (b"\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x08\x0a", None),  # cut off
        (b"", None),
    ],
)
def test_options_of_any_order_and_damaged_ones(options, expected, tmp_path):
    segment = frames.tcp(CLIENT, SERVER, 1, 2, 3, 4, frames.ACK, b"payload", options)
    frame = frames.ethernet(frames.ipv4(CLIENT, SERVER, segment))
    path = tmp_path / "one.pcap"
    path.write_bytes(containers.pcap([Record(START_NS, frame)]).data)
    assert timestamps(path) == [expected]
    if options:
        cut = Record(START_NS, frame[: 14 + 20 + 20 + len(options) - 1], len(frame))
        path.write_bytes(containers.pcap([cut, Record(START_NS, frame)]).data)
        assert timestamps(path) == [None, expected]


def test_a_connection_attempt_before_a_step_has_not_waited():
    """A SYN counts as not answered where the capture goes on for 21 s: not by the step."""
    times = talk(0.05)
    syn = frames.tcp(CLIENT, SERVER, 50000, 1801, 77, 0, frames.SYN)
    attempt = [Packet(times[50], frames.ethernet(frames.ipv4(CLIENT, SERVER, syn)))]
    for by_s, silence_s, expected in ((60, 0.05, "too_early"), (0, 60, "no_answer")):
        times = talk(silence_s)
        capture = capture_of(exchange(times), attempt, steps=[(times[60], by_s * SECOND)])
        assert bool(steps_of(capture)) is (by_s > 0)
        for tables in (read_capture(capture), read_captures([[capture]])):
            assert tables["connections"]["not_established"].to_pylist() == [expected]


def test_a_run_says_how_far_a_clock_was_set_forward():
    times = talk(0.05)
    capture = capture_of(exchange(times), steps=[(times[60], 60 * SECOND)])
    row = read_capture(capture, path="one.pcap")["capture_files"].to_pylist()[0]
    (line,) = lines_on_times_that_go_back([row])
    assert line.startswith("one.pcap: the clock was set forward by up to 60.0")
    assert line.endswith(" s at packet 61; no duration is shown across it")
    assert row["resume"] is None  # it is read anew when it grows
