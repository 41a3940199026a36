"""The collector against simulated queue managers over real TCP: rounds, authentication, faulty hosts."""

import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from impacket.krb5 import constants, kerberosv5

from collector.snapshot_files import queue as queue_line
from jobs import collect_snapshots
from jobs.config import Config
from peer.estate import NOT_ACTIVE, Estate, EstateThread, machines
from peer.estate import Machine as Simulated
from peer.faults import CuttingProxy, FixedAnswerServer
from peer.manager import Manager
from peer.server import ACCOUNT
from pipeline.collector import transport
from pipeline.collector.client import Credentials, ServerAddress
from pipeline.collector.round import CollectionRound, RetryPolicy, RoundLimits
from pipeline.collector.scheduler import CollectionSchedule, Collector
from pipeline.collector.snapshot_writer import write_snapshot_files
from pipeline.collector.targets import QUEUE_PROPERTIES, CollectionTarget
from pipeline.collector.transport import StopSignal
from pipeline.settings import CollectorConfig, CollectorMachine

QUICK = RetryPolicy(timeout_s=5, retries=1, backoff_s=0.01)
PASSWORD = "s3cret-Pässword-of-the-estate"


@pytest.fixture
def estate():
    made = Estate()
    with EstateThread(made) as thread:
        thread.do(made.step)
        made.do = thread.do
        yield made


def port(estate, name):
    return next(each.manager.ports["remoteread"] for each in estate.machines if each.manager.name == name)


def target_of(estate, name, **more):
    return CollectionTarget(name, ServerAddress("127.0.0.1", port(estate, name)), **more)


def collect(target, credentials=None, retry_policy=QUICK, **more):
    one_round = CollectionRound(target, credentials or Credentials(), retry_policy, StopSignal(), **more)
    return list(one_round.collect()), one_round.report


def values(snapshot):
    return {each["property_id"]: json.loads(each["value_json"]) for each in snapshot["properties"]
            if each["value_json"] is not None}  # fmt: skip


def by_queue(snapshots):
    return {(each["format_name"] or "").rpartition("\\")[2]: each for each in snapshots}


def test_a_round_asks_the_machine_and_all_of_its_queues(estate):
    snapshots, report = collect(target_of(estate, "orders1"))
    found = by_queue(snapshots)
    assert found.keys() == {"", "growing", "draining", "journal", "inactive", "ledger"}
    assert [each["property_id"] for each in found["growing"]["properties"]] == list(QUEUE_PROPERTIES)
    assert (values(found["growing"])[7], values(found["draining"])[7], values(found["journal"])[9]) == (3, 56, 2)
    inactive = found["inactive"]
    assert (inactive["hresult"], inactive["error"]) == (NOT_ACTIVE, None)
    assert {(each["vt"], each["value_json"]) for each in inactive["properties"]} == {(None, None)}
    assert {each["server_address"] for each in snapshots} == {"127.0.0.1"}
    assert all(each["asked_at"] < each["collected_at"] for each in snapshots)
    assert (report.requested, report.answered, report.failed) == (6, 5, 1)
    assert report.format_line().startswith(
        "orders1: round 1: 6 objects requested, 5 answered, 1 failed (MQ_ERROR_QUEUE_NOT_ACTIVE 1), "
    )


def test_queues_are_chosen_by_patterns_and_by_name(estate):
    def names(**more):
        return set(by_queue(collect(target_of(estate, "orders1", **more))[0])) - {""}

    assert names(include=("*\\DRAIN*", "*journal")) == {"draining", "journal"}
    assert names(exclude=("*ing",)) == {"journal", "inactive", "ledger"}
    assert names(discover=()) == set()
    assert names(discover=(), queues=("orders1\\private$\\ledger", "DIRECT=OS:ORDERS1\\Private$\\Ledger")) == {"ledger"}
    assert names(exclude=("*",), queues=("orders1\\private$\\ledger",)) == {"ledger"}


