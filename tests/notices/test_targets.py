"""Each kind of target against a server on 127.0.0.1 that checks the form of what it gets."""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest

from notices.servers import HttpServer, MailServer, drip, make_certificate, redirect_to, serve
from notices.told import BEGIN, Listener, alert, at
from pipeline.notices.alertmanager import Alertmanager
from pipeline.notices.chat import Slack, Teams
from pipeline.notices.delivery import deliver
from pipeline.notices.https_post import Endpoint
from pipeline.notices.json_targets import Command, Webhook
from pipeline.notices.mail import Mail
from pipeline.notices.mail import MailServer as Server
from pipeline.notices.pagerduty import PagerDuty
from pipeline.notices.target import SUMMARY_KEY, Call, NotDeliveredError, NoticeRequest
from udfs.keys import key

FORMS = Path(__file__).with_name("forms")
STUCK = key("queue_stuck", "queue a")
INTERVAL = timedelta(minutes=15)
MARKUP = "queue <b>*x*</b> [click](https://evil.example) &amp"


@pytest.fixture
def web():
    with serve(HttpServer()) as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def secure_web(certificate):
    with serve(HttpServer(certificate=certificate)) as server:
        yield server


def check_form(name, value):
    """Check a value against a schema of ``forms``, or against that of docs/reference."""
    schema = json.loads((FORMS / name).read_text())
    jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker()).validate(value)


class Calls:
    """Calls of one target, with what it is told."""

    def __init__(self, target):
        self.target, self.listener = target, Listener(is_reminded=target.is_reminded)

    def __call__(self, minute, *rows, **more):
        self.listener.call(minute, *rows, **more)
        told = {own_key: each.notice for own_key, each in self.listener.told.items() if each.is_open}
        call = Call(self.listener.notices, self.listener.open, told, at(minute))
        return deliver({"t": [*self.target.requests(call)]})["t"]


def life(target):
    """Call for an alert that begins, worsens, is updated, repeated, withdrawn, and for an event; all is delivered."""
    call = Calls(target)
    event = alert("ends_refused", "reader r", since=500, until=560, severity="info")
    worse, moved = alert(severity="error"), alert(severity="error", since=-5)
    for minute, rows in (
        (0, []),
        (1, [alert()]),
        (2, [worse]),
        (3, [moved]),
        (300, [moved]),
        (301, []),
        (561, [event]),
    ):
        assert call(minute, *rows).failures == []


ACTIONS = ["began", "worsened", "updated", "repeated", "ended", "happened"]
CHANGES = [action for action in ACTIONS if action != "repeated"]


def test_a_webhook_gets_each_notice_in_the_documented_form(web, project):
    life(Webhook("hook", Endpoint(f"{web.url}/in?token=1", {"Authorization": "Bearer s"})))
    schema = json.loads((project / "docs" / "reference" / "notice.schema.json").read_text())
    for body in web.bodies:
        jsonschema.Draft202012Validator(schema).validate(body)
    assert [body["action"] for body in web.bodies] == ACTIONS
    assert {body["notice_key"] for body in web.bodies[:5]} == {STUCK}
    assert web.bodies[4]["reason"] == "withdrawn"
    assert web.bodies[2]["since"] == "2026-03-01T08:55:00Z"
    assert {header["Authorization"] for header in web.headers} == {"Bearer s"}
    assert {*web.paths} == {"/in?token=1"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(web.bodies[0] | {"action": "gone"})


def test_more_than_twenty_notices_in_one_call_are_one_summary(web, project):
    call = Calls(Webhook("hook", Endpoint(web.url)))
    call(0, *(alert(subject=f"queue {n}") for n in range(20)))
    assert len(web.bodies) == 20
    rows = [alert(subject=f"queue {n}", severity="error" if n == 7 else "warning") for n in range(21)]
    call = Calls(Webhook("hook", Endpoint(web.url)))
    assert len(call(0, *rows).delivered) == 21
    (summary,) = web.bodies[20:]
    jsonschema.Draft202012Validator(
        json.loads((project / "docs" / "reference" / "notice.schema.json").read_text())
    ).validate(summary)
    assert (summary["action"], summary["severity"], summary["message"]) == ("summary", "error", "21 notices: 21 began")
    assert len(summary["notices"]) == 21
    assert call(1, *rows).delivered == set()  # all of them are told
    for target in (
        Slack("s", Endpoint(web.url)),
        Teams("t", Endpoint(web.url)),
        PagerDuty("p", Endpoint(web.url), "k"),
    ):
        web.bodies.clear()
        assert len(Calls(target)(0, *rows).delivered) == 21
        assert len(web.bodies) == 1


def test_a_command_gets_json_on_standard_input_and_no_shell(tmp_path):
    out = tmp_path / "out; touch x"
    script = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read()); print('$TOKEN')"
    life(Command("pager", (sys.executable, "-c", script, str(out))))
    assert [json.loads(line)["action"] for line in out.read_text().splitlines()] == ACTIONS
    assert [*tmp_path.iterdir()] == [out]
    for arguments, why in (
        (("/no/such/program",), "the command cannot be started: No such file or directory"),
        ((sys.executable, "-c", "exit(3)"), "the command ended with 3"),
    ):
        assert Calls(Command("pager", arguments))(0, alert()).failures == [why]


