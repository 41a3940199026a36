"""``msmq alerts --notify``, ``--acknowledge`` and ``--mute`` on a lake, run_all with its setting, and ``forget``."""

import json
import shutil

import pytest

from jobs import alerts, forget, run_all
from jobs.command_line.notice_targets import NOTIFY_FILE_VARIABLE
from notices.servers import HttpServer, serve

LOCAL = ["--set", "run.engine=local"]
SECRET = "s3cr3t"
STALLED, REFUSED, CALM = "2026-11-21T12:33:00Z", "2026-11-21T12:40:00Z", "2026-11-21T12:00:00Z"
CAPTURES = ("transfers/08-stall.pcap.gz", "sample/01-remoteread-ndr.pcap", "sample/11-queued-components.pcap")
EVENTS_READ = "2026-11-21T07:00:00Z"


@pytest.fixture(scope="module")
def made(project, tmp_path_factory):
    """A lake: an order acknowledgement that does not come, a refused sequence; before, refused ends and containers."""
    root = tmp_path_factory.mktemp("made") / "lake"
    captures = [str(project / "data" / name) for name in CAPTURES]
    assert run_all.main(["--lake", str(root), *LOCAL, "--captures", *captures]) == 0
    return root


@pytest.fixture
def lake(made, tmp_path):
    """A copy of it for each test."""
    return shutil.copytree(made, tmp_path / "lake")


@pytest.fixture
def web():
    with serve(HttpServer()) as server:
        yield server


@pytest.fixture
def targets(web, tmp_path):
    """A file of one target, whose address and key are secret."""
    file = tmp_path / "targets.json"
    url, header = f"{web.url}/{SECRET}", {"Authorization": f"Bearer {SECRET}"}
    file.write_text(json.dumps({"targets": [{"name": "hook", "kind": "webhook", "url": url, "headers": header}]}))
    file.chmod(0o600)
    return file


@pytest.fixture
def call(lake, capfd):
    """Call ``msmq alerts`` on the lake; return the exit code and the summary. Nothing that it writes is secret."""

    def run(*arguments, at=REFUSED, job=alerts):
        capfd.readouterr()
        code = job.main(["--lake", str(lake), *LOCAL, *(["--as-of", at] if at else []), *map(str, arguments)])
        shown = capfd.readouterr()
        run.err = shown.err
        assert SECRET not in shown.out + shown.err
        assert not any(SECRET.encode() in path.read_bytes() for path in lake.rglob("*") if path.is_file())
        return code, json.loads(shown.out.splitlines()[-1]) if code in (0, 1) else None

    return run


def kept(lake):
    file = lake / "_notices" / "notices.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else None


def actions(web):
    found = [(body["action"], body.get("condition")) for body in web.bodies]
    web.bodies.clear()
    return found


def test_from_call_to_call_a_target_is_told_what_changed(call, targets, web, lake):
    notify = ("--notify", f"@{targets}")
    _, summary = call(*notify, at=STALLED)
    assert (summary["notices_sent"], summary["notices_waiting"]) == (1, 0)
    assert "hook: 1 notice sent" in call.err
    assert actions(web) == [("began", "order_acks_stalled")]  # and not the events before: it is the first call
    assert call(*notify, at=STALLED)[1]["notices_sent"] == 0
    # That one has ended, and of another queue a sequence is refused, which explains what stalls there.
    code, summary = call(*notify, at=REFUSED)
    assert (code, summary["notices_sent"]) == (1, 2)
    began, ended = sorted(web.bodies, key=lambda body: body["action"])
    assert (ended["action"], ended["reason"], ended["until"]) == ("ended", None, "2026-11-21T12:36:36.015400Z")
    assert (began["action"], began["condition"], began["severity"]) == ("began", "sequence_refused", "error")
    assert [each["condition"] for each in began["alerts"]] == ["sequence_refused", "order_acks_stalled"]
    web.bodies.clear()
    call(*notify, at="2026-11-21T16:39:00Z")
    assert actions(web) == []
    call(*notify, at="2026-11-21T16:41:00Z")
    assert actions(web) == [("repeated", "sequence_refused")]
    # By an earlier clock nothing is there: as if later evidence had removed it.
    call(*notify, at=CALM)
    (body,) = web.bodies
    assert (body["action"], body["reason"]) == ("ended", "withdrawn")
    assert {line["line"] for line in kept(lake)} == {"told", "target"}


def test_single_events_are_told_once_when_they_are_first_read(call, targets, web):
    notify = ("--notify", f"@{targets}")
    call(*notify, at="2026-11-21T05:00:00Z")
    assert actions(web) == []
    call(*notify, at=EVENTS_READ)
    assert sorted(actions(web)) == [("happened", "containers_rejected"), ("happened", "ends_refused")]
    call(*notify, at="2026-11-21T07:10:00Z")
    assert actions(web) == []


