"""Gold computed of what a change touches is gold computed of all; and what it does not touch is not written."""

import datetime as dt
from itertools import chain

import pytest

from attempts.test_tables import FOUR_TUPLE, HANDLE, _connection, at, gold_anew
from attempts.test_update import CLEANUP, add, change, plain
from pipeline.attempts import update as attempts_update
from pipeline.attempts.attempt_rows import attempts_function
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from tests.support.lakes import changes
from udfs.keys import key

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("in_few_calls_too")]


OTHER_SERVER = {"server_address": "10.0.0.9"}
BOTH = ["10.0.0.1", "10.0.0.9"]
CANCELLED = 0xC00E0008


def read(name, method, at_s, answer_s, **more):
    """A row of silver and the row of bronze that it came from."""
    protocol, opnum = method
    places = FOUR_TUPLE | {"connection_id": "c1", "run_id": "run", "call_key": name} | {
        k: more.pop(k) for k in ("connection_id", "server_address") if k in more
    }  # fmt: skip
    answered = None if answer_s is None else at(answer_s)
    silver = {"protocol": protocol, "opnum": opnum, "requested_at": at(at_s), "responded_at": answered, "errors": []}
    bronze = {"interface_name": protocol, "opnum": opnum, "request_at": at(at_s), "response_at": answered,
              "bind_seen": True, "sealed": False, "outcome": "ok" if answered else "no_response",
              "capture_id": more.pop("capture_id", "one")}  # fmt: skip
    return places | silver | more, places | bronze


START, END, OPEN = ("RemoteRead", 7), ("RemoteRead", 9), ("RemoteRead", 2)
QM_START, QM_CANCEL = ("qm2qm", 9), ("qm2qm", 5)
IN_CONTEXT = {"context_handle": HANDLE.hex(), "request_id": 7}
ASKED = IN_CONTEXT | {"action": 0, "timeout_ms": 5000}
WAITING = ASKED | {"hresult": 0}
ON_QUEUE = {"queue_handle": 28, "request_id": 7}


class Story:
    """A lake whose gold follows; says after each step which attempts were written, by the Starts' names."""

    def __init__(self, spark, root):
        self.lake = Lake(spark, str(root))
        self.names = {}

    def add(self, *calls):
        self.names |= {key(silver["call_key"]): silver["call_key"] for silver, _ in calls}
        add(self.lake, REMOTE_READ_CALLS, *(silver for silver, _ in calls))
        add(self.lake, RPC_CALLS, *(bronze for _, bronze in calls))

    def change(self, *calls, gone=()):
        change(self.lake, REMOTE_READ_CALLS, *(silver for silver, _ in calls), gone=gone)
        change(self.lake, RPC_CALLS, *(bronze for _, bronze in calls), gone=gone)

    def written(self, cleanup=CLEANUP):
        before = self.lake.version(RECEIVE_ATTEMPTS)
        attempts_update.update(self.lake, cleanup=cleanup)
        assert plain(self.lake.read(RECEIVE_ATTEMPTS)) == plain(gold_anew(self.lake, cleanup.total_seconds()))
        rows = changes(self.lake, RECEIVE_ATTEMPTS, -1 if before is None else before)
        return sorted({self.names[row[0]] for row in rows.select("attempt_key").collect()})

    def outcomes(self):
        rows = self.lake.read(RECEIVE_ATTEMPTS).select("attempt_key", "outcome").collect()
        return {self.names[row[0]]: row[1] for row in rows}


@pytest.fixture
def story(spark, tmp_path):
    story = Story(spark, tmp_path / "lake")
    story.add(
        read("open", OPEN, 0, 0.5, queue="srv1\\orders", context_handle=HANDLE.hex()),
        read("start", START, 1, 3, **WAITING),
        read("waits", QM_START, 2, None, connection_id="c2", **ON_QUEUE, action=0, timeout_ms=0xFFFFFFFF),
        read("far", START, 1, 3, connection_id="c9", **OTHER_SERVER, **WAITING),
        read("alone", START, 1, None, connection_id="c4", **ASKED),
    )
    add(
        story.lake, CONNECTIONS, _connection("c1", 0), _connection("c2", 0, association_group_id=2),
        _connection("c9", 0, **OTHER_SERVER, last_packet_at=at(4)), _connection("c4", 0, association_group_id=None),
    )  # fmt: skip
    add(
        story.lake,
        CAPTURE_FILES,
        {"capture_id": "one", "servers": BOTH, "first_packet_at": at(0), "last_packet_at": at(10)},
    )
    assert story.written() == ["alone", "far", "start", "waits"]
    assert story.outcomes() == dict.fromkeys(("alone", "far", "start", "waits"), "in_flight")
    return story


