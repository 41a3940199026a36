"""silver.sessions, order_acks and messages of the binary protocol: what they say, and that runs in parts agree."""

import datetime as dt
from random import Random

import pyarrow as pa
import pytest

import example_rows
from engines import without_spark
from example_counts import seeds
from pipeline.arrow_rows import is_in
from pipeline.attempts import message_queues
from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import changed_keys
from pipeline.silver.decode_packets import DecodedPackets, MessagePacketDecoder
from pipeline.transfers import checkpoint_cuts, connection_rounds
from pipeline.transfers import update as sessions_update
from pipeline.transfers.session_rows import SessionSettings
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_PACKETS, SESSIONS
from transfers.conversations import (
    ACCEPTOR,
    INITIATOR,
    START,
    Conversation,
    acknowledgement,
    bronze,
    establish,
    message,
    parameters,
    session_ack,
)

SEQUENCE = 7 << 32 | 1


@pytest.fixture
def lake(tmp_path):
    return Lake(without_spark(), str(tmp_path / "lake"))


def load(lake, conversations, ends_at=1000):
    """Make bronze what these conversations are, row by row, as a run would."""
    for table, rows in bronze(conversations, ends_at).items():
        current = lake.select(table, "TRUE") if lake.exists(table) else rows.slice(0, 0)
        dates = {*rows["event_date"].to_pylist(), *current["event_date"].to_pylist()}
        lake.replace_changed(table, rows, current, dates=dates)


def update(lake, **said):
    more = {name: said.pop(name) for name in ("keep_stubs", "decoded") if name in said}
    return sessions_update.update(lake, "run", SessionSettings(**said), **more)


def rows(lake, table):
    found = lake.select(table, "TRUE").to_pylist()
    return sorted(({k: v for k, v in row.items() if k != "run_id"} for row in found), key=lambda row: row[table.key[0]])


def second(at):
    return START + dt.timedelta(seconds=at)


@pytest.mark.parametrize("few", [0, 1000])
def test_a_message_on_its_way_is_in_no_queue(lake, monkeypatch, few):
    """Queues are set of messages that calls returned, row by row where they are few, else of all at once."""
    monkeypatch.setattr(message_queues, "MAX_IN_LIST", few)
    seen = {"seen_at": second(0), "event_date": second(0).date(), "destination_queue": r"srv\q"}
    messages = [{"sighting_key": "a", "call_key": "a", **seen}, {"sighting_key": "b", "packet_key": "p", **seen}]
    lake.append(MESSAGES, pa.Table.from_pylist(messages, MESSAGES.schema()))
    attempt = {"attempt_key": "a", "started_at": second(0), "event_date": second(0).date()}
    lake.append(RECEIVE_ATTEMPTS, pa.Table.from_pylist([attempt], RECEIVE_ATTEMPTS.schema()))
    message_queues.update(lake, RECEIVE_ATTEMPTS, dates=None)
    found = {row["sighting_key"]: (row["queue"], row["inferred_queue"]) for row in rows(lake, MESSAGES)}
    assert found == {"a": (None, r"srv\q"), "b": (None, None)}


def transfer(name="one", port=40_000):
    """A transactional and an express message, acknowledged by a SessionAck, an order ack and a final ack."""
    talk = Conversation(name, port).handshake()
    talk.say("client", "user_message", message(5, transaction=(0, SEQUENCE, 1, 0), flags=0), 1)
    talk.say("client", "user_message", message(6), 2)
    talk.say("server", "session_ack", session_ack(ack=2, r=1, flags=1), 3)
    talk.say("server", "order_ack", acknowledgement(SEQUENCE, 1), 4)
    talk.say("server", "final_ack", acknowledgement(SEQUENCE, 1, kind=0x4000, of=(INITIATOR, 5)), 5)
    talk.say("client", "session_ack", session_ack(ack=2, user=2, recoverable=1), 6)
    talk.closed = (500, "fin")
    return talk