def test_events_older_than_event_hold_are_not_told(call, targets, web):
    notify = ("--notify", f"@{targets}", "--set", "alerts.event_hold=1h")
    call(*notify, at="2026-11-21T05:00:00Z")
    call(*notify, at=EVENTS_READ)
    assert actions(web) == []


def test_what_a_target_did_not_get_waits_and_exit_codes_are_those_of_the_alerts(call, targets, web, lake):
    notify = ("--notify", f"@{targets}")
    web.status = 503
    code, summary = call(*notify, "--fail-on", "never", at=STALLED)
    assert (code, summary["notices_sent"], summary["notices_waiting"]) == (0, 0, 1)
    assert "warning: hook: 1 notice waiting for the next call: it answered with HTTP status 503" in call.err
    call(*notify, at=STALLED)
    code, summary = call(*notify, at=REFUSED)
    assert (code, summary["notices_waiting"]) == (1, 2)
    actions(web)
    web.status = 200
    code, summary = call(*notify, at=REFUSED)
    assert (code, summary["notices_sent"], summary["notices_waiting"]) == (1, 2, 0)
    assert sorted(actions(web)) == [
        ("began", "sequence_refused"),
        ("ended", "order_acks_stalled"),
    ]  # their newest state
    told = [line for line in kept(lake) if line["line"] == "told" and line["notice"]["action"] != "happened"]
    assert [line["waiting"] for line in told] == [True, True, True, False, False]


def test_a_server_that_is_gone_and_comes_back(call, targets, web, lake, tmp_path):
    port = web.server_address[1]
    web.shutdown()
    web.server_close()
    assert call("--notify", f"@{targets}", at=STALLED)[1]["notices_waiting"] == 1
    assert "waiting for the next call: Connection refused" in call.err
    with serve(HttpServer(port)) as again:
        _, summary = call("--notify", f"@{targets}", at=STALLED)
        assert (summary["notices_sent"], summary["notices_waiting"]) == (1, 0)
        assert actions(again) == [("began", "order_acks_stalled")]


def test_without_these_options_nothing_is_written(call, lake):
    before = {*lake.rglob("*")}
    call()
    call("--json", "-")
    assert {*lake.rglob("*")} == before


def test_the_variable_names_the_file_and_words_name_its_targets(call, targets, web, monkeypatch, tmp_path):
    monkeypatch.setenv(NOTIFY_FILE_VARIABLE, str(targets))
    assert call("--notify", "hook")[1]["notices_sent"] == 1
    assert call("--notify", "other") == (2, None)
    assert call("--notify", f"https://{SECRET}.example") == (2, None)
    monkeypatch.delenv(NOTIFY_FILE_VARIABLE)
    assert call("--notify") == (2, None)
    assert "no file of targets: --notify @FILE, or MSMQ_NOTIFY_FILE" in call.err


def test_what_is_acknowledged_is_not_repeated(call, targets, web, lake):
    notify = ("--notify", f"@{targets}")
    call(*notify)
    own_key = web.bodies[0]["notice_key"]
    actions(web)
    acknowledge = ("--acknowledge", own_key[:8], "--by", "ann", "--until", "6h", "--reason", "looking")
    code, summary = call(*acknowledge)
    assert (code, "notices_sent" in summary) == (1, False)
    (line,) = (each for each in kept(lake) if each["line"] == "acknowledged")
    assert (line["notice_key"], line["by"], line["reason"]) == (own_key, "ann", "looking")
    assert line["until"] == "2026-11-21T18:40:00Z"
    call(*notify, at="2026-11-21T18:39:00Z")
    assert actions(web) == []
    call(*notify, at="2026-11-21T18:41:00Z")
    assert actions(web) == [("repeated", "sequence_refused")]


def test_what_is_muted_is_not_told(call, targets, web, lake):
    mute = ("--mute", "order_acks_stalled", "--queue", "*", "--until", "2026-11-21T12:34:00Z")
    call(*mute, "--notify", f"@{targets}", at=STALLED)
    assert actions(web) == []
    assert [line["line"] for line in kept(lake)][:2] == ["muted", "target"]
    call("--notify", f"@{targets}", at="2026-11-21T12:35:00Z")
    assert actions(web) == [("began", "order_acks_stalled")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--acknowledge", "0" * 32, "--until", "1h"], "--acknowledge needs --by and --reason"),
        (["--acknowledge", "0" * 32, "--by", "a", "--reason", "b", "--until", "1h"], "0 open notices have this key"),
        (["--acknowledge", "x", "--mute", "calls_failing", "--until", "1h"], "give one of them"),
        (["--mute", "calls_failing"], "--mute needs --until"),
        (["--mute", "calls_failing", "--until", "1h", "--by", "a"], "--by needs --acknowledge"),
        (["--mute", "nothing", "--until", "1h"], "no such condition: nothing"),
        (["--mute", "calls_failing", "--until", "2026-01-01T00:00Z"], "--until: the time is over"),
        (["--queue", "x"], "--queue needs --mute"),
    ],
)
def test_wrong_options_are_refused_and_write_nothing(call, lake, arguments, says):
    assert call(*arguments) == (2, None)
    assert says in call.err
    assert kept(lake) is None