def test_an_end_settles_its_attempt_and_nothing_else_is_written(story):
    story.add(read("end", END, 4, 4.5, **IN_CONTEXT, ack=2, hresult=0, capture_id="two"))
    two = {"capture_id": "two", "servers": BOTH[:1], "first_packet_at": at(4), "last_packet_at": at(9)}
    add(story.lake, CAPTURE_FILES, two)
    assert story.written() == ["start"]
    assert story.outcomes()["start"] == "acked"
    story.change(gone=["end"])
    assert story.written() == ["start"]
    assert story.written() == []


@pytest.fixture
def looked_at(story, monkeypatch):
    """The calls of which attempts were made, by name, since it was last asked."""
    seen = []

    def spy(**options):
        find = attempts_function(**options)

        def look_and_find(parts):
            read = [parts[name]["call_key"].to_pylist() for name in ("calls", "shared") if name in parts]
            seen.extend(chain.from_iterable(read))
            return find(parts)

        return look_and_find

    monkeypatch.setattr(attempts_update, "attempts_function", spy)

    def ask():
        found, seen[:] = sorted(seen), []
        return found

    return ask


@pytest.mark.long
def test_of_an_association_that_goes_on_what_shares_nothing_with_a_change_is_not_looked_at(story, looked_at):
    more = ASKED | {"action": 0x80000000, "hresult": 0}
    story.add(*(read(f"peek{n}", START, 4, 4.5, **(more | {"request_id": n})) for n in range(10, 30)))
    assert len(story.written()) == 20

    def peeks():
        return sum(name.startswith("peek") for name in looked_at())

    assert peeks() == 20
    # The connection goes on, and another one joins it.
    change(story.lake, CONNECTIONS, _connection("c1", 0, last_packet_at=at(9)), _connection("c1b", 7))
    story.add(read("end", END, 8, 8.5, connection_id="c1b", **IN_CONTEXT, ack=2, hresult=0))
    assert story.written() == ["start"]
    assert peeks() == 0
    # One that ends, and another left: what waits on the one is answered by nobody.
    story.add(read("asked", START, 5, None, **(ASKED | {"request_id": 31, "timeout_ms": 0xFFFFFFFF})))
    assert story.written() == ["asked"]
    change(story.lake, CONNECTIONS, _connection("c1", 0, closed_at=at(9), closed_by="fin", last_packet_at=at(9)))
    assert story.written() == ["asked"]
    assert story.outcomes()["asked"] == "unknown"
    assert peeks() == 0
    # The end of the last one is the association's, and everything is looked at.
    change(story.lake, CONNECTIONS, _connection("c1b", 7, closed_at=at(9.5), closed_by="fin"))
    assert story.written() == ["start"]
    assert peeks() == 20


@pytest.mark.long
def test_a_close_by_context_reaches_what_waits_on_the_number(story, looked_at):
    session = {"connection_id": "c2", "context_handle": "5e" * 20}
    story.add(read("session", ("qm2qm", 2), 1, 1.5, queue_handle=28, **session))
    story.written()
    story.add(read("still", QM_START, 3, None, connection_id="c2", queue_handle=29, request_id=8, action=0,
                   timeout_ms=0xFFFFFFFF))  # fmt: skip
    assert story.written() == ["still"]
    looked_at()
    story.add(read("close", ("qm2qm", 3), 8, 8.5, hresult=0, **session))
    assert story.written() == ["waits"]
    assert "still" not in looked_at()
    assert story.outcomes()["waits"] == "cancelled"