def test_several_rounds_see_the_estate_move(estate, tmp_path):
    targets = [target_of(estate, each.manager.name) for each in estate.machines]
    rounds = 6
    made = Collector(
        targets, Credentials(), tmp_path, retry_policy=QUICK, schedule=CollectionSchedule(0.2, rounds), max_parallel=2
    )
    reports = []
    for landed in made.run():
        reports.append(landed.report)
        if landed.report.name == "relay1":  # between rounds of this machine; the others may see either state
            estate.do(estate.step)
    assert sorted((r.name, r.round_number) for r in reports) == sorted(
        (w.name, n) for w in targets for n in range(1, rounds + 1)
    )
    files = sorted(tmp_path.rglob("*.jsonl"))
    assert len(files) == rounds * len(targets)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path not in files] == []
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    values_by_queue = {}
    for each in sorted(lines, key=lambda each: each["asked_at"]):
        values_by_queue.setdefault((each["queue_manager"], (each["format_name"] or "").rpartition("\\")[2]), []).append(
            values(each)
        )
    growing = [each[7] for each in values_by_queue["orders1", "growing"]]
    assert growing == sorted(growing)
    assert growing[0] < growing[-1]
    draining = [each[7] for each in values_by_queue["orders1", "draining"]]
    assert draining == sorted(draining, reverse=True)
    relay = {name: values_by_queue["relay1", name] for name in ("stalled", "resending", "reset", "paused", "flowing")}
    assert len({each[16] for each in relay["stalled"][2:]}) == 1  # the first unacknowledged one stays
    assert [each[20] for each in relay["stalled"]] == [2, 2, 2, 4, 6, 8]
    assert [each[23] for each in relay["resending"]] == [0, 1, 2, 3, 4, 5]
    assert [each[22] for each in relay["resending"]] == [30, 30, 30, 30, 300, 300]
    ids = [bytes.fromhex(each[18])[:8] for each in relay["reset"]]
    assert (len(set(ids[:5])), ids[5] != ids[0]) == (1, True)
    assert [each[11] for each in relay["paused"]] == ["CONNECTED"] * 3 + ["ONHOLD"] * 3
    assert [each[18] for each in relay["flowing"]] != [relay["flowing"][0][18]] * rounds
    assert values_by_queue["shop1", "till"][0][2] == values_by_queue["shop2", "till"][0][2]  # one identifier


@pytest.mark.parametrize("privacy", [False, True])
def test_ntlm(estate, privacy):
    who = Credentials("ntlm", ACCOUNT.user, ACCOUNT.domain, ACCOUNT.password, privacy=privacy)
    snapshots, report = collect(target_of(estate, "orders1"), who)
    assert (report.answered, values(by_queue(snapshots)["growing"])[7]) == (5, 3)
    (server,) = [each for each in estate.servers if each.manager.name == "orders1"]
    calls = [call for call in server.manager.ledger.calls if call.interface == "qmmgmt"]
    assert {(call.auth_type, call.sealed) for call in calls} == {(10, privacy)}


def test_a_wrong_password_is_told_once_and_not_tried_again(estate):
    who = Credentials("ntlm", ACCOUNT.user, ACCOUNT.domain, "wrong", privacy=True)
    snapshots, report = collect(
        target_of(estate, "orders1", queues=("orders1\\private$\\a", "orders1\\private$\\b")), who
    )
    assert [(each["hresult"], each["error"]) for each in snapshots] == [(None, "unauthenticated")] * 3
    assert (report.answered, report.retries, report.reached) == (0, 0, False)
    (server,) = [each for each in estate.servers if each.manager.name == "orders1"]
    assert len(server.manager.ledger.calls) == 1  # no retries: they would lock the account


@pytest.mark.parametrize(("kdc", "host"), [("dc.example", "dc.example"), (None, "EXAMPLE.COM")])
def test_kerberos_asks_the_key_distribution_centre_for_a_ticket(estate, monkeypatch, kdc, host):
    """Without a real KDC: the request goes to the right host for the right user, and a refusal is no time-out."""
    requests = []

    def refuse(data, domain, kdc_host, *_):
        requests.append((data, domain if kdc_host is None else kdc_host))
        raise kerberosv5.KerberosError(error=constants.ErrorCodes.KDC_ERR_C_PRINCIPAL_UNKNOWN.value)

    monkeypatch.setattr(kerberosv5, "sendReceive", refuse)
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    who = Credentials("kerberos", "reader", "EXAMPLE.COM", PASSWORD, privacy=True, kdc=kdc)
    snapshots, report = collect(target_of(estate, "orders1"), who)
    assert [each["error"] for each in snapshots] == ["unauthenticated"]
    assert (len(requests), requests[0][1], report.retries) == (1, host, 0)
    assert b"reader" in requests[0][0]
    assert PASSWORD.encode() not in requests[0][0]


