"""Rules on the binary protocol: each is broken by one conversation, and kept by a similar one."""

import datetime as dt
import struct
from dataclasses import replace

import pyarrow as pa
import pytest

from engines import shared_sql, without_spark
from messages.building import SOURCE
from pipeline.findings import (
    evaluate,  # noqa: F401 - its import registers the other checks
    update_sessions,
)
from pipeline.findings.hops import update_hops
from pipeline.findings.hops.cloned_machines import HandshakeRequest, find_clones
from pipeline.findings.hops.hop_findings import HopFacts
from pipeline.findings.rules.registry import HOP_CHECKS, PACKET_CHECKS, SESSION_CHECKS
from pipeline.findings.session_checkpoints import EvaluatedSpan
from pipeline.findings.session_findings import EVALUATED_MESSAGES_SQL, evaluate_sessions, read_facts
from pipeline.findings.stage_session_findings import FindingStaging
from pipeline.lake.lake import Lake
from pipeline.transfers import update as sessions_update
from pipeline.transfers.connection_packets import arrange_packets
from pipeline.transfers.messages import update_messages
from pipeline.transfers.sequences import update_sequences
from pipeline.transfers.session_rows import SessionSettings, session_rows
from schemas.bronze import CAPTURE_FILES, CONNECTIONS
from schemas.findings import FINDINGS
from schemas.sessions import SESSION_PACKETS
from transfers.conversations import (
    CAPTURE,
    CLIENT,
    SERVER,
    START,
    Conversation,
    acknowledgement,
    bronze,
    capture_file,
    establish,
    message,
    session_ack,
    table_of,
)
from transfers.in_memory import transfers_of_bronze
from transfers.session_stories import SEQUENCE, STORIES, handshake, messages_then
from udfs.keys import key
from udfs.messages.message_decoder import decode_messages

ENDS = {SERVER: round(START.timestamp() * 1e6) + 10**9}


def findings(talk, not_packets=None):
    """The findings on one conversation, in memory."""
    tables = bronze([talk])
    packets, connections = tables[SESSION_PACKETS], tables[CONNECTIONS]
    raw = packets["packet"].to_pylist()
    columns = {
        "user_flags": pa.array([each[60:64] for each in raw], pa.binary()),
        "packet_bytes": pa.array([len(each) for each in raw], pa.int64()),
        "reach": pa.array([each[12:16] for each in raw], pa.binary()),
        "delivery": pa.nulls(len(raw), pa.string()),
        "transactional": pa.nulls(len(raw), pa.bool_()),
    }
    for name, column in columns.items():
        packets = packets.append_column(name, column)
    found = arrange_packets(packets, [talk.name], 10**15)
    sessions = session_rows(connections, found, ENDS, {}, SessionSettings(), "run")
    messages = [row for row in talk.rows if row["kind"] == "user_message"]
    decoded = decode_messages(pa.array([row["packet"] for row in messages], pa.binary()), "binary_protocol")
    decoded["packet_key"] = pa.array([row["packet_key"] for row in messages], pa.string())
    facts = read_facts(found, connections, sessions, judged_messages(pa.table(decoded)), ENDS, not_packets)
    return evaluate_sessions(*facts, EvaluatedSpan(), "run").to_pylist()


def judged_messages(messages):
    """Those of the conditions that rules declare: in production no others are read."""
    return shared_sql().answer(f"SELECT * FROM {{rows}} WHERE {EVALUATED_MESSAGES_SQL}", {"rows": messages})


def test_each_rule_has_its_stories():
    assert {check.rule_id for check in (*PACKET_CHECKS, *SESSION_CHECKS)} == {*STORIES, "T01"}


def test_bytes_that_are_no_packet_are_the_finding_of_the_packet_before_them():
    talk = handshake()
    last = talk.rows[2]  # the client's second packet
    seen = START + dt.timedelta(seconds=1)
    ends = (CLIENT, 40_000, SERVER, 1801, last["tcp_sequence"] + last["length_bytes"])
    for reason, expected in (("not_a_packet", [last["packet_key"]]), ("capture_loss", [])):
        name = key(*ends, round(seen.timestamp() * 1e6), reason)
        stray = pa.table({"connection_id": ["connection"], "quarantine_key": [name], "seen_at": [seen]})
        assert [row["packet_key"] for row in findings(talk, stray) if row["rule_id"] == "T01"] == expected


