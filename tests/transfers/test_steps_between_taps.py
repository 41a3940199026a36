"""Recordings that two taps captured, the clock of one of which was set: only the other one shows it."""

from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations
from operator import attrgetter

import pytest

from capture.merge.cutting import cut
from capture.rewritten import closest, records_of, second_tap, set_back, set_forward, without_timestamps
from engines import without_spark
from example_counts import one_in
from jobs import run_all
from pcapgen.containers import pcap
from pcapgen.conversation import START_NS, Flow, Script, records, segments
from pcapgen.exchanges import SECOND
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.sources import ALERT_SOURCES, TimeWindow
from pipeline.arrow_rows import distinct_texts
from pipeline.findings.hops.hop_findings import HopFacts
from pipeline.findings.rules.registry import HOP_CHECKS
from pipeline.lake.lake import Lake
from schemas.bronze import CAPTURE_FILES
from schemas.findings import FINDINGS
from schemas.sessions import SENDINGS, SESSION_PACKETS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from transfers.conversations import establish, parameters, session_ack
from transfers.in_memory import transfers_of
from transfers.test_clocks_of_captures import ACKS, CAPTURE, STALL, counted, durations

MINUTES_US = 120_000_000
OFFSETS_US = [1500, -1500, -5_001_500, 100_000_000]


@cache
def taps(capture=CAPTURE, part=0.3, offset_us=1500, by_us=MINUTES_US):
    """Two captures of a recording, and the index of the first packet behind the place."""
    capture = without_timestamps(capture)
    place = closest(capture, part, part + 0.2)
    return capture, set_forward(second_tap(capture, offset_us), place, by_us), place


@cache
def right(capture=CAPTURE):
    return transfers_of([without_timestamps(capture)])


def steps_of(lake):
    rows = lake.rows(CAPTURE_FILES).sort_by("capture_id").to_pylist()
    return {row["capture_id"]: row["tap_steps"] for row in rows}


@pytest.mark.parametrize("part", one_in(2, [0.3, 0.6]))
@pytest.mark.parametrize("offset_us", OFFSETS_US)
def test_no_duration_and_no_conclusion_comes_from_a_step(part, offset_us):
    one, other, place = taps(part=part, offset_us=offset_us)
    lake = transfers_of([one, other])
    (first, second) = steps_of(lake).items()
    for (name, (step,)), (other_name, _) in ((first, second), (second, first)):
        assert step["other_capture_id"] == other_name != name
        assert step["last_packet"] <= place < step["first_packet"]
        assert step["by_us"] == MINUTES_US
    for table, columns in (
        (MESSAGE_TRANSFERS, ("message_id", "outcome", "sendings")),
        (SENDINGS, ("session_number", "recoverable_number", "surely_acknowledged", "acknowledgement_may_be_missing")),
        (SESSIONS, ("client_port", "outcome", "ended", "missing", "client_window_full_ms", "server_window_full_ms")),
        (FINDINGS, ("rule_id", "actual")),
    ):
        assert counted(lake, table, *columns) == counted(right(), table, *columns), str(table)
    expected, across = durations(right()), 0
    for name, (missing, found) in durations(lake).items():
        for duration, value in found.items():
            assert value is None or value == pytest.approx(expected[name][1][duration], abs=0.01), name
            if value is None and expected[name][1][duration] is not None:
                assert {"clock_step", "clocks_differ"} & {*missing}
                across += "clock_step" in missing
    assert across


def test_a_session_says_that_it_crosses_a_step():
    one, other, _ = taps()
    missing = transfers_of([one, other]).rows(SESSIONS)["missing"].to_pylist()
    assert sum("clock_step" in codes for codes in missing) == 1


@pytest.mark.parametrize("offset_us", OFFSETS_US[:3])  # a wait that goes on lasts until the newest packet of any tap
@pytest.mark.parametrize("by_us", one_in(2, [MINUTES_US, 3_600_000_000]))
@pytest.mark.parametrize("part", one_in(3, [0.15, 0.35, 0.75]))
def test_no_stall_is_longer_by_a_step(part, by_us, offset_us):
    one, other, _ = taps(STALL, part, offset_us, by_us)
    rows, expected = (
        lake.rows(TRANSFER_SEQUENCES).sort_by("sequence_key").to_pylist()
        for lake in (transfers_of([one, other]), right(STALL))
    )
    for row, was in zip(rows, expected, strict=True):
        assert len(row["stalls"] or ()) <= len(was["stalls"] or ())
        if "clock_step" in row["missing"]:
            assert row["longest_stall_s"] is None
        else:
            assert row["longest_stall_s"] == pytest.approx(was["longest_stall_s"], abs=0.1)
    assert any("clock_step" in row["missing"] for row in rows)
    assert len({row["confidence"] for row in rows if "clock_step" in row["missing"]} - {"partial"}) == 0


