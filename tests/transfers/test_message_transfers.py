"""gold.message_transfers of rows of silver: as computed row by row, and the same however runs are cut."""

import datetime as dt
from decimal import Decimal
from random import Random

import numpy as np
import pytest

from engines import without_spark
from example_counts import seeds
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.queues.queue_rows import QueueSettings, transfer_events_sql
from pipeline.transfers.messages import first_events, update_messages
from pipeline.transfers.messages.transfer_context import TransferSettings
from schemas.transfers import MESSAGE_TRANSFERS
from transfers.silver_messages import GUIDS, ONE, START, THREE, TWO, S, Silver, expected_rows, micros
from udfs.columns.absent import NONE
from udfs.columns.time_index import TimeIndex
from udfs.keys import key

SETTINGS = TransferSettings(wait=dt.timedelta(days=2), expire=dt.timedelta(days=1))
DAY = 86_400 * S


def lake_at(path):
    return Lake(without_spark(), str(path))


@pytest.fixture
def lake(tmp_path):
    return lake_at(tmp_path / "lake")


def load(lake, silver):
    """Make silver what the rows are, row by row, as a run would."""
    for table, rows in silver.tables().items():
        current = lake.select(table, "TRUE") if lake.exists(table) else rows.slice(0, 0)
        dates = {*rows["event_date"].to_pylist(), *current["event_date"].to_pylist()}
        lake.replace_changed(table, rows, current, dates=dates)


def update(lake, silver):
    load(lake, silver)
    return update_messages.update(lake, "run", SETTINGS)