@pytest.mark.parametrize("rule", STORIES)
def test_the_violating_conversation_is_found(rule):
    found = [row for row in findings(STORIES[rule][0]) if row["rule_id"] == rule]
    assert found
    keys = {row["packet_key"] for row in STORIES[rule][0].rows}
    for row in found:
        assert row["packet_key"] in keys
        assert row["packet_key"] in row["evidence"]
        assert row["call_key"] is None


@pytest.mark.parametrize("rule", STORIES)
def test_the_innocent_conversation_is_not(rule):
    assert [row for row in findings(STORIES[rule][1]) if row["rule_id"] == rule] == []


def test_a_plain_conversation_has_no_finding():
    talk = messages_then(("server", "session_ack", session_ack(ack=3), 9), closed=(10, "fin"))
    assert findings(talk) == []


@pytest.mark.parametrize("rule", ["T12", "T14", "T17", "T18"])
def test_a_side_that_is_not_whole_is_not_judged(rule):
    talk = STORIES[rule][0]
    for change in ({"missing": 1}, {"syn_seen": False}):
        before = {name: getattr(talk, name) for name in change}
        for name, value in change.items():
            setattr(talk, name, value)
        assert [row for row in findings(talk) if row["rule_id"] == rule] == []
        for name, value in before.items():
            setattr(talk, name, value)


def test_findings_follow_sessions_in_the_lake(tmp_path):
    lake = Lake(without_spark(), str(tmp_path / "lake"))
    broken, well = STORIES["T10"]
    for talk, count in ((broken, 1), (well, 0)):
        for table, rows in bronze([talk]).items():
            lake.replace(table, rows)
        sessions_update.update(lake, "run")
        assert update_sessions.update(lake, "run") == count
        assert update_sessions.update(lake, "run") == 0
        found = lake.select(FINDINGS, "TRUE").to_pylist()
        assert [row["rule_id"] for row in found] == ["T10"] * count
    assert handshake().rows


def in_the_lake(lake, talks, ends, monkeypatch):
    """Update a lake in which captures of servers end at some seconds; return rules found, and sessions evaluated."""
    tables = bronze(talks)
    tables[CAPTURE_FILES] = table_of(
        CAPTURE_FILES, [capture_file(at, server) | {"servers": [server]} for server, at in ends.items()]
    )
    for table, rows in tables.items():
        lake.replace_changed(table, rows, lake.select(table, "TRUE"), dates={*rows["event_date"].to_pylist()})
    evaluated = []
    with monkeypatch.context() as patch:
        stage = FindingStaging.stage
        patch.setattr(
            FindingStaging, "stage", lambda of, *given: evaluated.extend(given[1].to_pylist()) or stage(of, *given)
        )
        sessions_update.update(lake, "run")
        update_sessions.update(lake, "run")
    found = lake.select(FINDINGS, "TRUE").to_pylist()
    return {(row["rule_id"], row["connection_id"]) for row in found}, sorted(evaluated)


def test_open_sessions_are_evaluated_again_where_captures_end_at_another_time(tmp_path, monkeypatch):
    """Time alone can break T18: by the captures of the same server, those of another one change nothing."""
    lake, other = Lake(without_spark(), str(tmp_path / "lake")), "10.9.9.9"
    for table in (SESSION_PACKETS, CONNECTIONS, CAPTURE_FILES):
        lake.create(table)
    talks, both = [], ["here", "there"]
    for name, server in zip(both, (SERVER, other), strict=True):
        rows = [
            {**row, "connection_id": name, "packet_key": name + row["packet_key"], "server_address": server}
            for row in STORIES["T18"][0].rows
        ]
        talks.append(replace(STORIES["T18"][0], name=name, server=server, rows=rows))
    assert in_the_lake(lake, talks, {SERVER: 5, other: 5}, monkeypatch) == (set(), both)
    assert in_the_lake(lake, talks, {SERVER: 5, other: 6}, monkeypatch) == (set(), ["there"])
    assert in_the_lake(lake, talks, {SERVER: 200, other: 6}, monkeypatch) == ({("T18", "here")}, ["here"])
    assert in_the_lake(lake, talks, {SERVER: 5, other: 6}, monkeypatch) == (set(), ["here"])