def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path):
    file = tmp_path / "pid"
    (request,) = Command("pager", ("sh", "-c", f"sleep 60 & echo $! > {file}; sleep 60")).requests(_call(alert()))
    begun = time.monotonic()
    done = deliver({"pager": [request]}, request_s=3.0)["pager"]
    assert done.failures == ["the command did not end in time"]
    assert time.monotonic() - begun < 20
    started, until = Path(f"/proc/{int(file.read_text())}/stat"), time.monotonic() + 10
    while started.exists() and " Z " not in started.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert not started.exists() or " Z " in started.read_text()


def _call(*rows):
    listener = Listener()
    listener.call(0, *rows)
    return Call(listener.notices, listener.open, {}, BEGIN)


def test_pagerduty_gets_events_with_the_notice_key_as_dedup_key(web):
    life(PagerDuty("pd", Endpoint(web.url), "R0UT1NG"))
    for body in web.bodies:
        check_form("pagerduty-event.json", body)
    assert [body["event_action"] for body in web.bodies] == [
        "trigger", "trigger", "trigger", "trigger", "resolve", "resolve", "trigger",
    ]  # fmt: skip
    assert [body["dedup_key"] for body in web.bodies] == [
        *[STUCK] * 5, SUMMARY_KEY, key("ends_refused", "reader r"),
    ]  # fmt: skip
    first = web.bodies[0]
    assert (first["routing_key"], first["payload"]["severity"], first["payload"]["source"]) == (
        "R0UT1NG",
        "warning",
        "srv",
    )
    assert first["payload"]["summary"] == "warning queue_stuck began: queue a"
    with pytest.raises(jsonschema.ValidationError):
        check_form("pagerduty-event.json", {"routing_key": "r", "event_action": "resolve"})


def test_ends_resolve_incidents_of_pagerduty_one_by_one_and_the_last_one_that_of_the_summary(web):
    call = Calls(PagerDuty("pd", Endpoint(web.url), "r"))
    rows = [alert(subject=f"queue {n}") for n in range(25)]
    call(0, *rows[:3])
    web.bodies.clear()
    call(1, *rows)
    assert [body["dedup_key"] for body in web.bodies] == [SUMMARY_KEY]
    web.bodies.clear()
    assert len(call(2).delivered) == 25
    assert [body["event_action"] for body in web.bodies] == ["resolve"] * 26
    assert SUMMARY_KEY in {body["dedup_key"] for body in web.bodies}