def test_a_silence_that_is_a_step_breaks_no_rule_and_ends_no_session():
    """An acknowledgement comes when it is due, by a clock that was set forward meanwhile: T18 does not hold."""
    for part in (0.15, 0.35, 0.6):
        for offset_us in (1500, -200_000_000):  # the tap whose clock was set is shown where it is earlier
            one, other, _ = taps(ACKS, part, offset_us)
            found, expected = transfers_of([one, other]), right(ACKS)
            assert counted(found, FINDINGS, "rule_id") - counted(expected, FINDINGS, "rule_id") == {}
            assert counted(found, SESSIONS, "ended") == counted(expected, SESSIONS, "ended")


@pytest.mark.parametrize("capture", [CAPTURE, STALL, ACKS], ids=["resends", "stall", "acks"])
def test_two_taps_whose_clocks_were_not_set_show_no_step(capture):
    capture = without_timestamps(capture)
    for other in (second_tap(capture, -(10**7)), second_tap(capture, 10**7, 1e-4, 5000)):
        lake = transfers_of([capture, other])
        assert set(steps_of(lake).values()) == {None}
        for table in (MESSAGE_TRANSFERS, SESSIONS, TRANSFER_SEQUENCES):
            assert not any("clock_step" in codes for codes in lake.rows(table)["missing"].to_pylist())


def test_two_captures_of_machines_whose_clocks_differ_in_one_file_show_no_step():
    """Records of two machines, one behind the other: the difference changes between connections, in none of them."""
    capture = without_timestamps(CAPTURE)
    records = records_of(capture)
    lake = transfers_of([capture, second_tap(capture)])
    first = min(row["last_packet_at"] for row in lake.rows(SESSIONS).to_pylist())
    place = next(index for index, (at, _) in enumerate(records) if at > first.timestamp() * 1e6 + 1000)
    lake = transfers_of([capture, set_forward(second_tap(capture), place, MINUTES_US)])
    assert set(steps_of(lake).values()) == {None}


def gold(root, *runs):
    """What runs over files say: rows of the ledger and of gold, without what tells of runs."""
    for files in runs:
        assert run_all.main(["--lake", str(root), "--captures", *map(str, files)]) == 0
    lake = Lake(without_spark(), str(root))
    tables = {
        CAPTURE_FILES: ("capture_id", "tap_steps"),
        SESSIONS: ("connection_id", "ended", "missing", "client_window_full_ms", "server_window_full_ms"),
        MESSAGE_TRANSFERS: None,
        TRANSFER_SEQUENCES: None,
        FINDINGS: ("rule_id", "actual", "evidence"),
    }
    found = {}
    for table, columns in tables.items():
        names = columns or [name for name in table.names if name != "run_id"]
        found[str(table)] = sorted(map(repr, lake.select(table, "TRUE", names).to_pylist()))
    return found


@pytest.mark.long
def test_runs_and_the_order_of_files_do_not_matter(tmp_path):
    one, other, place = taps(offset_us=-1500)
    files = []
    for number, content in enumerate([one, *cut(other, [place + 20])]):
        files.append(tmp_path / f"{number}.pcap")
        files[-1].write_bytes(content)
    at_once = gold(tmp_path / "once", files)
    assert any("clock_step" in row for row in at_once[str(MESSAGE_TRANSFERS)])
    assert sum("by_us" in row for row in at_once[str(CAPTURE_FILES)]) == 2
    for number, order in enumerate([*permutations(range(3))][1::3]):
        assert gold(tmp_path / f"lake{number}", *([files[place]] for place in order)) == at_once


def counted_by_clock(lake):
    """Sendings and resends by clock, as the alert ``resend_storm`` counts them."""
    source = ALERT_SOURCES["resends"].query(replace(Thresholds(), resends=1), TimeWindow(None, 10**16))
    found = {}
    for row in lake.query(source.sql, **source.inputs).to_pylist():
        sendings, resends = found.get(row["clock"], (0, 0))
        found[row["clock"]] = (sendings + row["sendings"], resends + row["resends"])
    return found


def test_resends_are_counted_by_clock():
    (expected,) = counted_by_clock(right()).values()
    assert counted_by_clock(right()).keys() == {None}
    one, other, _ = taps(offset_us=-1500)
    found = counted_by_clock(transfers_of([one, other]))
    assert len(found) > 1
    assert None not in found
    assert tuple(map(sum, zip(*found.values(), strict=True))) == expected
    back = set_back(without_timestamps(CAPTURE), closest(CAPTURE, 0.3, 0.5), 2_000_000)
    (left,) = counted_by_clock(transfers_of([back])).values()
    assert 0 < left[0] < expected[0]  # what was sent at times that the clock showed twice is left out