def in_sequence(number, sequence):
    return message(number, transaction=(0, sequence, 1, 0), flags=0)


LATE = message(1, sent=int(START.timestamp()) - 60, reach=40)


def hop_rows_of(tmp_path, *steps):
    """The rows of the findings over several sessions after each step: conversations that bronze has then."""
    lake = Lake(without_spark(), str(tmp_path / "lake"))
    for talks in steps:
        for table, rows in bronze(talks).items():
            current = lake.select(table, "TRUE") if lake.exists(table) else rows.slice(0, 0)
            dates = {*rows["event_date"].to_pylist(), *current["event_date"].to_pylist()}
            lake.replace_changed(table, rows, current, dates=dates)
        sessions_update.update(lake, "run")
        update_hops.update_clones(lake, "run")
        update_messages.update(lake, "run")
        update_sequences.update(lake, "run")
        update_hops.update(lake, "run")
        yield lake.select(FINDINGS, "scope = 'hop'").to_pylist()


def hop_findings_of(tmp_path, *steps):
    """Rules and connections of these rows."""
    for found in hop_rows_of(tmp_path, *steps):
        yield sorted((row["rule_id"], row["connection_id"]) for row in found)


def session(name, port, *packets, client=CLIENT, shown=True, capture=CAPTURE):
    """A conversation in a capture; ``client``: the client's address; ``shown``: its handshake was captured."""
    talk = Conversation(name, port, client=client)
    handshake_packets = [
        ("client", "establish_connection", establish(client=SOURCE), 0),
        ("server", "establish_connection", establish(client=SOURCE), 0),
    ]
    for side, kind, raw, at in [*(handshake_packets if shown else ()), *packets]:
        talk.say(side, kind, raw, at, capture=capture)
    return talk


def test_order_acks_that_fall_over_two_sessions(tmp_path):
    first = session("first", 1, ("server", "order_ack", acknowledgement(SEQUENCE, 5), 10))
    second = session("second", 2, ("server", "order_ack", acknowledgement(SEQUENCE, 4), 20))
    other = session("other", 3, ("server", "order_ack", acknowledgement(SEQUENCE + 1, 4), 20))
    steps = [second], [first, second, other], [second, other]
    assert list(hop_findings_of(tmp_path, *steps)) == [[], [("T21", "second")], []]


def test_a_source_that_goes_back_to_a_lower_sequence(tmp_path):
    first = session("first", 1, ("client", "user_message", in_sequence(1, SEQUENCE + 1), 10))
    second = session("second", 2, ("client", "user_message", in_sequence(2, SEQUENCE), 20))
    again = session("again", 3, ("client", "user_message", in_sequence(2, SEQUENCE), 30))
    steps = [second, again], [first, second, again]
    assert list(hop_findings_of(tmp_path, *steps)) == [[], [("T23", "second")]]


FALLS = ("server", "order_ack", acknowledgement(SEQUENCE, 5)), ("server", "order_ack", acknowledgement(SEQUENCE, 4))
GOES_BACK = (
    ("client", "user_message", in_sequence(1, SEQUENCE + 1)), ("client", "user_message", in_sequence(2, SEQUENCE))
)  # fmt: skip
TWO = "d" * 32
AT_ONE_TIME, IN_TURN = [(CAPTURE, -1, 900), (TWO, -1, 900)], [(CAPTURE, -1, 15), (TWO, 15, 900)]