@pytest.mark.long
def test_open_attempts_are_settled_when_their_captures_have_gone_on_for_long_enough(story):
    change(
        story.lake,
        CAPTURE_FILES,
        {"capture_id": "one", "servers": BOTH, "first_packet_at": at(0), "last_packet_at": at(12)},
    )
    assert story.written() == ["alone"]  # its answer is overdue
    add(story.lake, CAPTURE_FILES, {"capture_id": "two", "first_packet_at": at(500), "last_packet_at": at(900)})
    assert story.written() == []
    two = {"capture_id": "two", "first_packet_at": at(500), "last_packet_at": at(900)}
    change(story.lake, CAPTURE_FILES, {**two, "servers": [OTHER_SERVER["server_address"]]})
    assert story.written() == ["far"]
    assert story.outcomes()["far"] == "expired"
    # The capture that showed it goes: what it settled is open again.
    change(story.lake, CAPTURE_FILES, two)
    assert story.written() == ["far"]
    assert story.outcomes()["far"] == "in_flight"


@pytest.mark.long
def test_a_cancel_reaches_a_qm2qm_start_of_another_association(story):
    add(
        story.lake, CONNECTIONS, _connection("c3", 700, association_group_id=3, missing_bytes=0, last_packet_at=at(800))
    )
    two = {"capture_id": "two", "servers": BOTH[:1], "first_packet_at": at(700), "last_packet_at": at(800)}
    add(story.lake, CAPTURE_FILES, two)
    story.add(read("cancel", QM_CANCEL, 700, 701, connection_id="c3", **ON_QUEUE, hresult=0, capture_id="two"))
    assert "waits" in story.written()
    assert story.outcomes()["waits"] == "cancelled"
    # A later Start of the same number takes the cancel; it is on a third connection.
    add(story.lake, CONNECTIONS, _connection("c5", 600, association_group_id=5, last_packet_at=at(900)))
    story.add(read("second", QM_START, 650, None, connection_id="c5", **ON_QUEUE, action=0, timeout_ms=0xFFFFFFFF))
    assert story.written() == ["second", "waits"]
    assert story.outcomes()["second"] == "cancelled"
    # The cancel's connection alone changes: what it lost is missing in the answer that rests on it.
    change(
        story.lake, CONNECTIONS, _connection("c3", 700, association_group_id=3, missing_bytes=9, last_packet_at=at(800))
    )
    assert story.written() == ["second"]


@pytest.mark.long
def test_connections_that_join_part_and_close_move_their_attempts(story):
    joined = _connection("joined", -5, association_group_id=1, closed_at=at(8), closed_by="fin")
    change(story.lake, CONNECTIONS, joined, gone=["c1"])
    story.change(
        read("open", OPEN, 0, 0.5, queue="srv1\\orders", context_handle=HANDLE.hex(), connection_id="joined"),
        read("start", START, 1, 3, connection_id="joined", **WAITING),
    )
    assert story.written() == ["start"]
    assert story.outcomes()["start"] == "rundown"
    # Another connection of the group, open while the first one closed: its end is the association's.
    add(story.lake, CONNECTIONS, _connection("sibling", 5))
    assert story.written() == ["start"]
    assert story.outcomes()["start"] == "in_flight"
    change(story.lake, CONNECTIONS, _connection("sibling", 9))  # it began after the first had ended
    assert story.written() == ["start"]
    assert story.outcomes()["start"] == "rundown"
    change(story.lake, CONNECTIONS, _connection("c4", 0))
    assert set(story.written()) >= {"start"}