def test_a_transfer(lake):
    load(lake, [transfer()])
    assert update(lake) == {str(SESSIONS): 1, str(ORDER_ACKS): 2, str(SENDINGS): 2, str(MESSAGES): 2}
    (session,) = rows(lake, SESSIONS)
    expected = {
        "initiator_queue_manager": str(INITIATOR), "acceptor_queue_manager": str(ACCEPTOR),
        "asked_queue_manager": str(ACCEPTOR), "by_direct_name": False, "round_trip_ms": 10.0,
        "establish_requested_at": second(0), "parameters_answered_at": second(0.03), "initiator_uptime_ms": 1000,
        "pinged": False, "server_class": True, "recoverable_ack_timeout_ms": 1000, "ack_timeout_ms": 20_000,
        "client_window": 64, "server_window": 64, "outcome": "open", "ended": "idle",
        "client_messages": 2, "client_recoverable": 1, "client_transactional": 1, "client_session_acks": 1,
        "client_numbered": 2, "client_acknowledged": 2, "client_unacknowledged": 0, "client_stored": 1,
        "client_window_full_ms": 0, "server_messages": 0, "server_order_acks": 1, "server_final_acks": 1,
        "server_session_acks": 1, "server_numbered": 2, "server_acknowledged": 2, "server_stored": 0,
    }  # fmt: skip
    assert {name: session[name] for name in expected} == expected
    order, final = sorted(rows(lake, ORDER_ACKS), key=lambda row: row["sent_at"])
    assert (order["kind"], final["kind"]) == ("order_ack", "final_ack")
    for row in (order, final):
        assert row["acknowledged_queue_manager"] == str(INITIATOR)
        assert (int(row["transaction_sequence_id"]), row["transaction_number"]) == (SEQUENCE, 1)
    assert final["acknowledged_message_id"] == f"{INITIATOR}\\5"
    assert (order["session_number"], final["session_number"], final["recoverable_number"]) == (1, 2, 1)
    first, last = sorted(rows(lake, MESSAGES), key=lambda row: row["seen_at"])
    assert [first[name] for name in ("session_number", "recoverable_number")] == [1, 1]
    assert [last[name] for name in ("session_number", "recoverable_number")] == [2, None]
    assert (first["seen_in"], first["message_kind"], first["call_key"], first["sender_address"]) == (
        "binary_protocol", "application", None, "10.0.0.1",
    )  # fmt: skip
    assert first["destination_queue"] == "srv1\\private$\\orders"
    ack = bronze([transfer()])[SESSION_PACKETS].to_pylist()[6]["packet_key"]  # the server's SessionAck
    acked = {"session_acked_at": second(3), "session_acked_by": ack}
    stored, ours = {"stored_at": second(3), "stored_by": ack}, {"sender_address": "10.0.0.1", "sent_by": "client"}
    common = {
        **acked, **ours, "receiver_address": "10.0.0.2", "sender_queue_manager": str(INITIATOR), "transmit_ms": 0.0,
        "receiver_queue_manager": str(ACCEPTOR), "complete": True, "surely_acknowledged": False,
        "acknowledgement_may_be_missing": False, "unnumbered_by_loss": False, "handshake_seen": True, "errors": [],
    }  # fmt: skip
    sendings = sorted(rows(lake, SENDINGS), key=lambda row: row["sent_at"])
    assert [row["packet_key"] for row in sendings] == [first["packet_key"], last["packet_key"]]
    for row, of_it in zip(sendings, (stored, {"stored_at": None, "stored_by": None}), strict=True):
        assert {name: row[name] for name in (*common, *of_it)} == {**common, **of_it}
    assert [(row["session_number"], row["recoverable_number"]) for row in sendings] == [(1, 1), (2, None)]
    example_rows.check({table: lake.select(table, "TRUE") for table in (SESSIONS, ORDER_ACKS, SENDINGS)})


@pytest.mark.parametrize(
    ("says", "closed", "outcome", "ended"),
    [
        ([], None, "not_established", "unopened"),
        ([("client", "establish_connection", establish())], None, "unanswered", "unopened"),
        (
            [
                ("client", "establish_connection", establish()),
                ("server", "establish_connection", establish(refuse=1)),
            ],
            (2, "fin"), "refused", "refused",
        ),
        (
            [
                ("client", "establish_connection", establish()),
                ("server", "establish_connection", establish()),
                ("client", "connection_parameters", parameters()),
            ],
            (2, "rst"), "unanswered", "unopened",
        ),
        ([("client", "user_message", message())], None, "open", "silent"),
        ([("client", "user_message", message())], (5, "rst"), "open", "reset"),
        ([("client", "user_message", message())], (5, "fin"), "open", "closed"),
        ([("client", "user_message", message())], (125, "fin"), "open", "idle"),
        ([("server", "unknown", establish())], (5, "fin"), "unknown", "unopened"),
    ],
)  # fmt: skip
def test_outcomes_and_ends(lake, says, closed, outcome, ended):
    talk = Conversation()
    for at, (side, kind, raw) in enumerate(says):
        talk.say(side, kind, raw, at)
    talk.closed = closed
    load(lake, [talk])
    update(lake)
    (session,) = rows(lake, SESSIONS)
    assert (session["outcome"], session["ended"]) == (outcome, ended)