def hop_findings_at_once(talks, captures):
    """The same of conversations in captures, each its name, and when it begins and ends, in seconds: in memory."""
    lake = transfers_of_bronze({table.name: rows for table, rows in bronze(talks, captures=captures).items()})
    facts = HopFacts(lake, pa.array([talk.name for talk in talks], pa.string()), 10**6)
    return sorted((each.rule_id, found.row["connection_id"]) for each in HOP_CHECKS for found in each.check(facts))


@pytest.mark.parametrize(("rule", "packets"), [("T21", FALLS), ("T23", GOES_BACK)])
@pytest.mark.parametrize(
    ("captures", "later", "found"),
    [
        (AT_ONE_TIME, 20, False),  # of two taps, whose clocks are not known
        (AT_ONE_TIME, 400, True),  # no two clocks are so far apart
        (IN_TURN, 20, True),  # files of a ring
    ],
)
def test_sessions_in_captures_of_several_clocks(rule, packets, captures, later, found):
    first = session("first", 1, (*packets[0], 10))
    second = session("second", 2, (*packets[1], later), capture=TWO)
    assert hop_findings_at_once([first, second], captures) == ([(rule, "second")] if found else [])


@pytest.mark.parametrize(("rule", "packets"), [("T21", FALLS), ("T23", GOES_BACK)])
def test_packets_of_one_direction_of_a_session_are_in_the_order_of_its_bytes(rule, packets):
    only = session("only", 1, (*packets[0], 10))
    only.say(*packets[1], 20, capture=TWO)
    assert hop_findings_at_once([only], AT_ONE_TIME) == [(rule, "only")]


def test_a_capture_that_saw_another_session_side_by_side_is_a_tap():
    first = session("first", 1, (*FALLS[0], 10))
    second = session("second", 2, (*FALLS[1], 20), capture=TWO)
    both = session("both", 3, ("client", "user_message", message(7), 30))
    for at in (25, 35):
        both.say("client", "user_message", message(8), at, capture=TWO)
    assert hop_findings_at_once([first, second], IN_TURN) == [("T21", "second")]
    assert hop_findings_at_once([first, second, both], IN_TURN) == []


@pytest.mark.parametrize(("started_later", "expected"), [(90, []), (600, ["O07"])])
def test_one_machine_in_captures_of_two_clocks_is_not_two(started_later, expected):
    """Its sessions are captured in turns by two taps; by the clock of one of them it was started later."""
    talks = []
    for number in range(4):
        at, later, capture = 700 * number, started_later * (number % 2), (CAPTURE, TWO)[number % 2]
        talk = Conversation(f"talk {number}", 1 + number)
        for side in ("client", "server"):
            raw = establish(client=SOURCE, uptime=1_000_000 + at * 1000)
            talk.say(side, "establish_connection", raw, at + later, capture=capture)
        talks.append(talk)
    assert [rule for rule, _ in hop_findings_at_once(talks, AT_ONE_TIME)] == expected
    same = [replace(talk, rows=[row | {"capture_id": CAPTURE} for row in talk.rows]) for talk in talks]
    assert [rule for rule, _ in hop_findings_at_once(same, [(CAPTURE, -1, 900)])] == ["O07"]


def test_a_message_that_another_tap_may_have_seen_sent_before():
    timely = session("timely", 1, ("client", "user_message", LATE, 60), capture=TWO)  # by a clock that is ahead
    late = session("late", 2, ("client", "user_message", LATE, 0))
    assert hop_findings_at_once([late], AT_ONE_TIME) == [("T26", "late")]
    assert hop_findings_at_once([late, timely], AT_ONE_TIME) == []


def test_a_message_whose_time_is_over_is_sent(tmp_path):
    now = int(START.timestamp())
    late = session("late", 1, ("client", "user_message", message(1, sent=now - 60, reach=40), 0))
    timely = session("timely", 2, ("client", "user_message", message(1, sent=now - 60, reach=40), -20))
    assert list(hop_findings_of(tmp_path, [late], [late, timely])) == [[("T26", "late")], []]


EXPIRED = FALLS[0], ("client", "user_message", LATE)


