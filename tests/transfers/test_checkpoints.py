"""Long sessions: runs and rounds that go on from checkpoints give the tables that are computed from all packets."""

from random import Random

import pytest

import example_rows
from engines import without_spark
from example_counts import seeds
from pipeline.findings import session_checkpoints, update_sessions
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.transfers import checkpoint_cuts, connection_rounds, inputs, stage_connections
from pipeline.transfers import update as sessions_update
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import FINDING_CHECKPOINTS, ORDER_ACKS, SENDINGS, SESSION_CHECKPOINTS, SESSIONS
from transfers.conversations import Conversation, acknowledgement, establish, message, parameters, session_ack
from transfers.long_sessions import SEQUENCE, long_session, parts, seen_so_far
from transfers.test_update import load, load_decoded, rows, update

TABLES = (SESSIONS, ORDER_ACKS, SENDINGS, MESSAGES, FINDINGS)
CHECKPOINTS = (SESSION_CHECKPOINTS, FINDING_CHECKPOINTS)


@pytest.fixture
def lake(tmp_path):
    return lake_at(tmp_path / "lake")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(checkpoint_cuts, "MIN_PACKETS", 5)


@pytest.fixture(params=[pytest.param(10**9, id="runs"), pytest.param(25, id="rounds", marks=pytest.mark.long)])
def cut(request, small, monkeypatch):
    """A session is cut between runs, or between rounds too."""
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", request.param)


def lake_at(path):
    return Lake(without_spark(), str(path))


@pytest.fixture
def read(monkeypatch):
    """How many packets silver and the findings have read of sessions, each time."""
    counts = []
    arrange = inputs.arrange_packets

    def spy(packets, *given):
        counts.append(packets.num_rows)
        return arrange(packets, *given)

    monkeypatch.setattr(inputs, "arrange_packets", spy)
    return counts


def run(lake, talks, ends_at):
    load(lake, talks, ends_at)
    update(lake)
    update_sessions.update(lake, "run")


def tables(lake):
    return {str(table): rows(lake, table) for table in TABLES}


def anew(tmp_path, talks, ends_at):
    """The tables that one run makes of all packets."""
    lake = lake_at(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_cuts, "MIN_PACKETS", 10**9)
        patch.setattr(connection_rounds, "ROUND_PACKETS", 10**9)
        run(lake, talks, ends_at)
    assert not any(rows(lake, table) for table in CHECKPOINTS)
    return tables(lake)


@pytest.mark.parametrize("seed", seeds(1, 30))
def test_runs_with_checkpoints_give_the_tables_of_one_run(tmp_path, small, monkeypatch, seed):
    """Also where connections are computed in tasks."""
    if seed % 2:
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", 1)
    draw = Random(seed)
    talk = long_session(draw)
    lake = lake_at(tmp_path / "kept")
    for number, seen in enumerate(parts(draw, talk)):
        ends_at = seen.last + draw.choice([0, 0, 50, 2000])
        run(lake, [seen], ends_at)
        assert tables(lake) == anew(tmp_path / str(number), [seen], ends_at), number


@pytest.fixture
def rounds(monkeypatch):
    """How many connections each round stages, and how many of them get a checkpoint for the next one."""
    counts = []
    stage = stage_connections.stage_groups

    def spy(lake, folder, queries, *given, **said):
        found = stage(lake, folder, queries, *given, **said)
        counts.append((said["label"], found["counted_until"].is_valid().to_pylist().count(True)))
        return found

    monkeypatch.setattr(stage_connections, "stage_groups", spy)
    return counts


@pytest.mark.parametrize("seed", seeds(1, 30))
def test_rounds_give_the_tables_of_one_round(tmp_path, monkeypatch, rounds, seed):
    """Also behind checkpoints of other runs, and where connections are computed in tasks."""
    draw = Random(seed)
    size, least = draw.choice([(3, 2), (7, 3), (12, 5), (30, 5)])
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", size)
    monkeypatch.setattr(checkpoint_cuts, "MIN_PACKETS", least)
    if seed % 2:
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", 1)
    talk = long_session(draw)
    lake = lake_at(tmp_path / "kept")
    for number, seen in enumerate([*parts(draw, talk, runs=2)][draw.randrange(2) :]):
        ends_at = seen.last + draw.choice([0, 0, 50, 2000])
        run(lake, [seen], ends_at)
        assert tables(lake) == anew(tmp_path / str(number), [seen], ends_at), number
    assert len(rounds) > 2