def test_alertmanager_gets_all_active_alerts_with_each_call(web):
    call = Calls(Alertmanager("am", Endpoint(web.url), INTERVAL))
    other = alert(subject="queue b", since=-60)
    call(0, alert(), other)
    call(15, alert(), other)
    call(30, alert(severity="error"), other)
    call(45, other)
    for body in web.bodies:
        check_form("alertmanager-alerts.json", body)
    shown = [
        [(each["labels"]["notice_key"] == STUCK, each["labels"]["severity"], each["endsAt"]) for each in body]
        for body in web.bodies
    ]
    assert shown == [
        [(False, "warning", "2026-03-01T09:45:00Z"), (True, "warning", "2026-03-01T09:45:00Z")],
        [(False, "warning", "2026-03-01T10:00:00Z"), (True, "warning", "2026-03-01T10:00:00Z")],
        [(True, "error", "2026-03-01T10:15:00Z"), (False, "warning", "2026-03-01T10:15:00Z"),
         (True, "warning", "2026-03-01T09:30:00Z")],  # other labels are another alert: the one before ends
        [(False, "warning", "2026-03-01T10:30:00Z"), (True, "error", "2026-03-01T09:45:00Z")],
    ]  # fmt: skip
    assert web.bodies[0][1]["startsAt"] == "2026-03-01T09:00:00Z"
    call(60)
    assert len(web.bodies) == 5
    call(75)  # nothing is active, and nothing was
    assert len(web.bodies) == 5
    with pytest.raises(jsonschema.ValidationError):
        check_form("alertmanager-alerts.json", [{"labels": {"a": 1}}])