def test_which_of_two_sendings_was_first_is_not_concluded_from_several_clocks():
    """The first sending is shown by the tap that was earlier before the step, the second one by the other tap."""
    rows = right().rows(MESSAGE_TRANSFERS).to_pylist()
    assert any(row["sendings"] > 1 for row in rows)
    capture = without_timestamps(CAPTURE)
    lake = transfers_of([capture, second_tap(capture, -1500)])
    for row in lake.rows(MESSAGE_TRANSFERS).to_pylist():
        assert "clocks_differ" not in row["missing"]  # all rows are of one tap: the earlier one
    one, other, _ = taps(part=0.6, offset_us=-1500)
    unclear = [row for row in transfers_of([one, other]).rows(MESSAGE_TRANSFERS).to_pylist()
               if "clocks_differ" in row["missing"]]  # fmt: skip
    assert {row["sendings"] > 1 for row in unclear} == {True}
    assert {(row["session_ack_ms"], row["confidence"]) for row in unclear} == {(None, "partial")}


def handshakes_of(lake):
    """By client port the packet numbers of a session's request and answer, and how long the answer took."""
    found = {}
    for row in lake.rows(SESSION_PACKETS).to_pylist():
        if row["kind"] == "establish_connection":
            found.setdefault(row["client_port"], {}).setdefault(row["sent_by"], row["packet_number"])
    trips = {row["client_port"]: row["round_trip_ms"] for row in lake.rows(SESSIONS).to_pylist()}
    return {port: (numbers["client"], numbers["server"], trips[port]) for port, numbers in found.items()}


@pytest.mark.parametrize("offset_us", [1500, -1500])
def test_a_round_trip_across_a_step_is_not_known_and_no_other_one_changes(offset_us):
    known = {port: each for port, each in handshakes_of(right()).items() if each[2] is not None}
    port, (asked, answered, _) = sorted(known.items())[len(known) // 2]
    capture = without_timestamps(CAPTURE)
    other = set_forward(second_tap(capture, offset_us), answered - 1, MINUTES_US)
    lake = transfers_of([capture, other])
    assert any(step["last_packet"] <= asked and answered <= step["first_packet"] for (step,) in steps_of(lake).values())
    for name, (_, _, trip) in handshakes_of(lake).items():
        expected = pytest.approx(known[name][2], abs=0.01) if name in known and name != port else None
        assert trip == expected


def session_of(port, uptime_ms, packets_at):
    """Packets of a session whose initiator's machine has run for a time; the sides acknowledge in turn, at seconds."""
    script = Script()
    for side, packet in ((0, establish(uptime=uptime_ms)), (1, establish(uptime=uptime_ms)),
                         (0, parameters()), (1, parameters())):  # fmt: skip
        script.send(side, packet)
    begins, *later = packets_at
    for place, (last, at) in enumerate(pairwise((begins, *later))):
        script.send(place % 2, session_ack(), (at - last) * SECOND)
    flow = Flow(client_port=port, server_port=1801)
    return records(flow, segments(script, closed=False, start_ns=START_NS + begins * SECOND))


@pytest.mark.parametrize(("started_later_s", "expected"), [(0, []), (1000, ["O07"])])
@pytest.mark.parametrize("by_us", [0, MINUTES_US])
def test_a_step_makes_no_second_machine_and_hides_none(started_later_s, expected, by_us):
    """A session goes on from before the clock was set; another one, of a machine started then or later, begins behind.

    A minute of more uptime is another machine start. The other capture has the first session alone, which shows the
    step: it has the request of one machine only, so that no packets of two captures are compared.
    """
    shows = session_of(50_001, 10**7, range(0, 400, 10))
    lasts = session_of(50_002, 10**7 + 20_000, range(20, 420, 10))
    later = session_of(50_003, 10**7 + (200 - started_later_s) * 1000, range(200, 240, 10))
    by_time = attrgetter("time_ns")
    capture = pcap(sorted([*shows, *lasts, *later], key=by_time)).data
    place = next(index for index, (at, _) in enumerate(records_of(capture)) if at * 1000 > START_NS + 150 * SECOND)
    lake = transfers_of([set_forward(capture, place, by_us), second_tap(pcap(shows).data)])
    assert [bool(steps) for steps in steps_of(lake).values()] == [bool(by_us)] * 2
    facts = HopFacts(lake, distinct_texts(lake.rows(SESSIONS)["connection_id"]), 10**6)
    assert [each.rule_id for each in HOP_CHECKS for _ in each.check(facts) if each.rule_id == "O07"] == expected