def test_a_long_session_is_read_in_rounds(lake, tmp_path, small, read, rounds, monkeypatch):
    """Each reads one portion more than was counted before; others are done in the first round."""
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", 40)
    talk, other = steady(200), steady(5, name="other", port=40_001)
    run(lake, [talk, other], 200)
    silver, findings = (rounds[begin:end] for begin, end in zip(*_first_rounds(rounds), strict=True))
    assert [made for _, made in silver] == [1] * (len(talk.rows) // 40) + [0]
    assert sum(made for _, made in findings) >= 4
    assert read[0] == 40 + len(other.rows)
    assert max(read[1 : len(silver)]) <= 40 + 15
    assert max(read[len(silver) :]) <= 4 * 40  # rule T29 looks back 25 s
    assert tables(lake) == anew(tmp_path / "anew", [talk, other], 200)


def _first_rounds(rounds):
    """Where the rounds of silver and of the findings begin, and where they end."""
    begins = [place for place, (label, _) in enumerate(rounds) if label == "0-"]
    return begins, [*begins[1:], len(rounds)]


def test_messages_that_were_decoded_while_they_were_written_get_their_numbers_in_rounds(
    lake, tmp_path, small, rounds, monkeypatch
):
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", 40)
    talk = steady(100)
    expected = anew(tmp_path / "anew", [talk], 100)
    decoded = load_decoded(lake, [talk], 100)
    monkeypatch.setattr(sessions_update, "decode_packets", lambda *_, **_of: pytest.fail("they are decoded"))
    update(lake, decoded=decoded)
    assert sum(made for _, made in rounds) > 3
    assert rows(lake, MESSAGES) == expected[str(MESSAGES)]


def without_numbers():
    """A session whose packets have no numbers: some before them are lost."""
    talk = Conversation()
    talk.skip("client", 100)
    for number in range(40):
        talk.say("client", "user_message", message(number), number)
        talk.say("server", "session_ack", session_ack(ack=number), number + 0.5)
    return talk


def test_rounds_of_a_session_that_cannot_be_cut_read_twice_as_much_each_time(lake, small, read, monkeypatch):
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", 10)
    run(lake, [without_numbers()], 40)
    assert read == [10, 30, 70, 80] * 2


def test_a_packet_that_lies_before_others_in_the_stream_is_waited_for(lake, tmp_path, small, read, rounds, monkeypatch):
    """It was captured late: no checkpoint counts what lies behind it in the stream before it is read."""
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", 40)
    talk = steady(100)
    (late,) = [row for row in talk.rows if row["sent_at"].timestamp() - START == 20]
    late["sent_at"] = late["sent_at"].replace(minute=late["sent_at"].minute + 1)
    run(lake, [talk], 100)
    assert len({label for label, _ in rounds}) > 2
    assert tables(lake) == anew(tmp_path / "anew", [talk], 100)


def steady(count, *, number_acks=4, first=1, name="connection", port=40_000):
    """A session in order: recoverable messages of the client, a second apart, and acknowledgements of the server."""
    talk = Conversation(name, port).handshake()
    for number in range(first, count + 1):
        talk.say("client", "user_message", message(number, recoverable=True), number)
        if number % number_acks == 0:
            r = number - number_acks + 1
            talk.say("server", "session_ack", session_ack(ack=number, r=r, flags=15), number + 0.5)
            talk.say("server", "order_ack", acknowledgement(SEQUENCE, number), number + 0.6)
            talk.say(
                "client", "session_ack", session_ack(ack=number // 4, user=number, recoverable=number), number + 0.7
            )
    return talk


def until(talk, second):
    """The session as it was then."""
    rows_ = [row for row in talk.rows if row["sent_at"].timestamp() - START <= second]
    return seen_so_far(talk, rows_, closed=talk.closed is not None and talk.closed[0] <= second)


START = Conversation().connection()["first_packet_at"].timestamp()


def test_a_file_added_to_a_long_session_reads_what_is_behind_the_checkpoint(lake, tmp_path, small, read):
    talk = steady(200)
    run(lake, [until(talk, 160)], 160)
    assert all(rows(lake, table) for table in CHECKPOINTS)
    assert read == [len(until(talk, 160).rows)] * 2
    read.clear()
    run(lake, [until(talk, 200)], 200)
    silver, findings = read
    new = len(until(talk, 200).rows) - len(until(talk, 160).rows)
    assert new <= silver <= new + 15
    assert new <= findings <= new + 65  # rule T29 looks back 25 s
    assert tables(lake) == anew(tmp_path / "anew", [until(talk, 200)], 200)
    example_rows.check({table: lake.select(table, "TRUE") for table in CHECKPOINTS})


def test_a_file_before_the_checkpoint_makes_all_anew(lake, tmp_path, small, read):
    talk = steady(200)
    late = [row for row in talk.rows if 50 <= row["sent_at"].timestamp() - START < 55]
    run(lake, [seen_so_far(talk, [row for row in until(talk, 160).rows if row not in late])], 160)
    assert all(rows(lake, table) for table in CHECKPOINTS)
    read.clear()
    run(lake, [until(talk, 200)], 200)
    assert sorted(read)[-2:] == [len(until(talk, 200).rows)] * 2
    assert tables(lake) == anew(tmp_path / "anew", [until(talk, 200)], 200)


def test_holes_are_in_one_order_over_a_checkpoint(lake, tmp_path, cut):
    talk = steady(200)
    talk.rows = [row for row in talk.rows if row["sent_at"].timestamp() - START not in (30, 190)]
    for second in (20, 180):  # packets of which it is not known which message they are
        (row,) = [each for each in talk.rows if each["sent_at"].timestamp() - START == second]
        row |= {"seen_bytes": 100, "complete": False, "packet": row["packet"][:100], "sent_done_at": None}
    for second in (160, 200):
        run(lake, [until(talk, second)], second)
    assert all(rows(lake, table) for table in CHECKPOINTS)
    assert tables(lake) == anew(tmp_path / "anew", [until(talk, 200)], 200)
    ((session,),) = [rows(lake, SESSIONS)]
    assert len(session["client_holes"]) == 4


def test_a_packet_that_is_gone_makes_all_anew(lake, tmp_path, cut):
    talk = steady(100)
    run(lake, [until(talk, 90)], 90)
    rest = seen_so_far(talk, [row for row in talk.rows if row is not talk.rows[40]])
    run(lake, [rest], 100)
    assert tables(lake) == anew(tmp_path / "anew", [rest], 100)


def test_a_handshake_packet_that_comes_late_is_said_of_all(lake, tmp_path, cut):
    talk = steady(100)
    talk.say("server", "connection_parameters", parameters(ack_ms=30_000), 101)
    talk.say("client", "establish_connection", establish(), 102)
    run(lake, [until(talk, 90)], 90)
    run(lake, [until(talk, 110)], 110)
    assert tables(lake) == anew(tmp_path / "anew", [until(talk, 110)], 110)


def test_a_closed_connection_keeps_to_its_findings(lake, tmp_path, cut):
    """More was acknowledged than was sent: that shows when the connection has closed (T15)."""
    talk = steady(100)
    talk.say("server", "session_ack", session_ack(ack=150, r=0), 100.9)
    talk.say("server", "session_ack", session_ack(ack=150, r=0), 140)
    talk.closed = (150, "fin")
    for second, count in ((139, 0), (145, 0), (160, 2)):
        run(lake, [until(talk, second)], second)
        assert [row["rule_id"] for row in rows(lake, FINDINGS)].count("T15") == count
    assert tables(lake) == anew(tmp_path / "anew", [until(talk, 160)], 160)


def test_more_is_acknowledged_than_comes_in_later_rounds(lake, tmp_path, cut, rounds):
    """What is sent in all is known in the first round (T15)."""
    talk = steady(100)
    talk.say("server", "session_ack", session_ack(ack=150, r=0), 20.9)
    talk.rows.sort(key=lambda row: row["sent_at"])
    offset = 0
    for row in talk.rows:
        if row["sent_by"] == "server":
            row["stream_offset"], offset = offset, offset + row["length_bytes"]
    talk.closed = (150, "fin")
    run(lake, [talk], 160)
    assert any(row["rule_id"] == "T15" for row in rows(lake, FINDINGS))
    assert tables(lake) == anew(tmp_path / "anew", [talk], 160)


def test_recoverable_packets_may_be_stored_long_after_they_were_sent(lake, tmp_path, cut):
    talk = Conversation().handshake()
    for number in range(1, 61):
        talk.say("client", "user_message", message(number, recoverable=True), number)
        talk.say("server", "session_ack", session_ack(ack=number), number + 0.5)
    talk.say("server", "session_ack", session_ack(ack=60, r=3, flags=0b101), 100)
    run(lake, [until(talk, 61)], 61)
    (checkpoint,) = rows(lake, SESSION_CHECKPOINTS)
    assert len(checkpoint["sides"][0]["not_stored"]) > 20
    run(lake, [until(talk, 101)], 101)
    assert rows(lake, SESSIONS)[0]["client_stored"] == 2
    stored = sorted(row["recoverable_number"] for row in rows(lake, SENDINGS) if row["stored_at"] is not None)
    assert stored == [3, 5]
    assert tables(lake) == anew(tmp_path / "anew", [until(talk, 101)], 101)


def test_a_window_stays_full_over_a_checkpoint(lake, tmp_path, cut):
    talk = Conversation().handshake()
    for number in range(1, 61):
        talk.say("client", "user_message", message(number), number)
        talk.say("server", "session_ack", session_ack(ack=max(number - 3, 0), window=3), number + 0.25)
    talk.say("server", "session_ack", session_ack(ack=60), 75)
    run(lake, [until(talk, 50.5)], 50.5)
    (checkpoint,) = rows(lake, SESSION_CHECKPOINTS)
    assert checkpoint["sides"][0]["in_flight"]
    run(lake, [until(talk, 80)], 80)
    expected = anew(tmp_path / "anew", [until(talk, 80)], 80)
    assert expected[str(SESSIONS)][0]["client_window_full_ms"] > 60_000
    assert tables(lake) == expected


def test_counted_packets_before_a_checkpoint_keep_a_session_from_being_idle(lake, tmp_path, cut):
    talk = steady(40)
    for at in range(50, 120, 5):
        talk.say("server", "session_ack", session_ack(ack=40), at)
    talk.closed = (150, "fin")
    run(lake, [until(talk, 118)], 118)
    (checkpoint,) = rows(lake, SESSION_CHECKPOINTS)
    assert checkpoint["counted_until"].timestamp() - START > 100
    run(lake, [until(talk, 150)], 150)
    assert rows(lake, SESSIONS)[0]["ended"] == "closed"
    assert tables(lake) == anew(tmp_path / "anew", [until(talk, 150)], 150)


def test_a_session_without_numbers_has_no_checkpoint(lake, small):
    run(lake, [without_numbers()], 40)
    assert not any(rows(lake, table) for table in CHECKPOINTS)


def test_findings_behind_a_checkpoint_are_judged_again():
    checkpoint = checkpoint_cuts.Checkpoint("c", 10, 20, 0, 64, False, (None, None), (), ())
    judged = {at: session_checkpoints.is_evaluated_again(checkpoint, "T16", at) for at in (10, 20, 21)}
    assert judged == {10: False, 20: False, 21: True}
    assert session_checkpoints.is_evaluated_again(checkpoint, "T18", 11)
    assert not session_checkpoints.is_evaluated_again(checkpoint, "T18", 10)


def test_silver_and_findings_are_computed_anew_when_settings_change(lake, small, read):
    talk = steady(60)
    run(lake, [talk], 60)
    read.clear()
    sessions_update.update(
        lake, "run", sessions_update.SessionSettings(idle=sessions_update.SessionSettings().idle * 2)
    )
    assert read == [len(talk.rows)]