def plain(value):
    if isinstance(value, dt.datetime):
        return micros(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return int(value) if isinstance(value, Decimal) else value


def rows(lake):
    found = lake.select(MESSAGE_TRANSFERS, "TRUE").to_pylist() if lake.exists(MESSAGE_TRANSFERS) else []
    return {row["transfer_key"]: {k: plain(v) for k, v in row.items() if k != "run_id"} for row in found}


def expected(silver):
    wait, expire = (each // dt.timedelta(microseconds=1) for each in (SETTINGS.wait, SETTINGS.expire))
    return expected_rows(silver, wait=wait, expire=expire)


def check(lake, silver):
    """Compare the table with what is computed row by row, column by column."""
    found, said = rows(lake), expected(silver)
    assert found.keys() == said.keys()
    for name, row in found.items():
        assert row.keys() == said[name].keys()
        assert [(k, v, said[name][k]) for k, v in row.items() if v != said[name][k]] == []


def random_holes(draw, span):
    found = []
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        since = draw.randrange(span)
        until = since + draw.choice([0, 60 * S, span])
        found.append((draw.choice(["client", "server"]), since, until, draw.choice([40, 110, 300])))
    return found


def random_silver(draw):
    """Messages of few sources to few queues over a few sessions, with whatever may belong to them."""
    span = round(draw.choice([0.01, 3, 6]) * DAY)
    silver = Silver()
    pairs = [None, None, [{"one": "a", "other": "b"}]]
    has_two_addresses = draw.random() < 0.5
    for number in range(7):
        ends = draw.sample((ONE, TWO, THREE), 2)
        shown = draw.random() < 0.6, draw.random() < 0.6
        session = silver.session(
            f"c{number}", *ends, draw.randrange(span), shown=shown, ended=draw.choice([None, "closed"]), last=span,
            overlaps=draw.choice(pairs), holes=random_holes(draw, span),
            uncaptured=draw.choice(["client", "server", None, None]),
        )  # fmt: skip
        if draw.random() < 0.3:  # a machine that was installed anew
            session["initiator_queue_manager"] = GUIDS[draw.choice([ONE, TWO])]
        for end in ("initiator_queue_manager", "acceptor_queue_manager"):
            if has_two_addresses and session[end] == GUIDS[THREE]:
                session[end] = GUIDS[ONE]
    moments = [draw.randrange(span) for _ in range(40)]

    def at():
        return draw.choice(moments) + draw.choice([0, 0, draw.randrange(60 * S)])

    def acked(since):
        return draw.choice([None, (since + draw.randrange(3) * S + 1, key("sh", draw.randrange(20)))])

    def side():
        return draw.choice(["client", "server"])

    names = [(GUIDS[draw.choice([ONE, TWO])], draw.randint(1, 4), draw.choice([0, 100 * S])) for _ in range(6)]
    queues = [r"srv\q", r"srv\other", None]
    for _ in range(30):
        source, ordinal, sent = draw.choice(names)
        since, sequence = at(), draw.choice([None, 5, 5, 6])
        silver.send(
            draw.choice(silver.sessions[:5])["connection_id"], side(), since, number=draw.choice([None, 1, 2, 3]),
            acked=acked(since), stored=acked(since), source=source, ordinal=ordinal, sent=sent,
            capture_id=draw.choice("aab"), session_acked_in=draw.choice("aab"), stored_in=draw.choice("aab"),
            complete=draw.random() < 0.9, surely_acknowledged=draw.random() < 0.1,
            acknowledgement_may_be_missing=draw.random() < 0.2, unnumbered_by_loss=draw.random() < 0.1,
            handshake_seen=draw.random() < 0.9, length_bytes=draw.randint(100, 120),
            destination_queue=draw.choice(queues), destination_queue_manager=draw.choice([None, None, *GUIDS.values()]),
            transaction_sequence_id=sequence, transaction_number=sequence and draw.randint(1, 5),
            transactional=draw.choice([None, sequence is not None]), journaling=draw.choice([None, 0, 1, 2]),
            acknowledgement_requested=draw.choice([None, 0, 1, 2, 5, 15]),
            final_acknowledgement_requested=sequence and draw.choice([None, False, True]),
            admin_queue=draw.choice([None, f"{source}\\00000009", r"srv\acks"]), hop_count=draw.choice([None, 0, 0, 1]),
            destination_list=draw.choice([None, None, ["a"], ["a", "b"]]),
            time_to_reach_queue_s=draw.choice([None, 30, 20 * 3600, 86_400]), body_bytes=draw.choice([None, 7]),
            errors=draw.choice([[], [], [{"code": "x", "field": "y", "offset": 0}]]),
            application_message_id=draw.choice([None, "4711"]), conversation_id=draw.choice([None, "of 4711"]),
            sent_types=draw.choice([None, ["Order"], ["Order", "IOrder"]]),
        )  # fmt: skip
    if draw.random() < 0.3:
        silver.messages[-1]["message_key"] = None  # its header was not seen whole
    if draw.random() < 0.3:
        silver.clones = {GUIDS[draw.choice([ONE, TWO])]}
    for _ in range(25):
        source, ordinal, _ = draw.choice(names)
        kind = draw.choice(["order_ack", "order_ack", "final_ack"])
        silver.ack(
            draw.choice(silver.sessions)["connection_id"], side(), at(), kind=kind, number=draw.choice([None, 1, 3, 5]),
            sequence=draw.choice([5, 6, None]), queue_manager=draw.choice([None, *GUIDS.values()]),
            acknowledged_queue_manager=draw.choice([None, *GUIDS.values()]), capture_id=draw.choice("ab"),
            acknowledged_message_id=f"{source}\\{ordinal}" if kind == "final_ack" else None,
            **({"class": draw.choice([0x4000, 0x8004, 0xC001])} if kind == "final_ack" else {}),
        )  # fmt: skip
    for number in range(20):
        source, ordinal, _ = draw.choice(names)
        if draw.random() < 0.6:
            more = {
                "message_kind": "administration_ack", "correlation_id": f"{source}\\{ordinal}",
                "class": draw.choice([2, 0x4000, 0x8001, 0xC002]), "response_queue": draw.choice([None, *queues]),
            }  # fmt: skip
        else:
            report = {"source_prefix": source[:4], "message_ordinal": ordinal, "hop_count": draw.randint(0, 3),
                      "next_hop": draw.choice([None, TWO])}  # fmt: skip
            more = {"message_kind": "report", "class": 1, "report": report}
        its = {"source": GUIDS[THREE], "ordinal": 100 + number // 2, **more}
        if draw.random() < 0.5:
            silver.message(at(), call_key=key("call", number), **its)
        else:
            silver.send(draw.choice(silver.sessions)["connection_id"], side(), at(), **its)
    silver.ends = {address: draw.randrange(2 * span) for address in (ONE, TWO, THREE) if draw.random() < 0.9}
    for row in silver.messages:  # of one report all sightings have one label
        first = next(each for each in silver.messages if each["message_key"] == row["message_key"])
        if row["message_kind"] == "report" and first["message_kind"] == "report":
            row["report"] = first["report"]
    return silver


def part(silver, draw, kept):
    """Some of the rows, with sessions as they were known then."""
    packets = {row["packet_key"] for row in silver.sendings if draw.random() < kept}
    of = Silver(
        [row for row in silver.messages if row.get("packet_key", row.get("call_key")) in packets or
         (row.get("call_key") and draw.random() < kept)],
        [row for row in silver.sendings if row["packet_key"] in packets],
        [row for row in silver.acks if draw.random() < kept],
    )  # fmt: skip
    for row in silver.sessions:
        changed = dict(row)
        if draw.random() < 0.2:
            changed["ended"] = draw.choice([None, "silent"])
        if draw.random() < 0.2:
            changed["initiator_queue_manager"] = draw.choice([None, *GUIDS.values()])
        if draw.random() < 0.1:
            changed["overlapping_captures"] = None
        of.sessions.append(changed)
    of.clones = {name for name in silver.clones if draw.random() < kept}
    of.ends = {server: draw.randrange(at + 1) for server, at in silver.ends.items() if draw.random() < 0.9}
    return of


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_runs_in_parts_give_what_is_computed_row_by_row(tmp_path, monkeypatch, seed):
    draw = Random(seed)
    monkeypatch.setattr(update_messages, "MAX_SENDINGS_TOGETHER", draw.choice([5, 10**6]))
    monkeypatch.setattr(lake_module, "MAX_COLUMN_ROWS_IN_MEMORY", draw.choice([-1, 10**6]))  # in tasks, or not
    silver = random_silver(draw)
    parts = lake_at(tmp_path / "parts")
    for kept in (0.3, 0.6, 0.95, 0.8):
        some = part(silver, draw, kept)
        update(parts, some)
        check(parts, some)
    update(parts, silver)
    check(parts, silver)
    assert update_messages.update(parts, "run", SETTINGS) == 0


@pytest.mark.parametrize("together", [20, 10**6], ids=["some at a time", "together"])
def test_changes_of_any_number_are_not_a_recomputation(lake, monkeypatch, together):
    draw = Random(1)
    monkeypatch.setattr(update_messages, "MAX_SENDINGS_TOGETHER", together)
    silver = random_silver(draw)
    update(lake, part(silver, draw, 0.7))
    monkeypatch.setattr(update_messages._MessagesUpdate, "_recompute_all", lambda *_: pytest.fail("all are recomputed"))
    update(lake, silver)
    check(lake, silver)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_event_that_is_large_enough(seed):
    draw = np.random.default_rng(seed)
    count, rows_ = int(draw.integers(0, 40)), 60
    codes, at, values = (draw.integers(0, most, count) for most in (4, 20, 9))
    at.sort()
    of_row, since, least = (draw.integers(0, most, rows_) for most in (5, 22, 10))
    index = TimeIndex(codes, at)
    until = since + 6
    found = first_events.first_at_least(index, values, index.span(of_row, since, until), least)
    for row in range(rows_):
        fit = [
            event for event in range(count)
            if codes[event] == of_row[row] and since[row] <= at[event] <= until[row] and values[event] >= least[row]
        ]  # fmt: skip
        assert found[row] == (fit[0] if fit else NONE)


def outcome_stories():
    """A message each: how it was sent, what acknowledged it, and its outcome and what is missing, by the contract."""
    acked = (2 * S, key("sh"))
    yield "rejected", {"final": 0x8004, "acked": acked}, [], {"final_class": 0x8004}
    yield "rejected", {"arrival": 0x8003, "journaling": 1}, [], {"arrival_class": 0x8003, "dead_letter_class": 0x8003}
    yield "received", {"receive": 0x4000}, [], {"receive_class": 0x4000, "receive_ack_ms": 8000.0}
    yield "received", {"final": 0x4000}, [], {"final_class": 0x4000, "final_ack_ms": 7000.0}
    yield "delivered", {"order": 3}, [], {"order_acked_at": 6 * S, "order_ack_ms": 5000.0}
    yield "transferred", {"order": 2, "acked": acked}, [], {"order_acked_at": None, "session_ack_ms": 1000.0}
    yield "delivered", {"arrival": 2}, [], {"arrival_acked_at": 9 * S}
    yield "transferred", {"surely_acknowledged": True, "number": None}, [], {"session_acked_at": None}
    yield "unknown", {"number": None, "unnumbered_by_loss": True}, ["capture_loss"], {}
    yield "unknown", {"acknowledgement_may_be_missing": True}, ["capture_loss"], {}
    yield "expired", {"time_to_reach_queue_s": 50}, [], {"expires_at": 50 * S}
    yield "in_flight", {"time_to_reach_queue_s": 150}, ["capture_ends"], {"expires_at": 150 * S}
    yield "unacknowledged", {"session": "gone", "handshake_seen": False}, ["capture_begins"], {}
    yield "unacknowledged", {"session": "gone", "complete": False}, ["damaged"], {}
    yield (
        "unacknowledged",
        {"session": "gone", "errors": [{"code": "c", "field": "f", "offset": 1}]},
        ["decode_error"],
        {},
    )


def test_outcomes(lake):
    silver = Silver(ends={TWO: 100 * S})
    silver.session("open", ONE, TWO)
    silver.session("gone", ONE, TWO, ended="closed")
    told = {}
    for ordinal, (outcome, story, missing, more) in enumerate(outcome_stories(), 1):
        message_id = f"{GUIDS[ONE]}\\{ordinal}"
        said = {"ordinal": ordinal, "journaling": 0, **story}
        acks = {name: said.pop(name, None) for name in ("final", "arrival", "receive", "order")}
        if acks["order"] is not None:
            said |= {"transaction_sequence_id": 1000 + ordinal, "transaction_number": 3}
            silver.ack("open", "server", 6 * S, sequence=1000 + ordinal, number=acks["order"])
        silver.send(said.pop("session", "open"), "client", S, **said)
        if acks["final"] is not None:
            its = {"acknowledged_message_id": message_id, "class": acks["final"]}
            silver.ack("open", "server", 8 * S, kind="final_ack", sequence=None, number=None, **its)
        for kind in ("arrival", "receive"):
            if acks[kind] is not None:
                silver.message(
                    9 * S, call_key=key(kind, ordinal), source=GUIDS[TWO], ordinal=ordinal, **{"class": acks[kind]},
                    message_kind="administration_ack", correlation_id=message_id,
                )  # fmt: skip
        told[message_id] = {"outcome": outcome, "missing": missing, "dead_letter_class": None, **more}
    update(lake, silver)
    found = {row["message_id"]: row for row in rows(lake).values()}
    assert {name: {each: found[name][each] for each in row} for name, row in told.items()} == told
    check(lake, silver)


CLOCKS = {  # other messages of a source, (when they say that they were sent, when they were), and whether that counts
    "itself ahead": ({"sent": 40 * S}, [], True),
    "itself ahead by less than 5 s": ({"sent": 5 * S}, [], False),
    "another one ahead": ({}, [(40 * S, 30 * S)], True),
    "another one ahead on the next day": ({}, [(DAY + 40 * S, DAY + 30 * S)], False),
    "all very late": ({"sent": -31 * DAY}, [(-31 * DAY, 30 * S)], True),
    "not all very late": ({"sent": -31 * DAY}, [(-29 * DAY, 30 * S)], False),
    "without an expiry": ({"sent": 40 * S, "time_to_reach_queue_s": None}, [], False),
    "acknowledged": ({"sent": 40 * S, "acked": (2 * S, key("sh"))}, [], False),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_expiry_by_a_clock_that_is_known_to_differ_is_not_complete(lake, name):
    its, others, counts = CLOCKS[name]
    silver = Silver(ends={TWO: 2 * DAY})
    silver.session("gone", ONE, TWO, ended="closed")
    silver.send("gone", "client", S, **{"time_to_reach_queue_s": 100 * 86_400, **its})
    for ordinal, (sent, at) in enumerate(others, 8):
        silver.send("gone", "client", at, sent=sent, ordinal=ordinal, acked=(at + S, key("sh")))
    update(lake, silver)
    row = next(row for row in rows(lake).values() if row["message_id"].endswith("\\7"))
    assert row["missing"] == (["clocks_differ"] if counts else [])
    check(lake, silver)


def test_a_message_that_shows_a_clock_changes_those_of_the_day(lake, monkeypatch):
    silver = Silver(ends={TWO: DAY})
    silver.session("gone", ONE, TWO, ended="closed")
    silver.send("gone", "client", S, time_to_reach_queue_s=50)
    update(lake, silver)
    monkeypatch.setattr(update_messages._MessagesUpdate, "_recompute_all", lambda *_: pytest.fail("all are recomputed"))
    silver.send("gone", "client", 10 * S, sent=20 * S, ordinal=8, acked=(11 * S, key("sh")))
    for missing in (["clocks_differ"], []):
        update(lake, silver)
        row = next(row for row in rows(lake).values() if row["message_id"].endswith("\\7"))
        assert (row["outcome"], row["missing"]) == ("expired", missing)
        silver.messages.pop()
        silver.sendings.pop()


def test_sent_again_by_the_next_session_then_acknowledged_and_read(lake):
    """The example of the contract."""
    silver = Silver(ends={TWO: 60 * S})
    silver.session("first", ONE, TWO, ended="reset")
    silver.session("second", ONE, TWO, at=20 * S)
    its = {"transaction_sequence_id": 5, "transaction_number": 7, "transactional": True}
    one = silver.send("first", "client", 1_200_000, **its)
    two = silver.send("second", "client", 27_900_000, acked=(28_400_000, "header"), **its)
    order = silver.ack("second", "server", 28_500_000, number=8)
    final = silver.ack(
        "second", "server", 30_000_000, kind="final_ack", acknowledged_message_id=one["message_id"], number=7
    )
    update(lake, silver)
    (row,) = rows(lake).values()
    told = {
        "transaction_number": 7, "sendings": 2, "sessions": 2, "first_sent_at": 1_200_000, "last_sent_at": 27_900_000,
        "session_acked_at": 28_400_000, "acknowledged_sendings": 1, "order_acked_at": 28_500_000,
        "order_acked_elsewhere": False, "final_class": 0x4000, "outcome": "received", "packet_bytes": 100,
        "resent_bytes": 100, "session_ack_ms": 27_200.0, "confidence": "complete",
        "sequence_key": key(GUIDS[ONE], r"srv\q", 5, ONE, TWO), "sender_queue_manager": GUIDS[ONE],
        "evidence": sorted({"header", *(each["packet_key"] for each in (one, two, order, final))}),
    }  # fmt: skip
    assert {name: row[name] for name in told} == told


def test_evidence_is_bounded_and_an_order_ack_of_the_hop_comes_first(lake):
    silver = Silver(ends={TWO: 9000 * S})
    silver.session("hop", ONE, TWO)
    silver.session("next", TWO, THREE)
    sent = [
        silver.send("hop", "client", at * S, transaction_sequence_id=5, transaction_number=1, complete=at > 3)
        for at in range(1, 1011)
    ]
    elsewhere = silver.ack("next", "server", 1500 * S, queue_manager=GUIDS[TWO])
    update(lake, silver)
    (row,) = rows(lake).values()
    assert (row["sendings"], row["order_acked_at"], row["order_acked_elsewhere"]) == (1010, 1500 * S, True)
    assert row["evidence"] == sorted([elsewhere["packet_key"], *(each["packet_key"] for each in sent[-999:])])
    silver.ack("hop", "server", 1600 * S, queue_manager=GUIDS[TWO])
    update(lake, silver)
    (row,) = rows(lake).values()
    assert (row["order_acked_at"], row["order_acked_elsewhere"]) == (1600 * S, False)


def sent_from_two_addresses(*, shown=(True, True)):
    """A message that ONE sent, and sent again from THREE, its other address, whence it was acknowledged."""
    silver = Silver(ends={TWO: 60 * S})
    silver.session("first", ONE, TWO, ended="closed")
    silver.session("second", THREE, TWO, at=20 * S, shown=shown)["initiator_queue_manager"] = (
        GUIDS[ONE] if shown[0] else None
    )
    silver.send("first", "client", S)
    silver.send("second", "client", 21 * S, acked=(22 * S, "header"))
    return silver


def by_sender(lake, *names):
    return {row["sender_address"]: tuple(row[name] for name in names) for row in rows(lake).values()}


def test_an_acknowledgement_counts_for_the_hop_from_whatever_address(lake):
    silver = sent_from_two_addresses()
    update(lake, silver)
    names = "outcome", "acknowledged_on", "hop_key", "session_acked_at", "session_ack_ms", "acknowledged_sendings"
    other, hop = key(silver.messages[0]["message_key"], r"srv\q", THREE, TWO), key(GUIDS[ONE], GUIDS[TWO])
    assert by_sender(lake, *names) == {
        ONE: ("transferred", other, hop, 22 * S, 21_000.0, 0),
        THREE: ("transferred", None, hop, 22 * S, 1000.0, 1),
    }
    assert "header" in {row["sender_address"]: row["evidence"] for row in rows(lake).values()}[ONE]
    assert by_sender(lake, "confidence") == {ONE: ("complete",), THREE: ("complete",)}
    check(lake, silver)


def test_an_acknowledgement_of_before_is_no_time_of_a_later_sending(lake):
    silver = sent_from_two_addresses()
    silver.sendings[0] |= {"session_acked_at": 2 * S, "session_acked_by": "early", "session_acked_in": "capture"}
    silver.sendings[1] |= dict.fromkeys(("session_acked_at", "session_acked_by", "session_acked_in"))
    update(lake, silver)
    first = key(silver.messages[0]["message_key"], r"srv\q", ONE, TWO)
    assert by_sender(lake, "outcome", "acknowledged_on", "session_acked_at")[THREE] == ("transferred", first, None)
    check(lake, silver)


def test_a_handshake_that_is_read_later_changes_the_hop_and_no_key(lake, monkeypatch):
    silver = sent_from_two_addresses(shown=(False, True))
    update(lake, silver)
    names = rows(lake).keys()
    assert by_sender(lake, "outcome", "missing", "hop_key") == {
        ONE: ("unacknowledged", ["capture_begins"], key(GUIDS[ONE], GUIDS[TWO])),  # THREE may be ONE
        THREE: ("transferred", [], key(THREE, TWO)),
    }
    check(lake, silver)
    monkeypatch.setattr(update_messages._MessagesUpdate, "_recompute_all", lambda *_: pytest.fail("all are recomputed"))
    later = silver.session("later", THREE, TWO, at=40 * S)
    later["initiator_queue_manager"] = GUIDS[ONE]
    update(lake, silver)
    assert by_sender(lake, "outcome", "missing") == {ONE: ("transferred", []), THREE: ("transferred", [])}
    check(lake, silver)
    later["initiator_queue_manager"] = GUIDS[THREE]  # it is another machine
    update(lake, silver)
    assert by_sender(lake, "outcome", "missing") == {ONE: ("unacknowledged", []), THREE: ("transferred", [])}
    check(lake, silver)
    assert rows(lake).keys() == names


def test_an_identifier_of_two_machines_tells_no_hop(lake, monkeypatch):
    silver = sent_from_two_addresses()
    update(lake, silver)
    monkeypatch.setattr(update_messages._MessagesUpdate, "_recompute_all", lambda *_: pytest.fail("all are recomputed"))
    for clones, outcome in (({GUIDS[ONE]}, "unacknowledged"), ({GUIDS[THREE]}, "transferred")):
        silver.clones = clones
        silver.session(f"another {outcome}", TWO, THREE, at=50 * S)  # O07 comes and goes with sessions
        update(lake, silver)
        assert by_sender(lake, "outcome")[ONE] == (outcome,)
        check(lake, silver)


def test_a_hole_between_the_same_queue_managers_may_hold_the_sending_that_was_acknowledged(lake, monkeypatch):
    silver = Silver(ends={TWO: 60 * S})
    silver.session("first", ONE, TWO, ended="closed")
    silver.send("first", "client", S)
    update(lake, silver)
    assert by_sender(lake, "outcome", "missing") == {ONE: ("unacknowledged", [])}
    monkeypatch.setattr(update_messages._MessagesUpdate, "_recompute_all", lambda *_: pytest.fail("all are recomputed"))
    holes = [("client", 20 * S, 30 * S, 200)]
    other = silver.session("other", THREE, TWO, at=20 * S, last=40 * S, holes=holes)
    for manager, missing in ((GUIDS[ONE], ["capture_loss"]), (GUIDS[THREE], [])):
        other["initiator_queue_manager"] = manager
        update(lake, silver)
        assert by_sender(lake, "outcome", "missing") == {ONE: ("unacknowledged", missing)}
        check(lake, silver)


@pytest.mark.parametrize(
    ("addresses", "manager", "said"),
    [
        ((THREE, TWO), GUIDS[ONE], {"admin_queue": f"{GUIDS[ONE]}\\4"}),  # the sender's other address
        ((THREE, TWO), GUIDS[THREE], {"admin_queue": "elsewhere\\acks"}),  # any machine
    ],
)
def test_a_hole_of_a_later_run_may_hold_an_acknowledgement(lake, monkeypatch, addresses, manager, said):
    silver = Silver(ends={TWO: 60 * S})
    silver.session("first", ONE, TWO, ended="closed")
    silver.send("first", "client", S, acked=(2 * S, "ack"), acknowledgement_requested=1, **said)
    update(lake, silver)
    assert by_sender(lake, "outcome", "missing") == {ONE: ("transferred", [])}
    monkeypatch.setattr(update_messages._MessagesUpdate, "_recompute_all", lambda *_: pytest.fail("all are recomputed"))
    other = silver.session("other", *addresses, at=20 * S, last=40 * S, holes=[("server", 20 * S, 30 * S, 200)])
    other["initiator_queue_manager"] = manager
    update(lake, silver)
    assert by_sender(lake, "outcome", "missing") == {ONE: ("transferred", ["capture_loss"])}
    check(lake, silver)
    other["server_holes"] = None
    update(lake, silver)
    assert by_sender(lake, "outcome", "missing") == {ONE: ("transferred", [])}
    check(lake, silver)


@pytest.mark.parametrize("acked", [(3, 11), (12, 11), (3, None), (None, 11), (None, None)])
def test_a_message_to_two_addresses_of_its_receiver_arrives_once(lake, acked):
    """It counts in gold.queue_history from the first acknowledgement on, whatever part of the table is read."""
    silver = Silver(ends={TWO: 60 * S})
    silver.session("first", ONE, TWO, ended="closed")
    silver.session("second", ONE, THREE, ended="closed")["acceptor_queue_manager"] = GUIDS[TWO]
    for name, sent, at in zip(("first", "second"), (1, 10), acked, strict=True):
        unclear = {"acked": (at * S, f"ack {at}")} if at else {"acknowledgement_may_be_missing": acked == (None, None)}
        silver.send(name, "client", sent * S, **unclear)
    update(lake, silver)
    check(lake, silver)
    first = min((at for at in acked if at), default=1)
    kinds = ["arrived", "departed"] if any(acked) else ["doubt", "doubt"]
    for since, count in ((0, 2), (first * S, 2), (first * S + 1, 0)):
        sql = transfer_events_sql(QueueSettings(), round(START.timestamp()) * S + since, "TRUE")
        found = lake.query(f"SELECT kind, `at` FROM ({sql}) ORDER BY kind", rows=MESSAGE_TRANSFERS).to_pylist()
        assert [(row["kind"], row["at"] - round(START.timestamp()) * S) for row in found] == [
            (kind, first * S) for kind in kinds[:count]
        ]