def test_the_endpoint_mapper_tells_the_port(estate):
    manager = estate.machines[0].manager
    target = CollectionTarget("orders1", ServerAddress("127.0.0.1", None, manager.ports["epm"]))
    assert collect(target)[1].answered == 5
    # one that does not know the interface
    nobody = CollectionTarget("orders1", ServerAddress("127.0.0.1", None, manager.ports["remoteread"]))
    estate.servers[0].service.handlers = {
        key: handler for key, handler in estate.servers[0].service.handlers.items() if key[1] != 3
    }
    snapshots, report = collect(nobody)
    assert report.answered == 0
    assert snapshots[0]["error"].startswith("fault:0x")


def test_a_dead_host(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        target = CollectionTarget(
            "dead", ServerAddress("127.0.0.1", free.getsockname()[1]), queues=("dead\\private$\\q",)
        )
    snapshots, report = collect(target)
    assert [(each["object_type"], each["error"], each["collected_at"]) for each in snapshots] == [
        ("machine", "refused", None), ("queue", "refused", None),
    ]  # fmt: skip
    assert report.retries == 1  # no retry for the queue: the machine cannot be reached


def test_a_name_without_an_address_is_not_a_refusal():
    """RFC 6761: ``invalid`` never resolves, and needs no server to say so."""
    snapshots, report = collect(CollectionTarget("gone", ServerAddress("gone.invalid", 2103)))
    assert [each["error"] for each in snapshots] == ["unresolved"]
    assert report.retries == 1


def test_a_slow_host_holds_up_nobody_else(estate, tmp_path):
    estate.machines[1].manager.delay_s = 30
    targets = [target_of(estate, name) for name in ("relay1", "orders1")]
    retry_policy = RetryPolicy(timeout_s=1.5, retries=0)
    made = Collector(
        targets,
        Credentials(),
        tmp_path,
        retry_policy=retry_policy,
        schedule=CollectionSchedule(0.05, 2),
        max_parallel=2,
    )
    reports = [landed.report for landed in made.run()]
    assert reports[0].name == "orders1"
    slow = [r for r in reports if r.name == "relay1"]
    assert [(r.answered, dict(r.failure_counts)) for r in slow] == [(0, {"timeout": 1})] * 2
    assert [r.failed for r in reports if r.name == "orders1"] == [1, 1]


def test_an_answer_that_is_late_is_asked_for_again(estate):
    manager = estate.machines[0].manager
    manager.delay_s = 1.0
    threading.Timer(0.3, lambda: setattr(manager, "delay_s", 0.0)).start()
    snapshots, report = collect(
        target_of(estate, "orders1"), retry_policy=RetryPolicy(timeout_s=0.4, retries=2, backoff_s=0.01)
    )
    assert (report.answered, report.failed) == (5, 1)
    assert report.retries >= 1
    assert snapshots[0]["error"] is None


@pytest.mark.parametrize("after", [10, 60, 100, 700])
def test_a_connection_cut_in_mid_answer_is_made_again(estate, after):
    cutting = CuttingProxy(port(estate, "orders1"), after, times=1)
    with EstateThread(cutting):
        snapshots, report = collect(CollectionTarget("orders1", ServerAddress("127.0.0.1", cutting.port)))
    assert (cutting.cut, report.retries) == (1, 1)
    assert (report.answered, report.failed) == (5, 1)
    assert len(by_queue(snapshots)) == 6


def test_a_connection_cut_again_and_again_is_an_error(estate):
    cutting = CuttingProxy(port(estate, "orders1"), 700)  # after the bind and the machine's answer
    with EstateThread(cutting):
        snapshots, report = collect(
            CollectionTarget("orders1", ServerAddress("127.0.0.1", cutting.port), queues=("orders1\\private$\\ledger",))
        )
    assert {each["error"] for each in snapshots} == {"cut"} | ({None} if report.answered else set())
    assert report.failure_counts["cut"] >= 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "malformed"), (b"\5\0\2\3\x10\0\0\0\x08\0" + bytes(20), "malformed"),
     (b"\5\0\x0c\3\x10\0\0\0\x18\0\0\0\1\0\0\0" + bytes(8), "malformed"), (b"\5", "timeout")],
)  # fmt: skip
def test_what_does_not_speak_the_protocol_is_said(answer, error):
    saying = FixedAnswerServer(answer)
    with EstateThread(saying):
        snapshots, _ = collect(
            CollectionTarget("x", ServerAddress("127.0.0.1", saying.port)), retry_policy=RetryPolicy(0.3, 0)
        )
    assert [each["error"] for each in snapshots] == [error]