def test_a_session_that_nobody_acknowledges_ends_by_its_time_out(lake):
    talk = Conversation().handshake()
    talk.say("client", "user_message", message(), 1)
    talk.closed = (21, "rst")
    load(lake, [talk])
    update(lake)
    assert rows(lake, SESSIONS)[0]["ended"] == "ack_timeout"
    talk.say("server", "session_ack", session_ack(ack=0), 1.5)
    load(lake, [talk])
    update(lake)
    assert rows(lake, SESSIONS)[0]["ended"] == "reset"


def test_an_open_session_becomes_silent_when_captures_go_on(lake):
    talk = Conversation().handshake()
    load(lake, [talk], ends_at=100)
    update(lake)
    assert rows(lake, SESSIONS)[0]["ended"] is None
    load(lake, [talk], ends_at=700)
    assert update(lake)[str(SESSIONS)] == 1
    assert rows(lake, SESSIONS)[0]["ended"] == "silent"
    load(lake, [talk], ends_at=300)
    update(lake)
    assert rows(lake, SESSIONS)[0]["ended"] is None


def test_a_full_window(lake):
    talk = Conversation()
    talk.say("client", "establish_connection", establish(), 0)
    talk.say("client", "connection_parameters", parameters(window=2), 0)
    for at in (1, 2, 3):
        talk.say("client", "user_message", message(at), at)
    talk.say("server", "session_ack", session_ack(ack=2), 7)
    talk.closed = (10, "fin")
    load(lake, [talk])
    update(lake)
    assert rows(lake, SESSIONS)[0]["client_window_full_ms"] == 5000


def test_an_anchor_that_comes_later_numbers_what_was_decoded_before(lake):
    talk = Conversation()
    talk.skip("client", 10)
    talk.say("client", "user_message", message(1), 1)
    load(lake, [talk])
    update(lake)
    assert rows(lake, MESSAGES)[0]["session_number"] is None
    talk.say("client", "user_message", message(2, sh={"user": 12}), 2)
    load(lake, [talk])
    assert update(lake)[str(MESSAGES)] == 2
    assert sorted(row["session_number"] for row in rows(lake, MESSAGES)) == [11, 12]


def test_without_stubs_messages_keep_what_was_decoded(lake):
    talk = transfer()
    load(lake, [talk])
    update(lake, keep_stubs=False)
    kept = lake.select(SESSION_PACKETS, "packet IS NOT NULL")["kind"].to_pylist()
    assert "user_message" not in kept
    assert len(kept) == 8
    before = rows(lake, MESSAGES)
    more = transfer("two", 40_001)
    emptied = lake.select(SESSION_PACKETS, "TRUE")
    added = bronze([more])[SESSION_PACKETS]
    lake.append(SESSION_PACKETS, added)
    for table, new in bronze([talk, more]).items():
        if table is not SESSION_PACKETS:
            lake.replace(table, new)
    assert emptied.num_rows
    assert update(lake, keep_stubs=False)[str(MESSAGES)] == 2
    assert [row for row in rows(lake, MESSAGES) if row in before] == before


def random_talk(seed):
    draw = Random(seed)
    talk = Conversation(f"talk {seed}", 41_000 + seed)
    if draw.random() < 0.6:
        talk.handshake()
    sent, received = {"client": 0, "server": 0}, {"client": 0, "server": 0}
    for at in range(1, 40):
        side = draw.choice(["client", "server"])
        other = "server" if side == "client" else "client"
        if draw.random() < 0.1:
            talk.skip(side, 100)
            sent[side] += draw.choice([0, 1, 3])
        received[side] = draw.randint(received[side], max(received[side], sent[other]))
        said = {"ack": received[side], "user": sent[side], "r": 1, "flags": draw.getrandbits(16)}
        if draw.random() < 0.25:
            talk.say(side, "session_ack", session_ack(**said), at)
            continue
        sent[side] += 1
        sh = {**said, "user": sent[side]} if draw.random() < 0.3 else None
        if draw.random() < 0.2:
            talk.say(side, "order_ack", acknowledgement(SEQUENCE, at), at)
        else:
            raw = message(at, recoverable=draw.random() < 0.5, sh=sh, label=None if at % 2 else "x")
            talk.say(side, "user_message", raw, at, seen=draw.choice([None, None, None, 40, 70, len(raw) - 1]))
    if draw.random() < 0.5:
        talk.closed = (draw.choice([41, 400]), draw.choice(["fin", "rst"]))
    return talk