@pytest.mark.parametrize(("rule", "packets"), [("T23", GOES_BACK), ("T26", EXPIRED)])
@pytest.mark.parametrize(
    ("at", "size", "missing"),
    [
        (12, 400, ["capture_loss"]),
        (12, 60, []),  # no message is so small
        (30, 400, []),  # behind it
    ],
)
def test_a_hole_that_may_hold_an_earlier_sending_makes_findings_on_the_first_partial(rule, packets, at, size, missing):
    lossy = session("lossy", 1, (*packets[0], 10), ("client", "session_ack", session_ack(), at - 1))
    lossy.skip("client", size)
    lossy.say("client", "session_ack", session_ack(), at + 1)
    later = session("later", 2, (*packets[1], 20))
    lake = transfers_of_bronze({table.name: rows for table, rows in bronze([lossy, later]).items()})
    (found,) = [row for row in lake.rows(FINDINGS).to_pylist() if row["rule_id"] == rule]
    assert (found["connection_id"], found["missing"]) == ("later", missing)
    assert found["confidence"] == ("partial" if missing else "complete")


def test_a_hole_may_come_and_be_filled_later(tmp_path):
    lossy, filled, late = session("talk", 1), session("talk", 1), session("late", 2, (*EXPIRED[1], 20))
    lossy.skip("client", len(message(9)))
    filled.say("client", "user_message", message(9), 12)
    for talk in (lossy, filled):
        talk.say("client", "session_ack", session_ack(), 13)
    found = list(hop_rows_of(tmp_path, [late], [lossy, late], [filled, late]))
    assert [[(row["rule_id"], row["missing"]) for row in rows] for rows in found] == [
        [("T26", [])], [("T26", ["capture_loss"])], [("T26", [])]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "by_address", "by_queue_manager"),
    [
        (
            ("server", "order_ack", acknowledgement(SEQUENCE, 5), 10),
            ("server", "order_ack", acknowledgement(SEQUENCE, 4), 20),
            [], [("T21", "other")],
        ),
        (
            ("client", "user_message", LATE, 0), ("client", "user_message", LATE, 20),
            [("T26", "one"), ("T26", "other")], [("T26", "one")],
        ),
    ],
)  # fmt: skip
def test_a_handshake_read_later_shows_that_two_addresses_are_one_hop(
    tmp_path, one, other, by_address, by_queue_manager
):
    sent = ("client", "user_message", in_sequence(2, SEQUENCE), 1)
    carries = [sent] if one[1] == "order_ack" else []  # so that the sequence has a row
    first = session("one", 1, *carries, one)
    second = session("other", 2, *carries, other, client="10.0.0.9", shown=False)
    shows = session("shows", 3, client="10.0.0.9")
    steps = [first, second], [first, second, shows]
    assert list(hop_findings_of(tmp_path, *steps)) == [by_address, by_queue_manager]


def test_a_source_that_goes_back_from_another_address(tmp_path):
    first = session("first", 1, ("client", "user_message", in_sequence(1, SEQUENCE + 1), 10))
    second = session("second", 2, ("client", "user_message", in_sequence(2, SEQUENCE), 20), client="10.0.0.9")
    assert list(hop_findings_of(tmp_path, [first], [first, second])) == [[], [("T23", "second")]]


def test_an_acknowledgement_is_judged_where_its_message_was_certainly_sent_before():
    """Planted: by the clock of another tap, which may be ahead, the acknowledgement came after a message like it."""
    correlation = SOURCE.bytes_le + struct.pack("<I", 1)
    asks_not, asks = (("client", "user_message", message(1, acknowledge=flags)) for flags in (2, 1))

    def found(captures, at, *messages):
        ack = session(
            "ack", 2, ("server", "user_message", message(9, kind=2, correlation=correlation), at), capture=TWO
        )
        talks = [session(f"asks {n}", 3 + n, (*sent, 1), capture=capture) for n, (sent, capture) in enumerate(messages)]
        return hop_findings_at_once([*talks, ack], captures)

    judged = [("T28", "ack")]
    assert found(IN_TURN, 20, (asks_not, CAPTURE)) == judged
    assert found(AT_ONE_TIME, 20, (asks_not, CAPTURE)) == []
    assert found(AT_ONE_TIME, 20, (asks_not, TWO)) == judged
    assert found(AT_ONE_TIME, 400, (asks_not, CAPTURE)) == judged
    assert found(AT_ONE_TIME, 20, (asks_not, TWO), (asks, CAPTURE)) == []