@pytest.mark.long
def test_a_stray_of_the_same_client_reaches_what_nobody_is_seen_to_end(story):
    def missing():
        rows = story.lake.read(RECEIVE_ATTEMPTS).select("attempt_key", "missing").collect()
        return {story.names[row[0]]: row[1] for row in rows}["start"]

    def stray(first, last, **more):
        stands = {"association_group_id": None, "syn_seen": False, "last_packet_at": at(last)}
        return _connection("stray", first, **(stands | more))

    change(story.lake, CONNECTIONS, _connection("c1", 0, closed_at=at(8), closed_by="fin"))
    assert story.written() == ["start"]
    add(story.lake, CONNECTIONS, stray(9, 10))
    assert story.written() == []  # it was over
    change(story.lake, CONNECTIONS, stray(5, 10))
    assert story.written() == ["start"]
    assert missing() == ["capture_begins"]
    # Another call of the association: the stray is known of, though nothing of it changed.
    story.add(read("peek", START, 4, 4.5, **(ASKED | {"action": 0x80000000, "request_id": 8, "hresult": 0})))
    assert story.written() == ["peek"]
    change(story.lake, CONNECTIONS, stray(5, 10, association_group_id=7))
    assert story.written() == ["start"]
    assert missing() == []


@pytest.mark.long
def test_a_stray_reaches_a_connection_that_was_idle_and_not_seen_to_end(story):
    change(story.lake, CAPTURE_FILES, {"capture_id": "one", "servers": BOTH, "first_packet_at": at(0),
                                       "last_packet_at": at(30)})  # fmt: skip
    assert story.written() == ["alone"]
    later = _connection("stray", 20, association_group_id=None, syn_seen=False, last_packet_at=at(21))
    add(story.lake, CONNECTIONS, later)
    assert story.written() == ["start"]


@pytest.mark.long
def test_the_commit_says_until_when_calls_can_have_been_lost(story):
    def lost():
        attempts_update.update(story.lake, cleanup=CLEANUP)
        said = story.lake.versions.newest_commits(RECEIVE_ATTEMPTS)[RECEIVE_ATTEMPTS].provenance()["lost"]
        return {server: time for server, time in said.items() if time}

    def us(seconds):
        return round(at(seconds).timestamp() * 1e6)

    assert lost() == {}
    change(story.lake, CONNECTIONS, _connection("c9", 0, **OTHER_SERVER, last_packet_at=at(4), missing_bytes=5))
    assert lost() == {"10.0.0.9": us(4)}
    change(story.lake, CONNECTIONS, _connection("c9", 0, **OTHER_SERVER, last_packet_at=at(6), missing_bytes=5))
    assert lost() == {"10.0.0.9": us(6)}
    add(story.lake, CONNECTIONS, _connection("c8", 0, **OTHER_SERVER, last_packet_at=at(3), missing_bytes=1))
    assert lost() == {"10.0.0.9": us(6)}
    change(story.lake, CONNECTIONS, _connection("c9", 0, **OTHER_SERVER, last_packet_at=at(6)))
    assert lost() == {"10.0.0.9": us(3)}
    two = {"capture_id": "two", "servers": BOTH, "first_packet_at": at(4), "last_packet_at": at(9)}
    add(story.lake, CAPTURE_FILES, two | {"packets_dropped": 1})
    assert lost() == dict.fromkeys(BOTH, us(9))
    change(story.lake, CAPTURE_FILES, two | {"packets_dropped": 0})
    assert lost() == {"10.0.0.9": us(3)}


@pytest.mark.long
def test_an_attempt_whose_start_moves_to_another_day_or_goes_leaves_nothing_behind(story):
    story.change(read("alone", START, 601, None, connection_id="c4", **ASKED), gone=["far"])
    assert story.written() == ["alone", "far"]
    assert "far" not in story.outcomes()


@pytest.mark.long
def test_another_clean_up_timer_computes_all_anew(story):
    story.written(dt.timedelta(seconds=5))
    assert story.outcomes()["start"] == "expired"


def test_no_number_of_changes_has_all_computed(story, monkeypatch):
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    monkeypatch.setattr(attempts_update._AttemptsUpdate, "_recompute_all", None)
    story.change(read("start", START, 1, 3, **WAITING | {"action": 0x80000000}), gone=["alone"])
    assert story.written() == ["alone", "start"]
    assert story.outcomes() == {"start": "peeked", "far": "in_flight", "waits": "in_flight"}
    story.add(read("cancel", QM_CANCEL, 4, 4.5, connection_id="c2", **ON_QUEUE, hresult=0))
    assert story.written() == ["waits"]
