"""What became of opened queues, and who blocked whom: stories of one server, and the recorded sample."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from attempts.stories import (
    HANDLE,
    OK,
    ORDERS,
    OTHER_HANDLE,
    SILENT,
    US,
    close,
    connection,
    name,
    opened,
    qm_close,
    qm_open,
    release,
)
from attempts.test_handles import APP, LARGE, READER
from pipeline.attempts.attempt_rows import CONNECTION_FIELDS
from pipeline.attempts.calls.decoded_call import OPEN_ROLES, DecodedCall
from pipeline.attempts.client_identity import IDENTITY_COLUMNS
from pipeline.attempts.open_rows import opens_function
from pipeline.attempts.queue_opens import find_opens, share_modes_conflict
from pipeline.silver.decode import decode_calls
from schemas.attempts import QUEUE_OPENS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from udfs.capture.capture_reader import read_capture

RECEIVE, PEEK, DENY_NONE, DENY_SHARE = 0x01, 0x20, 0, 1
VIOLATION = 0xC00E0009
SHARED, EXCLUSIVE = (RECEIVE, DENY_NONE), (RECEIVE, DENY_SHARE)
CLAIMS = ("auth_principal", "auth_workstation")
SERVER = "server_address"
STRAY = connection("stray", last=9.0, group=None, syn_seen=False)
OTHER = connection("c2", group=2, client="10.0.0.3")


def mode(call, access=RECEIVE, share_mode=DENY_NONE):
    return call._replace(access=access, share_mode=share_mode)


def refused(at, *, name="refused", access=RECEIVE, share_mode=DENY_SHARE, **more):
    """An R_OpenQueue of another client that is refused because of another open."""
    call = opened(at, name=name, handle=None, connection_id="c2", fault_status=VIOLATION, outcome="fault", **more)
    return mode(call, access, share_mode)


def found(*calls, connections=(READER, OTHER), **options):
    """What became of each open, by name; the order of rows does not matter."""
    made = find_opens(calls, connections, **options)
    assert [each.call for each in find_opens(calls[::-1], connections[::-1], **options)] == [e.call for e in made]
    return {each.call.call_key: each for each in made}


def ended(each):
    return each.ended_by, None if each.closed_at is None else each.closed_at / US, sorted(each.missing)


def blockers(each):
    return [holder.call.call_key for holder in each.blocked_by]


@pytest.mark.parametrize(
    ("calls", "connections", "expected"),
    [
        ([opened(), close(5, answer=5.5)], [READER], ("closed", 5.5, [])),
        ([opened(), close(5, hresult=0xC00E0007)], [READER], ("open", None, [])),
        ([opened()], [replace(READER, closed_at=9 * US)], ("rundown", 9.0, [])),
        ([opened()], [connection(group=None, closed=9.0)], ("connection_ended", 9.0, [])),
        ([opened()], [READER], ("open", None, [])),
        ([opened()], [replace(READER, missing_bytes=7)], ("unknown", None, ["capture_loss"])),
        ([opened(), close(5, SILENT)], [READER], ("unknown", None, ["capture_ends", "no_response"])),
        ([opened(), opened(7, name="again")], [READER], ("unknown", None, ["no_close"])),
        ([opened()], [READER, STRAY],
         ("unknown", None, ["capture_begins"])),
    ],
)  # fmt: skip
def test_how_an_opened_queue_ended(calls, connections, expected):
    each = found(*calls, connections=connections)["open"]
    assert (each.outcome, ended(each)) == ("opened", expected)


def test_an_open_that_was_not_answered_is_unknown_and_one_that_was_refused_has_no_end():
    silent = DecodedCall("silent", "RemoteRead", 2, "c1", requested_at=0, outcome="no_response", queue=ORDERS)
    made = found(silent, refused(1))
    assert (made["silent"].outcome, made["silent"].missing) == ("unknown", {"no_response"})
    assert (made["refused"].outcome, made["refused"].ended_by, made["refused"].cursors) == ("refused", None, None)


def test_a_sharing_violation_names_the_opens_that_held_the_queue_then():
    made = found(
        mode(opened(0, name="gone")), close(1),
        mode(opened(2, name="holder")), mode(opened(2.5, name="peeker", handle=OTHER_HANDLE), PEEK),
        mode(opened(3, name="elsewhere", queue=LARGE, handle="cc" * 20), *EXCLUSIVE),
        refused(4), close(6), mode(opened(7, name="later")),
    )  # fmt: skip
    assert blockers(made["refused"]) == ["holder"]
    assert [each.call.call_key for each in made["holder"].blocks] == ["refused"]
    assert made["refused"].evidence == ["holder", "refused"]
    assert (made["refused"].missing, made["refused"].confidence) == (set(), "complete")
    assert not any(made[name].blocks for name in ("gone", "peeker", "elsewhere", "later"))


def test_the_first_hundred_opens_that_held_the_queue_are_named():
    holders = [mode(opened(n / 1000, name=f"{n:03}", handle=f"{n:040x}")) for n in range(150)]
    made = found(*holders, close(0.5, handle=f"{7:040x}"), refused(4))
    assert blockers(made["refused"]) == [f"{n:03}" for n in range(101) if n != 7]


def test_who_holds_the_queue_is_unknown_where_its_open_was_not_captured():
    each = found(refused(4))["refused"]
    assert (blockers(each), each.missing, each.confidence) == ([], {"no_open"}, "partial")
    # One whose end may have been missed may not have held it any more.
    lossy = [replace(READER, missing_bytes=7), OTHER]
    each = found(mode(opened()), refused(4), connections=lossy)["refused"]
    assert (blockers(each), "capture_loss" in each.missing) == (["open"], True)


def test_two_names_of_a_queue_are_one_queue():
    asked = refused(4, queue="10.0.0.1\\private$\\orders")
    assert blockers(found(mode(opened()), asked)["refused"]) == []
    names = {"10.0.0.1\\private$\\orders": ORDERS}
    made = found(mode(opened()), asked, canonical=lambda queue: names.get(queue, queue))
    assert blockers(made["refused"]) == ["open"]


def test_share_modes_forbid_each_other_as_specified():
    """[MS-MQDMPR] 3.1.7.1.5, as rule R08 has it."""
    every = [(access, share) for access in (RECEIVE, PEEK) for share in (DENY_NONE, DENY_SHARE)]
    forbidden = {(held, asked) for held in every for asked in every if share_modes_conflict(held, asked)}
    quiet, alone_peeking = (PEEK, DENY_NONE), (PEEK, DENY_SHARE)
    assert forbidden == {
        (EXCLUSIVE, SHARED), (EXCLUSIVE, EXCLUSIVE), (EXCLUSIVE, alone_peeking),
        (alone_peeking, SHARED), (alone_peeking, EXCLUSIVE),
        (SHARED, EXCLUSIVE), (SHARED, alone_peeking),
    }  # fmt: skip
    assert not any(quiet in pair for pair in forbidden)
    assert not share_modes_conflict((None, DENY_SHARE), SHARED)
    assert not share_modes_conflict((0x02, DENY_SHARE), SHARED)  # who sends shares


def test_a_remote_open_is_one_story_of_steps():
    port = DecodedCall("port", "qm2qm", 7, "c1", requested_at=US, responded_at=US + 1, returned_port=2105)
    numbers = {"port": 2103}
    calls = [name(0), port, qm_open(2), release(2.5), qm_close(8)]
    made = found(*calls, connections=[APP, READER], ports=lambda call: numbers.get(call.call_key, 2105))
    session = made["open"]
    assert [(step.step, step.seen, step.call_key) for step in session.steps] == [
        ("number", True, "name"), ("port", True, "port"), ("binding", True, None), ("open", True, "open"),
    ]  # fmt: skip
    assert (session.queue, ended(session)) == (ORDERS, ("closed", 8.001, []))
    # What the application opened lasts as long as the session; its own context was let go before.
    assert ended(made["name"]) == ("closed", 8.001, [])
    # Another port than the one that was asked for; nobody was seen to open the number.
    alone = found(port, qm_open(2), connections=[READER], ports=lambda _: 2103)["open"]
    assert [step.seen for step in alone.steps] == [False, False, True, True]
    assert (alone.queue, alone.missing) == (None, {"no_open", "queue_unknown"})


def test_a_number_that_no_session_adopted_is_let_go_by_its_application():
    assert ended(found(name(0), release(1.5), connections=[APP])["name"]) == ("closed", 1.501, [])


def test_a_queue_manager_may_name_the_owner_instead_of_opening():
    at = {"requested_at": US, "responded_at": US + 1, "hresult": OK, "queue": ORDERS}
    made = found(
        DecodedCall("referred", "qmcomm", 19, "c1", **at),
        DecodedCall("proxy", "qmcomm", 19, "c1", context_handle=HANDLE, queue_handle=28, **at),
        DecodedCall("cursor", "qmcomm2", 3, "c1", **at | {"requested_at": 2 * US}, context_handle=HANDLE),
        DecodedCall("close", "qmcomm", 20, "c1", **at | {"requested_at": 3 * US, "responded_at": 4 * US},
                    context_handle=HANDLE),
    )  # fmt: skip
    assert (made["referred"].outcome, made["referred"].ended_by) == ("referred", None)
    assert (made["proxy"].outcome, ended(made["proxy"])) == ("opened", ("closed", 4.0, []))
    assert (made["proxy"].cursors, made["proxy"].holds_queue) == (1, False)


def opens_of(path):
    """Rows of gold.queue_opens of a recorded capture, with the rows of bronze.rpc_calls by key."""
    tables = read_capture(str(path))
    calls = tables["rpc_calls"].combine_chunks()
    nothing = pa.nulls(len(calls), pa.string())
    for column, values in (("opened_by", nothing), ("run_id", nothing),
                           ("response_byte_order", pa.array(["little"] * len(calls)))):  # fmt: skip
        if column not in calls.column_names:
            calls = calls.append_column(column, values)
    (batch,) = calls.to_batches()
    silver = decode_calls(batch)
    reads, clients = (pa.Table.from_batches([silver[str(table)]]) for table in (REMOTE_READ_CALLS, CLIENT_CALLS))
    clients = clients.append_column("protocol", clients["interface_name"])
    known = calls.append_column("encrypted", calls["sealed"])
    claims = tables["rpc_binds"].group_by("connection_id").aggregate([(name, "max") for name in (*CLAIMS, SERVER)])
    claimed = dict(zip(CLAIMS, IDENTITY_COLUMNS, strict=True)) | {SERVER: SERVER}
    parts = {
        "reads": _playing(reads),
        "clients": _playing(clients),
        "known": known.select(["call_key", "opened_by", "outcome", "fault_status", "bind_seen", "cancelled_at",
                               "orphaned_at", "encrypted", SERVER]),
        "identities": claims.rename_columns({f"{name}_max": other for name, other in claimed.items()}),
        "connections": tables["connections"].select([*CONNECTION_FIELDS, SERVER]),
    }  # fmt: skip
    made = pa.concat_tables(opens_function({})(parts))
    assert tuple(made.column_names) == QUEUE_OPENS.names
    by_key = {row["call_key"]: row for row in calls.drop_columns(["request_stub", "response_stub"]).to_pylist()}
    return made.to_pylist(), by_key


def _playing(calls):
    methods = zip(calls["protocol"].to_pylist(), calls["opnum"].to_pylist(), strict=True)
    return calls.filter(pa.array([method in OPEN_ROLES for method in methods], pa.bool_()))


def test_the_sample_has_one_row_per_open_and_knows_whom_the_exclusive_reader_met(project):
    name = "01-remoteread-ndr"
    truth = json.loads((project / "tests" / "sample" / "truth" / f"{name}.truth.json").read_text())
    rows, calls = opens_of(project / "data" / "sample" / f"{name}.pcap")
    opening = [call for call in truth["calls"] if call["opnum"] == 2 and call["interface"] == "RemoteRead"]
    results = [(calls[row["call_key"]]["call_id"], row["result"]) for row in rows]
    assert sorted(results, key=str) == sorted(((call["call_id"], call["fault_status"]) for call in opening), key=str)
    (violation,) = (row for row in rows if row["result_name"] == "MQ_ERROR_SHARING_VIOLATION")
    (holder,) = (row for row in rows if row["call_key"] in violation["blocked_by"])
    assert holder["blocks"] == [violation["call_key"]]
    assert holder["opened_at"] < violation["requested_at"] < holder["closed_at"]
    modes = [(row["access_name"], row["share_mode_name"]) for row in (holder, violation)]
    assert modes == [("receive", "MQ_DENY_NONE"), ("receive", "MQ_DENY_SHARE")]
    assert holder["client_address"] != violation["client_address"] or holder["client_port"] != violation["client_port"]


def test_the_samples_dependent_clients_open_step_by_step(project):
    rows, _ = opens_of(project / "data" / "sample" / "03-qm2qm-dependent-client.pcap")
    by_key = {row["call_key"]: row for row in rows}
    sessions = [row for row in rows if row["method"] == "RemoteQMOpenQueue"]
    assert len(sessions) == 5
    for row in sessions:
        number = by_key[row["remote_open"]]
        assert (row["queue"], row["access"], row["share_mode"]) == tuple(
            number[name] for name in ("queue", "access", "share_mode")
        )
        assert (number["closed_at"], number["ended_by"]) == (row["closed_at"], row["ended_by"])
        assert [step["step"] for step in row["steps"]] == ["number", "port", "binding", "open"]
    assert sum(all(step["seen"] for step in row["steps"]) for row in sessions) == 4  # one asked for no port


def test_the_sealed_samples_opens_say_who_claims_to_be_their_client(project):
    rows, calls = opens_of(project / "data" / "sample" / "05-sealed-ntlm.pcap")
    secured = [row for row in rows if calls[row["call_key"]]["auth_type"] is not None]
    assert {row["principal"] for row in secured} == {"TESTDOM\\reader"}
    assert {row["workstation"] for row in secured} == {None, "CLI1"}
    assert {row["principal"] for row in rows if row not in secured} <= {None}