def test_properties_that_an_older_machine_lacks_are_absent_and_asked_for_once(estate):
    manager = estate.machines[0].manager
    manager.unknown_properties = frozenset({24, 25, 26, 27})
    unsupported = {}
    found = by_queue(collect(target_of(estate, "orders1"), unsupported_properties=unsupported)[0])
    assert [each["property_id"] for each in found["growing"]["properties"]] == list(range(1, 24))
    assert unsupported["queue"] == {24, 25, 26, 27}
    before = len(manager.ledger.calls)
    collect(target_of(estate, "orders1"), unsupported_properties=unsupported)
    assert len(manager.ledger.calls) - before == 6


def test_many_properties_are_asked_in_batches(estate):
    """Unknown numbers too: the queue manager rejects them, and they are found and left out."""
    many = (*QUEUE_PROPERTIES, *range(1000, 1150))
    found = by_queue(
        collect(target_of(estate, "orders1", properties=many, discover=(), queues=("orders1\\private$\\ledger",)))[0]
    )
    assert [each["property_id"] for each in found["ledger"]["properties"]] == list(QUEUE_PROPERTIES)


# Limits of a round


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (RoundLimits(objects=3), "limit_objects"),
        (RoundLimits(answer_bytes=2500), "limit_bytes"),
        (RoundLimits(seconds=0.5), "limit_seconds"),
    ],
)
def test_what_a_limit_cuts_is_recorded_as_not_asked(estate, limits, code):
    estate.machines[0].manager.delay_s = 0.2 if code == "limit_seconds" else 0.0
    snapshots, report = collect(target_of(estate, "orders1"), limits=limits)
    errors = [each["error"] for each in snapshots]
    asked = errors.index(code)
    assert errors == [None] * asked + [code] * (6 - asked)
    assert 1 <= asked < 5
    assert len(by_queue(snapshots)) == 6
    for each in snapshots[asked:]:
        assert (each["hresult"], each["collected_at"]) == (None, None)
        assert {(value["vt"], value["value_json"]) for value in each["properties"]} == {(None, None)}
    assert (report.failure_counts[code], report.retries) == (6 - asked, 0)
    assert f"{code} {6 - asked}" in report.format_line()


def test_an_answer_that_is_cut_gives_no_queues_and_half_of_nothing(estate):
    queues = ("orders1\\private$\\ledger",)
    snapshots, report = collect(target_of(estate, "orders1", queues=queues), limits=RoundLimits(answer_bytes=10))
    assert [(each["object_type"], each["error"]) for each in snapshots] == [
        ("machine", "limit_bytes"), ("queue", "limit_bytes"),
    ]  # fmt: skip
    assert not report.reached


def test_an_answer_that_is_too_long_is_cut_alone(estate, monkeypatch):
    monkeypatch.setattr(transport, "MAX_RESPONSE_BYTES", 600)  # all but the error of the inactive queue are longer
    queues = tuple(f"orders1\\private$\\{name}" for name in ("ledger", "inactive", "growing"))
    snapshots, report = collect(target_of(estate, "orders1", queues=queues))
    assert {name: each["error"] for name, each in by_queue(snapshots).items()} == {
        "": "limit_answer", "ledger": "limit_answer", "inactive": None, "growing": "limit_answer",
    }  # fmt: skip
    assert (report.retries, report.failure_counts["limit_answer"]) == (0, 3)


def test_the_snapshots_of_what_is_not_asked_are_limited_too(estate):
    snapshots, report = collect(target_of(estate, "orders1"), limits=RoundLimits(objects=1))
    assert [each["error"] for each in snapshots] == [None, "limit_objects", "limit_objects"]
    assert report.not_named == 3
    assert "3 more queues are in no snapshot" in report.format_line()