def test_run_all_tells_with_its_setting_and_checks_the_file_before_it_reads(call, targets, web, project, monkeypatch):
    setting = ("--set", "alerts.notify_after_run=true", "--captures", project / "data" / CAPTURES[0])
    assert call(*setting, job=run_all) == (2, None)
    assert "MSMQ_NOTIFY_FILE" in call.err
    monkeypatch.setenv(NOTIFY_FILE_VARIABLE, str(targets))
    code, summary = call(*setting, job=run_all)
    assert (code, summary["notices_sent"], summary["notices_waiting"]) == (0, 1, 0)
    assert actions(web) == [("began", "sequence_refused")]
    code, summary = call(*setting, "--dry-run", at=None, job=run_all)
    assert (code, "notices_sent" in summary) == (0, False)
    # It is what alerts --notify knows too.
    assert call("--notify", f"@{targets}")[1]["notices_sent"] == 0
    assert "notices_sent" not in call("--captures", project / "data" / CAPTURES[0], job=run_all)[1]


def test_run_all_tells_with_the_declared_names_of_machines(call, targets, web, project, monkeypatch, tmp_path):
    declared = tmp_path / "machines.csv"
    declared.write_text("address,queue_manager_id,name\n10.77.108.1,,Till 7\n")
    monkeypatch.setenv(NOTIFY_FILE_VARIABLE, str(targets))
    settings = ("--set", "alerts.notify_after_run=true", "--set", f"names.machines={declared}")
    assert call(*settings, "--captures", project / "data" / CAPTURES[0], job=run_all)[0] == 0
    assert web.bodies[0]["subject"].endswith(" from Till 7 to 10.77.108.2")


def test_forget_removes_names_that_were_kept_and_what_is_over_still_ends(call, targets, web, lake):
    call("--notify", f"@{targets}")
    subject = web.bodies[0]["subject"]
    assert subject in {line["notice"]["facts"]["subject"] for line in kept(lake) if line["line"] == "told"}
    assert call("--before", "2026-11-22", at=None, job=forget)[0] == 0
    text = (lake / "_notices" / "notices.jsonl").read_text()
    assert json.dumps(subject) not in text
    assert "10.77." not in text
    assert "(forgotten)" in text
    actions(web)
    call("--notify", f"@{targets}", at="2026-11-22T00:00:00Z")
    assert actions(web) == [("ended", "sequence_refused")]


def test_a_redacted_lake_sends_pseudonyms_and_keeps_no_name_of_the_command_line(project, targets, web, tmp_path, capfd):
    root, keyfile = tmp_path / "redacted", tmp_path / "redact.key"
    keyfile.write_text("k" * 32)
    redact = ["--set", "privacy.redact=[labels,queues,hosts,addresses,senders]", "--redact-key", str(keyfile), *LOCAL]
    capture = project / "data" / "transfers" / "08-stall.pcap.gz"
    assert run_all.main(["--lake", str(root), *redact, "--captures", str(capture)]) == 0
    base = ["--lake", str(root), *LOCAL, "--as-of", REFUSED]
    assert alerts.main([*base, "--notify", f"@{targets}"]) == 1
    (body,) = web.bodies
    assert "10.77." not in json.dumps(body)
    assert body["from_machine"].startswith("fd")
    asked = ["--acknowledge", body["notice_key"], "--by", "Ann Smith", "--until", "1h", "--reason", "asked Bob"]
    assert alerts.main([*base, *asked]) == 2  # without the key
    assert alerts.main([*base, *redact, *asked]) == 1
    mute = ["--mute", "queue_stuck", "--until", "1h", "--queue"]
    assert alerts.main([*base, *redact, *mute, "srv1\\private$\\pay*"]) == 2
    assert alerts.main([*base, *redact, *mute, "srv1\\private$\\pay"]) == 1
    text = (root / "_notices" / "notices.jsonl").read_text()
    assert [name for name in ("Ann", "Bob", "srv1", "pay", "10.77.") if name in text] == []
    assert "sender-" in text