def test_an_acknowledgement_that_nobody_asked_for(tmp_path):
    asked = [session("asks", 1, ("client", "user_message", message(1, acknowledge=flags), 1)) for flags in (1, 2)]
    correlation = SOURCE.bytes_le + struct.pack("<I", 1)
    ack = session("ack", 2, ("server", "user_message", message(9, kind=2, correlation=correlation), 2))
    steps = [ack], [ack, asked[1]], [ack, asked[0]]
    assert list(hop_findings_of(tmp_path, *steps)) == [[], [("T28", "ack")], []]


def test_an_acknowledgement_is_not_judged_by_packets_without_a_time():
    """Simple packet blocks of pcapng have none."""

    def untimed(talk):
        talk.rows[-1] |= {"sent_at": None, "sent_done_at": None}
        return talk

    asked_not, asked = (
        ("client", "user_message", message(1, acknowledge=flags), at) for flags, at in ((2, 1), (1, 1.5))
    )
    correlation = SOURCE.bytes_le + struct.pack("<I", 1)
    answer = ("server", "user_message", message(9, kind=2, correlation=correlation), 2)
    before, ack = session("asks", 1, asked_not), session("ack", 2, answer)
    assert hop_findings_at_once([before, ack], captures=()) == [("T28", "ack")]
    for talks in (
        [before, untimed(session("ack", 2, answer))],
        [untimed(session("asks", 1, asked_not)), ack],
        [before, ack, untimed(session("asks too", 3, asked))],
    ):
        assert hop_findings_at_once(talks, captures=()) == []


def request(name, at, started, *, lasts=1):
    """A request ``at`` some seconds of a machine that was ``started`` then; its session lasts for some seconds."""
    return HandshakeRequest(name, at * 1_000_000, (at - started) * 1000 % (1 << 32), (at + lasts) * 1_000_000)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([("a", 100, 0), ("b", 200, 90), ("c", 300, 0), ("d", 400, 90)], ["d"]),
        ([("a", 100, 0), ("b", 200, 59), ("c", 300, 0), ("d", 400, 59)], []),  # clocks differ
        ([("a", 100, 0), ("b", 200, 90), ("c", 300, 250), ("d", 400, 350)], []),  # it starts again and again
        ([("a", 100, 0), ("b", 200, 90), ("c", 300, 0)], []),
        ([("a", 100, 0), ("b", 86_000, 90), ("c", 86_100, 0), ("d", 86_501, 90)], []),
        ([("a", 5_000_000, 0), ("b", 5_000_100, 90), ("c", 5_000_200, 0), ("d", 5_000_300, 90)], ["d"]),  # wrapped
    ],
)
def test_machine_starts_that_take_turns(requests, expected):
    assert [found.request.packet_key for found in find_clones([request(*each) for each in requests])] == expected


def test_sessions_of_two_machine_starts_that_overlap():
    for lasts, expected in ((160, ["b"]), (159, [])):
        requests = [request("a", 100, 0, lasts=lasts), request("b", 200, 90)]
        assert [found.request.packet_key for found in find_clones(requests)] == expected


def test_cloned_machines_in_the_lake(tmp_path):
    talks = []
    for number, (at, uptime) in enumerate([(0, 10**6), (100, 10**7), (200, 10**6 + 200_000), (300, 10**7 + 200_000)]):
        talk = Conversation(f"session {number}", 50_000 + number)
        talk.say("client", "establish_connection", establish(client=SOURCE, uptime=uptime), at)
        talks.append(talk)
    steps = talks[:3], talks
    assert list(hop_findings_of(tmp_path, *steps)) == [[], [("O07", "session 3")]]