def test_retries_end_with_the_time_of_a_round(estate):
    cutting = CuttingProxy(port(estate, "orders1"), 10)
    policy = RetryPolicy(timeout_s=60, retries=2, backoff_s=3600)
    with EstateThread(cutting):
        target = CollectionTarget("orders1", ServerAddress("127.0.0.1", cutting.port))
        snapshots, report = collect(target, retry_policy=policy, limits=RoundLimits(seconds=0.3))
    assert [each["error"] for each in snapshots] == ["limit_seconds"]
    assert report.retries == 1


@pytest.mark.parametrize("limits", [{"part_bytes": 1000}, {"part_seconds": 0.0}])
def test_files_land_whole_while_the_round_goes_on(tmp_path, limits):
    def landed():
        return [json.loads(line) for path in tmp_path.rglob("*.jsonl") for line in path.read_text().splitlines()]

    def snapshots(count):
        for number in range(count):
            assert len(landed()) == number
            yield queue_line(number) | {"error": "x" * 1000}
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_snapshot_files(tmp_path, "qm1", snapshots(4), **limits)
    assert sorted(values(each)[7] for each in landed()) == [0, 1, 2, 3]
    assert list(tmp_path.rglob(".*")) == []
    few = write_snapshot_files(tmp_path, "few", (queue_line(number) for number in range(3)))
    assert len(few) == 1
    assert write_snapshot_files(tmp_path, "none", []) == []


# The job


def settings(estate, *more):
    text = "\n".join(f"  {line}" for line in more)
    return estate.settings() + text + "\n"


def job(tmp_path, text, *arguments):
    conf = tmp_path / "conf.yml"
    conf.write_text(text)
    return collect_snapshots.main(["--conf", str(conf), "--out", str(tmp_path / "out"), *arguments])