@pytest.mark.tool("prometheus-alertmanager")
def test_a_real_alertmanager_takes_them_and_ends_them(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "am.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    place = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [shutil.which("prometheus-alertmanager"), f"--config.file={tmp_path}/am.yml", f"--storage.path={tmp_path}",
         f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{place}/-/ready", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        target = Alertmanager("am", Endpoint(f"{place}/api/v2/alerts"), INTERVAL)
        listener = Listener()
        listener.call(0, alert(severity="error", message="\x1b[1m"))
        now = at(0).now(at(0).tzinfo)
        before = {each.notice_key: each for each in listener.open}
        for call, active in (
            (Call(listener.notices, listener.open, {}, now), [("queue_stuck", "error")]),
            (Call([], [], before, now), []),
        ):
            assert deliver({"am": [*target.requests(call)]})["am"].failures == []
            found = json.load(urllib.request.urlopen(f"{place}/api/v2/alerts", timeout=5))
            assert [(each["labels"]["alertname"], each["labels"]["severity"]) for each in found] == active
    finally:
        process.kill()
        process.wait()


def test_slack_gets_changes_as_plain_text(web):
    """Its form has no public schema: not validated."""
    call = Calls(Slack("chat", Endpoint(web.url)))
    call(0, alert(subject=MARKUP))
    (body,) = web.bodies
    assert body["text"] == f"warning queue_stuck began: {MARKUP}".replace("&", "&amp;").replace("<", "&lt;").replace(
        ">", "&gt;"
    )
    assert {block["text"]["type"] for block in body["blocks"]} == {"plain_text"}
    assert f"Key: {key('queue_stuck', MARKUP)}" in body["blocks"][1]["text"]["text"]
    call(1, alert(subject=MARKUP))
    assert len(web.bodies) == 1


def test_chats_get_changes_alone(web):
    for target in (Slack("chat", Endpoint(web.url)), Teams("chat", Endpoint(web.url))):
        life(target)
        assert len(web.bodies) == len(CHANGES)
        assert "repeated" not in json.dumps(web.bodies)
        web.bodies.clear()


def test_teams_gets_adaptive_cards_without_markup(web):
    life(Teams("chat", Endpoint(web.url)))
    Calls(Teams("chat", Endpoint(web.url)))(0, alert(subject=MARKUP))
    Calls(Teams("chat", Endpoint(web.url)))(0, *(alert(subject=f"queue {n}") for n in range(30)))
    for body in web.bodies:
        (attachment,) = body["attachments"]
        assert (body["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
        check_form("adaptive-card-1.5.json", attachment["content"])
        assert {each["type"] for each in attachment["content"]["body"]} == {"RichTextBlock"}
    card = web.bodies[-2]["attachments"][0]["content"]
    assert card["body"][0]["inlines"][0]["text"] == f"warning queue_stuck began: {MARKUP}"
    with pytest.raises(jsonschema.ValidationError):
        check_form("adaptive-card-1.5.json", card | {"body": [{"type": "TextBlock", "txt": "x"}]})


def test_mail_is_one_thread_for_each_notice(certificate):
    with serve(MailServer(certificate)) as server:
        smtp = Server("127.0.0.1", server.port, "starttls", "msmq", "secret", certificate)
        life(Mail("mail", smtp, "msmq@example.com", ("ops@example.com", "duty@example.com")))
        assert [mail["Subject"].split(":")[0].split()[2] for mail in server.mails] == CHANGES
        threads = [mail["References"] or mail["Message-ID"] for mail in server.mails]
        assert len({*threads[:4]}) == 1
        assert server.mails[0]["Message-ID"] == threads[0]
        assert server.mails[0]["References"] is None
        assert [mail["In-Reply-To"] for mail in server.mails[1:4]] == threads[:3]
        assert len({mail["Message-ID"] for mail in server.mails}) == 5
        assert server.recipients[:2] == ["<ops@example.com>", "<duty@example.com>"]
        assert len(server.logins) == 5
        assert f"Key: {STUCK}" in server.mails[0].get_content()
        # The same condition a second time is a thread of its own.
        call = Calls(Mail("mail", smtp, "msmq@example.com", ("ops@example.com",)))
        call(0, alert())
        call(1, alert(until=1))
        call(2, alert(since=2))
        assert server.mails[-1]["Message-ID"] != server.mails[-3]["Message-ID"]


@pytest.mark.parametrize("is_from_the_start", [False, True])
def test_mail_needs_a_trusted_certificate(certificate, is_from_the_start):
    with serve(MailServer(certificate, tls_from_the_start=is_from_the_start)) as server:
        security = "tls" if is_from_the_start else "starttls"
        for ca_file, failures in (
            (None, ["its certificate is not trusted (OpenSSL's code 18)"]), (certificate, []),
        ):  # fmt: skip
            smtp = Server("127.0.0.1", server.port, security, "msmq", "secret", ca_file)
            assert Calls(Mail("m", smtp, "a@example.com", ("b@example.com",)))(0, alert()).failures == failures
        assert len(server.mails) == len(server.logins) == 1


@pytest.mark.parametrize(
    ("verb", "answer", "why"),
    [
        ("AUTH", "535 no", "the mail server answered with 535"),
        ("MAIL", "550 no", "the mail server answered with 550"),
        ("RCPT", "550 no such user", "the mail was not taken (SMTPRecipientsRefused)"),
        ("DATA", "451 later", "the mail server answered with 451"),
    ],
)
def test_a_mail_that_is_not_taken_waits(certificate, verb, answer, why):
    with serve(MailServer(certificate)) as server:
        server.answers[verb] = answer
        smtp = Server("127.0.0.1", server.port, "starttls", "msmq", "secret", certificate)
        done = Calls(Mail("m", smtp, "a@example.com", ("b@example.com",)))(0, alert())
        assert (done.failures, done.delivered) == ([why], set())


def test_a_self_signed_certificate_is_refused_and_one_that_is_trusted_is_not(secure_web, certificate):
    refused = Calls(Webhook("hook", Endpoint(secure_web.url)))(0, alert())
    assert refused.failures == ["its certificate is not trusted (OpenSSL's code 18)"]
    assert secure_web.bodies == []
    trusted = Calls(Webhook("hook", Endpoint(secure_web.url, ca_file=certificate)))(0, alert())
    assert (trusted.failures, trusted.delivered) == ([], {STUCK})
    other_name = secure_web.url.replace("127.0.0.1", "localhost")
    mismatch = Calls(Webhook("hook", Endpoint(other_name, ca_file=certificate)))(0, alert())
    assert mismatch.failures == ["its certificate is not trusted (OpenSSL's code 62)"]
    assert len(secure_web.bodies) == 1


def test_redirects_are_not_followed(web):
    with serve(HttpServer()) as other:
        web.answer = redirect_to(other.url)
        done = Calls(Webhook("hook", Endpoint(web.url)))(0, alert())
        assert done.failures == ["it answered with HTTP status 302 (redirects are not followed)"]
        assert (len(web.paths), other.paths) == (1, [])


def test_no_proxy_sees_what_stays_on_this_machine(web, monkeypatch):
    with serve(HttpServer()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert Calls(Webhook("hook", Endpoint(web.url)))(0, alert()).delivered == {STUCK}
        assert (len(web.paths), proxy.paths) == (1, [])


def test_a_request_has_five_seconds_however_slowly_the_answer_comes(web):
    web.answer = drip
    requests = [*Webhook("hook", Endpoint(web.url)).requests(_call(alert(), alert(subject="queue b")))]
    begun = time.monotonic()
    done = deliver({"hook": requests}, request_s=3.0)["hook"]
    assert time.monotonic() - begun < 20  # the answer takes a minute
    assert done.failures == ["it did not answer in time"]
    assert len(web.bodies) == 1  # the second one would wait as long
    assert deliver.__kwdefaults__ == {"request_s": 5.0, "call_s": 20.0}


def test_all_targets_have_twenty_seconds_and_a_slow_one_takes_none_of_the_others(web):
    def slow(_):
        time.sleep(1.5)

    slowly = [NoticeRequest(frozenset({str(n)}), slow) for n in range(10)]
    quick = [*Webhook("hook", Endpoint(web.url)).requests(_call(alert()))]
    begun = time.monotonic()
    done = deliver({"slow 1": slowly, "slow 2": slowly, "hook": quick}, call_s=4.0)
    assert time.monotonic() - begun < 12  # each of the slow ones would take 15 s
    assert done["hook"].delivered == {STUCK}
    for name in ("slow 1", "slow 2"):
        assert done[name].delivered <= {"0", "1"}
        assert done[name].failures in (["it did not answer in time"], ["the time of the call is over"])


def test_after_a_refusal_of_one_notice_the_others_are_sent_and_of_a_target_that_is_down_none(web):
    rows = [alert(subject=f"queue {n}") for n in range(3)]
    web.status = 400
    assert len(Calls(Webhook("hook", Endpoint(web.url)))(0, *rows).failures) == 3
    assert len(web.bodies) == 3
    web.status = 503
    assert len(Calls(Webhook("hook", Endpoint(web.url)))(0, *rows).failures) == 1
    assert len(web.bodies) == 4


def test_no_failure_and_no_text_of_a_target_names_its_address_or_its_key():
    secret = "s3cr3t"
    targets = [
        Webhook(
            "hook", Endpoint(f"https://{secret}.invalid/{secret}", {"X": secret}, Path("/no/such/file"))
        ),
        Webhook("host", Endpoint(f"https://{secret}.invalid/{secret}", {"X": secret})),
        Webhook("url", Endpoint(f"https://127.0.0.1:1/{secret} {secret}")),
        Webhook("header", Endpoint("https://127.0.0.1:1/", {"X": f"{secret}\n"})),
        PagerDuty("pd", Endpoint(f"http://127.0.0.1:1/{secret}"), secret),
        Command("cmd", (f"/{secret}/{secret}", secret)),
        Mail("mail", Server(f"{secret}.invalid", 25, "none", secret, secret), f"{secret}@x.de", (f"{secret}@x.de",)),
    ]  # fmt: skip
    for target in targets:
        done = Calls(target)(0, alert())
        assert done.delivered == set()
        assert len(done.failures) == 1
        assert secret not in repr((target, done, next(target.requests(_call(alert()))).notice_keys))


def test_an_error_that_nobody_foresaw_is_one_of_its_notice_alone():
    def fail(_):
        raise LookupError("https://s3cr3t")

    def refuse(_):
        raise NotDeliveredError("no", is_down=False)

    requests = [
        NoticeRequest(frozenset("a"), fail),
        NoticeRequest(frozenset("b"), refuse),
        NoticeRequest(frozenset("c"), lambda _: None),
    ]
    done = deliver({"t": requests})["t"]
    assert (done.failures, done.delivered) == (["LookupError", "no"], {"c"})