def load_decoded(lake, conversations, ends_at=1000):
    """Make bronze what ``load`` makes it; return the messages that were decoded on the way."""
    packets = bronze(conversations, ends_at)[SESSION_PACKETS]
    there = lake.select(SESSION_PACKETS, "TRUE") if lake.exists(SESSION_PACKETS) else packets.slice(0, 0)
    fresh, _ = changed_keys(packets, there, "packet_key")
    decoder = MessagePacketDecoder.of(lake)
    batches = packets.filter(is_in(packets, "packet_key", fresh)).to_batches(max_chunksize=7)
    assert [*decoder.record_and_pass(batches, "0")] == batches
    load(lake, conversations, ends_at)
    return DecodedPackets(decoder, lake.version(SESSION_PACKETS))


def test_messages_that_were_decoded_while_they_were_written_are_not_decoded_again(lake, tmp_path, monkeypatch):
    other = Lake(without_spark(), str(tmp_path / "other"))
    load(other, [transfer()])
    update(other)
    monkeypatch.setattr(sessions_update, "decode_packets", lambda *_, **_of: pytest.fail("they are decoded"))
    decoded = load_decoded(lake, [transfer()])
    written = update(lake, decoded=decoded)
    assert written[str(MESSAGES)] == 2
    assert rows(lake, MESSAGES) == rows(other, MESSAGES)


def test_what_was_decoded_is_not_used_where_bronze_changed_since(lake):
    decoded = load_decoded(lake, [transfer()])
    load(lake, [transfer(), transfer("two", 40_001)])
    update(lake, decoded=decoded)
    assert len(rows(lake, MESSAGES)) == 4


def test_a_run_that_was_killed_when_messages_were_added_leaves_none_twice(lake, monkeypatch):
    def dies(_update, folder):
        add(_update, folder)
        raise KeyboardInterrupt

    add = sessions_update._SessionsUpdate._add_decoded
    monkeypatch.setattr(sessions_update._SessionsUpdate, "_add_decoded", dies)
    with pytest.raises(KeyboardInterrupt):
        update(lake, decoded=load_decoded(lake, [transfer()]))
    monkeypatch.undo()
    update(lake)
    assert len(rows(lake, MESSAGES)) == 2
    assert len(rows(lake, SESSIONS)) == 1


@pytest.mark.parametrize("on_the_way", [False, True])
@pytest.mark.parametrize("seed", seeds(1, 10))
def test_runs_in_parts_give_the_tables_of_one_run(tmp_path, monkeypatch, seed, on_the_way):
    """``on_the_way``: messages are decoded while their packets are written. Also where sessions are read in rounds."""

    def lake_at(name):
        return Lake(without_spark(), str(tmp_path / name))

    def run(some, ends_at=1000):
        decoded = load_decoded(parts, some, ends_at) if on_the_way else load(parts, some, ends_at)
        update(parts, decoded=decoded)

    talks = [random_talk(10 * seed + number) for number in range(3)]
    draw = Random(seed)
    whole, parts = lake_at("whole"), lake_at("parts")
    load(whole, talks)
    update(whole)
    monkeypatch.setattr(checkpoint_cuts, "MIN_PACKETS", 3)
    monkeypatch.setattr(connection_rounds, "ROUND_PACKETS", draw.choice([5, 10**9]))
    every = [row for talk in talks for row in talk.rows]
    seen = set()
    while len(seen) < len(every):
        left = [place for place in range(len(every)) if place not in seen]
        seen |= set(draw.sample(left, min(len(left), 30)))
        some = [
            Conversation(
                talk.name, talk.port, [row for row in talk.rows if every.index(row) in seen], closed=talk.closed, last=9
            )
            for talk in talks
        ]
        run(some, ends_at=500)
    run(talks)
    for table in (SESSIONS, ORDER_ACKS, SENDINGS, MESSAGES):
        assert rows(parts, table) == rows(whole, table)
    assert rows(whole, MESSAGES)
    run(talks[1:])
    gone = lake_at("gone")
    load(gone, talks[1:])
    update(gone)
    for table in (SESSIONS, ORDER_ACKS, SENDINGS, MESSAGES):
        assert rows(parts, table) == rows(gone, table)