def test_the_job_lands_files_and_tells_what_it_did(estate, tmp_path, capsys):
    assert job(tmp_path, settings(estate, "rounds: 2", "interval: 10ms")) == 0
    streams = capsys.readouterr()
    summary = json.loads(streams.out.splitlines()[-1])
    assert summary["exit_code"] == 0
    files = list((tmp_path / "out").rglob("*.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    counts = summary["snapshots"]
    assert (
        (counts["rounds"], counts["files"], counts["asked"])
        == (8, 8, len(lines))
        == (8, len(files), 2 * (6 + 6 + 2 + 2))
    )
    assert (counts["answered"], counts["failed"]) == (counts["asked"] - 2, 2)
    assert len(streams.err.splitlines()) == 8


def test_a_machine_that_never_answers_is_exit_code_3(estate, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"    - {{name: dead, address: 127.0.0.1, port: {free.getsockname()[1]}}}"
    text = settings(estate, "retries: 0").replace("  machines:", f"  machines:\n{dead}")
    assert job(tmp_path, text) == 3
    assert len(list((tmp_path / "out").rglob("dead-*.jsonl"))) == 1


@pytest.mark.parametrize("how", ["environment", "file"])
@pytest.mark.parametrize("right", [True, False])
def test_a_secret_is_nowhere(estate, tmp_path, capsys, monkeypatch, how, right):
    estate.accounts([type(ACCOUNT)(ACCOUNT.user, PASSWORD if right else "another", ACCOUNT.domain)])
    more = ["authentication: ntlm", f"user: {ACCOUNT.user}", f"domain: {ACCOUNT.domain}", "privacy: true"]
    if how == "environment":
        monkeypatch.setenv("MSMQ_COLLECTOR_PASSWORD", PASSWORD)
    else:
        monkeypatch.delenv("MSMQ_COLLECTOR_PASSWORD", raising=False)
        secret = tmp_path / "secret"
        secret.write_text(PASSWORD + "\n")
        secret.chmod(0o600)
        more.append(f"password_file: {secret}")
    assert job(tmp_path, settings(estate, *more)) == (0 if right else 3)
    streams = capsys.readouterr()
    written = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) == 4
    seen = b"".join([streams.out.encode(), streams.err.encode(), *written])
    for form in (PASSWORD.encode(), PASSWORD.encode("utf-16-le"), PASSWORD.encode().hex().encode()):
        assert form not in seen
    assert PASSWORD not in repr(Credentials(password=PASSWORD))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("collector: {machines: []}", "collector.machines: no machine to query"),
        ("collector: {machines: [{name: a}]}", "address is missing"),
        ("collector: {machines: [{name: a, address: b, prot: 1}]}", "unknown key prot (there are name, address, port"),
        ("collector: {machines: [{name: a, address: b, port: 70000}]}", "port: must be 1 to 65535, not 70000"),
        ("collector: {machines: [{name: a, address: b}, {name: a, address: c}]}", "two machines have the name a"),
        ("collector: {machines: [{name: a, address: b, queues: ['PUBLIC=x']}]}", "a: not a format name: 'PUBLIC=x'"),
        ("collector: {machines: [{name: a, address: b, discover: [all]}]}", "expected a list of active, private"),
        ("collector: {machines: x}", "expected a list of machines, not 'x'"),
        (
            "collector: {machines: [{name: a, address: b}], authentication: basic}",
            "expected one of none, ntlm, kerberos",
        ),
        ("collector: {machines: [{name: a, address: b}], authentication: ntlm}", "collector.user: is needed"),
        (
            "collector: {machines: [{name: a, address: b}], privacy: true}",
            "needs collector.authentication ntlm or kerb",
        ),
        ("collector: {machines: [{name: a, address: b}], properties: [0]}", "must be at least 1, not 0"),
        ("collector: {machines: [{name: a, address: b}], properties: []}", "at least one property"),
        (
            "collector: {machines: [{name: a, address: b}], interval: 0s, rounds: 0}",
            "more than one round needs an interval above 0",
        ),
        (
            "collector: {machines: [{name: a, address: b}], authentication: ntlm, user: u, password_file: /nowhere/x}",
            "collector.password_file: /nowhere/x: No such file",
        ),
        ("collector: {machines: [{name: a, address: b}], authentication: ntlm, user: u}", "no password: set MSMQ_COLL"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line(tmp_path, capsys, monkeypatch, text, complaint):
    monkeypatch.delenv("MSMQ_COLLECTOR_PASSWORD", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert job(tmp_path, text) == 2
    streams = capsys.readouterr()
    assert complaint in streams.err
    assert len(streams.err.splitlines()) == 1
    assert streams.out == ""


def test_a_machine_has_its_own_settings_or_the_collectors():
    config = CollectorConfig(exclude=("*x",), endpoint_mapper_port=1135)
    own = collect_snapshots.plan_machine(CollectorMachine("a", "h", include=("*y",), discover=()), config)
    assert (own.include, own.exclude, own.discover) == (("*y",), ("*x",), ())
    assert own.address == ServerAddress("h", None, 1135)
    assert own.properties == Config().collector.properties == QUEUE_PROPERTIES


def test_it_runs_for_ever_and_ends_cleanly_when_it_is_told_to(estate, tmp_path, project):
    conf = tmp_path / "conf.yml"
    conf.write_text(settings(estate, "rounds: 0", "interval: 50ms"))
    estate.machines[1].manager.delay_s = 60  # still waiting when the signal comes
    command = [sys.executable, "-m", "jobs.collect_snapshots", "--conf", str(conf), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while len(list((tmp_path / "out").rglob("orders1-*.jsonl"))) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert json.loads(out)["snapshots"]["rounds"] >= 9
    assert "relay1: round 1: 1 objects requested, 0 answered" in err
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or [json.loads(line) for line in path.read_text().splitlines()]


def test_the_estate_is_the_same_whenever_it_is_played():
    def states():
        made = machines()
        for step in range(12):
            for machine in made:
                machine.step(step)
        return [(q.name, len(q.messages), len(q.journal), q.paused, repr(q.transfer)) for m in made for q, _ in m.moves]

    assert states() == states()


def test_a_queue_manager_without_queues():
    empty = Estate([Simulated(Manager("none1", ports={"remoteread": 0, "qm2qm": 0, "epm": 0}))])
    with EstateThread(empty):
        snapshots, report = collect(target_of(empty, "none1"))
    assert (len(snapshots), report.answered, values(snapshots[0])[2]) == (1, 1, [])
